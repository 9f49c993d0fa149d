"""The stand-in's renderer against Kimi's template and golden file: three independent ways must agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets_tests.conftest import shared_data
from kimi_mini.tool_declaration import compact_json, typescript
from openrouter_standin.bending.render_prompt import render_prompt, render_text
from openrouter_standin.schema.provider import PromptBending
from openrouter_standin.vocabulary import Vocabulary

GOLDEN = shared_data() / "tokenizers" / "kimi-k2.5" / "golden.json"


def golden_cases() -> list[Any]:
    if not GOLDEN.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"{GOLDEN} is absent: set EAGLE3_SHARED_DATA"))]
    cases = [c for c in json.loads(GOLDEN.read_text())["chat"] if c["model"] == "kimi-k2.5"]
    return [pytest.param(c, id=c["name"]) for c in cases]


@pytest.mark.parametrize("case", golden_cases())
def test_golden_chat_is_rendered_to_the_character_and_the_id(case: dict[str, Any], kimi: Vocabulary) -> None:
    kwargs = case["kwargs"]
    text = render_text(
        case["messages"],
        case["tools"],
        thinking=kwargs.get("thinking", True),
        generation_prompt=kwargs.get("add_generation_prompt", False),
    )
    assert text == case["text"]
    assert list(kimi.encode_prompt(text)) == case["ids"]


def test_recorded_openrouter_prompts_bill_what_is_rendered(recorded: dict[str, dict[str, Any]], kimi: Vocabulary) -> None:
    """Chutes and Inceptron: TypeScript declaration, history reasoning dropped (docs/research/prompt-side.md#rows)."""
    bending = PromptBending(tools="typescript", history_reasoning="dropped")
    billed = {}
    for name in ("simple#0", "tool#0", "tool#1"):
        request, body = recorded[name]["request"], json.loads(recorded[name]["response_body"])
        prompt = render_prompt(request["messages"], request.get("tools"), kimi, bending=bending)
        billed[name] = (len(prompt), body["usage"]["prompt_tokens"])
    assert billed == {"simple#0": (21, 21), "tool#0": (69, 69), "tool#1": (108, 108)}


words = st.text(alphabet="ab é\n你<", max_size=8)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(["functions.f:0", "functions.g:1"]),
            "function": st.fixed_dictionaries({"name": st.just("f"), "arguments": st.sampled_from(["{}", '{"a": 1}'])}),
        }
    ),
    min_size=1,
    max_size=2,
)
message = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": words}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.one_of(st.none(), words), "reasoning_content": words}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": words, "reasoning_content": words, "tool_calls": calls}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just("functions.f:0"), "content": words}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just("x"), "name": st.just("f"), "content": words}),
)


@pytest.mark.slow
@given(messages=st.lists(message, min_size=1, max_size=6), thinking=st.booleans(), declare=st.booleans())
@settings(max_examples=120, deadline=None)
def test_any_conversation_is_rendered_as_the_template_does(
    kimi_files: Path, messages: list[dict[str, Any]], thinking: bool, declare: bool
) -> None:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    template = environment.from_string((kimi_files / "chat_template.jinja").read_text())
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}] if declare else None
    expected = template.render(
        messages=messages,
        tools=tools,
        tools_ts_str=typescript(tools) if tools else None,
        thinking=thinking,
        add_generation_prompt=True,
    )
    assert render_text(messages, tools, thinking=thinking) == expected


LOOP: list[dict[str, Any]] = [
    {"role": "user", "content": "Q"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_details": [{"type": "reasoning.text", "text": " Hmm", "format": "unknown", "index": 0}],
        "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    },
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
]


def test_replayed_reasoning_is_kept_or_lost_as_the_profile_says() -> None:
    kept = render_text(LOOP, None, bending=PromptBending(history_reasoning="kept"))
    lost = render_text(LOOP, None, bending=PromptBending(history_reasoning="dropped"))
    assert "<think> Hmm</think>" in kept
    assert "<think></think>" in lost and " Hmm" not in lost
    renamed = [{**m, "reasoning": " Hmm"} if m["role"] == "assistant" else m for m in LOOP]
    del renamed[1]["reasoning_details"]
    assert render_text(renamed, None) == kept


def test_compact_json_declares_tools_as_sent_without_strict() -> None:
    tools = [
        {"type": "function", "function": {"name": "é", "strict": True, "description": "d", "parameters": {"type": "object"}}}
    ]
    expected = '[{"type":"function","function":{"name":"é","description":"d","parameters":{"type":"object"}}}]'
    assert compact_json(tools) == expected
    text = render_text([{"role": "user", "content": "Q"}], tools, bending=PromptBending(tools="compact_json"))
    assert text.startswith(f"<|im_system|>tool_declare<|im_middle|>{expected}<|im_end|>")


def test_spaced_json_is_the_same_with_pythons_spaces() -> None:
    tools = [{"type": "function", "function": {"name": "é", "strict": True, "parameters": {"type": "object"}}}]
    text = render_text([{"role": "user", "content": "Q"}], tools, bending=PromptBending(tools="spaced_json"))
    declared = '[{"type": "function", "function": {"name": "é", "parameters": {"type": "object"}}}]'
    assert text.startswith(f"<|im_system|>tool_declare<|im_middle|>{declared}<|im_end|><|im_user|>")


def test_recorded_declarations_cost_what_was_measured(recorded: dict[str, dict[str, Any]], kimi: Vocabulary) -> None:
    """docs/research/prompt-side.md#rows: compact JSON is 7 to 38 tokens off the bill, spaced JSON 24 to 87."""
    request, body = recorded["tool#0"]["request"], json.loads(recorded["tool#0"]["response_body"])
    cost = {
        style: len(render_prompt(request["messages"], request["tools"], kimi, bending=PromptBending(tools=style)))
        - body["usage"]["prompt_tokens"]
        for style in ("typescript", "compact_json", "spaced_json")
    }
    assert cost["typescript"] == 0 and 7 <= cost["compact_json"] <= 38 and 24 <= cost["spaced_json"] <= 87, cost


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Q"},
    {
        "role": "assistant",
        "content": "a",
        "tool_calls": [
            {"id": "call_x", "function": {"name": "f", "arguments": '{"b":[1,2],"ä":{}}'}},
            {"id": "functions.g:7", "function": {"name": "g", "arguments": '{"b": [1, 2]}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_x", "content": "1"},
    {"role": "tool", "tool_call_id": "functions.g:7", "name": "g", "content": "2"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_x", "function": {"name": "f", "arguments": "{broken"}}]},
    {"role": "tool", "tool_call_id": "call_x", "content": "3"},
]


def turns(text: str) -> list[str]:
    return text.split("<|im_end|>")


def shown(**bending: Any) -> str:
    return render_text(HISTORY, None, bending=PromptBending(**bending))


def test_history_arguments_are_as_sent_or_written_anew() -> None:
    begin = "<|tool_call_argument_begin|>"
    sent = ['{"b":[1,2],"ä":{}}', '{"b": [1, 2]}', "{broken"]
    want = {
        "as_sent": sent,
        "spaced": ['{"b": [1, 2], "ä": {}}', '{"b": [1, 2]}', "{broken"],
        "compact": ['{"b":[1,2],"ä":{}}', '{"b":[1,2]}', "{broken"],
    }
    for style, arguments in want.items():
        parts = shown(history_arguments=style).split(begin)[1:]
        assert [part.split("<|tool_call_end|>")[0] for part in parts] == arguments
    whole = shown(history_arguments="compact")
    for old, new in zip(sent, want["compact"], strict=True):
        whole = whole.replace(begin + new, begin + old)
    assert whole == shown()


def test_history_ids_are_renumbered_over_the_conversation_and_results_follow() -> None:
    text = shown(history_tool_ids="renumbered")
    assert [part.split("<|tool_call_argument_begin|>")[0] for part in text.split("<|tool_call_begin|>")[1:]] == [
        "functions.f:0", "functions.g:1", "functions.f:2",
    ]  # fmt: skip
    assert [turn.split("## Return of ")[1].split("\n")[0] for turn in turns(text) if "## Return of" in turn] == [
        "functions.f:0", "functions.g:1", "functions.f:2",
    ]  # fmt: skip


def test_history_ids_become_the_providers_own_and_results_follow() -> None:
    text = shown(history_tool_ids="call_hex")
    ids = re.findall(r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>", text)
    assert all(re.fullmatch("call_[0-9a-f]{24}", i) for i in ids) and len(set(ids)) == 3
    assert re.findall(r"## Return of (.*)\n", text) == ids
    assert shown(history_tool_ids="call_hex") == text


def test_a_provider_adds_a_system_turn_behind_the_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    plain = render_text(HISTORY, tools)
    text = render_text(HISTORY, tools, bending=PromptBending(injected_system="Be kind."))
    declared, rest = turns(plain)[0], plain.split("<|im_end|>", 1)[1]
    assert text == f"{declared}<|im_end|><|im_system|>system<|im_middle|>Be kind.<|im_end|>{rest}"


def test_a_date_line_joins_the_system_message_or_is_one() -> None:
    bending = PromptBending(injected_line="Today is Monday.")
    said = [{"role": "user", "content": "Q"}]
    own = render_text(said, None, bending=bending)
    assert own == "<|im_system|>system<|im_middle|>Today is Monday.<|im_end|>" + render_text(said, None)
    with_system = [{"role": "system", "content": "S"}, *said]
    joined = render_text(with_system, None, bending=bending)
    assert joined == render_text(with_system, None).replace("<|im_middle|>S", "<|im_middle|>Today is Monday.\nS", 1)
    in_parts = [{"role": "system", "content": [{"type": "text", "text": "S"}]}, *said]
    assert render_text(in_parts, None, bending=bending) == joined


def test_a_name_is_a_prefix_of_the_text_and_not_of_a_tools_result() -> None:
    messages = [
        {"role": "user", "name": "Ann", "content": "Q"},
        {"role": "assistant", "name": "Bob", "content": None},
        {"role": "tool", "name": "f", "tool_call_id": "x", "content": "1"},
    ]
    named = turns(render_text(messages, None))
    prefixed = turns(render_text(messages, None, bending=PromptBending(name_prefix=True)))
    assert named[0] == "<|im_user|>Ann<|im_middle|>Q" and prefixed[0] == "<|im_user|>user<|im_middle|>Ann: Q"
    assert prefixed[1] == "<|im_assistant|>assistant<|im_middle|><think></think>Bob: "
    assert prefixed[2:] == named[2:]


@given(messages=st.lists(message, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_bending_never_changes_the_clients_messages(messages: list[dict[str, Any]]) -> None:
    before = json.dumps(messages)
    bending = PromptBending(
        history_arguments="compact",
        history_tool_ids="renumbered",
        injected_system="s",
        injected_line="l",
        name_prefix=True,
        tools="spaced_json",
        history_reasoning="dropped",
    )
    render_text(messages, None, bending=bending)
    assert json.dumps(messages) == before


def test_the_recorded_second_turn_fits_with_spaced_arguments_and_dropped_reasoning(
    recorded: dict[str, dict[str, Any]], kimi: Vocabulary
) -> None:
    """docs/research/prompt-side.md#3 and #4: every other combination is off wherever it differs."""
    request, body = recorded["tool#1"]["request"], json.loads(recorded["tool#1"]["response_body"])
    bending = PromptBending(history_reasoning="dropped", history_arguments="spaced")
    prompt = render_prompt(request["messages"], request["tools"], kimi, bending=bending)
    assert len(prompt) == body["usage"]["prompt_tokens"]
    kept = bending.model_copy(update={"history_reasoning": "kept"})
    assert len(render_prompt(request["messages"], request["tools"], kimi, bending=kept)) - len(prompt) > 40


def test_a_schema_without_typescript_form_falls_back_to_sorted_json() -> None:
    tools = [{"type": "function", "function": {"parameters": {"properties": {"a": {"title": "no type"}}}, "name": "f"}}]
    assert (
        typescript(tools) == '[{"function":{"name":"f","parameters":{"properties":{"a":{"title":"no type"}}}},"type":"function"}]'
    )


def test_typescript_covers_nested_objects_unions_references_and_documented_items() -> None:
    parameters = {
        "type": "object",
        "$defs": {"Node": {"type": "object", "description": "A node", "properties": {"v": {"type": "integer"}}}},
        "properties": {
            "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "a": {"type": "array", "items": {"type": "string", "description": "one", "maxLength": 3}},
            "n": {"$ref": "#/$defs/Node"},
            "o": {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}, "additionalProperties": False},
            "e": {"enum": ["p", 1, None], "default": "p"},
        },
        "required": ["o", "b"],
    }
    text = typescript([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert text == (
        "# Tools\n\n## functions\nnamespace functions {\n"
        "// A node\ninterface Node {\n  v?: number\n}\n"
        "type f = (_: {\n"
        "  b: string | null,\n"
        "  o: {\n    x?: number | null,\n    [k: string]: never\n  },\n"
        "  a?: Array<\n    // one\n    // maxLength: 3\n    string\n  >,\n"
        '  // Default: "p"\n  e?: "p" | 1 | None,\n'
        "  n?: Node\n"
        "}) => any;\n}\n"
    )
