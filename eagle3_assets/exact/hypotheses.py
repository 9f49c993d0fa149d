"""Hypotheses: every id sequence that could stand behind an answer, and every prompt that a server could have made of a request.

Belongs here: the finite spaces, each member with the finding that put it there. Does not belong here: choosing among them
(`reconstruct.py`), learning which a provider uses (`wire_profiles.py`).

Completion = spacing x tool ids x end of reasoning x where a truncated answer was cut; the bill may or may not count the end of
turn. Prompt = `render.PromptForm`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle3_assets.exact.fields import Fields, ToolCall
from eagle3_assets.exact.grammar import CallParts, Parts, assemble
from eagle3_assets.exact.render import KeyOrder, PromptForm, ToolStyle, default_form, reasoning_of, render_text
from eagle3_assets.exact.tokenizer import Profile

# How a server's text differs from the model's at the edges of its fields:
#   verbatim            not at all
#   injected            one space joined to every marker (vllm#33457; contract 4.3 #1): at most one is taken off reasoning's
#   two edges and
#                       content's front (and content's back before a tool section)
#   injected_inner      the same by a server that decodes the output alone: <think> stands in the prompt, so nothing is joined
#   to the
#                       front of the reasoning, and a space there is the model's
#   stripped_*          the leading space that the model wrote is gone (SGLang before #24251): one is put back
SPACINGS = ("verbatim", "injected", "injected_inner", "stripped_reasoning", "stripped_content", "stripped_both")
INJECTED_EDGES = {
    "injected": ("reasoning_lead", "reasoning_trail", "content_lead", "content_trail"),
    "injected_inner": ("reasoning_trail", "content_lead", "content_trail"),
}
ENDS_TURN = ("stop", "tool_calls")
BILLS = (True, False)  # usage.completion_tokens counts the end of turn, or not (contract 4.3 #13)

Encode = Callable[[str], tuple[int, ...]]


# ---------------------------------------------------------------------------------------------------- text at the edges
@dataclass(frozen=True, slots=True)
class Texts:
    """Reasoning and content as the model would have written them under one spacing, and what was changed at each edge.

    `edits` maps an edge (reasoning_lead, reasoning_trail, content_lead, content_trail) to -1 (a space taken off) or +1 (put
    back).
    """

    reasoning: str
    content: str
    edits: tuple[tuple[str, int], ...] = ()


def unbend(spacing: str, reasoning: str, content: str, *, calls: bool) -> Texts | None:
    """The model's texts behind the wire's under `spacing`; None where the wire contradicts it: a stripping server shows no
    space in front, an injecting one always does (behind a field it may be gone again: parsers strip there)."""
    edits: list[tuple[str, int]] = []
    for edge in INJECTED_EDGES.get(spacing, ()):
        text = reasoning if edge.startswith("reasoning") else content
        if edge.endswith("lead") and text and not text.startswith(" "):
            return None
    for edge in INJECTED_EDGES.get(spacing, ()):
        text = reasoning if edge.startswith("reasoning") else content
        cut = text.removeprefix(" ") if edge.endswith("lead") else text.removesuffix(" ")
        if cut != text and (edge != "content_trail" or calls):
            edits.append((edge, -1))
            reasoning, content = (cut, content) if edge.startswith("reasoning") else (reasoning, cut)
    if spacing in ("stripped_reasoning", "stripped_both") and reasoning:
        if reasoning[0].isspace():
            return None
        reasoning = " " + reasoning
        edits.append(("reasoning_lead", 1))
    if spacing in ("stripped_content", "stripped_both") and content:
        if content[0].isspace():
            return None
        content = " " + content
        edits.append(("content_lead", 1))
    return Texts(reasoning, content, tuple(edits))


def bend(texts: Texts) -> tuple[str, str]:
    """The inverse of `unbend`: the wire's (reasoning, content) that `texts` and their edits stand for."""
    out = {"reasoning": texts.reasoning, "content": texts.content}
    for edge, edit in texts.edits:
        name, _, side = edge.partition("_")
        if edit < 0:
            out[name] = " " + out[name] if side == "lead" else out[name] + " "
        else:
            out[name] = out[name].removeprefix(" ")
    return out["reasoning"], out["content"]


# ---------------------------------------------------------------------------------------------------- completions
@dataclass(frozen=True, slots=True)
class Completion:
    """One candidate for the response: its ids and how they came about."""

    ids: tuple[int, ...]
    parts: Parts
    texts: Texts
    spacing: str
    tool_ids: Literal["none", "wire", "rebuilt"]

    def billed(self, counts_end: bool) -> int:
        """Completion tokens that a server with this convention would bill."""
        return len(self.ids) - int(self.parts.ended and not counts_end)

    @property
    def reasoning_count(self) -> int:
        """Reasoning tokens with the closing marker where it was emitted (R + 1: contract 0.5)."""
        return len(self.parts.reasoning) + int(self.parts.closed)


def enumerate_completions(profile: Profile, fields: Fields, *, thinking: bool, prior_calls: int) -> list[Completion]:
    """All candidates for the answer in `fields`; the first is the text as it stands.

    `prior_calls` counts the tool calls of the conversation so far (rebuilt ids continue it). Equal ids of different spacings
    are all listed. Raises ExactError for text that has no ids (lone surrogates).
    """
    truncated = fields.finish_reason == "length"
    encode = remembering(edge_encoder(profile))
    out = []
    for spacing in SPACINGS:
        texts = unbend(spacing, fields.reasoning or "", fields.content or "", calls=bool(fields.tool_calls))
        if texts is None:
            continue
        base = Parts(
            reasoning=encode(texts.reasoning),
            content=encode(texts.content),
            opened=thinking and profile.opened_by == "model",
            ended=not truncated,
        )
        for tool_ids, heads in _call_ids(profile, fields.tool_calls, prior_calls):
            for parts in _tool_variants(base, fields.tool_calls, heads, encode, truncated):
                for closed in _closings(parts, thinking and profile.opened_by != "never", truncated):
                    whole = replace(parts, closed=closed)
                    out.append(Completion(assemble(profile, whole), whole, texts, spacing, tool_ids))
    return out


def _closings(parts: Parts, reasons: bool, truncated: bool) -> tuple[bool, ...]:
    """Whether the closing marker was emitted. Without content a tool section may have ended the reasoning (vllm#32216), and a
    truncated answer may have been cut inside it."""
    if not reasons:
        return (False,)
    if parts.content:
        return (True,)
    if parts.section is not None:
        return (True, False)
    return (False, True) if truncated else (True,)


def _call_ids(
    profile: Profile, calls: Sequence[ToolCall], prior_calls: int
) -> Iterator[tuple[Literal["none", "wire", "rebuilt"], list[str]]]:
    """The id texts that the model may have written: the wire's where it has the model's form and the conversation's next number,
    else rebuilt from the counter and (models do write odd ids) as on the wire. For a foreign id the bill decides, it costs 9 to 31
    more; a native id with another number costs the same, so both survive: a server may have renumbered it (contract 4.3 #7).
    """
    if not calls:
        yield "none", []
        return
    wire = [call.id for call in calls]
    rebuilt = [profile.tool_id(call.name, prior_calls + k) for k, call in enumerate(calls)]
    matches = [profile.tool_id_pattern.match(call.id) for call in calls]
    native = all(m is not None and m["name"] == call.name for m, call in zip(matches, calls, strict=True))
    if not native:
        yield "rebuilt", rebuilt
    if all(wire):
        yield "wire", wire
    if native and rebuilt != wire:
        yield "rebuilt", rebuilt


def _tool_variants(base: Parts, calls: Sequence[ToolCall], heads: list[str], encode: Encode, truncated: bool) -> Iterator[Parts]:
    """The tool section; a truncated one may lack its end, the last call's end, or the last call's arguments."""
    if not calls:
        yield base
        return
    parts = tuple(CallParts(encode(head), encode(call.arguments)) for head, call in zip(heads, calls, strict=True))
    yield replace(base, calls=parts, section=True)
    if truncated:
        yield replace(base, calls=parts, section=False)
        yield replace(base, calls=(*parts[:-1], replace(parts[-1], closed=False)), section=False)
        if not parts[-1].arguments:
            yield replace(base, calls=(*parts[:-1], CallParts(parts[-1].head, None, closed=False)), section=False)


def count_calls(messages: Sequence[Mapping[str, Any]]) -> int:
    """Tool calls in a conversation's history."""
    return sum(len(m["tool_calls"]) for m in messages if isinstance(m.get("tool_calls"), list | tuple))


# ---------------------------------------------------------------------------------------------------- encoding texts that
# differ at an edge Between a letter and a space before a letter the split regex always cuts, whatever stands in front: a run
# of letters ends at the space, and the space begins the next piece. So texts that differ only at their edges share the
# encoding of their middle.
_SAFE_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_EDGE_CHARS = 64


def edge_encoder(profile: Profile) -> Encode:
    """`profile.encode` that encodes the long middle of a text once, however its edges vary."""
    middles: dict[str, tuple[int, ...]] = {}

    def encode(text: str) -> tuple[int, ...]:
        first = _SAFE_CUT.search(text)
        last = _SAFE_CUT.search(text, max(first.end() + 1, len(text) - _EDGE_CHARS)) if first else None
        if not first or not last or len(text) < 4 * _EDGE_CHARS:
            return tuple(profile.encode(text))
        middle = text[first.start() : last.start()]
        if middle not in middles:
            middles[middle] = tuple(profile.encode(middle))
        return (*profile.encode(text[: first.start()]), *middles[middle], *profile.encode(text[last.start() :]))

    return encode


def remembering(encode: Encode) -> Encode:
    """`encode` with a memory of the texts seen (one answer's worth)."""
    seen: dict[str, tuple[int, ...]] = {}

    def remember(text: str) -> tuple[int, ...]:
        if text not in seen:
            seen[text] = encode(text)
        return seen[text]

    return remember


# ---------------------------------------------------------------------------------------------------- prompts
@dataclass(frozen=True, slots=True)
class PromptCandidate:
    """One candidate for the prompt: its ids and the names of all forms that lead to them."""

    ids: tuple[int, ...]
    forms: tuple[str, ...]


def enumerate_prompts(profile: Profile, request: Mapping[str, Any], *, thinking: bool) -> list[PromptCandidate]:
    """All distinct prompts that a server may have made of `request`; the first is the model's own form. Forms that lead to the
    same ids are one candidate. Raises ExactError where no template is known or a message cannot be rendered.
    """
    messages = request.get("messages") or []
    tools = request.get("tools") or None
    texts: dict[str, list[str]] = {}
    for form in prompt_forms(profile, messages, tools):
        text = render_text(profile, messages, tools, thinking=thinking, form=form)
        texts.setdefault(text, []).append(form.name)
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
            text = render_text(profile, messages, tools, thinking=thinking, form=form)
            return {tuple(profile.encode_prompt(text))}
    return set()


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
        forms += [replace(form, arguments="spaced") for form in forms]
    return forms
