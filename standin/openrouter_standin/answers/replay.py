"""A replay bank: thousands of answers of realistic length, made from text when the server starts.

Belongs here: how long an answer is, which parts it has, which passages and habits it gets. Does not belong here: reading and
encoding text (`replay_passages`), what a habit is (`replay_habits`), choosing an answer for a request (`source`).

Answer number n is a function of (`[source.replay]`, digest of the text, n). Each decision about it is a draw of its own, so a
changed share changes only what it is about. The grammar is Kimi K2.5's (docs/research/openrouter-contract.md#3.3).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import NormalDist

from openrouter_standin import chance
from openrouter_standin.answers.replay_calls import make_arguments
from openrouter_standin.answers.replay_habits import (
    NO_CONTENT,
    Respeller,
    Traits,
    draw_edge,
    draw_regions,
    literal_lines,
    odd_header,
    split_lines,
)
from openrouter_standin.answers.replay_passages import GAP, Passage, Speller, Texts, encode_passages, read_texts
from openrouter_standin.answers.tokenizer_folder import load_tokenizer
from openrouter_standin.errors import StandinError
from openrouter_standin.schema.source import Habits, Replay
from openrouter_standin.vocabulary import Ids, Vocabulary

_SHORTEST = 8  # ids
_ARGUMENTS = 400  # different arguments of a bank
_MORE_CALLS = 0.4  # chance of one more call, up to three
_MISFITS = 24  # passages too long for what is left of a text, until it is taken as full
_SPREAD = 0.15  # standard deviation of an answer's reasoning share
_OPEN = 16  # last ids of a cut text that are left alone


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """One answer. `tool_names`: the tools whose calls it begins, in order."""

    ids: Ids
    thinking: bool
    tool_names: tuple[str, ...]
    traits: Traits
    prompt: str = ""
    temperature: float = 1.0

    @property
    def habits(self) -> tuple[str, ...]:
        return self.traits.names


def load_replay(settings: Replay, beside: Path) -> tuple[tuple[ReplayAnswer, ...], Vocabulary]:
    """The bank and its vocabulary; paths are relative to `beside`. Raises StandinError with one line."""
    texts = read_texts(settings.text, beside)
    vocabulary = load_tokenizer(settings.tokenizer, beside)
    return make_bank(settings, vocabulary, texts), vocabulary


def make_bank(settings: Replay, vocabulary: Vocabulary, texts: Texts) -> tuple[ReplayAnswer, ...]:
    """All answers, in order."""
    maker = Maker(settings, vocabulary, texts)
    return tuple(map(maker.make, range(settings.answers)))


def length_law(mean: float, sigma: float, top: float) -> Callable[[float], int]:
    """Draw in [0, 1) -> length: log-normal, cut off above `top`, of this mean."""
    if sigma == 0:
        return lambda u: int(mean)
    normal, edge = NormalDist(), math.log(top)

    def mean_of(mu: float) -> float:
        z = (edge - mu) / sigma
        return math.exp(mu + sigma**2 / 2) * normal.cdf(z - sigma) / normal.cdf(z)

    low, high = math.log(mean) - 5 * sigma**2 - 5, edge + 6 * sigma
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) < mean else (low, middle)
    scale = normal.cdf((edge - low) / sigma)
    return lambda u: max(_SHORTEST, int(math.exp(low + sigma * normal.inv_cdf(max(u, 1e-12) * scale))))


@dataclass
class _Field:
    """A text of an answer while it is made. `marks`: habit -> how many ids have to be left for it to be there."""

    ids: Ids = ()
    marks: dict[str, int] = field(default_factory=dict)

    def cut(self, at: int) -> None:
        self.ids, self.marks = self.ids[:at], {name: need for name, need in self.marks.items() if need <= at}


@dataclass(frozen=True)
class _Shape:
    """Which parts an answer has, before there is text. `extras`: habit -> line to be put into its reasoning or content; an answer
    with neither goes without."""

    thinking: bool
    reasoning: bool
    content: bool
    no_content: bool
    implicit_end: bool
    calls: int
    extras: Mapping[str, Passage]


class Maker:
    """Makes answers; one that is made twice is the same."""

    def __init__(self, settings: Replay, vocabulary: Vocabulary, texts: Texts) -> None:
        self._settings, self._v, self._speller = settings, vocabulary, Speller(vocabulary)
        self._key = f"replay:{settings.seed}:{texts.digest}"
        self._passages = encode_passages(texts.passages, self._speller)
        if not self._passages:
            raise StandinError(
                f"source.replay.text: no passage of it can be joined with others by {settings.tokenizer}; give more ordinary text"
            )
        self._shortest = min(len(p.inner) for p in self._passages)
        self._extras = {
            "literal_markers": encode_passages(literal_lines(), self._speller),
            "split_characters": encode_passages(split_lines(self._speller), self._speller),
        }
        arguments = make_arguments([p.text for p in self._passages], _ARGUMENTS, Random(f"{self._key}:arguments"))
        self._speller.learn(arguments)
        self._arguments = sorted(map(self._speller, arguments), key=len)
        self._argument_lengths = [len(ids) for ids in self._arguments]
        self._law = length_law(settings.mean_tokens, settings.sigma, settings.max_tokens)
        self._respeller = Respeller(self._speller)

    def _draw(self, n: int, what: str) -> float:
        return chance.unit(self._key, n, what)

    # ------------------------------------------------------------------------------------------------ one answer
    def make(self, n: int) -> ReplayAnswer:
        """Answer number n."""
        rng = Random(f"{self._key}:{n}")
        shape = self._shape(n, rng)
        length = min(self._law(self._draw(n, "length")), self._settings.max_tokens)
        names = tuple(rng.choice(self._settings.tools) for _ in range(shape.calls))
        headers, odd = self._headers(n, names, rng)
        room = length - 1 - (shape.thinking and not shape.implicit_end) - 2 * bool(names)
        arguments = [_Field(ids) for ids in self._pick_arguments(headers, room // 2, rng)]
        room -= sum(3 + len(h) + len(a.ids) for h, a in zip(headers, arguments, strict=True))
        reasoning, content = self._texts(n, shape, room, rng)
        cut = self._cut(n, shape, reasoning, content, arguments, rng)
        return self._finish(n, shape, reasoning, content, (headers, arguments, names, odd), cut, rng)

    def _shape(self, n: int, rng: Random) -> _Shape:
        s, h = self._settings, self._settings.habits
        thinking = self._draw(n, "instant") >= s.instant
        calls = 0
        if self._draw(n, "calls") < s.tool_answers:
            calls = 1 + (rng.random() < _MORE_CALLS) + (rng.random() < _MORE_CALLS**2)
        reasoning = thinking and self._draw(n, "empty_reasoning") >= h.empty_reasoning
        end = self._draw(n, "no content")
        implicit = bool(calls) and thinking and end < h.implicit_end
        no_content = bool(calls) and not implicit and h.implicit_end <= end < h.implicit_end + h.no_content
        wordy = not calls or not reasoning or self._draw(n, "content") < s.content_with_calls
        content = wordy and not implicit and not no_content
        extras = {
            name: lines[int(self._draw(n, f"{name} line") * len(lines))]
            for name, lines in self._extras.items()
            if lines and self._draw(n, name) < getattr(h, name)
        }
        return _Shape(thinking, reasoning, content, no_content, implicit, calls, extras)

    def _headers(self, n: int, names: Sequence[str], rng: Random) -> tuple[list[Ids], bool]:
        odd = bool(names) and self._draw(n, "odd_tool_ids") < self._settings.habits.odd_tool_ids
        form = odd_header(rng) if odd else "functions.{name}:{index}"
        return [self._speller(form.format(name=name, index=k)) for k, name in enumerate(names)], odd

    def _pick_arguments(self, headers: Sequence[Ids], room: int, rng: Random) -> list[Ids]:
        """Of those that fit; the shortest of all when none does."""
        out = []
        for k, header in enumerate(headers):
            most = room // (len(headers) - k) - len(header) - 3
            fitting = max(1, bisect.bisect_right(self._argument_lengths, most))
            out.append(self._arguments[rng.randrange(fitting)])
            room -= len(out[-1]) + len(header) + 3
        return out

    # ------------------------------------------------------------------------------------------------ texts
    def _texts(self, n: int, shape: _Shape, room: int, rng: Random) -> tuple[_Field, _Field]:
        share = 1.0 if not shape.content else min(0.95, max(0.05, rng.gauss(self._settings.reasoning_share, _SPREAD)))
        reasoning_room = int(room * share) if shape.reasoning else 0
        into_reasoning = shape.reasoning and (not shape.content or rng.random() < share)
        reasoning, content = _Field(), _Field()
        if shape.reasoning:
            extras = shape.extras if into_reasoning else {}
            reasoning = self._text(n, "reasoning", reasoning_room, extras, rng)
        if shape.no_content:
            content = _Field(self._speller(NO_CONTENT), {"no_content": len(self._speller(NO_CONTENT))})
        elif shape.content:
            extras = {} if into_reasoning else shape.extras
            content = self._text(n, "content", room - len(reasoning.ids), extras, rng)
        return reasoning, content

    def _text(self, n: int, name: str, room: int, extras: Mapping[str, Passage], rng: Random) -> _Field:
        """Passages with empty lines between them, and the model's whitespace at the edges."""
        h: Habits = self._settings.habits
        leading = draw_edge(getattr(h, f"{name}_leading"), self._draw(n, f"{name}_leading"))
        trailing = draw_edge(getattr(h, f"{name}_trailing"), self._draw(n, f"{name}_trailing"))
        chosen = self._fill(room - sum(len(p.inner) for p in extras.values()) - len(leading + trailing), rng)
        if not chosen and not extras:
            short = self._begin(rng.choice(self._passages).text.lstrip(), room)
            return self._joined([short], [self._speller(short)], name, leading, trailing, {})
        for line in extras.values():
            chosen.insert(rng.randrange(len(chosen) + 1), line)
        texts, inner = [p.text for p in chosen], [p.inner for p in chosen]
        at = {habit: chosen.index(line) for habit, line in extras.items()}
        return self._joined(texts, inner, name, leading, trailing, at)

    def _joined(
        self, texts: list[str], inner: list[Ids], name: str, leading: str, trailing: str, extras: Mapping[str, int]
    ) -> _Field:
        first, last = leading + texts[0].lstrip(), len(texts) - 1
        if last:
            runs = [self._speller(first + GAP), *inner[1:-1], self._speller(texts[-1] + trailing)]
        else:
            runs = [self._speller(first + trailing)]
        ends = list(itertools.accumulate(map(len, runs)))
        marks = {habit: ends[k] for habit, k in extras.items()}
        marks |= {f"{name}_leading": len(self._speller(leading))} if leading else {}
        marks |= {f"{name}_trailing": ends[-1]} if trailing else {}
        return _Field(tuple(itertools.chain.from_iterable(runs)), marks)

    def _fill(self, room: int, rng: Random) -> list[Passage]:
        """Passages in random order, none again before all were there, that fit into so many ids."""
        chosen: list[Passage] = []
        misfits = 0
        while room >= self._shortest and misfits < _MISFITS:
            for k in rng.sample(range(len(self._passages)), min(len(self._passages), 256)):
                passage = self._passages[k]
                if len(passage.inner) <= room:
                    chosen.append(passage)
                    room -= len(passage.inner)
                else:
                    misfits += 1
                if room < self._shortest or misfits >= _MISFITS:
                    break
        return chosen

    def _begin(self, text: str, room: int) -> str:
        """The first words, or characters, of a text that fit into so many ids; one character at least."""
        most = max(1, 4 * room)
        while most > 1 and len(self._v.encode_text(text[:most])) > room:
            most //= 2
        return (text[:most].rsplit(" ", 1)[0] if len(text) > most else text).rstrip()

    # ------------------------------------------------------------------------------------------------ cut, respell, join
    def _cut(
        self, n: int, shape: _Shape, reasoning: _Field, content: _Field, arguments: Sequence[_Field], rng: Random
    ) -> tuple[str, int]:
        """Where the answer ends early: (part, which call), the part already cut; ("", 0) for a whole one."""
        share, chosen = self._settings.habits.cut, self._draw(n, "cut")
        edge = share.reasoning
        if chosen < edge:
            return self._cut_in("reasoning", [reasoning] if reasoning.ids else [], rng)
        edge += share.content
        if chosen < edge:
            return self._cut_in("content", [content] if content.ids else [], rng)
        return self._cut_in("arguments", arguments, rng) if chosen < edge + share.arguments else ("", 0)

    def _cut_in(self, part: str, fields: Sequence[_Field], rng: Random) -> tuple[str, int]:
        if not fields:
            return "", 0
        which = rng.randrange(len(fields))
        fields[which].cut(rng.randint(1, len(fields[which].ids)))
        return part, which

    def _finish(
        self,
        n: int,
        shape: _Shape,
        reasoning: _Field,
        content: _Field,
        calling: tuple[Sequence[Ids], Sequence[_Field], tuple[str, ...], bool],
        cut: tuple[str, int],
        rng: Random,
    ) -> ReplayAnswer:
        headers, arguments, names, odd = calling
        part, which = cut
        kept = {"reasoning": 0, "content": 0, "arguments": which + 1}.get(part, len(names))
        texts = [reasoning] if part == "reasoning" else [reasoning, content, *arguments[:kept]]
        fixed = 4 + sum(3 + len(header) for header in headers)
        regions, change = self._respell(n, texts, fixed, bool(part), rng)
        v, ids = self._v, list(reasoning.ids)
        if part != "reasoning":
            ids += [v.close_think] if shape.thinking and not shape.implicit_end else []
            ids += content.ids
        if kept:
            ids.append(v.section_begin)
        for header, text in zip(headers[:kept], arguments[:kept], strict=True):
            ids += (v.call_begin, *header, v.argument_begin, *text.ids, v.call_end)
        if part == "arguments":
            ids.pop()
        elif not part:
            ids += ([v.section_end] if kept else []) + [v.im_end]
        found = {habit for text in texts for habit in text.marks}
        found |= {"empty_reasoning"} if shape.thinking and not shape.reasoning else set()
        found |= {"implicit_end"} if shape.implicit_end and kept else set()
        found |= {"odd_tool_ids"} if odd and kept else set()
        found |= {f"cut_{part}"} if part else set()
        found |= {"non_canonical", *(["same_count"] if not change else [])} if regions else set()
        return ReplayAnswer(tuple(ids), shape.thinking, names[:kept], Traits(tuple(sorted(found)), regions, change))

    def _respell(self, n: int, texts: Sequence[_Field], fixed: int, cut: bool, rng: Random) -> tuple[int, int]:
        """(places, ids more), the texts changed. A place is drawn over all ids of the texts, but for the end of a cut one: what
        the encoder makes of half a word is not known. `fixed`: ids of the answer that are in no text."""
        h = self._settings.habits
        if self._draw(n, "non_canonical") >= h.non_canonical:
            return 0, 0
        sizes = [len(text.ids) for text in texts]
        whole = [size - _OPEN * (cut and k == len(sizes) - 1) for k, size in enumerate(sizes)]
        able = [k for k, size in enumerate(whole) if size > 0]
        most = min(draw_regions(h.regions, self._draw(n, "regions")), self._settings.max_tokens - sum(sizes) - fixed)
        wanted = Counter(rng.choices(able, weights=[whole[k] for k in able], k=max(most, 0)) if able else ())
        regions = 0
        for k, count in wanted.items():
            ids, found = self._respeller.respell(texts[k].ids[: whole[k]], count, rng)
            texts[k].ids, regions = ids + texts[k].ids[whole[k] :], regions + found
        return regions, sum(len(text.ids) for text in texts) - sum(sizes)
