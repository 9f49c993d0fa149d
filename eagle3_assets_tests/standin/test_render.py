"""The stand-in's renderer against Kimi's template and golden file: three independent ways must agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.kimi_mini.tool_declaration import compact_json, typescript
from eagle3_assets.standin.render import render_prompt, render_text
from eagle3_assets.standin.schema.provider import PromptBending
from eagle3_assets.standin.vocabulary import Vocabulary
from eagle3_assets_tests.conftest import shared_data

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
    """Chutes and Inceptron: TypeScript declaration, history reasoning dropped (prompt-side.md)."""
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
