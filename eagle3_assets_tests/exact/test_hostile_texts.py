"""One claim: whatever a model wrote, its row is right, or is set aside with a reason; nothing is raised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.show import visible
from eagle3_assets.targets.grammar import split
from eagle3_assets.targets.tokenizer import load_profile
from eagle3_assets.targets.turn_text import texts_of
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth
from eagle3_assets_tests.targets.test_turn_text import HOSTILE, HUGE

WITH_SURROGATES = HOSTILE | st.text(st.characters() | st.sampled_from(["\ud800", "\udfff"]), max_size=8)


def answered(truth: Truth) -> tuple[dict[str, Any], bytes, tuple[int, ...]]:
    provider = Provider(load_profile("kimi-mini"))
    made = provider.answer(truth)
    return made.request, made.body, provider.truths[0]


@pytest.mark.slow
@given(HOSTILE, HOSTILE, st.none() | HOSTILE)
@settings(max_examples=150, deadline=None)
def test_the_truth_is_among_the_survivors_whatever_the_texts_are(reasoning: str, content: str, argument: str | None) -> None:
    """Marker text in every field, CRLF, joiners, NUL, scripts: a verbatim provider's ids come back, or stand among what is left open."""
    mini = load_profile("kimi-mini")
    calls = () if argument is None else (("f", json.dumps({"a": argument}, ensure_ascii=False)),)
    request, body, truth = answered(Truth(reasoning, content, calls, "tool_calls" if calls else "stop"))
    fields = parse_fields(body)
    found = reconstruct(mini, request, fields, None, source="openrouter")
    if found.grade == "Q":
        assert found.reasons and ("empty" in str(found.reasons) or "U+FFFD" in str(found.reasons)), found.reasons
        return
    assert truth in (found.input_ids, *found.survivors)
    parts = split(mini, found.input_ids[found.prompt_len :])
    texts = texts_of(mini, parts)
    assert texts.reasoning.strip(" ") == reasoning.strip(" ") and texts.content.strip(" ") == content.strip(" ")


@pytest.mark.slow
@given(
    WITH_SURROGATES,
    WITH_SURROGATES,
    WITH_SURROGATES,
    st.sampled_from(["stop", "length", "tool_calls", None, "error"]),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_no_text_raises(reasoning: str, content: str, argument: str, finish: str | None, billed: bool) -> None:
    mini = load_profile("kimi-mini")
    message = {
        "reasoning": reasoning,
        "content": content,
        "tool_calls": [{"id": argument, "function": {"name": "f", "arguments": argument}}],
    }
    body = {"choices": [{"index": 0, "finish_reason": finish, "message": message}]}
    if billed:
        body["usage"] = {"prompt_tokens": 9, "completion_tokens": 12}  # type: ignore[assignment]
    fields = parse_fields(json.dumps(body).encode())
    found = reconstruct(mini, {"messages": [{"role": "user", "content": content}]}, fields, None, source="openrouter")
    assert found.grade in ("Q", "D", "C1") and (found.reasons or found.grade == "C1")
    assert all(char.isprintable() for char in visible(reasoning + content + argument))
    if any("\ud800" <= char <= "\udfff" for char in reasoning + content + argument):
        assert found.grade == "Q"


@pytest.mark.slow
def test_a_megabyte_of_anything_is_rebuilt_or_set_aside() -> None:
    mini = load_profile("kimi-mini")
    for what in ("prose", "Korean without spaces", "25,001 letters and a marker"):
        request, body, truth = answered(Truth(HUGE[what], "ok"))
        found = reconstruct(mini, request, parse_fields(body), None, source="openrouter")
        assert truth in (found.input_ids, *found.survivors), what
    message = {"reasoning": "x" + " " * (1 << 20), "content": "ok"}
    usage = {"prompt_tokens": 9, "completion_tokens": 12}
    body = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": usage}).encode()
    found = reconstruct(mini, {"messages": [{"role": "user", "content": "q"}]}, parse_fields(body), None, source="openrouter")
    assert found.grade == "Q" and "blanks in a row" in str(found.reasons)
