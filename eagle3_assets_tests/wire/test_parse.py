"""Claims about bodies: every shape that servers send is taken apart, nothing is changed, nothing is raised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eagle3_assets.wire.fields import Fields, ToolCall
from eagle3_assets.wire.parse import parse_fields

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        "choices",
        "message",
        "delta",
        "content",
        "reasoning",
        "reasoning_details",
        "tool_calls",
        "usage",
        "error",
        "index",
        "function",
        "token_ids",
        "prompt_token_ids",
        "logprobs",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "cost",
        "x_groq",
        "text",
        "id",
    ]
)
WIRE_LIKE = st.recursive(
    JSON_VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=5) | st.lists(inner, max_size=3), max_leaves=25
)


def body(message: dict[str, Any] | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **(message or {})}, **more.pop("choice", {})}
    return json.dumps({"choices": [choice], **more}).encode()


def sse(*chunks: dict[str, Any] | str, end: bool = True) -> bytes:
    lines = [chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}" for chunk in chunks]
    return "\n\n".join([*lines, *(["data: [DONE]"] if end else []), ""]).encode()


def delta(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "gen-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_keep_alive_whitespace_before_the_json_is_no_problem() -> None:
    fields = parse_fields(b"\n         \n\n         \n" + body({"content": " Oi! "}), "application/json")
    assert fields.content == " Oi! " and fields.problems == ()


def test_absent_null_and_empty_are_told_apart() -> None:
    assert parse_fields(body({"content": None})).content is None
    assert parse_fields(body({"content": ""})).content == ""
    assert parse_fields(body({"content": "x"})).reasoning is None


def test_the_texts_of_reasoning_details_come_first_and_a_difference_is_a_problem() -> None:
    details = [{"type": "reasoning.text", "text": "b", "index": 1}, {"type": "reasoning.text", "text": "a", "index": 0}]
    fields = parse_fields(body({"reasoning_details": details, "reasoning": "ab", "reasoning_content": "ab"}))
    assert fields.reasoning == "ab" and fields.problems == ()
    fields = parse_fields(body({"reasoning_details": details, "reasoning": "other"}))
    assert fields.reasoning == "ab" and fields.problems == ("reasoning and reasoning_details differ",)
    fields = parse_fields(body({"reasoning": None, "reasoning_content": "c"}))
    assert fields.reasoning == "c"


def test_hidden_reasoning_is_a_problem() -> None:
    fields = parse_fields(body({"reasoning_details": [{"type": "reasoning.encrypted", "data": "…"}]}))
    assert any("hidden" in problem for problem in fields.problems)


def test_a_stream_with_comments_split_calls_and_a_repeated_finish_is_put_together() -> None:
    fields = parse_fields(
        sse(
            ": OPENROUTER PROCESSING",
            delta(role="assistant", reasoning=" Let", reasoning_details=[{"type": "reasoning.text", "text": " Let", "index": 0}]),
            delta(reasoning=" me", reasoning_details=[{"type": "reasoning.text", "text": " me", "index": 0}]),
            delta(content="ok"),
            delta(tool_calls=[{"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": ""}}]),
            delta(tool_calls=[{"index": 1, "id": "functions.g:1", "function": {"name": "g", "arguments": "{}"}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
            delta("tool_calls", content=""),
            {**delta("tool_calls", content=""), "usage": {"prompt_tokens": 3, "completion_tokens": 9, "cost": 0.5}},
        ),
        "text/event-stream",
    )
    assert fields.reasoning == " Let me" and fields.content == "ok" and fields.finish_reason == "tool_calls"
    assert fields.tool_calls == (ToolCall("functions.f:0", "f", '{"a": 1}'), ToolCall("functions.g:1", "g", "{}"))
    assert (fields.billed_prompt, fields.billed_completion, fields.cost_usd, fields.problems) == (3, 9, 0.5, ())
    assert fields.deltas[:3] == (("reasoning", " Let"), ("reasoning", " me"), ("content", "ok"))


def test_the_usage_chunk_may_have_no_choices() -> None:
    fields = parse_fields(
        sse(delta(content="x"), delta("stop"), {"choices": [], "usage": {"completion_tokens": 2}}), "text/event-stream"
    )
    assert fields.billed_completion == 2 and fields.finish_reason == "stop"


def test_a_stream_that_breaks_off_is_a_problem() -> None:
    fields = parse_fields(sse(delta(content="x"), end=False), "text/event-stream")
    assert fields.content == "x" and fields.problems


def test_ids_of_vllm_and_sglang_are_found_in_bodies_and_streams() -> None:
    whole = parse_fields(body({"content": "x"}, choice={"token_ids": [1, 2]}, prompt_token_ids=[7]))
    assert (whole.prompt_ids, whole.output_ids) == ((7,), (1, 2))
    first = {**delta(content="x"), "prompt_token_ids": [7]}
    first["choices"][0]["token_ids"] = [1]
    second = delta("stop", content="y")
    second["choices"][0]["token_ids"] = [2, 3]
    stream = parse_fields(sse(first, second), "text/event-stream")
    assert (stream.prompt_ids, stream.output_ids) == ((7,), (1, 2, 3))
    sglang = parse_fields(body({"content": "x"}, choice={"response_token_ids": [4, 5], "prompt_token_ids": [8]}))
    assert (sglang.prompt_ids, sglang.output_ids) == ((8,), (4, 5))


def test_ids_that_are_no_ids_are_a_problem() -> None:
    fields = parse_fields(body({"content": "x"}, choice={"token_ids": [1, "2"]}))
    assert fields.output_ids is None and fields.problems


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "empty"),
        (b"<html>502</html>", "not a JSON object"),
        (b'{"error": {"code": 502, "message": "no"}}', "server error 502: no"),
        (b'{"choices": []}', "no choices"),
        (b'{"choices": [{"index": 0, "finish_reason": "error", "error": {"message": "died"}}]}', "died"),
        (b'{"choices": [{"message": {"content": "x"}', "not a JSON object"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(raw: bytes, word: str) -> None:
    assert any(word in problem for problem in parse_fields(raw).problems)


def test_more_than_one_choice_is_a_problem_because_the_bill_is_for_all() -> None:
    raw = {"choices": [{"index": 0, "message": {"content": "a"}}, {"index": 1, "message": {"content": "b"}}]}
    fields = parse_fields(json.dumps(raw).encode())
    assert fields.content == "a" and "2 choices" in fields.problems[0]


def test_a_lone_surrogate_reaches_the_fields_and_is_not_repaired() -> None:
    assert parse_fields(b'{"choices": [{"message": {"content": "a\\ud83d"}}]}').content == "a\ud83d"


def test_counts_that_are_no_counts_are_refused() -> None:
    fields = parse_fields(body({"content": "x"}, usage={"prompt_tokens": -1, "completion_tokens": True, "cost": float("1e400")}))
    assert (fields.billed_prompt, fields.billed_completion, fields.cost_usd) == (None, None, None) and len(fields.problems) == 2


@given(st.binary(max_size=200), st.sampled_from(["application/json", "text/event-stream", ""]))
@settings(max_examples=300, deadline=None)
@example(b"[" * 100_000, "application/json")
@example(b'data: {"choices": [{"delta": null}]}\n\ndata: [DONE]', "text/event-stream")
def test_no_bytes_make_it_raise(raw: bytes, content_type: str) -> None:
    assert isinstance(parse_fields(raw, content_type), Fields)


@pytest.mark.slow
@given(WIRE_LIKE, st.booleans())
@settings(max_examples=500, deadline=None)
def test_no_json_makes_it_raise(value: Any, stream: bool) -> None:
    raw = json.dumps(value)
    fields = parse_fields(
        f"data: {raw}\n\n".encode() if stream else raw.encode(), "text/event-stream" if stream else "application/json"
    )
    assert isinstance(fields, Fields)


def test_an_absurd_cost_is_no_cost() -> None:
    assert parse_fields(b'{"usage": {"cost": 1' + b"0" * 400 + b"}}", "application/json").cost_usd is None
    assert parse_fields(b'{"usage": {"cost": 0.25}}', "application/json").cost_usd == 0.25
