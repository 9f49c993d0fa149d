"""A replay bank: lengths as asked, each habit at its share and what it says it is, all else canonical, the same everywhere."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from openrouter_standin.answers.replay import ReplayAnswer, length_law, load_replay, make_bank
from openrouter_standin.answers.replay_habits import NO_CONTENT, Respeller
from openrouter_standin.answers.replay_passages import MARKER_NAMES, Speller, read_texts
from openrouter_standin.schema.source import Cut, Habits, Replay
from openrouter_standin.vocabulary import Ids, Vocabulary

EDGES = ("reasoning_leading", "reasoning_trailing", "content_leading", "content_trailing")
NONE: dict[str, Any] = {
    **dict.fromkeys(("non_canonical", "literal_markers", "split_characters", "empty_reasoning", "implicit_end"), 0.0),
    **dict.fromkeys(("no_content", "odd_tool_ids"), 0.0),
    **{name: {} for name in EDGES},
    "cut": Cut(reasoning=0, content=0, arguments=0),
}
BUILT_IN = read_texts((), Path())


def bank_of(v: Vocabulary, answers: int = 600, mean_tokens: int = 300, **habits: Any) -> tuple[ReplayAnswer, ...]:
    """A bank with no habits but the given ones."""
    table = Habits(**{**NONE, **habits})
    return make_bank(Replay(answers=answers, mean_tokens=mean_tokens, max_tokens=4096, habits=table), v, BUILT_IN)


class Read:
    """An answer read by its markers, by hand: what no code of the stand-in says about it."""

    def __init__(self, answer: ReplayAnswer, v: Vocabulary) -> None:
        ids = answer.ids
        self.v, self.ended = v, ids[-1] == v.im_end
        body = ids[:-1] if self.ended else ids
        assert v.im_end not in body
        self.closed = v.close_think in body
        text, _, section = _split(body, v.section_begin)
        self.section = v.section_begin in body
        self.reasoning, self.content = (), text
        if answer.thinking and self.closed:
            self.reasoning, _, self.content = _split(text, v.close_think)
        elif answer.thinking:
            self.reasoning, self.content = text, ()
        assert answer.thinking or not self.closed
        self.calls: list[tuple[Ids, Ids, bool]] = []
        while section and section[0] == v.call_begin:
            header, _, rest = _split(section[1:], v.argument_begin)
            arguments, whole, section = _split(rest, v.call_end)
            self.calls.append((header, arguments, whole))
        self.section_end = section

    @property
    def texts(self) -> list[Ids]:
        return [t for t in (self.reasoning, self.content, *(part for h, a, _ in self.calls for part in (h, a))) if t]


def _split(ids: Ids, marker: int) -> tuple[Ids, bool, Ids]:
    at = ids.index(marker) if marker in ids else len(ids)
    return ids[:at], at < len(ids), ids[at + 1 :]


def canonical(ids: Ids, v: Vocabulary) -> bool:
    raw = b"".join(map(v.encoding.decode_single_token_bytes, ids))
    return v.encode_text(raw.decode()) == ids


def near(found: int, of: int, share: float) -> bool:
    """Within four standard deviations of a share."""
    return abs(found - of * share) <= 4 * math.sqrt(of * share * (1 - share)) + 1


@cache
def _plain(v: Vocabulary) -> tuple[ReplayAnswer, ...]:
    return bank_of(v)


@pytest.fixture
def plain(vocabulary: Vocabulary) -> tuple[ReplayAnswer, ...]:
    return _plain(vocabulary)


# ---------------------------------------------------------------------------------------------------- canonical
def check_canonical(bank: Sequence[ReplayAnswer], v: Vocabulary) -> None:
    for answer in bank:
        read = Read(answer, v)
        assert read.ended and answer.habits == ()
        assert all(canonical(text, v) for text in read.texts)
        before = b"".join(map(v.encoding.decode_single_token_bytes, read.reasoning)).decode()
        after = b"".join(map(v.encoding.decode_single_token_bytes, read.content)).decode()
        if read.closed:
            joined = v.encoding.encode(f"{before}</think>{after}", allowed_special={"</think>"})
            assert tuple(joined) == (*read.reasoning, v.close_think, *read.content)
        assert before == before.strip() and after == after.strip()


def test_without_habits_every_text_is_what_the_encoder_gives(vocabulary: Vocabulary, plain: tuple[ReplayAnswer, ...]) -> None:
    check_canonical(plain, vocabulary)
    assert all(Read(a, vocabulary).reasoning for a in plain if a.thinking)


@pytest.mark.slow
def test_without_habits_with_kimis_tokenizer(kimi: Vocabulary) -> None:
    check_canonical(bank_of(kimi, 150, mean_tokens=900), kimi)


@pytest.mark.slow
def test_the_ids_of_a_bank_are_the_same_few_objects(kimi: Vocabulary) -> None:
    bank = bank_of(kimi, 60, mean_tokens=900, non_canonical=0.5, split_characters=0.5)
    ids = [i for answer in bank for i in answer.ids]
    assert len({id(i) for i in ids}) == len(set(ids))


def test_shares_of_modes_tools_and_lengths_of_the_parts(vocabulary: Vocabulary, plain: tuple[ReplayAnswer, ...]) -> None:
    reads = [Read(answer, vocabulary) for answer in plain]
    assert near(sum(not a.thinking for a in plain), len(plain), 0.1)
    assert near(sum(bool(r.calls) for r in reads), len(plain), 0.4)
    both = [r for r in reads if r.reasoning and r.content]
    assert mean(len(r.reasoning) / len(r.reasoning + r.content) for r in both) == pytest.approx(0.6, abs=0.04)
    with_calls = [r for r in reads if r.calls and r.reasoning]
    assert near(sum(bool(r.content) for r in with_calls), len(with_calls), 0.3)
    assert all(r.content for r in reads if not r.calls)


# ---------------------------------------------------------------------------------------------------- length
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "tokens", "sigma"), [(0, 3500, 0.8), (1, 1200, 0.5)])
def test_lengths_have_the_mean_and_the_tail(vocabulary: Vocabulary, seed: int, tokens: int, sigma: float) -> None:
    settings = Replay(seed=seed, answers=1500, mean_tokens=tokens, sigma=sigma, habits=Habits(**NONE))
    lengths = [len(answer.ids) for answer in make_bank(settings, vocabulary, BUILT_IN)]
    assert mean(lengths) == pytest.approx(tokens, rel=0.06)
    assert max(lengths) <= 16_384
    assert pstdev(math.log(n) for n in lengths) == pytest.approx(sigma, rel=0.1)
    if tokens == 3500:
        assert max(lengths) > 14_000 and near(sum(n > 10_000 for n in lengths), len(lengths), 0.043)


@pytest.mark.slow
@examples(max_examples=60, deadline=None)
@given(st.integers(50, 8000), st.floats(0.05, 2.5), st.floats(2.0, 20.0))
def test_the_law_has_its_mean_below_its_top(tokens: int, sigma: float, factor: float) -> None:
    law, top = length_law(tokens, sigma, tokens * factor), tokens * factor
    drawn = [law((k + 0.5) / 4000) for k in range(4000)]
    assert max(drawn) <= top
    assert mean(drawn) == pytest.approx(tokens, rel=0.02, abs=8)
    assert drawn == sorted(drawn)


def test_all_alike_without_spread(vocabulary: Vocabulary) -> None:
    settings = Replay(answers=40, mean_tokens=2000, sigma=0, habits=Habits(**NONE))
    lengths = [len(answer.ids) for answer in make_bank(settings, vocabulary, BUILT_IN)]
    assert all(1900 < n <= 2000 for n in lengths)


# ---------------------------------------------------------------------------------------------------- habits
@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True])
def test_non_canonical_answers_say_the_same_in_other_ids(
    vocabulary: Vocabulary, request: pytest.FixtureRequest, real: bool
) -> None:
    v: Vocabulary = request.getfixturevalue("kimi") if real else vocabulary
    bank, twin = bank_of(v, 500, non_canonical=0.4, regions=1), bank_of(v, 500)
    flagged = [(a, b) for a, b in zip(bank, twin, strict=True) if "non_canonical" in a.habits]
    assert near(len(flagged), 500, 0.4)
    for answer, same in zip(bank, twin, strict=True):
        if "non_canonical" not in answer.habits:
            assert answer == same
    for answer, same in flagged:
        assert answer.ids != same.ids and v.text(answer.ids) == v.text(same.ids)
        assert not all(canonical(text, v) for text in Read(answer, v).texts)
        assert all(canonical(header, v) for header, _, _ in Read(answer, v).calls)
        assert answer.traits.count_change == len(answer.ids) - len(same.ids)
        assert ("same_count" in answer.habits) == (len(answer.ids) == len(same.ids)) and answer.traits.regions == 1
    changes = Counter(answer.traits.count_change for answer, _ in flagged)
    assert set(changes) <= {-1, 0, 1} and 0.12 < changes[0] / len(flagged) < 0.38


@pytest.mark.slow
def test_several_places_of_an_answer_can_be_respelled(vocabulary: Vocabulary) -> None:
    regions = [a.traits.regions for a in bank_of(vocabulary, 300, non_canonical=1.0, regions=3) if len(a.ids) > 40]
    assert mean(regions) == pytest.approx(3, abs=0.5) and min(regions) >= 1 and len(set(regions)) > 4


@pytest.mark.slow
@examples(max_examples=100, deadline=None)
@given(st.text(min_size=1, max_size=60), st.integers(1, 4), st.randoms(use_true_random=False))
def test_respelling_keeps_the_bytes_and_never_gives_the_encoders_ids(text: str, regions: int, rng: Any) -> None:
    from kimi_mini.tokenizer import load_encoding

    v = Vocabulary.of(load_encoding())
    ids = v.encode_text(text)
    other, found = _respeller(v).respell(ids, regions, rng)
    raw = v.encoding.decode_single_token_bytes
    assert b"".join(map(raw, other)) == b"".join(map(raw, ids))
    assert (other != ids) == (found > 0) and found <= regions


@cache
def _respeller(v: Vocabulary) -> Respeller:
    return Respeller(Speller(v))


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGES)
def test_edges_have_their_whitespace_at_its_share(vocabulary: Vocabulary, name: str) -> None:
    v, share = vocabulary, {" ": 0.3, "\n\n": 0.2, "\n": 0.1}
    bank = bank_of(v, 800, **{name: share})
    field, side = name.split("_")
    texts = [v.text(getattr(Read(a, v), field)) for a in bank]
    found: Counter[str] = Counter()
    for answer, text in zip(bank, texts, strict=True):
        bare = text.lstrip() if side == "leading" else text.rstrip()
        edge = text.replace(bare, "", 1) if text else None
        assert (name in answer.habits) == bool(edge)
        assert all(canonical(ids, v) for ids in Read(answer, v).texts)
        if text:
            found[edge or ""] += 1
    assert set(found) == {"", *share}
    assert all(near(found[edge], found.total(), s) for edge, s in share.items())


@pytest.mark.slow
def test_marker_text_is_written_as_ordinary_text(vocabulary: Vocabulary, plain: tuple[ReplayAnswer, ...]) -> None:
    v = vocabulary
    bank = bank_of(v, 600, literal_markers=0.25)
    flagged = [answer for answer in bank if "literal_markers" in answer.habits]
    assert near(len(flagged), 600, 0.25)
    seen = Counter()
    for answer in bank:
        read = Read(answer, v)
        named = [n for n in MARKER_NAMES for text in read.texts if n in v.text(text)]
        assert bool(named) == ("literal_markers" in answer.habits)
        assert all(canonical(text, v) for text in read.texts) and read.ended
        seen.update(named)
    assert {"</think>", "<|im_end|>", "<|tool_call_begin|>"} <= set(seen)
    assert not any(n in v.text(text) for a in plain for text in Read(a, v).texts for n in MARKER_NAMES)


@pytest.mark.slow
def test_split_characters_are_spelled_with_several_ids_and_canonical(kimi: Vocabulary) -> None:
    bank, twin = bank_of(kimi, 300, split_characters=0.3), bank_of(kimi, 300)
    assert near(sum("split_characters" in a.habits for a in bank), 300, 0.3)

    def parts(answer: ReplayAnswer) -> int:
        return sum(kimi.encoding.decode_single_token_bytes(i).decode("utf-8", "ignore") == "" for i in answer.ids)

    for answer in bank:
        assert all(canonical(text, kimi) for text in Read(answer, kimi).texts)
        if "split_characters" in answer.habits:
            assert any(c in kimi.text(answer.ids) for c in "\U0001f3f4\U00020bb7\U0001202d\U0002a6a5") and parts(answer) >= 2
        else:
            assert answer in twin


def test_reasoning_that_is_empty(vocabulary: Vocabulary) -> None:
    bank = bank_of(vocabulary, empty_reasoning=0.3)
    thinking = [a for a in bank if a.thinking]
    assert near(sum("empty_reasoning" in a.habits for a in thinking), len(thinking), 0.3)
    assert all((a.ids[0] == vocabulary.close_think) == ("empty_reasoning" in a.habits) for a in bank)


def test_reasoning_that_ends_at_the_section(vocabulary: Vocabulary) -> None:
    bank = bank_of(vocabulary, implicit_end=0.3)
    able = [a for a in bank if a.thinking and a.tool_names]
    assert near(sum("implicit_end" in a.habits for a in able), len(able), 0.3)
    for answer in bank:
        read = Read(answer, vocabulary)
        assert ("implicit_end" in answer.habits) == (answer.thinking and not read.closed)
        assert not read.closed or "implicit_end" not in answer.habits
        if "implicit_end" in answer.habits:
            assert read.reasoning and read.section and not read.content


def test_no_content_written_out(vocabulary: Vocabulary) -> None:
    bank = bank_of(vocabulary, no_content=0.3, implicit_end=0.2)
    able = [a for a in bank if a.tool_names]
    assert near(sum("no_content" in a.habits for a in able), len(able), 0.3)
    for answer in bank:
        content = vocabulary.text(Read(answer, vocabulary).content)
        assert (content == NO_CONTENT) == ("no_content" in answer.habits)


def test_tool_ids_of_odd_forms(vocabulary: Vocabulary) -> None:
    bank = bank_of(vocabulary, odd_tool_ids=0.3)
    able = [a for a in bank if a.tool_names]
    assert near(sum("odd_tool_ids" in a.habits for a in able), len(able), 0.3)
    forms = set()
    for answer in able:
        for k, ((header, _, _), name) in enumerate(zip(Read(answer, vocabulary).calls, answer.tool_names, strict=True)):
            odd = {f"functions{name}{k}": "bare name", f"call{k:05d}": "call", str(k): "number"}
            text = vocabulary.text(header)
            assert (text != f"functions.{name}:{k}") == ("odd_tool_ids" in answer.habits)
            forms |= {odd[text]} if "odd_tool_ids" in answer.habits else set()
    assert forms == {"bare name", "call", "number"}


# ---------------------------------------------------------------------------------------------------- cuts, calls
@pytest.mark.slow
@pytest.mark.parametrize("part", ["reasoning", "content", "arguments"])
def test_cut_answers_end_inside_their_part(vocabulary: Vocabulary, plain: tuple[ReplayAnswer, ...], part: str) -> None:
    v = vocabulary
    bank = bank_of(v, cut=Cut(**{**dict.fromkeys(("reasoning", "content", "arguments"), 0.0), part: 0.3}))
    whole = [Read(answer, v) for answer in plain]
    able = [bool({"reasoning": r.reasoning, "content": r.content, "arguments": r.calls}[part]) for r in whole]
    cut = [f"cut_{part}" in answer.habits for answer in bank]
    assert not any(c and not a for c, a in zip(cut, able, strict=True)) and near(sum(cut), sum(able), 0.3)
    for answer, full, is_cut in zip(bank, plain, cut, strict=True):
        assert (answer.ids[-1] == v.im_end) == (not is_cut)
        if not is_cut:
            assert answer == full
        elif part != "arguments":
            assert answer.ids == full.ids[: len(answer.ids)] and answer.tool_names == ()
            assert v.section_begin not in answer.ids and (part == "content" or v.close_think not in answer.ids)
        else:
            calls = Read(answer, v).calls
            assert answer.ids == full.ids[: len(answer.ids)]
            assert [w for _, _, w in calls] == [True] * (len(calls) - 1) + [False]
            assert answer.tool_names == full.tool_names[: len(calls)] and calls[-1][1]


@pytest.mark.slow
def test_a_habit_that_a_cut_took_away_is_not_told(vocabulary: Vocabulary) -> None:
    v = vocabulary
    bank = bank_of(
        v, literal_markers=0.6, content_trailing={"\n": 1.0}, reasoning_trailing={"\n": 1.0}, odd_tool_ids=1.0, implicit_end=0.4,
        cut=Cut(reasoning=0.5, content=0.3, arguments=0.2),
    )  # fmt: skip
    for answer in bank:
        read = Read(answer, v)
        assert any(n in v.text(text) for n in MARKER_NAMES for text in read.texts) or "literal_markers" not in answer.habits
        if "cut_reasoning" in answer.habits:
            assert not {"content_trailing", "odd_tool_ids", "implicit_end"} & set(answer.habits)
        if "reasoning_trailing" in answer.habits:
            assert v.text(read.reasoning).endswith("\n")


def test_calls_have_arguments_of_every_kind_and_the_native_header(
    vocabulary: Vocabulary, plain: tuple[ReplayAnswer, ...]
) -> None:
    v, raw, counts = vocabulary, [], Counter[int]()
    for answer in plain:
        read = Read(answer, v)
        assert [v.text(h) for h, _, _ in read.calls] == [f"functions.{n}:{k}" for k, n in enumerate(answer.tool_names)]
        assert all(whole for _, _, whole in read.calls)
        assert read.section_end == ((v.section_end,) if read.calls else ())
        raw += [v.text(arguments) for _, arguments, _ in read.calls]
        counts[len(read.calls)] += 1
    values = [json.loads(text) for text in raw]
    assert all(isinstance(value, dict) for value in values) and set(counts) == {0, 1, 2, 3}
    assert {} in values and any("\n" in text for text in raw) and any("\\u" in text for text in raw)
    assert any(not text.isascii() for text in raw) and any('", "' in t for t in raw) and any('","' in t for t in raw)
    assert any(isinstance(inner, dict) for value in values for inner in value.values())
    assert {name for answer in plain for name in answer.tool_names} == set(Replay().tools)


# ---------------------------------------------------------------------------------------------------- the same everywhere
_SCRIPT = """
import hashlib, sys
from pathlib import Path
from openrouter_standin.answers.replay import load_replay
from openrouter_standin.schema.source import Replay
bank, _ = load_replay(Replay(answers=120, mean_tokens=400, seed=int(sys.argv[1])), Path())
print(hashlib.sha256(repr([(a.ids, a.thinking, a.tool_names, a.traits) for a in bank]).encode()).hexdigest())
"""


def _digest(seed: int, hash_seed: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(seed)], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


@pytest.mark.slow
def test_a_bank_is_the_same_in_every_process() -> None:
    assert _digest(0, "1") == _digest(0, "2") != _digest(1, "1")


def test_a_longer_bank_begins_with_the_shorter_one_and_another_text_is_another_bank(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    assert bank_of(vocabulary, 90)[:40] == bank_of(vocabulary, 40)
    (tmp_path / "own.txt").write_text("One paragraph of my own.\n\nAnd a second one, 1234.\n")
    own, _ = load_replay(Replay(answers=20, mean_tokens=300, text=("own.txt",), habits=Habits(**NONE)), tmp_path)
    long = [vocabulary.text(answer.ids) for answer in own if len(answer.ids) > 100]
    assert long and all("paragraph of my own" in text or "a second one" in text for text in long)
    (tmp_path / "own.txt").write_text("One paragraph of my own.\n\nAnd a second one, 1235.\n")
    other, _ = load_replay(Replay(answers=20, mean_tokens=300, text=("own.txt",), habits=Habits(**NONE)), tmp_path)
    assert [a.thinking for a in own] != [a.thinking for a in other]


@pytest.mark.slow
def test_all_habits_together_at_the_defaults_can_be_read(kimi: Vocabulary) -> None:
    bank = make_bank(Replay(answers=400, mean_tokens=1000), kimi, BUILT_IN)
    for answer in bank:
        read = Read(answer, kimi)
        assert read.ended == (not any(h.startswith("cut_") for h in answer.habits))
        wrong = [t for t in read.texts if not canonical_or_torn(t, kimi)]
        assert bool(wrong) == ("non_canonical" in answer.habits) or not read.ended
    assert len(set(itertools.chain.from_iterable(a.habits for a in bank))) >= 9


def canonical_or_torn(ids: Ids, v: Vocabulary) -> bool:
    try:
        return canonical(ids, v)
    except UnicodeDecodeError:
        return False


@pytest.mark.slow
def test_no_answer_is_longer_than_the_most_even_with_everything_on(vocabulary: Vocabulary) -> None:
    table = Habits(non_canonical=1, regions=100, literal_markers=1, split_characters=1, reasoning_leading={"\n" * 8: 1.0})
    settings = Replay(answers=300, mean_tokens=128, max_tokens=256, sigma=0.3, tool_answers=1, habits=table)
    assert max(len(answer.ids) for answer in make_bank(settings, vocabulary, BUILT_IN)) <= 256
