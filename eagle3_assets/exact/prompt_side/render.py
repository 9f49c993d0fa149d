"""Prompts as a server makes them: messages and tools → turns → one string → ids.

Belongs here: our own renderer of the Kimi family in plain Python, in every form in which a server may bend a request, and the
cross-check that runs the model's own jinja template where its file is present. Does not belong here: the forms (`prompt_forms.py`),
encoding turns (`segments.py`), which form a provider uses (`hypotheses.py`, `wire_profiles.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.prompt_forms import ArgumentStyle, PromptForm, ToolStyle
from eagle3_assets.exact.prompt_side.request_facts import (
    keeps_all_thinking,
    prefilled,
    reasoning_of,
    request_oddities,
    thinking_prior,
    wants_thinking,
)
from eagle3_assets.exact.prompt_side.segments import Turn
from eagle3_assets.exact.prompt_side.tools_ts import Arrays, Unwritable, declare_tools, sort_keys
from eagle3_assets.targets.tokenizer import TEMPLATE_FILE, Profile
from eagle3_assets.targets.vocabulary_files import CONFIG_FILE

__all__ = [
    "PromptForm",
    "keeps_all_thinking",
    "reasoning_of",
    "render_prompt",
    "render_text",
    "request_oddities",
    "thinking_prior",
    "wants_thinking",
]

Message = Mapping[str, Any]


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
    if profile.facts.template.kind == "jinja":
        return _render_own_template(profile, messages, tools, thinking, form, add_generation_prompt)
    turns = [tools_turn(profile, tools, form)] if tools else []
    messages = [bend_message(message, form) for message in messages]
    turns.append(system_turn(profile, messages, form))
    for message, keeps in zip(messages, kept_reasoning(messages, thinking, form, preserve_thinking), strict=True):
        turns.append(message_turn(profile, message, keep_reasoning=keeps, arguments=form.arguments))
    if add_generation_prompt and form.prefill == "open" and prefilled(messages):
        turns[-1] = turns[-1][:-1]
    elif add_generation_prompt:
        turns.append(generation_turn(profile, thinking))
    return "".join(piece for turn in turns for piece, _ in turn)


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
    """The form of the model's own code: its tool style with every key of the request, its rule for the reasoning of the history."""
    template = profile.facts.template
    if template.kind != "kimi":
        return PromptForm(tool_style="spaced_json", strict=True)
    return PromptForm(
        tool_style=template.tool_style, strict=True, history_reasoning="all" if template.history == "all" else "kept"
    )


# ---------------------------------------------------------------------------------------------------- turns
@dataclass(frozen=True, slots=True)
class _Words:
    """The control tokens around a turn of the Kimi family."""

    user: str
    assistant: str
    other: str
    middle: str
    end: str


def _words(profile: Profile) -> _Words:
    turn = profile.facts.turn
    if turn.user is None or turn.assistant is None or turn.other is None or turn.middle is None:
        raise ExactError(f"profile {profile.name}: [turn] lacks the words that our renderer writes around a turn")
    return _Words(turn.user, turn.assistant, turn.other, turn.middle, turn.end)


def tools_turn(profile: Profile, tools: Sequence[Mapping[str, Any]], form: PromptForm) -> Turn:
    """The declaration of tools; nothing where it is left out."""
    if form.tool_style == "omitted":
        return ()
    words = _words(profile)
    return (
        (words.other, True),
        ("tool_declare", False),
        (words.middle, True),
        (declaration(tools, form), False),
        (words.end, True),
    )


def system_turn(profile: Profile, messages: Sequence[Message], form: PromptForm) -> Turn:
    """The default system message, where the template has one and the request has none."""
    template, words = profile.facts.template, _words(profile)
    if template.kind != "kimi" or (messages and messages[0].get("role") == "system"):
        return ()
    text = {"own": template.default_system, "old": template.old_system, "none": ""}[form.system]
    return ((words.other, True), ("system", False), (words.middle, True), (text, False), (words.end, True)) if text else ()


def generation_turn(profile: Profile, thinking: bool) -> Turn:
    words = _words(profile)
    return ((words.assistant, True), ("assistant", False), (words.middle, True), (generation_stub(profile, thinking), True))


def kept_reasoning(messages: Sequence[Message], thinking: bool, form: PromptForm, preserve: bool = False) -> list[bool]:
    """Of each message, whether its reasoning is shown: behind the last assistant message without tool calls, or everywhere."""
    if preserve or form.history_reasoning == "all":
        return [form.history_reasoning != "dropped"] * len(messages)
    start = _open_loop_start(messages)
    return [k >= start and form.history_reasoning == "kept" and thinking for k in range(len(messages))]


def bend_message(message: Message, form: PromptForm) -> Message:
    """What is left of a message's role and name in `form`."""
    role, name = message.get("role"), message.get("name")
    if role == "developer" and form.developer != "kept":
        message = {**message, "role": form.developer}
    if name and form.names != "kept":
        content = message.get("content")
        prefix = form.names == "prefixed" and role != "tool"
        message = {key: value for key, value in message.items() if key != "name"}
        if prefix:
            message["content"] = f"{name}: {_content(content)}"
    return message


def generation_stub(profile: Profile, thinking: bool) -> str:
    """What stands behind `assistant<|im_middle|>`: the opening marker where the prompt opens reasoning, both in instant mode."""
    reasoning = profile.facts.reasoning
    if profile.opened_by != "prompt":
        return ""
    return str(reasoning.open) + ("" if thinking else str(reasoning.close))


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
    template = profile.facts.template
    shown_as = template.arguments if template.kind == "jinja" else "text"
    shown = []
    for message in [bend_message(message, form) for message in messages]:
        plain = {key: value for key, value in message.items() if key in ("role", "name", "tool_call_id")}
        plain["content"] = _content(message.get("content"))
        if form.history_reasoning != "dropped" and profile.opened_by != "never" and reasoning_of(message):
            plain["reasoning_content"] = reasoning_of(message)
        if message.get("tool_calls"):
            plain["tool_calls"] = [_history_call(call, form.arguments, shown_as) for call in message["tool_calls"]]
        shown.append(plain)
    declared = [_shown_tool(tool, form) for tool in tools] if tools and form.tool_style != "omitted" else None
    switches: dict[str, Any] = dict(template.variables) if template.kind == "jinja" else {}
    if template.switch and profile.instant:
        switches[template.switch] = thinking
    text = render_with_template(profile.template_path, shown, declared, add_generation_prompt=add_generation_prompt, **switches)
    return text + getattr(template, "generation_suffix", "") if add_generation_prompt else text


def _history_call(call: Mapping[str, Any], style: ArgumentStyle, shown_as: Literal["text", "object"]) -> dict[str, Any]:
    """A call as a template is shown it: some write the text of its arguments, some go through an object (engines parse it for them)."""
    function = call.get("function", {})
    arguments: Any = history_arguments(function.get("arguments", ""), style)
    if shown_as == "object":
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise ExactError(f"arguments {arguments[:40]!r} of a call are no JSON, and the template goes through them") from None
    return {**call, "function": {**function, "arguments": arguments}}


# ---------------------------------------------------------------------------------------------------- parts of turns


def message_turn(profile: Profile, message: Message, *, keep_reasoning: bool, arguments: ArgumentStyle) -> Turn:
    """One message of the history as the template writes it; the last piece is the end of turn."""
    words = _words(profile)
    role = message.get("role", "")
    head = {"user": words.user, "assistant": words.assistant}.get(role, words.other)
    pieces = [(head, True), (str(message.get("name") or role), False), (words.middle, True)]
    content = _content(message.get("content"))
    if role == "assistant":
        if profile.opened_by != "never":
            reasoning = profile.facts.reasoning
            pieces += [
                (str(reasoning.open), True),
                (reasoning_of(message) if keep_reasoning else "", False),
                (str(reasoning.close), True),
            ]
        pieces.append((content, False))
        if message.get("tool_calls"):
            pieces += _tool_section(profile, message["tool_calls"], arguments)
    elif role == "tool":
        pieces.append((f"## Return of {message.get('tool_call_id', '')}\n{content}", False))
    else:
        pieces.append((content, False))
    return (*pieces, (words.end, True))


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


def _tool_section(profile: Profile, calls: Sequence[Mapping[str, Any]], style: ArgumentStyle) -> Turn:
    tools = profile.facts.tools
    if tools.form != "sections":
        raise ExactError(
            f"profile {profile.name}: its template is Kimi's and its calls are of the form {tools.form!r}: no rule says how"
        )
    pieces = [(tools.section_begin, True)]
    for call in calls:
        arguments = history_arguments(call.get("function", {}).get("arguments", ""), style)
        pieces += [(tools.call_begin, True), (str(call.get("id", "")), False)]
        pieces += [(tools.argument_begin, True), (arguments, False), (tools.call_end, True)]
    return (*pieces, (tools.section_end, True))


def history_arguments(arguments: Any, style: ArgumentStyle) -> str:
    """Arguments of a call in the history. Engines that parse them write them again as transformers' `tojson` does."""
    if not isinstance(arguments, str):
        return to_json(arguments)
    return arguments if style == "as_sent" else _written_anew(arguments, style == "compact")


@lru_cache(maxsize=8192)
def _written_anew(arguments: str, compact: bool) -> str:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return to_json(parsed, compact=compact) if isinstance(parsed, dict) else arguments


_ARRAYS: dict[ToolStyle, Arrays] = {"typescript": "nested", "typescript_flat": "flat", "typescript_loose": "loose"}
# The first edition of K2's template: exactly the six ids that Groq, BaseTen, Together, Chutes and SiliconFlow billed with tools in 2025-09.
_HEADING = "\n  # Tools\n  "
_GO_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def declaration(tools: Sequence[Mapping[str, Any]], form: PromptForm) -> str:
    """The text of the tool_declare turn in `form`; TypeScript falls back to compact JSON where it has no words."""
    shown = [_shown_tool(tool, form) for tool in tools]
    if form.tool_style in _ARRAYS:
        try:
            return declare_tools(shown, arrays=_ARRAYS[form.tool_style]) or to_json(sort_keys(shown), compact=True)
        except Unwritable:
            return to_json(sort_keys(shown), compact=True)
    text = to_json(shown, compact=form.tool_style == "compact_json")
    text = text.translate(_GO_ESCAPES) if form.escaped else text
    return _HEADING + text if form.tool_style == "headed_json" else text


_TYPED_TOOL = ("type", "function")
_TYPED_FUNCTION = ("name", "description", "parameters", "strict")


def _shown_tool(tool: Mapping[str, Any], form: PromptForm) -> dict[str, Any]:
    """The tool with the keys, in the order, that `form` renders."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    function = {key: value for key, value in function.items() if form.strict or key != "strict"}
    if form.strict == "added":
        function.setdefault("strict", False)
    if form.tool_keys == "typed":
        function = _ordered(function, _TYPED_FUNCTION)
    shown = {**tool, "function": function} if form.wrapped else function
    if form.tool_keys == "sorted":
        return dict(sort_keys(shown))
    return _ordered(shown, _TYPED_TOOL) if form.tool_keys == "typed" and form.wrapped else shown


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
        variables = {**_special_names(path.with_name(CONFIG_FILE)), **switches}
        return str(_template(path, path.stat().st_mtime_ns).render(messages=list(messages), tools=tools, **variables))
    except (jinja2.TemplateError, OSError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise ExactError(f"{path}: the template cannot be rendered ({error})") from None


# The names of special tokens that transformers hands to a template
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def _special_names(config: Path) -> dict[str, str]:
    """{bos_token: its text, …} of the tokenizer_config.json beside a template; a template of another place has none."""
    return _named_tokens(config, config.stat().st_mtime_ns) if config.is_file() else {}


@lru_cache(maxsize=8)
def _named_tokens(config: Path, mtime_ns: int) -> dict[str, str]:
    raw = json.loads(config.read_text(encoding="utf-8"))
    found = {key: raw.get(key) for key in _NAMED_TOKENS}
    texts = {key: value.get("content") if isinstance(value, Mapping) else value for key, value in found.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


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

    def strftime_now(form: str) -> str:
        raise ValueError("it writes today's date: say which one under [template.variables], or render with the server")

    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":  # tokenizer_config.json
        text = template_of(json.loads(text))
    return environment.from_string(text)


def template_of(config: Mapping[str, Any]) -> str:
    """The chat template of a tokenizer_config.json: the text, or of several named ones the default; "" where there is none."""
    found = config.get("chat_template")
    if isinstance(found, Sequence) and not isinstance(found, str):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else ""
