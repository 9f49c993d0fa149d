"""Prompt hypotheses: every prompt that a server could have made of a request.

Belongs here: the finite space of prompts (prompt-side.md), their counts and ids. Does not belong here: completions (`frames.py`,
`readings.py`), learning (`prompt_learning.py`), choosing by the bill (`prompt_selection.py`), rendering itself (`render.py`).

A prompt is a declaration of tools, the turns of a history, and a stub; the forms of the first and of the second are independent. So the
space is a `PromptTable`: two lists whose counts add up, and no ids are joined before somebody asks for them. Forms that change
nothing in a conversation are left out of its table.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_forms import (
    USUAL,
    ArgumentStyle,
    PromptForm,
    form_name,
    form_of,
    prior_of_tools,
    prior_of_word,
    tool_forms,
)
from eagle3_assets.exact.render import (
    bend_message,
    default_form,
    generation_turn,
    history_arguments,
    kept_reasoning,
    message_turn,
    render_text,
    system_turn,
    tools_turn,
)
from eagle3_assets.exact.request_facts import declared_tools, keeps_all_thinking, prefilled, reasoning_of
from eagle3_assets.exact.segments import EMPTY, Segment, Turn, digest_of, encode_turn, encode_whole, joins
from eagle3_assets.exact.tokenizer import Profile

NO_TOOLS = "no_tools"  # the word of a request that declares none
ASKED_FOR = 30.0  # how much likelier a form is that the request itself asks for (tool_choice "none", `partial`, `thinking.keep`)
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """One half of a prompt: its segments, the words of all forms that lead to them (each a tuple of words, the likeliest first), and
    their prior. `asked`: words that the request itself asks for (what a provider does unasked says nothing about those); `silent`: the
    usual words of factors that change nothing in this request."""

    segments: tuple[Segment, ...]
    words: tuple[tuple[str, ...], ...]
    prior: float
    digest: int
    count: int
    asked: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


class PromptCandidate:
    """One candidate for the prompt: `ids` (joined when asked for), their `count`, and the names of all `forms` that lead to them."""

    __slots__ = ("_forms", "_ids", "_parts", "count", "prior")

    def __init__(self, ids: Sequence[int] = (), forms: Sequence[str] = (), prior: float = 1.0) -> None:
        self._ids: tuple[int, ...] | None = tuple(ids)
        self._forms: tuple[str, ...] | None = tuple(forms)
        self._parts: tuple[Part, ...] = ()
        self.count, self.prior = len(self._ids), prior

    @classmethod
    def of(cls, tools: Part, history: Part) -> PromptCandidate:
        """The prompt of two parts; nothing is joined yet."""
        found = cls.__new__(cls)
        found._ids, found._forms, found._parts = None, None, (tools, history)
        found.count, found.prior = tools.count + history.count, tools.prior * history.prior
        return found

    @property
    def ids(self) -> tuple[int, ...]:
        if self._ids is None:
            segments = (segment.ids for part in self._parts for segment in part.segments)
            self._ids = tuple(itertools.chain.from_iterable(segments))
        return self._ids

    @property
    def forms(self) -> tuple[str, ...]:
        if self._forms is None:
            tools, history = self._parts
            self._forms = tuple(form_name(words[0], words[1:]) for words in self.words)
        return self._forms

    @property
    def parts(self) -> tuple[Part, ...]:
        """The two halves, where there are two."""
        return self._parts

    @property
    def exempt(self) -> frozenset[str]:
        """The words that what was learned of a provider says nothing about."""
        return frozenset().union(*(part.asked | part.silent for part in self._parts))

    @property
    def words(self) -> Iterator[tuple[str, ...]]:
        """The words of each form, one a factor (`FACTORS`)."""
        if self._parts:
            tools, history = self._parts
            return ((*t, *h) for h in history.words for t in tools.words)
        known = (form for name in self._forms or () if (form := form_of(name)) is not None)
        return ((form.tools, *form.history) for form in known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptCandidate) and self.ids == other.ids and self.forms == other.forms

    def __hash__(self) -> int:
        return hash(self.ids)

    def __repr__(self) -> str:
        return f"PromptCandidate({self.count} ids, {self.forms[:1]}{' …' * (len(self.forms) > 1)})"


@dataclass(frozen=True, eq=False)
class PromptTable(Mapping[str, int]):
    """All prompts of one request. `tools` and `histories`: the distinct halves, the model's own form first. As a mapping: the name of a
    form → the number of its ids."""

    tools: tuple[Part, ...]
    histories: tuple[Part, ...]

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return sum(len(p.words) for p in self.tools) * sum(len(p.words) for p in self.histories)

    def candidates(self) -> list[PromptCandidate]:
        return [PromptCandidate.of(tools, history) for history in self.histories for tools in self.tools]

    def counted(self, count: int) -> list[PromptCandidate]:
        """The candidates of one count."""
        return [
            PromptCandidate.of(tools, history)
            for history in self.histories
            for tools in self.tools
            if tools.count + history.count == count
        ]

    @cached_property
    def counts(self) -> dict[str, int]:
        return {form: c.count for c in self.candidates() for form in c.forms}

    @cached_property
    def digests(self) -> dict[str, int]:
        """{form name: a number that tells its ids apart from those of other forms of this request}."""
        return {
            form_name(t[0], h): hash((tools.digest, history.digest))
            for history in self.histories
            for tools in self.tools
            for t in tools.words
            for h in history.words
        }

    def without_ids(self) -> PromptTable:
        """The same without ids: what a learner keeps of thousands of answers."""
        return PromptTable(*(tuple(replace(p, segments=()) for p in parts) for parts in (self.tools, self.histories)))


# ---------------------------------------------------------------------------------------------------- asking for prompts
def enumerate_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, only: Sequence[str] | None = None
) -> list[PromptCandidate]:
    """All distinct prompts that a server may have made of `request`; the first is the model's own form. Forms that lead to the
    same ids are one candidate. `only`: these forms alone. Raises ExactError where no template is known or a message cannot be
    rendered.
    """
    found = prompt_table(profile, request, thinking=thinking).candidates()
    return found if only is None else [candidate for candidate in found if set(only) & set(candidate.forms)]


def prompt_counts(profile: Profile, request: Mapping[str, Any], thinking: bool) -> PromptTable:
    """{form name: number of ids}, with `digests` that tell whether two forms give equal ids, and without the ids: what a learner keeps
    of an answer. Raises ExactError as `enumerate_prompts` does."""
    return prompt_table(profile, request, thinking=thinking).without_ids()


def rendered_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, forms: Sequence[str] | None = None
) -> set[tuple[int, ...]]:
    """The ids of `request` in the forms named in `forms` (the first that is known is enough: evidence names equal ones together);
    None asks for every form. Raises ExactError as `enumerate_prompts` does."""
    if forms is None:
        return {candidate.ids for candidate in enumerate_prompts(profile, request, thinking=thinking)}
    form = next((form for name in forms if (form := form_of(_tools_named(name, profile))) is not None), None)
    if form is None:
        return set()
    messages, tools = request.get("messages") or [], declared_tools(request)
    return {_join(profile, messages, tools, thinking, form)}


def likely_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, billed: int | None, learned: Mapping[str, Any]
) -> list[PromptCandidate]:
    """The candidates to choose from: where a provider's forms are learned and one that is still open meets the bill, those that
    are open, else all. Raises ExactError as `enumerate_prompts` does."""
    every = enumerate_prompts(profile, request, thinking=thinking)
    ruled_out = frozenset(learned.get("ruled_out") or ())
    if not ruled_out or not billed:
        return every
    left = [candidate for candidate in every if is_open(candidate, ruled_out)]
    offset = int(learned.get("offset") or 0)
    return left if any(candidate.count + offset == billed for candidate in left) else every


def is_open(candidate: PromptCandidate, ruled_out: frozenset[str]) -> bool:
    """Whether a form leads to the candidate that holds no word which was ruled out."""
    ruled_out -= candidate.exempt
    return any(ruled_out.isdisjoint(words) for words in candidate.words)


def _tools_named(name: str, profile: Profile) -> str:
    """A name in which no tools are declared, as that of a form."""
    return name.replace(NO_TOOLS, default_form(profile).tool_style, 1) if name.startswith(NO_TOOLS) else name


def _join(
    profile: Profile, messages: Messages, tools: Sequence[Mapping[str, Any]] | None, thinking: bool, form: PromptForm
) -> tuple[int, ...]:
    request = {"messages": messages, "tools": tools}
    if profile.facts["template"]["kind"] == "jinja":
        return tuple(encode_whole(profile, _render(profile, messages, tools, thinking, form)).ids)
    space = _Space(profile, request, thinking, {})
    segments = (*space.declared(form), *space.turns(form))
    if not joins(profile, segments):
        return tuple(encode_whole(profile, _render(profile, messages, tools, thinking, form)).ids)
    return tuple(itertools.chain.from_iterable(segment.ids for segment in segments))


# ---------------------------------------------------------------------------------------------------- the space
def prompt_table(profile: Profile, request: Mapping[str, Any], *, thinking: bool) -> PromptTable:
    """Every prompt of `request`. Raises ExactError where no template is known or a message cannot be rendered."""
    if not profile.renders:
        raise ExactError(f"no template for {profile.name}")
    space = _Space(profile, request, thinking, _asked_for(request))
    if profile.facts["template"]["kind"] == "jinja":
        return space.rendered_whole()
    table = space.table()
    longest = max(table.tools, key=lambda p: p.count), max(table.histories, key=lambda p: p.count)
    if joins(profile, [s for part in longest for s in part.segments]):
        return table
    return space.rendered_whole()


def _asked_for(request: Mapping[str, Any]) -> dict[str, float]:
    """{word: how much likelier the request itself makes it}."""
    asked = {}
    if request.get("tool_choice") == "none" or (request.get("functions") and not request.get("tools")):
        asked["omitted"] = ASKED_FOR
    if keeps_all_thinking(request):
        asked["reasoning_all"] = ASKED_FOR
    messages = request.get("messages") or []
    if prefilled(messages) and any(messages[-1].get(key) is True for key in ("partial", "prefix")):
        asked["prefill_open"] = ASKED_FOR
    return asked


@dataclass
class _Space:
    """The forms of one request, and its turns in them."""

    profile: Profile
    request: Mapping[str, Any]
    thinking: bool
    asked: Mapping[str, float]
    _turns: dict[tuple[Any, ...], Segment] = field(default_factory=dict)

    @cached_property
    def messages(self) -> Messages:
        return list(self.request.get("messages") or [])

    @cached_property
    def own(self) -> PromptForm:
        return replace(default_form(self.profile), strict=False)

    def table(self) -> PromptTable:
        """The two halves, each distinct one once."""
        tools = self._tools()
        histories = self._parts([(form.history, self.turns(form)) for form in self.forms()], self._history_prior)
        if any(segment.controls > markers for segment, markers in self._controls()):
            text = [replace(form, control="text") for form in self.forms()]
            known = [(words, part.segments) for part in histories for words in part.words]
            histories = self._parts([*known, *((form.history, self.turns(form)) for form in text)], self._history_prior)
        return PromptTable(tools, histories)

    def rendered_whole(self) -> PromptTable:
        """The same where ids are not those of the turns: each form is rendered and encoded as a whole. Declaration and history stay in one
        part, and its words name both."""
        tools = declared_tools(self.request)
        jinja = self.profile.facts["template"]["kind"] == "jinja"
        declared = [self.own] if not tools else self._by_template() if jinja else self._likeliest()
        out: dict[int, list[tuple[tuple[str, ...], Segment]]] = {}
        for history in self.forms():
            for form in declared:
                full = replace(history, **{name: getattr(form, name) for name in _TOOL_FIELDS})
                segment = encode_whole(self.profile, _render(self.profile, self.messages, tools, self.thinking, full))
                out.setdefault(segment.digest, []).append(((form.tools if tools else NO_TOOLS, *history.history), segment))
        parts = tuple(
            Part(
                (found[0][1],),
                tuple(words for words, _ in found),
                sum(self._tool_prior(words[0]) * self._history_prior(words[1:]) for words, _ in found),
                digest,
                found[0][1].count,
                frozenset(self.asked),
                _silent([form.history for form in self.forms()]),
            )
            for digest, found in out.items()
        )
        return WholeTable((_NOTHING,), parts)

    def _by_template(self) -> list[PromptForm]:
        """The declarations that a model's own template can be made to write: it writes what it is given, in its own style."""
        forms = tool_forms(self.own)
        return [f for f in forms if f.tool_style == "omitted" or (f.tool_style == "spaced_json" and not f.escaped)]

    def _likeliest(self) -> list[PromptForm]:
        """The declarations that a text as long as a book is tried with: each is encoded as a whole."""
        return sorted(tool_forms(self.own), key=lambda form: -self._tool_prior(form.tools))[:LIKELIEST]

    # ------------------------------------------------------------------------------------------ tools
    def _tools(self) -> tuple[Part, ...]:
        tools = declared_tools(self.request)
        if not tools:
            return (Part((), ((NO_TOOLS,),), 1.0, 0, 0),)
        key = (self.profile.tokenizer_sha256, self.own.tool_style, json.dumps(tools), frozenset(self.asked))
        found = _DECLARATIONS.get(key)
        if found is None:
            listed = [((form.tools,), self.declared(form)) for form in tool_forms(self.own)]
            found = self._parts(listed, lambda words: self._tool_prior(words[0]))
            _DECLARATIONS[key] = found
            if len(_DECLARATIONS) > MOST_DECLARATIONS:
                _DECLARATIONS.popitem(last=False)
        return found

    def declared(self, form: PromptForm) -> tuple[Segment, ...]:
        tools = declared_tools(self.request)
        return (self._encode(tools_turn(self.profile, tools, form), form, lines=True),) if tools else ()

    def _tool_prior(self, word: str) -> float:
        return 1.0 if word == NO_TOOLS else prior_of_tools(word, self.own.tool_style) * self.asked.get(word, 1.0)

    # ------------------------------------------------------------------------------------------ history
    def forms(self) -> list[PromptForm]:
        """The forms of the history that can matter in this conversation, the usual one first."""
        forms = [self.own]
        for attribute, values in self._values().items():
            forms += [replace(form, **{attribute: value}) for value in values for form in forms]
        return forms

    def _values(self) -> dict[str, list[str]]:
        """Of each factor, the unusual values that can matter."""
        history = [m for m in self.messages if m.get("role") == "assistant"]
        found: dict[str, list[str]] = {}
        if any(reasoning_of(m) for m in history) and self.profile.opened_by != "never":
            everywhere = sum(kept_reasoning(self.messages, self.thinking, self.own)) < len(self.messages)
            jinja = self.profile.facts["template"]["kind"] == "jinja"
            found["history_reasoning"] = ["dropped", "all"] if everywhere and not jinja else ["dropped"]
        arguments = [_arguments(call) for m in history for call in m.get("tool_calls") or ()]
        if arguments:
            rewritten = [s for s in get_args(ArgumentStyle) if any(history_arguments(a, s) != _as_sent(a) for a in arguments)]
            found["arguments"] = rewritten
            found["tool_ids"] = [style for style in ("renumbered", "local") if self._numbered(style) != self.messages]
        if any(m.get("name") for m in self.messages):
            found["names"] = ["dropped", "prefixed"]
        if any(m.get("role") == "developer" for m in self.messages):
            found["developer"] = ["system", "user"]
        if prefilled(self.messages) and self.profile.facts["template"]["kind"] != "jinja":
            found["prefill"] = ["open"]
        template = self.profile.facts["template"]
        if template.get("default_system") and not (self.messages and self.messages[0].get("role") == "system"):
            found["system"] = ["none", *(["old"] if template.get("old_system") else [])]
        return found

    def _history_prior(self, words: tuple[str, ...]) -> float:
        share = 1.0
        for word, usual in zip(words, USUAL, strict=True):
            share *= prior_of_word(word) * self.asked.get(word, 1.0) / prior_of_word(usual)
        return share

    def _numbered(self, style: str) -> Messages:
        if style not in self._ids:
            self._ids[style] = number_calls(self.profile, self.messages, anew=style == "local")
        return self._ids[style]

    @cached_property
    def _ids(self) -> dict[str, Messages]:
        return {"as_sent": self.messages}

    def turns(self, form: PromptForm) -> tuple[Segment, ...]:
        """The segments of everything behind the tools."""
        messages = self._numbered(form.tool_ids)
        bent = [bend_message(message, form) for message in messages]
        keeps = kept_reasoning(bent, self.thinking, form)
        out = [self._encode(system_turn(self.profile, bent, form), form)]
        for k, message in enumerate(bent):
            key = (k, keeps[k], form.arguments, form.tool_ids, form.names, form.developer, form.control)
            if key not in self._turns:
                turn = message_turn(self.profile, message, keep_reasoning=keeps[k], arguments=form.arguments)
                self._turns[key] = self._encode(turn, form)
            out.append(self._turns[key])
        if form.prefill == "open":
            turn = message_turn(self.profile, bent[-1], keep_reasoning=keeps[-1], arguments=form.arguments)
            out[-1] = self._encode(turn[:-1], form)
        else:
            out.append(self._encode(generation_turn(self.profile, self.thinking), form))
        return tuple(out)

    def _encode(self, turn: Turn, form: PromptForm, *, lines: bool = False) -> Segment:
        return encode_turn(self.profile, turn, control_text=form.control == "text", lines=lines) if turn else EMPTY

    def _controls(self) -> Iterator[tuple[Segment, int]]:
        """The turns of the usual form, each with the number of markers that the template wrote into it."""
        for message, keeps in zip(self.messages, kept_reasoning(self.messages, self.thinking, self.own), strict=True):
            turn = message_turn(self.profile, message, keep_reasoning=keeps, arguments="as_sent")
            yield self._encode(turn, self.own), sum(marker for _, marker in turn)

    def _parts(
        self, listed: Sequence[tuple[tuple[str, ...], tuple[Segment, ...]]], prior: Callable[[tuple[str, ...]], float]
    ) -> tuple[Part, ...]:
        """Equal ids are one part under several words."""
        out: dict[int, tuple[list[tuple[str, ...]], tuple[Segment, ...]]] = {}
        for words, segments in listed:
            out.setdefault(digest_of(segments), ([], segments))[0].append(words)
        silent = _silent([words for words, _ in listed])
        return tuple(
            Part(
                segments,
                tuple(sorted(words, key=prior, reverse=True)),
                sum(map(prior, words)),
                digest,
                sum(s.count for s in segments),
                frozenset(self.asked),
                silent,
            )
            for digest, (words, segments) in out.items()
        )


def _silent(listed: Sequence[tuple[str, ...]]) -> frozenset[str]:
    """The usual words that stand alone in their factor."""
    columns = [set(column) for column in zip(*listed, strict=True)]
    return frozenset().union(*(column for column in columns if len(column) == 1 and column <= set(USUAL)))


class WholeTable(PromptTable):
    """A table whose prompts are whole: the words of a history name the tools too."""

    def candidates(self) -> list[PromptCandidate]:
        return [_whole(part) for part in self.histories]

    def counted(self, count: int) -> list[PromptCandidate]:
        return [_whole(part) for part in self.histories if part.count == count]

    @cached_property
    def digests(self) -> dict[str, int]:
        return {form_name(words[0], words[1:]): part.digest for part in self.histories for words in part.words}

    def without_ids(self) -> PromptTable:
        return WholeTable(self.tools, tuple(replace(p, segments=()) for p in self.histories))


_NOTHING = Part((), ((),), 1.0, 0, 0)


def _whole(part: Part) -> PromptCandidate:
    return PromptCandidate.of(_NOTHING, part)


_TOOL_FIELDS = ("tool_style", "strict", "tool_keys", "wrapped", "escaped")
_DECLARATIONS: OrderedDict[tuple[str, str, str, frozenset[str]], tuple[Part, ...]] = OrderedDict()
MOST_DECLARATIONS, LIKELIEST = 64, 8


def _arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function.get("arguments", "") if isinstance(function, Mapping) else ""


def _as_sent(arguments: Any) -> str:
    return history_arguments(arguments, "as_sent")


def _render(
    profile: Profile, messages: Messages, tools: Sequence[Mapping[str, Any]] | None, thinking: bool, form: PromptForm
) -> str:
    if form.tool_ids != "as_sent":
        messages = number_calls(profile, messages, anew=form.tool_ids == "local")
    return render_text(profile, messages, tools, thinking=thinking, form=form)


def number_calls(profile: Profile, messages: Messages, *, anew: bool = False) -> Messages:
    """The messages with ids counted over the conversation (`anew`: from 0 in each turn), those of the results renamed with them."""
    names: dict[Any, str] = {}
    out: list[Mapping[str, Any]] = []
    number = 0
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list | tuple) and calls:
            number = 0 if anew else number
            renamed: list[dict[str, Any]] = []
            for call in calls:
                function = call.get("function") if isinstance(call, Mapping) else None
                name = function.get("name") if isinstance(function, Mapping) else None
                if not isinstance(name, str):
                    return list(messages)
                # every call counts, under whatever id it came
                names[str(call.get("id"))] = profile.tool_id(name, number)
                renamed.append({**call, "id": profile.tool_id(name, number)})
                number += 1
            message = {**message, "tool_calls": renamed}
        elif message.get("role") == "tool" and str(message.get("tool_call_id")) in names:
            message = {**message, "tool_call_id": names[str(message["tool_call_id"])]}
        out.append(message)
    return out
