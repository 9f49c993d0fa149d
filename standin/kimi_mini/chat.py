"""The chat format of the target model: messages and tools -> the prompt that a Kimi K2.5 server renders.

Belongs here: the chat template in plain Python, for training, evaluation and the stand-in, which serves this model. Does not belong
here: how a provider bends a prompt (`standin.render`), reading of templates or anything of room `exact` (it renders from the
template's own rules; two independent renderers are the point).
Facts: the K2.5 chat template, docs/research/tokenizers.md#5 (turns, history without reasoning, tool results).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kimi_mini.tool_declaration import compact_json, typescript

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

# openings of a turn by role; every other role is a system turn that carries its name
_OPENING = {"user": "<|im_user|>", "assistant": "<|im_assistant|>"}
_IMAGE = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
_VIDEO = "<|kimi_k25_video_placeholder|>"
_MEDIA = {"image": _IMAGE, "image_url": _IMAGE, "video": _VIDEO, "video_url": _VIDEO}


def reasoning_of(message: Message) -> str:
    """The replayed reasoning of a history turn, however the client spells it (docs/research/openrouter-contract.md#3.3)."""
    details = message.get("reasoning_details")
    if isinstance(details, list) and details:
        return "".join(str(d.get("text") or "") for d in details if isinstance(d, dict))
    return str(message.get("reasoning") or message.get("reasoning_content") or "")


def render_text(
    messages: Sequence[Message],
    tools: Tools | None,
    *,
    thinking: bool = True,
    keep_reasoning: bool = True,
    typescript_tools: bool = True,
    declared: str | None = None,
    generation_prompt: bool = True,
) -> str:
    """The prompt as one string with markers. Reasoning survives only in an open tool loop: after the last assistant turn that
    calls no tool (and not at all with `keep_reasoning` False or in instant mode). `declared`: a declaration of the tools that is not the
    model's own."""
    keep = thinking and keep_reasoning
    answered = max((k for k, m in enumerate(messages) if m["role"] == "assistant" and not m.get("tool_calls")), default=-1)
    out = [declaration(tools, typescript_tools=typescript_tools, declared=declared)] if tools else []
    for k, message in enumerate(messages):
        out.append(_turn(message, reasoning_of(message) if keep and k > answered else ""))
    if generation_prompt:
        out.append("<|im_assistant|>assistant<|im_middle|><think>" + ("" if thinking else "</think>"))
    return "".join(out)


def declaration(tools: Tools, *, typescript_tools: bool = True, declared: str | None = None) -> str:
    """The system turn that declares the tools."""
    text = declared or (typescript(tools) if typescript_tools else "")
    return f"<|im_system|>tool_declare<|im_middle|>{text or compact_json(tools)}<|im_end|>"


def _turn(message: Message, reasoning: str) -> str:
    role = message["role"]
    head = f"{_OPENING.get(role, '<|im_system|>')}{message.get('name') or role}<|im_middle|>"
    content = _content(message.get("content"))
    if role == "assistant":
        body = f"<think>{reasoning}</think>{content}{_tool_section(message.get('tool_calls') or ())}"
    elif role == "tool":
        body = f"## Return of {message.get('tool_call_id', '')}\n{content}"
    else:
        body = content
    return f"{head}{body}<|im_end|>"


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_MEDIA.get(part.get("type"), "") or str(part.get("text", "")) for part in content)


def _tool_section(calls: Sequence[Mapping[str, Any]]) -> str:
    if not calls:
        return ""
    out = ["<|tool_calls_section_begin|>"]
    for call in calls:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        out.append(f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>{text}<|tool_call_end|>")
    return "".join(out) + "<|tool_calls_section_end|>"
