"""Rows as they are in the wild become conversations in one normal form; anything else is a bad row with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.campaign import Mapping
from eagle3_assets.prompts.mapping import Conversation, columns_of, map_row
from eagle3_assets.prompts.set_aside import REASONS, BadRow

WEATHER = {
    "name": "get_weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def mapped(row: dict[str, Any], **mapping: Any) -> Conversation:
    return map_row(row, Mapping(**mapping))


def reason(row: dict[str, Any], **mapping: Any) -> str:
    with pytest.raises(BadRow) as caught:
        mapped(row, **mapping)
    assert caught.value.reason in REASONS
    return caught.value.reason


def test_one_text_column_is_one_user_message() -> None:
    assert mapped({"problem": "Sort a list."}, kind="prompt", prompt="problem").messages == (
        {"role": "user", "content": "Sort a list."},
    )
    with_system = mapped({"q": "x", "s": "Be brief."}, kind="prompt", prompt="q", system="s")
    assert [m["role"] for m in with_system.messages] == ["system", "user"]


def test_a_dotted_path_reaches_into_nested_columns_and_a_literal_dot_wins() -> None:
    assert mapped({"meta": {"q": "deep"}}, kind="prompt", prompt="meta.q").messages[0]["content"] == "deep"
    assert mapped({"meta": {"q": "deep"}, "meta.q": "flat"}, kind="prompt", prompt="meta.q").messages[0]["content"] == "flat"
    assert reason({"meta": "text"}, kind="prompt", prompt="meta.q") == "missing_column"


def test_openai_messages_keep_reasoning_and_raw_argument_strings() -> None:
    raw = '{"city":"Oslo" ,  "n": 1}'
    got = mapped(
        {
            "messages": [
                {"role": "developer", "content": "Be exact.", "name": "boss"},
                {"role": "user", "content": [{"type": "text", "text": "Wea"}, {"type": "text", "text": "ther?"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning": "need the tool",
                    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": raw}}],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "4 C", "name": "get_weather"},
                {"role": "assistant", "content": "4 C", "reasoning_content": "easy"},
            ],
            "tools": [{"type": "function", "function": WEATHER}],
        },
        kind="messages",
        tools="tools",
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": raw}}
    assert got.messages == (
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "reasoning_content": "need the tool", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 C"},
        {"role": "assistant", "content": "4 C", "reasoning_content": "easy"},
    )
    assert got.tools == ({"type": "function", "function": WEATHER},)


def test_messages_and_tools_may_be_json_text_and_tools_bare_functions() -> None:
    got = mapped(
        {
            "m": json.dumps([{"role": "user", "content": "hi"}]),
            "t": json.dumps([{**WEATHER, "parameters": json.dumps({"type": "object"})}]),
        },
        kind="messages",
        messages="m",
        tools="t",
    )
    assert got.messages == ({"role": "user", "content": "hi"},)
    assert got.tools == ({"type": "function", "function": {**WEATHER, "parameters": {"type": "object"}}},)
    nothing: Any
    for nothing in (None, "", "[]", []):
        assert (
            mapped({"m": [{"role": "user", "content": "hi"}], "t": nothing}, kind="messages", messages="m", tools="t").tools
            is None
        )


def test_calls_without_ids_get_kimis_form_counted_over_the_conversation() -> None:
    got = mapped(
        {
            "messages": [
                {"role": "user", "content": "both"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "a", "arguments": {"x": "é"}}}, {"name": "b"}],
                },
                {"role": "tool", "content": "1"},
                {"role": "tool", "content": "2"},
                {"role": "assistant", "function_call": {"name": "a", "arguments": "{}"}},
                {"role": "function", "name": "a", "content": "3"},
            ]
        },
        kind="messages",
    )
    calls = [c["id"] for m in got.messages for c in m.get("tool_calls", ())]
    assert calls == ["functions.a:0", "functions.b:1", "functions.a:2"]
    assert [m["tool_call_id"] for m in got.messages if m["role"] == "tool"] == calls
    assert got.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x": "é"}'
    assert got.messages[1]["tool_calls"][1]["function"]["arguments"] == "{}"


def test_sharegpt_speakers_become_roles() -> None:
    rows = [("system", "s"), ("human", "a"), ("chatgpt", "b"), ("user", "c"), ("bing", "d"), ("human", "e"), ("gpt", "f")]
    got = mapped({"conversations": [{"from": f, "value": v} for f, v in rows]}, kind="sharegpt")
    assert [(m["role"], m["content"]) for m in got.messages] == [
        ("system", "s"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
        ("user", "e"),
        ("assistant", "f"),
    ]


def test_sharegpt_function_calls_become_tool_calls() -> None:
    turns = [("human", "w?"), ("function_call", '{"name": "w", "arguments": {"c": 1}}'), ("observation", "4 C"), ("gpt", "4")]
    got = mapped({"conversations": [{"from": f, "value": v} for f, v in turns]}, kind="sharegpt")
    assert got.messages[1]["tool_calls"][0]["function"] == {"name": "w", "arguments": '{"c": 1}'}
    assert got.messages[2] == {"role": "tool", "tool_call_id": "functions.w:0", "content": "4 C"}
    assert reason({"conversations": [{"from": "function_call", "value": "w(1)"}]}, kind="sharegpt") == "not_json"


def test_swe_trajectories_take_the_system_prompt_from_its_own_key() -> None:
    row = {
        "trajectory": [
            {"role": "system", "system_prompt": "SETTING", "text": None, "mask": False, "cutoff_date": "x"},
            {"role": "user", "text": "ISSUE", "system_prompt": None},
            {"role": "ai", "text": "ls"},
        ]
    }
    assert mapped(row, kind="swe").messages == (
        {"role": "system", "content": "SETTING"},
        {"role": "user", "content": "ISSUE"},
        {"role": "assistant", "content": "ls"},
    )


def test_glaive_text_becomes_tools_calls_and_results() -> None:
    system = (
        "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
        + json.dumps(WEATHER, indent=4)
        + "\n\n"
        + json.dumps({**WEATHER, "name": "other"})
    )
    chat = (
        "USER: Weather in Oslo? ASSISTANT: is not a speaker here.\n\n\n"
        'ASSISTANT: <functioncall> {"name": "get_weather", "arguments": \'{"city": "Oslo\'s"}\'} <|endoftext|>\n\n\n'
        'FUNCTION RESPONSE: {"t": 4}\n\n\nASSISTANT: 4 C. <|endoftext|>\n\n\n'
    )
    got = mapped({"system": system, "chat": chat}, kind="glaive")
    assert [t["function"]["name"] for t in got.tools or ()] == ["get_weather", "other"]
    assert got.messages[0] == {"role": "system", "content": "You are a helpful assistant."}
    assert got.messages[1]["content"] == "Weather in Oslo? ASSISTANT: is not a speaker here."
    assert got.messages[2]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo\'s"}'}
    assert [m["role"] for m in got.messages[3:]] == ["tool", "assistant"]
    assert got.messages[4]["content"] == "4 C."
    plain = mapped(
        {"system": "SYSTEM: You are a helpful assistant, with no access to external functions.", "chat": "USER: Hi"},
        kind="glaive",
    )
    assert (
        plain.tools is None
        and plain.messages[0]["content"] == "You are a helpful assistant, with no access to external functions."
    )


def test_ids_and_finish_reason_of_existing_answers_are_kept() -> None:
    row = {"messages": [{"role": "user", "content": "x"}], "o": [1, 2], "p": "[3]", "f": "length"}
    got = mapped(row, kind="messages", output_ids="o", prompt_ids="p", finish_reason="f")
    assert (got.final.output_ids, got.final.prompt_ids, got.final.finish_reason) == ((1, 2), (3,), "length")
    for bad in ([1, -1], [1.0], [True], {"a": 1}, [2**31], "x"):
        assert reason({**row, "o": bad}, kind="messages", output_ids="o") in ("bad_ids", "not_json")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, "missing_column"),
        ({"messages": None}, "missing_column"),
        ({"messages": "no json"}, "not_json"),
        ({"messages": {"role": "user"}}, "wrong_roles"),
        ({"messages": ["hi"]}, "wrong_roles"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "wrong_roles"),
        ({"messages": [{"role": 3, "content": "x"}]}, "wrong_roles"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_content"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "unsupported_content"),
        ({"messages": [{"role": "assistant", "tool_calls": "[1]"}]}, "bad_tool_call"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "bad_tool_call"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "a", "arguments": 3}]}]}, "bad_tool_call"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": 3}, "invalid_tool_schema"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": ["3"]}, "invalid_tool_schema"),
    ],
)
def test_what_cannot_be_mapped_has_a_named_reason(row: dict[str, Any], why: str) -> None:
    assert reason(row, kind="messages", tools="tools") == why


def test_the_columns_that_a_mapping_reads_are_known_before_reading() -> None:
    assert columns_of(Mapping(kind="prompt", prompt="problem")) == ("problem",)
    assert columns_of(Mapping(kind="sharegpt", tools="t", output_ids="o")) == ("conversations", "t", "o")
    assert columns_of(Mapping(kind="messages", messages="chat", system="s")) == ("chat", "s")
    assert columns_of(Mapping(kind="glaive")) == ("chat", "system")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
WORDS = st.sampled_from(
    [
        "role",
        "content",
        "from",
        "value",
        "text",
        "user",
        "assistant",
        "ai",
        "gpt",
        "tool",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "type",
        "id",
    ]
)
SHAPED = st.recursive(
    JSON | WORDS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5), max_leaves=20
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    row=st.dictionaries(
        st.sampled_from(["messages", "conversations", "trajectory", "chat", "system", "prompt", "tools", "ids"]), SHAPED
    )
)
@pytest.mark.parametrize("kind", ["prompt", "messages", "sharegpt", "swe", "glaive"])
def test_any_row_maps_or_is_a_bad_row_and_nothing_else(kind: str, row: dict[str, Any]) -> None:
    try:
        got = mapped(row, kind=kind, tools="tools", output_ids="ids")
    except BadRow as bad:
        assert bad.reason in REASONS
        return
    assert all(m["role"] in ("system", "user", "assistant", "tool") for m in got.messages)
    assert all(isinstance(m["content"], str) or m.get("tool_calls") for m in got.messages)
