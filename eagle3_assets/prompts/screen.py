"""Reasons not to send a prompt: a pure function over messages and tools in normal form.

Belongs here: rules about roles, tools and text, each with a name in `set_aside.REASONS`.
Does not belong here: mapping, sampling, counting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # OpenAI's rule; every gateway applies it
ROLES = ("system", "user", "assistant", "tool")


def screen(
    messages: Sequence[Any],
    tools: Sequence[Any] | None,
    follow_ups: Sequence[Sequence[Any]] = (),
    *,
    max_chars: int,
    markers: re.Pattern[str],
) -> str | None:
    """The first reason (a key of `set_aside.REASONS`) to set the prompt aside, or None. Never raises on any JSON value.

    `max_chars` counts every string of messages, tools and follow-ups. `markers` are the names of the target's control tokens: a server
    renders the prompt as one string and encodes it with specials ON, so this text in a message becomes a control token
    (docs/research/tokenizers.md#2). Kimi's [BOS], [EOS], [UNK], [PAD] are everyday strings in machine-learning text: rows about
    them are lost on purpose.
    """
    if not messages:
        return "empty"
    later = [message for group in follow_ups for message in group]
    if not all(isinstance(m, dict) and m.get("role") in ("user", "tool") for m in later):
        return "wrong_roles"
    return (
        _roles(messages)
        or _tool_turns(messages)
        or _schemas(tools)
        or _text([*messages, *later, *(tools or ())], max_chars, markers)
    )


def screen_text(value: Any) -> str | None:
    """For text that is stored and not sent (an import's answer): only what would break a file."""
    return "lone_surrogate" if _lone_surrogate("\n".join(strings(value))) else None


def _roles(messages: Sequence[Any]) -> str | None:
    """Optional system messages, then a user message, no two assistant messages in a row, a user or tool message last."""
    before = "system"
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES or (role == "system" and before != "system"):
            return "wrong_roles"
        if before == "system" and role in ("assistant", "tool"):
            return "wrong_roles"
        if role == before == "assistant":
            return "wrong_roles"
        content = message.get("content")
        if role == "user" and not (isinstance(content, str) and content.strip()):
            return "empty"
        before = role
    return None if before in ("user", "tool") else "ends_wrong"


def _tool_turns(messages: Sequence[Any]) -> str | None:
    """Each result answers one open call of the assistant turn before it; no call is left open when the dialogue goes on."""
    open_calls: list[Any] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                return "tool_result_without_call"
            open_calls.remove(message.get("tool_call_id"))
            continue
        if open_calls:
            return "call_without_result"
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list | tuple) or not all(isinstance(c, dict) for c in calls):
            return "bad_tool_call"
        open_calls = [c.get("id") for c in calls]
    return "call_without_result" if open_calls else None


def _schemas(tools: Sequence[Any] | None) -> str | None:
    names: set[str] = set()
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not _TOOL_NAME.fullmatch(name) or name in names:
            return "invalid_tool_schema"
        names.add(name)
        if not _is_object_schema(function.get("parameters", {"type": "object"})):
            return "invalid_tool_schema"
    return None


def _is_object_schema(schema: Any) -> bool:
    """`parameters` must describe an object: type "object", properties by name, `required` a list of names."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(p, dict | bool) for p in properties.values()):
        return False
    return isinstance(required, list | tuple) and all(isinstance(r, str) for r in required)


def _text(values: Sequence[Any], max_chars: int, markers: re.Pattern[str]) -> str | None:
    text = "\n".join(strings(values))  # no marker holds a newline, so none can appear across a join
    if _lone_surrogate(text):
        return "lone_surrogate"
    if "\0" in text:
        return "nul"
    if markers.search(text):
        return "control_marker"
    return "too_long" if len(text) > max_chars else None


def _lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included. Iterative: nesting depth is the data's business, not Python's."""
    stack = [value]
    while stack:
        here = stack.pop()
        if isinstance(here, str):
            yield here
        elif isinstance(here, dict):
            stack.extend(here.keys())
            stack.extend(here.values())
        elif isinstance(here, list | tuple):
            stack.extend(here)
