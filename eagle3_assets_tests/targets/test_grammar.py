"""Claims about the grammar: what the model may emit is accepted, taken apart and put together; nothing else is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.targets.grammar import CallParts, GrammarError, Parts, assemble, check, split
from eagle3_assets.targets.tokenizer import Profile, load_profile

WORDS = st.lists(st.integers(0, 2047), max_size=5).map(tuple)
CALLS = st.lists(st.builds(CallParts, WORDS, WORDS), min_size=1, max_size=3).map(tuple)


def whole_turns() -> st.SearchStrategy[Parts]:
    plain = st.builds(Parts, WORDS, WORDS, closed=st.just(True), ended=st.just(True))
    tools = st.builds(Parts, WORDS, WORDS, CALLS, closed=st.just(True), section=st.just(True), ended=st.just(True))
    implicit = st.builds(Parts, WORDS, st.just(()), CALLS, section=st.just(True), ended=st.just(True))
    return plain | tools | implicit


def ids_of(profile: Profile, *tokens: str | int) -> list[int]:
    """Markers by name, a number for an ordinary token."""
    return [token if isinstance(token, int) else profile.special(token) for token in tokens]


SECTION, CALL, ARGS, CALL_END, SECTION_END = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)


@pytest.mark.slow
@given(whole_turns())
@settings(max_examples=300, deadline=None)
def test_parts_become_ids_and_the_same_parts_again(parts: Parts) -> None:
    profile = load_profile("kimi-mini")
    assert split(profile, assemble(profile, parts)) == parts


@pytest.mark.slow
@given(whole_turns(), st.data())
@settings(max_examples=300, deadline=None)
def test_every_prefix_without_the_end_is_a_truncated_turn_and_comes_back(parts: Parts, data: st.DataObject) -> None:
    profile = load_profile("kimi-mini")
    ids = assemble(profile, parts)
    cut = ids[: data.draw(st.integers(0, len(ids) - 1))]
    assert assemble(profile, split(profile, cut, truncated=True)) == cut
    assert check(profile, cut) is not None, "an untruncated turn must be complete"


@pytest.mark.slow
@given(whole_turns(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_marker_put_anywhere_else_is_refused_or_taken_for_what_it_is(parts: Parts, data: st.DataObject) -> None:
    profile = load_profile("kimi-mini")
    ids = list(assemble(profile, parts))
    marker = data.draw(st.sampled_from(sorted(profile.special_names)))
    ids.insert(data.draw(st.integers(0, len(ids))), marker)
    try:
        assert assemble(profile, split(profile, ids)) == tuple(ids)
    except GrammarError as error:
        assert "position" in str(error)


@pytest.mark.parametrize(
    "tokens",
    [
        (1, "</think>", 2, "<|im_end|>"),
        ("</think>", 2, "<|im_end|>"),
        (1, "</think>", "<|im_end|>"),
        (1, "</think>", 2, SECTION, CALL, 3, ARGS, 4, CALL_END, SECTION_END, "<|im_end|>"),
        (1, SECTION, CALL, 3, ARGS, CALL_END, CALL, 3, ARGS, 4, CALL_END, SECTION_END, "<|im_end|>"),
    ],
)
def test_turns_that_the_model_writes_are_accepted(mini: Profile, tokens: Sequence[str | int]) -> None:
    assert check(mini, ids_of(mini, *tokens)) is None


@pytest.mark.parametrize(
    ("tokens", "where"),
    [
        ((1, "</think>", 2), "position 3"),
        ((1, "<|im_end|>"), "position 1"),
        ((1, "</think>", 2, "</think>", "<|im_end|>"), "position 3"),
        ((1, "</think>", 2, "<|im_end|>", "<|im_end|>"), "position 4"),
        ((1, "</think>", 2, "[EOS]"), "position 3"),
        (("<think>", 1, "</think>", "<|im_end|>"), "position 0"),
        ((1, "</think>", SECTION, SECTION_END, "<|im_end|>"), "position 3"),
        ((1, "</think>", SECTION, 5, "<|im_end|>"), "position 3"),
        ((1, "</think>", SECTION, CALL, 3, CALL_END, SECTION_END, "<|im_end|>"), "position 5"),
        ((1, "</think>", SECTION, CALL, 3, ARGS, 4, CALL_END, SECTION_END, 9, "<|im_end|>"), "position 9"),
        ((1, "</think>", "<|media_pad|>", "<|im_end|>"), "position 2"),
    ],
)
def test_turns_that_it_cannot_write_are_refused_with_their_position(
    mini: Profile, tokens: Sequence[str | int], where: str
) -> None:
    fault = check(mini, ids_of(mini, *tokens))
    assert fault is not None and fault.startswith(where + ":")


@pytest.mark.slow
def test_the_often_quoted_end_id_does_not_end_a_turn(k25: Profile) -> None:
    assert check(k25, [646, 163607, 19180, 163586]) is None
    assert "without the end of turn" in (check(k25, [646, 163607, 19180, 163533]) or "")


def test_a_truncated_turn_has_no_end(mini: Profile) -> None:
    assert "truncated" in (check(mini, ids_of(mini, 1, "</think>", 2, "<|im_end|>"), truncated=True) or "")


def test_instant_mode_knows_no_reasoning(mini: Profile) -> None:
    assert check(mini, ids_of(mini, 2, "<|im_end|>"), thinking=False) is None
    assert check(mini, ids_of(mini, 1, "</think>", 2, "<|im_end|>"), thinking=False) is not None


def test_k2_thinking_writes_the_opening_marker_itself(tokenizers: object) -> None:
    profile = load_profile("kimi-k2-thinking", tokenizers)  # type: ignore[arg-type]
    ids = ids_of(profile, "<think>", 1, "</think>", 2, "<|im_end|>")
    assert check(profile, ids) is None and split(profile, ids).opened
    assert check(profile, ids[1:]) is not None
