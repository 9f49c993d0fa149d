"""Prompts as a server makes them: messages and tools → one string → ids.

Belongs here: our own renderer of the Kimi family in plain Python, the forms in which a server may bend a request
(`PromptForm`), and the cross-check that runs the model's own jinja template where its file is present. Does not belong here:
which form a provider uses (`hypotheses.py`, `wire_profiles.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.tokenizer import TEMPLATE_FILE, Profile
from eagle3_assets.exact.tools_ts import Unwritable, declare_tools, sort_keys

ToolStyle = Literal["typescript", "compact_json", "spaced_json"]
HistoryReasoning = Literal["kept", "dropped"]
ArgumentStyle = Literal["as_sent", "spaced", "compact"]
ToolIdStyle = Literal["as_sent", "renumbered"]
KeyOrder = Literal["as_sent", "typed"]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How a server turned a request into its prompt; each field is a finding of prompt-side.md.

    `tool_style`, `strict` (whether the `strict` key of a tool is rendered) and `tool_keys`: the declaration of tools; "typed"
    is the key order of engines that parse tools into typed objects first (type, function: name, description, parameters).
    `history_reasoning`: "kept" as the template asks, or lost between gateway and engine. `arguments`: history arguments as
    sent, or parsed and written again. `tool_ids`: ids of the history's calls as sent, or renumbered over the conversation (SGLang
    serving_chat.py; tokenizers.md section 4).
    """

    tool_style: ToolStyle
    strict: bool = False
    tool_keys: KeyOrder = "as_sent"
    history_reasoning: HistoryReasoning = "kept"
    arguments: ArgumentStyle = "as_sent"
    tool_ids: ToolIdStyle = "as_sent"

    @property
    def name(self) -> str:
        tools = self.tool_style + ("+strict" if self.strict else "") + ("+typed" if self.tool_keys == "typed" else "")
        ids = "/ids_renumbered" if self.tool_ids == "renumbered" else ""
        return f"{tools}/reasoning_{self.history_reasoning}/arguments_{self.arguments}{ids}"


# ---------------------------------------------------------------------------------------------------- what a request says
def wants_thinking(request: Mapping[str, Any], default: bool = True) -> bool:
    """Whether the request asks for reasoning: OpenRouter's `reasoning`, engines' `chat_template_kwargs`, Kimi's `thinking`."""
    reasoning = request.get("reasoning")
    if isinstance(reasoning, Mapping):
        if isinstance(reasoning.get("enabled"), bool):
            return bool(reasoning["enabled"])
        if reasoning.get("effort") == "none":
            return False
        if reasoning.get("effort"):
            return True
    template = request.get("chat_template_kwargs")
    for switch in ("thinking", "enable_thinking"):  # Kimi's and Qwen's names
        if isinstance(template, Mapping) and isinstance(template.get(switch), bool):
            return bool(template[switch])
    thinking = request.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") in ("enabled", "disabled"):
        return bool(thinking["type"] == "enabled")
    return default


def reasoning_of(message: Message) -> str:
    """The reasoning of a history message: `reasoning_details` texts, else `reasoning`, else `reasoning_content`, else ""."""
    details = message.get("reasoning_details")
    if isinstance(details, Sequence) and not isinstance(details, str):
        texts = [d["text"] for d in details if isinstance(d, Mapping) and isinstance(d.get("text"), str)]
        if texts:
            return "".join(texts)
    for key in ("reasoning", "reasoning_content"):
        if isinstance(message.get(key), str):
            return str(message[key])
    return ""


# ---------------------------------------------------------------------------------------------------- our renderer
def render_text(
    profile: Profile,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    thinking: bool = True,
    form: PromptForm | None = None,
    preserve_thinking: bool = False,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt string. `form` defaults to what the model's own template and tokenizer code do.

    `preserve_thinking` is K2.6's switch (keep all history reasoning). Raises ExactError where no template is known, and for
    images.
    """
    if not profile.renders:
        raise ExactError(f"no template for {profile.name}")
    form = form or default_form(profile)
    if profile.facts["template"]["kind"] == "jinja":
        return _render_own_template(profile, messages, tools, thinking, form, add_generation_prompt)
    turn = profile.facts["turn"]
    template = profile.facts["template"]
    parts: list[str] = []
    if tools:
        parts.append(f"{turn['other']}tool_declare{turn['middle']}{declaration(tools, form)}{turn['end']}")
    if template["default_system"] and (not messages or messages[0].get("role") != "system"):
        parts.append(f"{turn['other']}system{turn['middle']}{template['default_system']}{turn['end']}")
    open_loop = 0 if preserve_thinking else _open_loop_start(messages)
    for k, message in enumerate(messages):
        keep = k >= open_loop and form.history_reasoning == "kept" and (thinking or preserve_thinking)
        parts.append(_turn(profile, message, keep_reasoning=keep, arguments=form.arguments))
    if add_generation_prompt:
        parts.append(f"{turn['assistant']}assistant{turn['middle']}{generation_stub(profile, thinking)}")
    return "".join(parts)


def render_prompt(
    profile: Profile,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    thinking: bool = True,
    form: PromptForm | None = None,
) -> list[int]:
    """Ids of the prompt up to and including the generation prompt (specials on, chunk rule: `Profile.encode_prompt`)."""
    return profile.encode_prompt(render_text(profile, messages, tools, thinking=thinking, form=form))


def default_form(profile: Profile) -> PromptForm:
    """The form of the model's own code: its tool style with every key of the request."""
    style: ToolStyle = profile.facts["template"].get("tool_style", "spaced_json")
    return PromptForm(tool_style=style, strict=True)


def generation_stub(profile: Profile, thinking: bool) -> str:
    """What stands behind `assistant<|im_middle|>`: the opening marker where the prompt opens reasoning, both in instant mode."""
    reasoning = profile.facts["reasoning"]
    if profile.opened_by != "prompt":
        return ""
    return str(reasoning["open"]) + ("" if thinking else str(reasoning["close"]))


def _open_loop_start(messages: Sequence[Message]) -> int:
    """Index behind the last assistant message without tool calls: only from there on does history keep its reasoning."""
    for k in range(len(messages) - 1, -1, -1):
        if messages[k].get("role") == "assistant" and not messages[k].get("tool_calls"):
            return k + 1
    return 0


def _render_own_template(
    profile: Profile,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    thinking: bool,
    form: PromptForm,
    add_generation_prompt: bool,
) -> str:
    """The prompt of a profile that has no renderer of its own: its template over what `form` leaves of the request. Engines hand a
    template texts (never null, never parts), one name for reasoning, and arguments as sent or parsed."""
    if profile.template_path is None:
        raise ExactError(
            f"profile {profile.name}: {profile.ranks_path.parent} has no {TEMPLATE_FILE} and no tokenizer_config.json with a template; "
            f"run `eagle3 fetch-tokenizer {profile.name}`"
        )
    shown = []
    for message in messages:
        plain = {key: value for key, value in message.items() if key in ("role", "name", "tool_call_id")}
        plain["content"] = _content(message.get("content"))
        if form.history_reasoning == "kept" and reasoning_of(message):
            plain["reasoning_content"] = reasoning_of(message)
        if message.get("tool_calls"):
            plain["tool_calls"] = [_history_call(call, form.arguments) for call in message["tool_calls"]]
        shown.append(plain)
    declared = [_shown_tool(tool, form) for tool in tools] if tools else None
    switch = {str(profile.facts["template"]["switch"]): thinking}
    return render_with_template(profile.template_path, shown, declared, add_generation_prompt=add_generation_prompt, **switch)


def _history_call(call: Mapping[str, Any], style: ArgumentStyle) -> dict[str, Any]:
    function = call.get("function", {})
    return {**call, "function": {**function, "arguments": history_arguments(function.get("arguments", ""), style)}}


def _turn(profile: Profile, message: Message, *, keep_reasoning: bool, arguments: ArgumentStyle) -> str:
    turn = profile.facts["turn"]
    role = message.get("role", "")
    head = {"user": turn["user"], "assistant": turn["assistant"]}.get(role, turn["other"])
    body = _content(message.get("content"))
    if role == "assistant":
        reasoning = reasoning_of(message) if keep_reasoning else ""
        if profile.opened_by != "never":
            body = f"{profile.facts['reasoning']['open']}{reasoning}{profile.facts['reasoning']['close']}{body}"
        if message.get("tool_calls"):
            body += _tool_section(profile, message["tool_calls"], arguments)
    elif role == "tool":
        body = f"## Return of {message.get('tool_call_id', '')}\n{body}"
    return f"{head}{message.get('name') or role}{turn['middle']}{body}{turn['end']}"


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ExactError(f"a message holds a part of type {kind!r}: only text can be rendered")
        texts.append(part["text"])
    return "".join(texts)


def _tool_section(profile: Profile, calls: Sequence[Mapping[str, Any]], style: ArgumentStyle) -> str:
    tools = profile.facts["tools"]
    body = "".join(
        f"{tools['call_begin']}{call.get('id', '')}{tools['argument_begin']}"
        f"{history_arguments(call.get('function', {}).get('arguments', ''), style)}{tools['call_end']}"
        for call in calls
    )
    return f"{tools['section_begin']}{body}{tools['section_end']}"


def history_arguments(arguments: Any, style: ArgumentStyle) -> str:
    """Arguments of a call in the history. Engines that parse them write them again as transformers' `tojson` does."""
    if not isinstance(arguments, str):
        return to_json(arguments)
    if style == "as_sent":
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return to_json(parsed, compact=style == "compact") if isinstance(parsed, dict) else arguments


def declaration(tools: Sequence[Mapping[str, Any]], form: PromptForm) -> str:
    """The text of the tool_declare turn in `form`; TypeScript falls back to compact JSON where it has no words."""
    shown = [_shown_tool(tool, form) for tool in tools]
    if form.tool_style == "typescript":
        try:
            return declare_tools(shown) or to_json(sort_keys(shown), compact=True)
        except Unwritable:
            return to_json(sort_keys(shown), compact=True)
    return to_json(shown, compact=form.tool_style == "compact_json")


_TYPED_TOOL = ("type", "function")
_TYPED_FUNCTION = ("name", "description", "parameters", "strict")


def _shown_tool(tool: Mapping[str, Any], form: PromptForm) -> dict[str, Any]:
    """The tool with the keys, in the order, that `form` renders."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    function = {key: value for key, value in function.items() if form.strict or key != "strict"}
    shown = {**tool, "function": function}
    if form.tool_keys == "as_sent":
        return shown
    return _ordered({**shown, "function": _ordered(function, _TYPED_FUNCTION)}, _TYPED_TOOL)


def _ordered(value: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    return {key: value[key] for key in [*(k for k in first if k in value), *(k for k in value if k not in first)]}


def to_json(value: Any, *, compact: bool = False) -> str:
    """As transformers' `tojson` filter: non-ASCII kept, no HTML escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":") if compact else None)


# ---------------------------------------------------------------------------------------------------- the model's own template
def render_with_template(
    path: Path, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **switches: Any
) -> str:
    """Run a chat_template.jinja (sandboxed, as transformers sets it up). Independent of `render_text`; used to check it.

    `switches` are the template's own variables (`thinking`, `add_generation_prompt`, `tools_ts_str`, `preserve_thinking`).
    Raises ExactError when the template fails.
    """
    import jinja2

    try:
        return str(_template(path, path.stat().st_mtime_ns).render(messages=list(messages), tools=tools, **switches))
    except (jinja2.TemplateError, OSError, TypeError, ValueError, AttributeError) as error:
        raise ExactError(f"{path}: the template cannot be rendered ({error})") from None


@lru_cache(maxsize=8)
def _template(path: Path, mtime_ns: int) -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":  # tokenizer_config.json
        text = str(json.loads(text).get("chat_template") or "")
    return environment.from_string(text)
