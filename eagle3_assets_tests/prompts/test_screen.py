"""What must not be sent is set aside with the reason's name; innocent look-alikes pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.prompts.screen import screen, screen_text, strings
from eagle3_assets.prompts.set_aside import EXAMPLES_PER_REASON, REASONS, SetAside, shown
from eagle3_assets.targets.profile_facts import marker_pattern, profile_facts, profile_names
from eagle3_assets_tests.prompts.test_mapping import SHAPED

U = {"role": "user", "content": "hi"}
A = {"role": "assistant", "content": "ho"}
S = {"role": "system", "content": "be"}


KIMI = marker_pattern(profile_facts("kimi-k2.5"))


def call(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids],
    }


def res(id_: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": ""}


def tool(name: Any = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def verdict(messages: list[Any], tools: list[Any] | None = None, max_chars: int = 1000, follow_ups: Any = ()) -> str | None:
    return screen(messages, tools, follow_ups, max_chars=max_chars, markers=KIMI)


@pytest.mark.parametrize(
    "messages",
    [[U], [S, U], [S, S, U], [U, A, U], [U, U], [U, call("1"), res("1")], [U, call("1", "2"), res("2"), res("1"), A, U]],
)
def test_conversations_that_chat_templates_accept_pass(messages: list[Any]) -> None:
    assert verdict(messages) is None


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        ([{"role": "user", "content": "  \n"}], "empty"),
        ([{"role": "user", "content": None}], "empty"),
        ([A, U], "wrong_roles"),
        ([S, A], "wrong_roles"),
        ([U, S], "wrong_roles"),
        ([U, A, A, U], "wrong_roles"),
        ([{"role": "critic", "content": "x"}], "wrong_roles"),
        (["hi"], "wrong_roles"),
        ([res("1"), U], "wrong_roles"),
        ([S], "ends_wrong"),
        ([U, A], "ends_wrong"),
        ([U, A, res("1")], "tool_result_without_call"),
        ([U, call("1"), res("2")], "tool_result_without_call"),
        ([U, call("1"), res("1"), res("1")], "tool_result_without_call"),
        ([U, call("1"), U], "call_without_result"),
        ([U, call("1", "2"), res("1")], "call_without_result"),
        ([U, {**A, "tool_calls": "x"}, U], "bad_tool_call"),
        ([{"role": "user", "content": "a\ud800"}], "lone_surrogate"),
        ([{"role": "user", "content": "a\0b"}], "nul"),
        ([{"role": "user", "content": "x" * 1001}], "too_long"),
    ],
)
def test_what_a_server_would_refuse_or_bend_has_its_reason(messages: list[Any], reason: str) -> None:
    assert verdict(messages) == reason
    assert reason in REASONS


@pytest.mark.parametrize("marker", [*profile_facts("kimi-k2.5").tokenizer.special, "<|reserved_token_"])
def test_every_control_marker_is_found_wherever_it_stands(marker: str) -> None:
    text = marker + "7|>" if marker.endswith("_") else marker
    assert verdict([{"role": "user", "content": f"what is {text}?"}]) == "control_marker"
    assert verdict([U], [tool(description=f"see {text}", parameters={"type": "object"})]) == "control_marker"
    assert verdict([U, call("1"), {**res("1"), "content": text}]) == "control_marker"
    assert verdict([U], follow_ups=[[{"role": "user", "content": text}]]) == "control_marker"


@pytest.mark.parametrize(
    "text",
    [
        "<|im_end|",
        "<|im_start|>",
        "<thinking>",
        "[EOSX]",
        "BOS",
        "[ PAD ]",
        "\\ud800",
        "\\u0000",
        "<|reserved token_1|>",
        "a 😀 b",
        "chas",
    ],
)
def test_look_alikes_of_markers_and_of_surrogates_pass(text: str) -> None:
    assert verdict([{"role": "user", "content": text}]) is None


def test_the_markers_are_those_of_kimis_tokenizer_files() -> None:
    import os

    shared = Path(os.environ.get("EAGLE3_SHARED_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
    config = shared / "tokenizers" / "kimi-k2.5" / "tokenizer_config.json"
    if not config.is_file():
        pytest.skip(f"{config} is absent; set EAGLE3_SHARED_DATA to the shared data")
    names = {t["content"] for t in json.loads(config.read_text())["added_tokens_decoder"].values()}
    assert len(names) == 23
    assert set(profile_facts("kimi-k2.5").tokenizer.special) == names


@pytest.mark.parametrize("name", profile_names())
def test_the_markers_of_the_target_decide_and_no_other_models(name: str) -> None:
    markers, others = marker_pattern(profile_facts(name)), {"<|im_start|>", "<|im_user|>", "<tool_call>", "[PAD]"}
    for text in others | set(profile_facts(name).tokenizer.special):
        found = screen([{"role": "user", "content": f"say {text} please"}], None, max_chars=1000, markers=markers)
        assert (found == "control_marker") == (text in profile_facts(name).tokenizer.special), (name, text)


@pytest.mark.parametrize(
    "tools",
    [
        [tool("f", parameters={"type": "object"})],
        [tool("f"), tool("g-2_X", parameters={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})],
        [],
        None,
    ],
)
def test_valid_tools_pass(tools: list[Any] | None) -> None:
    assert verdict([U], tools) is None


@pytest.mark.parametrize(
    "tools",
    [
        [tool("a b")],
        [tool("a.b")],
        [tool("")],
        [tool("x" * 65)],
        [tool(3)],
        [tool("f"), tool("f")],
        [tool("f", parameters=None)],
        [tool("f", parameters={})],
        [tool("f", parameters={"type": "string"})],
        [tool("f", parameters={"type": "object", "properties": [1]})],
        [tool("f", parameters={"type": "object", "properties": {"a": "string"}})],
        [tool("f", parameters={"type": "object", "required": "a"})],
        [{"type": "function"}],
        ["f"],
    ],
)
def test_invalid_tools_are_set_aside(tools: list[Any]) -> None:
    assert verdict([U], tools) == "invalid_tool_schema"


def test_the_length_counts_every_string_of_messages_and_tools() -> None:
    long = [tool(description="d" * 600, parameters={"type": "object"})]
    assert verdict([{"role": "user", "content": "x" * 300}], long) is None
    assert verdict([{"role": "user", "content": "x" * 400}], long) == "too_long"


def test_follow_ups_hold_user_and_tool_messages_only() -> None:
    assert verdict([U], follow_ups=[[U], [res("1"), U]]) is None
    assert verdict([U], follow_ups=[[S]]) == "wrong_roles"


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    messages=st.lists(SHAPED | st.sampled_from([U, A, S, call("1"), res("1")]), max_size=6),
    tools=st.none() | st.lists(SHAPED, max_size=3),
)
def test_screening_never_raises_on_any_json(messages: list[Any], tools: list[Any] | None) -> None:
    reason = verdict(messages, tools)
    assert reason is None or reason in REASONS


def test_deep_nesting_is_walked_without_recursion() -> None:
    value: Any = "leaf"
    for _ in range(50_000):
        value = [value]
    assert list(strings(value)) == ["leaf"]


def test_stored_answers_are_refused_for_broken_text_only() -> None:
    assert screen_text({"message": {"content": "</think> as text"}}) is None
    assert screen_text({"message": {"content": "\udc00"}}) == "lone_surrogate"


def test_examples_are_short_and_safe_to_print() -> None:
    text = shown("\x1b[31m" + "<script>\ud800\n" + "語" * 300)
    assert len(text) <= 200 and text.isprintable() and text.startswith("\\x1b[31m<script>\\ud800\\n語") and text.endswith("…")
    aside = SetAside()
    for i in range(100):
        aside.add("empty", f"f:{i}", "x")
    report = aside.as_json()["empty"]
    assert report["count"] == 100 and len(report["examples"]) == EXAMPLES_PER_REASON and report["meaning"]
