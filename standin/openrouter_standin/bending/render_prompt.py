"""A request -> the prompt that a provider's server really rendered, and its ids: the truth that prompt_tokens is billed from.

Belongs here: a provider's bending of the prompt: what it makes of the messages before its template sees them, and how it declares tools.
Does not belong here: the chat format itself (`kimi_mini.chat`: the model that the stand-in serves), or anything of room `exact`.
Facts: docs/research/prompt-side.md#rows; docs/research/openrouter-contract.md#1.1 (name) and #4.3-18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kimi_mini import chat
from kimi_mini.tool_declaration import compact_json, spaced_json
from openrouter_standin import chance
from openrouter_standin.bending.bend_calls import name_of, rewrite
from openrouter_standin.schema.bending import PromptBending
from openrouter_standin.vocabulary import Ids, Vocabulary

_AS_IT_IS = PromptBending()
_DECLARED: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {"compact_json": compact_json, "spaced_json": spaced_json}


def render_text(
    messages: Sequence[chat.Message],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    thinking: bool = True,
    bending: PromptBending | None = None,
    generation_prompt: bool = True,
) -> str:
    """The prompt as one string with markers, bent as this provider bends it."""
    bending = bending or _AS_IT_IS
    declare = _DECLARED.get(bending.tools)
    return chat.render_text(
        bend_messages(messages, bending),
        tools,
        thinking=thinking,
        keep_reasoning=bending.history_reasoning == "kept",
        declared=declare(tools) if declare and tools else None,
        generation_prompt=generation_prompt,
    )


def render_prompt(
    messages: Sequence[chat.Message],
    tools: Sequence[Mapping[str, Any]] | None,
    vocabulary: Vocabulary,
    *,
    thinking: bool = True,
    bending: PromptBending | None = None,
) -> Ids:
    """Prompt ids as the server saw them."""
    return vocabulary.encode_prompt(render_text(messages, tools, thinking=thinking, bending=bending))


def bend_messages(messages: Sequence[chat.Message], bending: PromptBending) -> Sequence[chat.Message]:
    """The messages as they reach the template."""
    out = messages
    if bending.name_prefix:
        out = [_with_prefix(m) for m in out]
    if bending.history_arguments != "as_sent":
        out = [_map_calls(m, lambda call: _rewritten(call, bending.history_arguments)) for m in out]
    if bending.history_tool_ids != "as_sent":
        out = _renamed(out, bending.history_tool_ids)
    if bending.injected_line:
        out = _with_line(out, bending.injected_line)
    if bending.injected_system:
        out = [{"role": "system", "content": bending.injected_system}, *out]
    return out


def _map_calls(message: chat.Message, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> chat.Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [change(call) for call in calls]} if calls else message


def _rewritten(call: Mapping[str, Any], style: str) -> Mapping[str, Any]:
    """Arguments that a client sent as an object are written in the template's own way."""
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str):
        return call
    return {**call, "function": {**call["function"], "arguments": rewrite(arguments, style)}}


def _renamed(messages: Sequence[chat.Message], style: str) -> list[chat.Message]:
    """Calls get new ids in the order of the conversation; a result follows the latest call of its id."""
    new: dict[str, str] = {}
    count = 0
    out: list[chat.Message] = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            name = (call.get("function") or {}).get("name") or name_of(call["id"])
            hexadecimal = f"call_{chance.hexadecimal(24, 'history id', count, call['id'])}"
            new[call["id"]] = f"functions.{name}:{count}" if style == "renumbered" else hexadecimal
            calls.append({**call, "id": new[call["id"]]})
            count += 1
        changed = {**message, "tool_calls": calls} if calls else message
        if (answered := message.get("tool_call_id")) in new:
            changed = {**changed, "tool_call_id": new[str(answered)]}
        out.append(changed)
    return out


def _with_prefix(message: chat.Message) -> chat.Message:
    """A tool's name is no speaker's."""
    name = message.get("name")
    if not name or message["role"] == "tool":
        return message
    return _prepended({k: v for k, v in message.items() if k != "name"}, f"{name}: ")


def _with_line(messages: Sequence[chat.Message], line: str) -> list[chat.Message]:
    for k, message in enumerate(messages):
        if message["role"] == "system":
            return [*messages[:k], _prepended(message, f"{line}\n"), *messages[k + 1 :]]
    return [{"role": "system", "content": line}, *messages]


def _prepended(message: chat.Message, text: str) -> chat.Message:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": text + (content or "")}
    return {**message, "content": [{"type": "text", "text": text}, *content]}
