"""Claims about the hypothesis space: what is in it, and that its shortcuts change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.exact.fields import Fields, ToolCall
from eagle3_assets.exact.grammar import check
from eagle3_assets.exact.hypotheses import SPACINGS, bend, edge_encoder, enumerate_completions, enumerate_prompts, unbend
from eagle3_assets.exact.tokenizer import Profile, load_profile

EDGY = st.text(" \nabé你😀'", max_size=6)
SENTENCES = st.text("abcXYZ .,'\n1é你", max_size=400)


def fields(**changes: Any) -> Fields:
    return Fields(**{"reasoning": None, "content": None, "tool_calls": (), "finish_reason": "stop", **changes})


@given(EDGY, EDGY, st.booleans(), st.sampled_from(SPACINGS))
def test_bending_undoes_unbending(reasoning: str, content: str, calls: bool, spacing: str) -> None:
    texts = unbend(spacing, reasoning, content, calls=calls)
    if texts is not None:
        assert bend(texts) == (reasoning, content)


def test_injection_takes_at_most_one_space_off_an_edge() -> None:
    texts = unbend("injected", "  a  ", "  b", calls=False)
    assert texts is not None and (texts.reasoning, texts.content) == (" a ", " b")
    inner = unbend("injected_inner", " a ", " b ", calls=True)
    assert inner is not None and (inner.reasoning, inner.content) == (" a", "b")


def test_a_text_without_a_space_in_front_was_not_injected_and_one_with_it_was_not_stripped() -> None:
    assert unbend("injected", "a", "", calls=False) is None
    assert unbend("stripped_both", " a", "b", calls=False) is None
    assert unbend("injected_inner", "a", " b", calls=False) is not None


@given(st.text("ab ", max_size=3), SENTENCES, st.text(" \nb", max_size=3))
@settings(max_examples=400, deadline=None)
def test_the_shared_middle_of_a_text_never_changes_its_ids(front: str, text: str, back: str) -> None:
    profile = load_profile("kimi-mini")
    encode = edge_encoder(profile)
    for variant in (text, front + text, text + back, front + text + back):
        assert list(encode(variant)) == profile.encode(variant)


def test_the_shared_middle_is_right_on_kimis_own_vocabulary(k25: Profile, recorded: list[dict[str, Any]]) -> None:
    encode = edge_encoder(k25)
    for row in recorded:
        for front in ("", " ", "\n", "x"):
            text = front + row["response_body"][:5000]
            assert list(encode(text)) == k25.encode(text)


@given(
    st.text(max_size=30).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)),
    st.sampled_from(["<|im_end|>", "</think>", "<|tool_call_begin|>", "[EOS]", "<|reserved_token_4104|>"]),
    st.sampled_from(["stop", "length"]),
)
@settings(max_examples=200, deadline=None)
def test_marker_text_in_any_field_stays_ordinary_text(text: str, marker: str, finish: str) -> None:
    profile = load_profile("kimi-mini")
    quoted = text + marker + text
    answer = fields(reasoning=quoted, content=quoted, tool_calls=(ToolCall("functions.f:0", "f", quoted),), finish_reason=finish)
    for completion in enumerate_completions(profile, answer, thinking=True, prior_calls=0):
        assert check(profile, completion.ids, truncated=finish == "length") is None
        assert completion.ids.count(profile.end_id) == (0 if finish == "length" else 1)
        assert profile.decode(completion.parts.content).strip() == quoted.strip()


def test_reasoning_may_end_with_the_tool_section_instead_of_its_marker(mini: Profile) -> None:
    answer = fields(reasoning=" r", tool_calls=(ToolCall("functions.f:0", "f", "{}"),), finish_reason="tool_calls")
    found = enumerate_completions(mini, answer, thinking=True, prior_calls=0)
    assert {completion.parts.closed for completion in found} == {True, False}
    with_content = enumerate_completions(mini, fields(reasoning=" r", content="c"), thinking=True, prior_calls=0)
    assert {completion.parts.closed for completion in with_content} == {True}


def test_foreign_tool_ids_are_rebuilt_from_the_conversations_counter(mini: Profile) -> None:
    calls = (ToolCall("call_9f", "f", "{}"), ToolCall("call_a0", "g.h", "{}"))
    found = enumerate_completions(mini, fields(tool_calls=calls, finish_reason="tool_calls"), thinking=True, prior_calls=2)
    heads = {c.tool_ids: [mini.decode(call.head) for call in c.parts.calls] for c in found}
    assert heads["rebuilt"] == ["functions.f:2", "functions.g.h:3"]
    assert heads["wire"] == ["call_9f", "call_a0"], "models do write odd ids: the bill decides"


def test_native_tool_ids_with_the_conversations_next_number_are_the_only_hypothesis(mini: Profile) -> None:
    answer = fields(tool_calls=(ToolCall("functions.f:7", "f", "{}"),), finish_reason="tool_calls")
    assert {c.tool_ids for c in enumerate_completions(mini, answer, thinking=True, prior_calls=7)} == {"wire"}


def test_a_native_id_with_another_number_leaves_two_sequences_of_one_length(mini: Profile) -> None:
    """The server may have renumbered it, or the model may have miscounted: no bill can tell, so no row of it is B1."""
    answer = fields(tool_calls=(ToolCall("functions.f:7", "f", "{}"),), finish_reason="tool_calls")
    found = enumerate_completions(mini, answer, thinking=True, prior_calls=0)
    assert found[0].tool_ids == "wire", "the first is the text as it stands"
    verbatim = [c for c in found if c.spacing == "verbatim" and c.parts.closed]
    assert [c.tool_ids for c in verbatim] == ["wire", "rebuilt"]
    assert len({c.ids for c in verbatim}) == 2 and len({len(c.ids) for c in verbatim}) == 1


def test_raw_arguments_are_never_parsed_and_dumped(mini: Profile) -> None:
    raw = '{"b":  1,\n "a": "\\u00e9",}'
    answer = fields(tool_calls=(ToolCall("functions.f:0", "f", raw),), finish_reason="tool_calls")
    for completion in enumerate_completions(mini, answer, thinking=True, prior_calls=0):
        assert mini.decode(completion.parts.calls[0].arguments or ()) == raw


def test_forms_that_change_nothing_are_one_candidate(mini: Profile) -> None:
    plain = {"messages": [{"role": "user", "content": "q"}]}
    assert len(enumerate_prompts(mini, plain, thinking=True)) == 1


def test_a_declared_tool_opens_the_forms_of_its_declaration(tokenizers: Path, recorded: list[dict[str, Any]]) -> None:
    profile = load_profile("kimi-k2.5", tokenizers)
    row = next(row for row in recorded if row["id"].endswith("kimi/tool#1") and "OpenRouter" in row["id"])
    candidates = enumerate_prompts(profile, row["request"], thinking=True)
    names = {form for candidate in candidates for form in candidate.forms}
    assert candidates[0].forms[0] == "typescript/reasoning_kept/arguments_as_sent"
    assert {
        "compact_json+typed/reasoning_dropped/arguments_spaced",
        "spaced_json+strict/reasoning_kept/arguments_as_sent",
    } <= names
