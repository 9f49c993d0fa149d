"""A chat request as the stand-in reads it: what counts for the answer, and a canonical hash of just that.

Belongs here: validation of the request body and its canonical form. Does not belong here: routing beyond carrying it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from openrouter_standin.preferences import Malformed, read_preferences

# what decides the answer; provider preferences, streaming and metadata do not
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "max_completion_tokens", "tool_choice",
    "response_format",
)  # fmt: skip
# request field -> name in an endpoint's supported_parameters (docs/research/openrouter-contract.md#1.7)
_PARAMETERS = {
    **{k: k for k in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "tools", "tool_choice")},
    **{k: k for k in ("reasoning", "logprobs", "top_logprobs", "response_format", "logit_bias", "frequency_penalty")},
    "max_completion_tokens": "max_tokens",
}
# MODEL:VARIANT (docs/research/openrouter-contract.md#1.2 c)
_VARIANTS = {"floor": "price", "nitro": "throughput", "exacto": "exacto"}
_ROLES = ("assistant", "developer", "system", "tool", "user")
_DEEPEST = 250  # levels of arrays and objects: what the fast writer takes, and no template runs out of stack with


class BadRequest(ValueError):
    """The body is no chat request; str() is the message for the client."""


@dataclass(frozen=True)
class ChatRequest:
    """A validated request. `hash` is 32 hex digits over messages, tools, sampling and thinking."""

    model: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    thinking: bool
    show_reasoning: bool
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    tool_choice: str
    stream: bool
    provider: Mapping[str, Any]
    parameters: frozenset[str]
    logprobs: bool
    top_logprobs: int
    hash: str
    session_id: str = ""
    models: tuple[str, ...] = ()

    @property
    def sort(self) -> str | None:
        """`provider.sort`, or what the model's variant stands for."""
        value = self.provider.get("sort")
        by = value.get("by") if isinstance(value, dict) else value
        return by if isinstance(by, str) else _VARIANTS.get(self.model.partition(":")[2])

    @property
    def last_text(self) -> str:
        """What the last message says."""
        content = self.messages[-1].get("content")
        if isinstance(content, list):
            return "".join(str(part.get("text", "")) for part in content)
        return content or ""

    @property
    def tool_names(self) -> frozenset[str]:
        functions = (tool.get("function") for tool in self.tools)
        return frozenset(str(f["name"]) for f in functions if isinstance(f, dict) and f.get("name"))

    @property
    def calls_so_far(self) -> int:
        """Tool calls in the history: the index of the next one (it counts over the whole conversation)."""
        return sum(len(m.get("tool_calls") or ()) for m in self.messages if m["role"] == "assistant")


def read_request(body: bytes) -> ChatRequest:
    """Raises BadRequest. Unknown fields are tolerated, as OpenRouter does."""
    raw = _parsed(body)
    if not isinstance(raw, dict):
        raise BadRequest("Request body must be a JSON object")
    messages = _messages(raw.get("messages"))
    tools = _tools(raw.get("tools") or [])
    max_tokens = raw["max_completion_tokens"] if raw.get("max_completion_tokens") is not None else raw.get("max_tokens")
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1):
        raise BadRequest("max_tokens: expected a positive integer")
    choice = raw.get("tool_choice") or "auto"
    reasoning = raw.get("reasoning") if isinstance(raw.get("reasoning"), dict) else {}
    assert isinstance(reasoning, dict)
    thinking = _thinking(raw, reasoning)
    try:
        provider = read_preferences(raw.get("provider"))
    except Malformed as error:
        raise BadRequest(str(error)) from None
    counted = {k: raw[k] for k in _SAMPLING if raw.get(k) is not None}
    canonical = _canonical([messages, tools, counted, thinking])
    return ChatRequest(
        model=_text(raw, "model"),
        messages=messages,
        tools=tools,
        thinking=thinking,
        show_reasoning=not reasoning.get("exclude", False),
        max_tokens=max_tokens,
        temperature=_number(raw, "temperature", 2.0),
        top_p=_number(raw, "top_p", 1.0),
        tool_choice=choice if isinstance(choice, str) else "required",
        stream=bool(raw.get("stream")),
        provider=provider,
        parameters=frozenset(name for key, name in _PARAMETERS.items() if raw.get(key) not in (None, [], {})),
        logprobs=raw.get("logprobs") is True,
        top_logprobs=_count(raw, "top_logprobs", 20),
        hash=hashlib.sha256(canonical).hexdigest()[:32],
        session_id=_text(raw, "session_id"),
        models=_models(raw),
    )


def _models(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """What may answer, in order of preference: `model`, then `models` (docs/research/openrouter-contract.md#1.1)."""
    more = raw.get("models") or []
    if not isinstance(more, list) or not all(isinstance(name, str) for name in more):
        raise BadRequest("models: expected an array of model IDs")
    return tuple(dict.fromkeys([*filter(None, [_text(raw, "model")]), *more]))


def _text(raw: Mapping[str, Any], field: str) -> str:
    """A name that is written down; "" where the request gives none. Half a surrogate pair has no UTF-8: a question mark."""
    value = raw.get(field) or ""
    if not isinstance(value, str):
        raise BadRequest(f"{field}: expected a string")
    return value.encode("utf-8", "replace").decode()


def _parsed(body: bytes) -> Any:
    """orjson for speed; the standard library for what it refuses (lone surrogates, NaN, huge integers)."""
    try:
        return orjson.loads(body)
    except ValueError:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise BadRequest("Invalid JSON in request body") from None


def _canonical(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):  # lone surrogates, huge integers, or too deep for it
        if _deeper_than(_DEEPEST, value):
            raise BadRequest(f"Request body is nested more than {_DEEPEST} levels deep") from None
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _deeper_than(levels: int, value: Any) -> bool:
    layer = [value]
    while layer and levels:
        nested = (v.values() if isinstance(v, dict) else v for v in layer if isinstance(v, dict | list | tuple))
        layer, levels = [inner for members in nested for inner in members], levels - 1
    return any(isinstance(v, dict | list) for v in layer)


def _number(raw: Mapping[str, Any], field: str, top: float) -> float | None:
    """A sampling setting in [0, top]; None where the request leaves it open (docs/research/openrouter-contract.md#1.1)."""
    value = raw.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= top:
        raise BadRequest(f"{field}: expected a number from 0 to {top:g}")
    return float(value)


def _count(raw: Mapping[str, Any], field: str, top: int) -> int:
    """A whole number in [0, top]; 0 where the request says nothing (docs/research/openrouter-contract.md#1.1)."""
    value = raw.get(field) or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= top:
        raise BadRequest(f"{field}: expected a whole number from 0 to {top}")
    return value


def _thinking(raw: Mapping[str, Any], reasoning: Mapping[str, Any]) -> bool:
    """OpenRouter's `reasoning` switch, or an engine's `chat_template_kwargs.thinking`. Kimi K2.5 thinks unless told not to."""
    kwargs = raw.get("chat_template_kwargs")
    if isinstance(kwargs, dict) and kwargs.get("thinking") is False:
        return False
    return reasoning.get("enabled") is not False and reasoning.get("effort") != "none"


def _objects(value: Any, field: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise BadRequest(f"{field}: expected an array of objects")
    return tuple(value)


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    tools = _objects(value, "tools")
    for k, tool in enumerate(tools):
        kind, function = tool.get("type", "function"), tool.get("function")
        if not isinstance(kind, str):
            raise BadRequest(f"tools[{k}].type: expected a string")
        if kind != "function" and "function" not in tool:
            continue
        if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
            raise BadRequest(f"tools[{k}].function: expected an object with a name")
        if not isinstance(function.get("parameters") or {}, dict):
            raise BadRequest(f"tools[{k}].function.parameters: expected an object")
    return tools


def _messages(value: Any) -> tuple[dict[str, Any], ...]:
    messages = _objects(value, "messages")
    if not messages:
        raise BadRequest("Input required: specify messages")
    for k, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            raise BadRequest(f"messages[{k}].role: expected one of {', '.join(_ROLES)}")
        if not isinstance(message.get("tool_call_id") or "", str):
            raise BadRequest(f"messages[{k}].tool_call_id: expected a string")
        content = message.get("content")
        if not (content is None or isinstance(content, str)):
            for part in _objects(content, f"messages[{k}].content"):
                if not isinstance(part.get("type", ""), str):
                    raise BadRequest(f"messages[{k}].content: expected a type that is a string in each part")
        for call in _objects(message.get("tool_calls") or [], f"messages[{k}].tool_calls"):
            function = call.get("function")
            if not isinstance(call.get("id"), str) or not isinstance(function, dict) or "arguments" not in function:
                raise BadRequest(f"messages[{k}].tool_calls: expected id and function.arguments in each")
    return messages
