"""One source row → one conversation in OpenAI shape, by `campaign.Mapping.kind`.

Belongs here: the column shapes found in the wild, as tables with the data set that has them, and the normal form of messages and
tools. What cannot be mapped raises `BadRow` with a reason.
Does not belong here: which turn is asked (`turns.py`), whether the text may be sent (`screen.py`).

Normal form: `role` is system, user, assistant or tool; `content` is a string (None only beside tool calls); reasoning is
`reasoning_content`; a tool call is `{"id", "type": "function", "function": {"name", "arguments": str}}`; a tool result carries
`tool_call_id`. Participants' `name` is dropped: Kimi's template puts it in the place of the role (docs/research/tokenizers.md#5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Mapping
from eagle3_assets.prompts.answer_facts import NOTHING_SAID, AnswerFacts, final_and_each
from eagle3_assets.prompts.columns import Row, find, from_json, need, text_or_none
from eagle3_assets.prompts.set_aside import BadRow

Message = dict[str, Any]

# Where the conversation lies when `mapping.messages` is not set.
DEFAULT_COLUMN = {"messages": "messages", "sharegpt": "conversations", "swe": "trajectory", "glaive": "chat"}

OPENAI_ROLES = {
    "system": "system",
    "developer": "system",  # the newer spelling; Kimi's template would print it as a role of its own
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # before tools (OpenAI, 2023)
}
SHAREGPT_ROLES = {  # Aeala/ShareGPT_Vicuna_unfiltered, open-thoughts/OpenThoughts3-1.2M, LLaMA-Factory's tool variant
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function-response": "tool",
    "function_call": "call",
    "function-call": "call",
}
SWE_ROLES = {"system": "system", "user": "user", "ai": "assistant", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A row in normal form. `final` and `answers` are what the source says of answers that exist already (backend = "import"):
    the final one, and every assistant message in order.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None
    final: AnswerFacts = NOTHING_SAID
    answers: tuple[AnswerFacts, ...] = ()


def map_row(row: Row, mapping: Mapping) -> Conversation:
    """Raises BadRow, and nothing else, whatever the row holds."""
    try:
        return _KINDS[mapping.kind](row, mapping)
    except RecursionError:
        raise BadRow("not_json", "nested too deeply") from None


def columns_of(mapping: Mapping) -> tuple[str, ...]:
    """The columns that `map_row` looks at (dotted paths as written)."""
    named = [mapping.system, mapping.tools, mapping.output_ids, mapping.prompt_ids, mapping.finish_reason]
    main = mapping.prompt if mapping.kind == "prompt" else _main_column(mapping)
    if mapping.kind == "glaive":
        named.append(mapping.system or "system")
    return (main, *(c for c in named if c))


def _main_column(mapping: Mapping) -> str:
    return mapping.messages if "messages" in mapping.model_fields_set else DEFAULT_COLUMN[mapping.kind]


# ---------------------------------------------------------------------------------------------------- columns
def _list(row: Row, column: str) -> list[Any]:
    value = from_json(need(row, column), column)
    if not isinstance(value, list):
        raise BadRow("wrong_roles", f"column {column!r} is {type(value).__name__}, not a list of messages")
    return value


# ---------------------------------------------------------------------------------------------------- messages
def _content(value: Any) -> str:
    """A string, or a list of text parts, as one string."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [
            p if isinstance(p, str) else p.get("text") if isinstance(p, dict) and p.get("type", "text") == "text" else None
            for p in value
        ]
        if all(isinstance(p, str) for p in parts):
            return "".join(str(p) for p in parts)
    raise BadRow("unsupported_content", f"{type(value).__name__}: {str(value)[:120]}")


def _thought_and_content(value: Any) -> tuple[str, str]:
    """Reasoning and text of an assistant message whose content is a list of parts, some of them thinking (Mistral, Anthropic's shape)."""
    parts = value if isinstance(value, list) else []
    thoughts = [p for p in parts if isinstance(p, dict) and p.get("type") in ("thinking", "reasoning")]
    if not thoughts:
        return "", _content(value)
    texts = (p.get("thinking", p.get("reasoning", p.get("text"))) for p in thoughts)
    return "".join(map(_content, texts)), _content([p for p in parts if p not in thoughts])


class _Builder:
    """Collects messages in normal form; gives tool calls and results the ids that the source lacks."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sources: list[Row] = []  # of the assistant messages, as the source has them
        self.calls = 0
        self.open: list[str] = []  # ids of calls without a result yet, oldest first

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def answer(self, content: str, reasoning: str | None, calls: list[Any] | None, source: Row) -> None:
        self.sources.append(source)
        message: Message = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [self._call(c) for c in calls]
            message["content"] = content or None
            self.open = [c["id"] for c in message["tool_calls"]]
        self.messages.append(message)

    def result(self, content: str, call_id: str | None) -> None:
        if not call_id and self.open:  # the source has no ids: results come in the order of the calls
            call_id = self.open[0]
        self.open = [i for i in self.open if i != call_id]
        self.messages.append({"role": "tool", "tool_call_id": call_id or "", "content": content})

    def _call(self, call: Any) -> dict[str, Any]:
        if not isinstance(call, dict):
            raise BadRow("bad_tool_call", str(call)[:120])
        function = call.get("function", call)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise BadRow("bad_tool_call", f"no name: {str(call)[:120]}")
        # Kimi's own id form, counted over the conversation (docs/research/openrouter-contract.md#3.3)
        call_id = text_or_none(call.get("id")) or f"functions.{name}:{self.calls}"
        self.calls += 1
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _arguments(function)}}


def _arguments(function: dict[str, Any]) -> str:
    value = function.get("arguments", function.get("parameters"))
    if value is None:
        return "{}"
    if isinstance(value, str):
        return value  # verbatim: never parse and dump (design, rule 7)
    if not isinstance(value, dict):
        raise BadRow("bad_tool_call", f"arguments: {str(value)[:120]}")
    return dump_json(value)


def dump_json(value: Any, **options: Any) -> str:
    """JSON text, non-ASCII kept. Raises BadRow on what JSON cannot say (NaN, bytes, dates)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRow("not_json", str(error)) from None


def _role(value: Any, table: dict[str, str]) -> str:
    role = table.get(value.strip().lower()) if isinstance(value, str) else None
    if role is None:
        raise BadRow("wrong_roles", f"unknown role {value!r}"[:120])
    return role


def _prompt(row: Row, mapping: Mapping) -> Conversation:
    """One column of text: nvidia/OpenCodeInstruct (input), ise-uiuc/Magicoder-OSS-Instruct-75K (problem)."""
    builder = _Builder()
    builder.add("user", _content(need(row, mapping.prompt)))
    return _finish(row, mapping, builder)


def _messages(row: Row, mapping: Mapping) -> Conversation:
    """OpenAI messages: HuggingFaceH4/ultrachat_200k, open-r1/Mixture-of-Thoughts, rows that an engine answered."""
    builder = _Builder()
    for message in _list(row, _main_column(mapping)):
        if not isinstance(message, dict):
            raise BadRow("wrong_roles", f"a message is {type(message).__name__}: {str(message)[:120]}")
        role = _role(message.get("role"), OPENAI_ROLES)
        thought, content = (
            _thought_and_content(message.get("content")) if role == "assistant" else ("", _content(message.get("content")))
        )
        if role == "assistant":
            calls = from_json(message.get("tool_calls"), "tool_calls") or message.get("function_call")
            calls = [calls] if isinstance(calls, dict) else calls
            if calls is not None and not isinstance(calls, list):
                raise BadRow("bad_tool_call", str(calls)[:120])
            reasoning = (
                _content(message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")) or thought
            )
            builder.answer(content, reasoning, calls, message)
        elif role == "tool":
            builder.result(content, text_or_none(message.get("tool_call_id")))
        else:
            builder.add(role, content)
    return _finish(row, mapping, builder)


def _sharegpt(row: Row, mapping: Mapping) -> Conversation:
    """`from`/`value` lists: Aeala/ShareGPT_Vicuna_unfiltered, open-thoughts/OpenThoughts3-1.2M."""
    builder = _Builder()
    for turn in _list(row, _main_column(mapping)):
        if not isinstance(turn, dict):
            raise BadRow("wrong_roles", f"a turn is {type(turn).__name__}: {str(turn)[:120]}")
        role = _role(turn.get("from", turn.get("role")), SHAREGPT_ROLES)
        text = _content(turn.get("value", turn.get("content")))
        if role == "call":
            calls = from_json(text, "function_call")
            builder.answer("", None, calls if isinstance(calls, list) else [calls], turn)
        elif role == "assistant":
            builder.answer(text, None, None, turn)
        elif role == "tool":
            builder.result(text, None)
        else:
            builder.add(role, text)
    return _finish(row, mapping, builder)


def _swe(row: Row, mapping: Mapping) -> Conversation:
    """nebius/SWE-agent-trajectories: a list of {role: system|user|ai, text, system_prompt, mask, cutoff_date}."""
    builder = _Builder()
    for turn in _list(row, _main_column(mapping)):
        if not isinstance(turn, dict):
            raise BadRow("wrong_roles", f"a turn is {type(turn).__name__}: {str(turn)[:120]}")
        role = _role(turn.get("role"), SWE_ROLES)
        if role == "system":
            builder.add("system", _content(turn.get("system_prompt") or turn.get("text")))
        elif role == "assistant":
            calls = from_json(turn.get("tool_calls"), "tool_calls")
            if calls is not None and not isinstance(calls, list):
                raise BadRow("bad_tool_call", str(calls)[:120])
            builder.answer(_content(turn.get("text")), None, calls, turn)
        elif role == "tool":
            builder.result(_content(turn.get("text")), text_or_none(turn.get("tool_call_id")))
        else:
            builder.add("user", _content(turn.get("text")))
    return _finish(row, mapping, builder)


# ---------------------------------------------------------------------------------------------------- glaive
_GLAIVE_TURN = re.compile(r"(?:^|\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE): ?")
_GLAIVE_CALL = re.compile(r"<functioncall>\s*(\{.*\})\s*$", re.DOTALL)
_GLAIVE_QUOTED = re.compile(r"^\{\s*\"name\":\s*\"([^\"]+)\",\s*\"arguments\":\s*'(.*)'\s*\}$", re.DOTALL)
_GLAIVE_OFFER = re.compile(r",?\s*with access to the following functions\. Use them if required\s*-?\s*$")


def _glaive(row: Row, mapping: Mapping) -> Conversation:
    """glaiveai/glaive-function-calling-v2: `system` (prose, then functions as JSON) and `chat` (one marked-up text)."""
    system = _content(need(row, mapping.system or "system")).removeprefix("SYSTEM:").strip()
    prose, tools = _glaive_functions(system)
    builder = _Builder()
    if prose:
        builder.add("system", prose)
    pieces = _GLAIVE_TURN.split(_content(need(row, _main_column(mapping))))
    for speaker, text in zip(pieces[1::2], pieces[2::2], strict=True):
        text = text.replace("<|endoftext|>", "").strip()
        call = _GLAIVE_CALL.search(text)
        if speaker == "USER":
            builder.add("user", text)
        elif speaker == "FUNCTION RESPONSE":
            builder.result(text, None)
        elif call:
            builder.answer(text[: call.start()].strip(), None, [_glaive_call(call[1])], {})
        else:
            builder.answer(text, None, None, {})
    return _conversation(row, mapping, builder, _tools(tools))


def _glaive_functions(system: str) -> tuple[str, list[Any]]:
    """Split `You are a helpful assistant with access to … - {…} {…}` into prose and functions."""
    decoder, tools = json.JSONDecoder(), []
    at = system.find("{")
    prose = (system if at < 0 else system[:at]).strip()
    while 0 <= at < len(system):
        try:
            tool, end = decoder.raw_decode(system, at)
        except (ValueError, RecursionError) as error:
            raise BadRow("invalid_tool_schema", f"{error}: {system[at : at + 120]}") from None
        tools.append(tool)
        at = system.find("{", end)
    return _GLAIVE_OFFER.sub(".", prose) if tools else prose, tools


def _glaive_call(text: str) -> dict[str, Any]:
    quoted = _GLAIVE_QUOTED.match(text.strip())  # the arguments stand in single quotes: no JSON, but verbatim text
    if quoted:
        return {"name": quoted[1], "arguments": quoted[2]}
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow("bad_tool_call", f"{error}: {text[:120]}") from None
    return call if isinstance(call, dict) else {}


# ---------------------------------------------------------------------------------------------------- system and tools
def _finish(row: Row, mapping: Mapping, builder: _Builder) -> Conversation:
    messages = builder.messages
    system = _content(find(row, mapping.system)) if mapping.system else ""
    if system and not (messages and messages[0]["role"] == "system"):
        messages.insert(0, {"role": "system", "content": system})
    tools = _tools(find(row, mapping.tools)) if mapping.tools else None
    return _conversation(row, mapping, builder, tools)


def _conversation(row: Row, mapping: Mapping, builder: _Builder, tools: tuple[dict[str, Any], ...] | None) -> Conversation:
    messages = tuple(builder.messages)
    ends = bool(messages) and messages[-1]["role"] == "assistant"
    return Conversation(messages, tools, *final_and_each(row, builder.sources, mapping, ends_with_answer=ends))


def _tools(value: Any) -> tuple[dict[str, Any], ...] | None:
    """A list (or its JSON) of OpenAI tools or of bare functions, as OpenAI tools; None when there are none."""
    value = from_json(value, "tools") if value != "" else None
    if not value:
        return None
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRow("invalid_tool_schema", f"tools is {type(value).__name__}")
    return tuple(_tool(t) for t in value)


def _tool(tool: Any) -> dict[str, Any]:
    tool = from_json(tool, "tools")
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise BadRow("invalid_tool_schema", str(tool)[:120])
    parameters = function.get("parameters")
    if isinstance(parameters, str):
        function = {**function, "parameters": from_json(parameters, "tools.parameters")}
    return {"type": "function", "function": function}


_KINDS: dict[str, Callable[[Row, Mapping], Conversation]] = {
    "prompt": _prompt,
    "messages": _messages,
    "sharegpt": _sharegpt,
    "swe": _swe,
    "glaive": _glaive,
}
