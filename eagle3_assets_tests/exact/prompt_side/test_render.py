"""Claims about prompts: golden renderings, the model's own template, bent forms, TypeScript declarations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.probe import conversations
from eagle3_assets.exact.prompt_side.render import (
    PromptForm,
    declaration,
    default_form,
    render_prompt,
    render_text,
    render_with_template,
    wants_thinking,
)
from eagle3_assets.exact.prompt_side.tools_ts import Unwritable, declare_tools
from eagle3_assets.targets.tokenizer import Profile, load_profile

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}


def profile_for(case: dict[str, Any], tokenizers: Path) -> Profile:
    return load_profile("kimi-k2-thinking" if case["model"] == "kimi-k2-thinking" else "kimi-k2.5", tokenizers)


def test_all_15_golden_renderings_are_reproduced_as_text_and_ids(golden: dict[str, Any], tokenizers: Path) -> None:
    """K2.6's `preserve` case included: our renderer has the switch."""
    assert len(golden["chat"]) == 15
    for case in golden["chat"]:
        profile = profile_for(case, tokenizers)
        switches = {"add_generation_prompt": False, **case["kwargs"]}
        text = render_text(profile, case["messages"], case["tools"], **switches)
        assert text == case["text"], (case["model"], case["name"])
        assert profile.encode_prompt(text) == case["ids"], (case["model"], case["name"])


def test_the_models_own_templates_give_the_golden_text_in_the_sandbox(golden: dict[str, Any], tokenizers: Path) -> None:
    for case in golden["chat"]:
        switches = {"add_generation_prompt": False, **case["kwargs"]}
        if case["tools"] and "thinking" not in case["model"]:
            switches["tools_ts_str"] = declare_tools(case["tools"])
            assert switches["tools_ts_str"] == case["tools_ts_str"]
        path = tokenizers / case["model"] / "chat_template.jinja"
        assert render_with_template(path, case["messages"], case["tools"], **switches) == case["text"], (
            case["model"],
            case["name"],
        )


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ExactError, match="cannot be rendered"):
        render_with_template(path, [])


@pytest.mark.parametrize("name", ["kimi-k2.5", "kimi-k2-thinking"])
def test_our_renderer_agrees_with_the_template_on_conversations_of_our_own(name: str, tokenizers: Path) -> None:
    profile = load_profile(name, tokenizers)
    assert profile.template_path is not None
    for title, messages, tools in conversations():
        extra = {"tools_ts_str": declaration(tools, default_form(profile))} if tools and name == "kimi-k2.5" else {}
        theirs = render_with_template(profile.template_path, messages, tools, add_generation_prompt=True, **extra)
        assert render_text(profile, messages, tools) == theirs, title


def test_kimi_mini_renders_as_kimi_does(mini: Profile, k25: Profile) -> None:
    for title, messages, tools in conversations():
        assert render_text(mini, messages, tools) == render_text(k25, messages, tools), title


def test_a_profile_without_template_says_so(mini: Profile) -> None:
    bare = replace(mini, name="bare", facts=mini.facts.changed(template={"kind": "none"}))
    with pytest.raises(ExactError, match="no template for bare"):
        render_text(bare, [{"role": "user", "content": "x"}])


def test_an_image_is_refused_and_not_dropped(mini: Profile) -> None:
    with pytest.raises(ExactError, match="image_url"):
        render_text(mini, [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_each_bent_form_changes_what_its_finding_says(mini: Profile) -> None:
    tools = [
        {"type": "function", "function": {"strict": False, "description": "d", "name": "f", "parameters": {"type": "object"}}}
    ]
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "reasoning": " why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "r"},
    ]

    def text(**changes: Any) -> str:
        return render_text(mini, messages, tools, form=PromptForm(**{"tool_style": "typescript", **changes}))

    assert "namespace functions" in text() and "<think> why</think>" in text() and '{"a":1}' in text()
    assert "<think></think>" in text(history_reasoning="dropped")
    assert '{"a": 1}' in text(arguments="spaced")
    assert '[{"type":"function","function":{"description":"d","name":"f",' in text(tool_style="compact_json")
    assert '{"name":"f","description":"d",' in text(tool_style="compact_json", tool_keys="typed")
    assert '"strict":false' in text(tool_style="compact_json", strict=True) and "strict" not in text(tool_style="compact_json")
    assert '{"type": "function", "function"' in text(tool_style="spaced_json")


def test_reasoning_details_are_the_history_reasoning_that_counts(mini: Profile) -> None:
    details = [{"type": "reasoning.text", "text": " a"}, {"type": "reasoning.text", "text": "b"}]
    message = {"role": "assistant", "content": "", "reasoning": "x", "reasoning_details": details, "tool_calls": []}
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {**message, "tool_calls": [call]}]
    assert "<think> ab</think>" in render_text(mini, messages)


@pytest.mark.parametrize(
    ("request_", "thinks"),
    [
        ({}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "high"}}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"thinking": {"type": "disabled"}}, False),
    ],
)
def test_a_request_says_whether_the_model_thinks(request_: dict[str, Any], thinks: bool) -> None:
    assert wants_thinking(request_) is thinks


def test_instant_mode_closes_the_reasoning_in_the_prompt(mini: Profile) -> None:
    messages = [{"role": "user", "content": "q"}]
    assert render_prompt(mini, messages)[-1] == mini.think_open
    assert render_prompt(mini, messages, thinking=False)[-2:] == [mini.think_open, mini.think_close]


# ---------------------------------------------------------------------------------------------------- TypeScript
def declared(parameters: dict[str, Any], **function: Any) -> str:
    return declare_tools([{"type": "function", "function": {"name": "f", "parameters": parameters, **function}}])


def test_nested_objects_enums_unions_and_references_are_written_as_kimi_writes_them() -> None:
    parameters = {
        "type": "object",
        "$defs": {"Node": {"type": "object", "description": "A node.", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
        "required": ["where"],
        "properties": {
            "where": {"type": "object", "properties": {"lat": {"type": "number", "minimum": -90}}, "additionalProperties": False},
            "any": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "either"},
            "both": {"type": ["string", "null"]},
            "flag": {"type": "boolean", "default": True},
            "head": {"$ref": "#/$defs/Node"},
            "kind": {"enum": ["a", 2, None]},
            "list": {"type": "array", "items": {"type": "string", "description": "an item"}},
            "rest": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }
    assert declared(parameters, description="Two\nlines.") == (
        "# Tools\n\n## functions\nnamespace functions {\n"
        "// A node.\ninterface Node {\n  next?: Node\n}\n"
        "// Two\n// lines.\n"
        "type f = (_: {\n"
        "  where: {\n    // minimum: -90\n    lat?: number,\n    [k: string]: never\n  },\n"
        "  // either\n  any?: string | null,\n"
        "  both?: string | null,\n"
        "  // Default: True\n  flag?: boolean,\n"
        "  head?: Node,\n"
        '  kind?: "a" | 2 | None,\n'
        "  list?: Array<\n    // an item\n    string\n  >,\n"
        "  rest?: {\n    [k: string]: number\n  }\n"
        "}) => any;\n}\n"
    )


def test_a_tool_without_parameters_is_an_empty_object() -> None:
    assert declared({}) == "# Tools\n\n## functions\nnamespace functions {\ntype f = (_: {}) => any;\n}\n"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/Missing"}}},
        {"properties": {"a": {"oneOf": []}}},
        {"properties": {"a": 5}},
        {"properties": [1]},
    ],
)
def test_what_typescript_has_no_words_for_falls_back_to_compact_json(schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(Unwritable):
        declare_tools([tool])
    text = declaration([tool], PromptForm("typescript"))
    assert text.startswith('[{"function":{"name":"f","parameters":')
