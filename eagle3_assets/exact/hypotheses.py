"""Prompt hypotheses: every prompt that a server could have made of a request.

Belongs here: the finite space of prompts (prompt-side.md), their ids, choosing by the bill and by what is known of the provider.
Does not belong here: completions (`frames.py`, `readings.py`), learning (`prompt_learning.py`), rendering itself (`render.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3_assets.exact.render import KeyOrder, PromptForm, ToolStyle, default_form, reasoning_of, render_text
from eagle3_assets.exact.tokenizer import Profile


@dataclass(frozen=True, slots=True)
class PromptCandidate:
    """One candidate for the prompt: its ids and the names of all forms that lead to them."""

    ids: tuple[int, ...]
    forms: tuple[str, ...]


def enumerate_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, only: Sequence[str] | None = None
) -> list[PromptCandidate]:
    """All distinct prompts that a server may have made of `request`; the first is the model's own form. Forms that lead to the
    same ids are one candidate. `only`: these forms alone. Raises ExactError where no template is known or a message cannot be
    rendered.
    """
    messages = request.get("messages") or []
    tools = request.get("tools") or None
    texts: dict[str, list[str]] = {}
    for form in prompt_forms(profile, messages, tools):
        if only is None or form.name in only:
            texts.setdefault(_render(profile, messages, tools, thinking, form), []).append(form.name)
    by_ids: dict[tuple[int, ...], list[str]] = {}
    for text, names in texts.items():
        by_ids.setdefault(tuple(profile.encode_prompt(text)), []).extend(names)
    return [PromptCandidate(ids, tuple(names)) for ids, names in by_ids.items()]


def rendered_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, forms: Sequence[str] | None = None
) -> set[tuple[int, ...]]:
    """The ids of `request` in the forms named in `forms` (the first that is known is enough: evidence names equal ones together);
    None asks for every form. Raises ExactError as `enumerate_prompts` does."""
    if forms is None:
        return {candidate.ids for candidate in enumerate_prompts(profile, request, thinking=thinking)}
    messages, tools = request.get("messages") or [], request.get("tools") or None
    for form in prompt_forms(profile, messages, tools):
        if form.name in forms:
            return {tuple(profile.encode_prompt(_render(profile, messages, tools, thinking, form)))}
    return set()


def likely_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, billed: int | None, learned: Mapping[str, Any]
) -> list[PromptCandidate]:
    """The candidates to choose from: where the provider's form is decided and its count is the bill, that one alone (a
    conversation long as a book is rendered once, not forty times), else all. Raises ExactError as `enumerate_prompts` does."""
    if learned.get("form") and learned.get("decided") and billed:
        form = _nearest_form(profile, request, str(learned["form"]))
        for candidate in enumerate_prompts(profile, request, thinking=thinking, only=[form.name]):
            if len(candidate.ids) + int(learned.get("offset") or 0) == billed:
                return [candidate]
    left_open = open_forms(profile, request, learned)
    if left_open is not None and billed:
        left = enumerate_prompts(profile, request, thinking=thinking, only=list(left_open))
        if any(len(candidate.ids) + int(learned.get("offset") or 0) == billed for candidate in left):
            return left
    return enumerate_prompts(profile, request, thinking=thinking)


def open_forms(profile: Profile, request: Mapping[str, Any], learned: Mapping[str, Any]) -> set[str] | None:
    """The names, in this conversation, of the forms that a learned stratum leaves open; None where it rules nothing out. A form that
    changes nothing here goes by the name of the one that it equals, which may be ruled out itself elsewhere."""
    ruled_out = set(learned.get("ruled_out") or ())
    if not ruled_out:
        return None
    here = {form.name for form in prompt_forms(profile, request.get("messages") or [], request.get("tools") or None)}
    known = {*(learned.get("forms") or {}), str(learned.get("form"))} - ruled_out
    return (here - ruled_out) | {_nearest_form(profile, request, name).name for name in known}


def _nearest_form(profile: Profile, request: Mapping[str, Any], name: str) -> PromptForm:
    """What the form `name` is called in this conversation: forms that change nothing in it are left out of `prompt_forms`."""
    asked = name.replace("+", "/").split("/")

    forms = prompt_forms(profile, request.get("messages") or [], request.get("tools") or None)
    for form in forms:
        if form.name == name:
            return form

    def alike(form: PromptForm) -> tuple[int, int]:
        words = form.name.replace("+", "/").split("/")
        return sum(word in asked for word in words), -sum(word not in asked for word in words)

    return max(forms, key=alike)


_JSON_STYLES: tuple[ToolStyle, ...] = ("compact_json", "spaced_json")
_KEY_ORDERS: tuple[KeyOrder, ...] = ("as_sent", "typed")
# TypeScript shows neither the strict key nor the order of keys
_TOOL_FORMS = (
    PromptForm("typescript"),
    *(PromptForm(style, strict, keys) for style in _JSON_STYLES for strict in (False, True) for keys in _KEY_ORDERS),
)


def prompt_forms(
    profile: Profile, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[PromptForm]:
    """The forms that can matter for this conversation (a form that changes nothing in it is left out), the model's own first."""
    own = default_form(profile)
    forms = [replace(own, strict=False)]
    if tools:
        if any("strict" in tool.get("function", {}) for tool in tools):
            forms.append(own)
        forms += [form for form in _TOOL_FORMS if form not in forms]
    history = [m for m in messages if m.get("role") == "assistant"]
    if any(reasoning_of(m) for m in history):
        forms += [replace(form, history_reasoning="dropped") for form in forms]
    if any(m.get("tool_calls") for m in history):
        forms += [replace(form, arguments=style) for form in forms for style in ("spaced", "compact")]
        if _renumbered(profile, messages) != list(messages):
            forms += [replace(form, tool_ids="renumbered") for form in forms]
    return forms


def _render(
    profile: Profile,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    thinking: bool,
    form: PromptForm,
) -> str:
    if form.tool_ids == "renumbered":
        messages = _renumbered(profile, messages)
    return render_text(profile, messages, tools, thinking=thinking, form=form)


def _renumbered(profile: Profile, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with ids counted over the conversation, those of the results renamed with them."""
    names: dict[Any, str] = {}
    out: list[Mapping[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list | tuple) and calls:
            anew: list[dict[str, Any]] = []
            for call in calls:
                function = call.get("function") if isinstance(call, Mapping) else None
                name = function.get("name") if isinstance(function, Mapping) else None
                if not isinstance(name, str):
                    return list(messages)
                # every call counts, under whatever id it came
                renamed = profile.tool_id(name, len(anew) + sum(len(m.get("tool_calls") or ()) for m in out))
                names[str(call.get("id"))] = renamed
                anew.append({**call, "id": renamed})
            message = {**message, "tool_calls": anew}
        elif message.get("role") == "tool" and str(message.get("tool_call_id")) in names:
            message = {**message, "tool_call_id": names[str(message["tool_call_id"])]}
        out.append(message)
    return out
