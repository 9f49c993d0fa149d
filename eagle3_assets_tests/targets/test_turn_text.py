"""Claims about texts and parts: what stands in a field comes out of the ids again, whatever it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.grammar import CallParts, assemble, check, split
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.targets.turn_text import TurnText, parts_of, read_call, texts_of
from eagle3_assets.wire.fields import ToolCall
from eagle3_assets_tests.conftest import TOKENIZERS, needs

MARKERS = ["<think>", "</think>", "<|im_end|>", "<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>", "<tool_call>", "</tool_call>",
           "[EOS]", "<|reserved_token_163600|>", "</thin", "<|"]  # fmt: skip
SCRIPTS = [
    "\r\n",
    "\x00",
    "👩‍👩‍👧",
    "🇺🇸",
    "ภาษาไทย",
    "한국어",
    "e\u0301",
    "汉字",
    " ",
    "\n\n",
    "'s",
    "\ufeff",
    "\u202e",
    "\ufffd",
]
HOSTILE = st.lists(
    st.sampled_from(MARKERS + SCRIPTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6
).map("".join)
NAMES = st.text("abcdefghijk_-.0123456789", min_size=1, max_size=8)


def profiles() -> list[str]:
    return ["kimi-mini", "kimi-k2.5", "kimi-k2-thinking", "kimi-k2-instruct", "qwen3"]


def loaded(name: str) -> Profile:
    return load_profile(name, None if name == "kimi-mini" else Path(needs(TOKENIZERS)))


@pytest.mark.slow
@pytest.mark.parametrize("name", profiles())
def test_fields_become_ids_and_the_same_fields_again(name: str) -> None:
    profile = loaded(name)

    @given(HOSTILE, HOSTILE, st.lists(st.tuples(NAMES, HOSTILE), max_size=3), st.booleans())
    @settings(max_examples=100, deadline=None)
    def claim(reasoning: str, content: str, made: list[tuple[str, str]], thinking: bool) -> None:
        thinking = thinking and profile.opened_by != "never"
        calls = tuple(
            ToolCall(profile.tool_id(name, k), name, json.dumps({"a": text}, ensure_ascii=False))
            for k, (name, text) in enumerate(made)
        )
        turn = TurnText(reasoning if thinking else "", content, calls)
        parts = parts_of(profile, turn, thinking=thinking)
        ids = assemble(profile, parts)
        assert check(profile, ids, thinking=thinking) is None
        assert split(profile, ids, thinking=thinking) == parts and texts_of(profile, parts) == turn
        # a marker's text never makes the marker: control tokens are those of the grammar, in its order
        controls = [token for token in ids if token >= profile.n_base]
        expected = len(calls) * len([m for m in ("call_begin", "argument_begin", "call_end") if m in profile.tool_ids])
        expected += 2 * bool(calls) * ("section_begin" in profile.tool_ids) + 1
        expected += thinking * (1 + (profile.opened_by == "model"))
        assert len(controls) == expected

    claim()


@pytest.mark.slow
@given(HOSTILE, HOSTILE)
@settings(max_examples=200, deadline=None)
def test_two_fields_around_a_marker_are_encoded_each_by_itself(a: str, b: str) -> None:
    """enc(a) + [id] + enc(b) is what the model's own encoder makes of the joined text with that one marker allowed."""
    profile = load_profile("kimi-mini")
    for marker in ("</think>", "<|tool_call_argument_begin|>"):
        if marker in a + b:
            continue
        joined = profile.encoding.encode(a + marker + b, allowed_special={marker}, disallowed_special=())
        assert [*profile.encode(a), profile.special(marker), *profile.encode(b)] == joined


@pytest.mark.slow
@given(st.text(max_size=20), st.sampled_from(["\ud800", "\udfff", "\udc80"]), st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_lone_surrogate_in_any_field_is_one_line_and_no_other_error(before: str, surrogate: str, behind: str) -> None:
    profile = load_profile("kimi-mini")
    text = before + surrogate + behind
    for turn in (TurnText(text, ""), TurnText("", text), TurnText("", "", (ToolCall("functions.f:0", "f", text),))):
        with pytest.raises(ExactError, match="lone surrogate") as caught:
            parts_of(profile, turn)
        assert "\n" not in str(caught.value)


HUGE = {
    "prose": "The user wants a list of rivers, and the second one is long. " * 17_000,
    "one run of letters": "a" * (1 << 20),
    "one run of spaces": " " * 900_000,
    "line breaks": "\r\n" * (1 << 19),
    "Korean without spaces": "한국어" * 350_000,
    "Thai": "ภาษาไทย " * 130_000,
    "family emoji": "👩‍👩‍👧" * 60_000,
    "25,001 letters and a marker": "x" * 25_001 + "</think>" + "y" * 25_000,
    "NUL": "\x00" * 100_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HUGE)
def test_a_megabyte_in_a_field_comes_back(what: str) -> None:
    profile, text = load_profile("kimi-mini"), HUGE[what]
    parts = parts_of(profile, TurnText(text, text[:1000]))
    ids = assemble(profile, parts)
    assert split(profile, ids) == parts and texts_of(profile, parts) == TurnText(text, text[:1000])
    assert sum(token >= profile.n_base for token in ids) == 2


def test_a_run_of_spaces_that_no_encoder_splits_is_one_line_and_never_a_panic() -> None:
    profile = load_profile("kimi-mini")
    for text in ("x" + " " * (1 << 20), " " * 900_001 + "y"):
        with pytest.raises(ExactError, match="blanks in a row from character"):
            parts_of(profile, TurnText("", text))
    assert profile.encode_prompt("x" + " " * (1 << 20)), "a prompt is cut in chunks first"


# ---------------------------------------------------------------------------------------------------- calls
def test_a_qwen_call_keeps_its_arguments_as_they_were_written() -> None:
    profile = loaded("qwen3")
    raw = '{"b":  1, "a": "\\u00e9"}'
    call = ToolCall("", 'odd "name"', raw)
    parts = parts_of(profile, TurnText("", "", (call,)))
    assert read_call(profile, parts.calls[0]) == call
    assert profile.decode(assemble(profile, parts)).count(raw) == 1


@pytest.mark.parametrize(
    "body", ["", "{}", '{"name": 3, "arguments": {}}', '\n{"arguments": {}, "name": "f"}\n', "<think>", '{"name": "f']
)
def test_a_call_of_another_form_is_shown_as_it_is(body: str) -> None:
    profile = loaded("qwen3")
    assert read_call(profile, CallParts((), tuple(profile.encode(body)))) == ToolCall("", "", body)
    mini = load_profile("kimi-mini")
    odd = CallParts(tuple(mini.encode(body)), tuple(mini.encode("{}")))
    assert read_call(mini, odd) == ToolCall(body, "", "{}")
