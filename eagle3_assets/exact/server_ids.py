"""Ids that a server returned, held against the text, the bill and the request: grade A0, or quarantine with the reason.

Belongs here: what makes returned ids evidence (exactness.md 2d). Does not belong here: answers without ids (`reconstruct.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.frames import ENDS_TURN
from eagle3_assets.exact.grammar import check, split
from eagle3_assets.exact.hypotheses import PromptCandidate
from eagle3_assets.exact.reconstruction import Reconstruction, prompt_misfit, residual_of, result
from eagle3_assets.exact.selection import Case
from eagle3_assets.exact.wire_text import canonical_fields, matching_spacing

P_SERVER_IDS = 0.9995


def from_server_ids(case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None) -> Reconstruction:
    profile, fields = case.profile, case.fields
    output = tuple(fields.output_ids or ())
    reasons = list(fields.problems)
    prompt, prompt_basis = _server_prompt(case, prompts, no_prompt, reasons)
    if fields.finish_reason not in (*ENDS_TURN, "length"):
        reasons.append(f"finish reason {fields.finish_reason!r}: not a usable end")
    fault = check(profile, output, thinking=case.thinking, truncated=case.truncated)
    evidence: dict[str, Any] = {"basis": "server_ids", "prompt_basis": prompt_basis}
    parts = None
    foreign = any(token >= profile.n_vocab for token in (*output, *prompt))
    if foreign:
        reasons.append(f"grammar: an id is outside the vocabulary of {profile.name}; wrong tokenizer?")
    elif fault:
        reasons.append(f"grammar: {fault}")
    else:
        parts = split(profile, output, thinking=case.thinking, truncated=case.truncated)
        spacing, difference = matching_spacing(profile, parts, fields)
        evidence |= {"spacing": spacing, "wire_text": spacing is not None, **canonical_fields(profile, parts)}
        if difference:
            reasons.append(f"wire_text: {difference}")
    if fields.billed_completion is not None and fields.billed_completion != len(output):
        reasons.append(f"completion_equals_bill: {len(output)} ids, billed {fields.billed_completion}")
    if fields.prompt_ids is not None and fields.billed_prompt not in (None, len(prompt)):
        reasons.append(f"prompt_equals_bill: {len(prompt)} ids, billed {fields.billed_prompt}")
    if prompts:
        evidence["prompt_equals_template"] = any(candidate.ids == prompt for candidate in prompts)
    grade, p = ("Q", 0.0) if reasons else ("A0", P_SERVER_IDS)
    residual = residual_of(fields, len(prompt) if prompt else None, len(output), parts)
    if foreign:  # a row holds ids of its tokenizer only (the wire's bytes keep the rest): one bad answer must not stop its shard
        prompt = output = ()
    return result(case, prompt, output, grade, p, residual, (1, int(not reasons), int(not reasons)), reasons, evidence)


def _server_prompt(
    case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None, reasons: list[str]
) -> tuple[tuple[int, ...], str]:
    """The prompt ids: the server's, else the rendered candidate that the bill selects, else the model's own form."""
    fields = case.fields
    if fields.prompt_ids is not None:
        fault = _prompt_fault(case, prompts, no_prompt, fields.prompt_ids)
        if fault:
            reasons.append(f"prompt: {fault}")
        return fields.prompt_ids, "server_ids"
    if not prompts:
        reasons.append(f"prompt: {no_prompt}")
        return (), "none"
    if fields.billed_prompt is None:
        return prompts[0].ids, "template"
    fitting = [candidate for candidate in prompts if len(candidate.ids) == fields.billed_prompt]
    if not fitting:
        reasons.append(prompt_misfit(prompts, fields.billed_prompt))
    return (fitting or prompts)[0].ids, "bill"


def _prompt_fault(case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None, ids: tuple[int, ...]) -> str | None:
    """Why the prompt ids that a server returned prove nothing, or None. A count of them does not: any ids have one.

    They are evidence when they equal a rendering of the request. Those of an engine or an import (a server of one's own) may also
    be another encoding of a rendering's text; where no template is known, they must spell every message of the request in order.
    """
    if any(candidate.ids == ids for candidate in prompts):
        return None
    own = case.source in ("engine", "import")
    try:
        text = case.profile.decode(ids)
        if own and any(case.profile.decode(candidate.ids) == text for candidate in prompts):
            return None
    except ExactError as error:
        return str(error)
    if not prompts:
        if not own:
            return f"{no_prompt}, so the server's {len(ids)} prompt ids cannot be compared"
        return None if _spells(text, case.request) else f"{no_prompt}, and the server's prompt ids do not spell the request"
    nearest = min(prompts, key=lambda candidate: abs(len(candidate.ids) - len(ids)))
    at = next((k for k, (a, b) in enumerate(zip(ids, nearest.ids, strict=False)) if a != b), min(len(ids), len(nearest.ids)))
    return (
        f"the server's {len(ids)} prompt ids are no rendering of the request (they leave {nearest.forms[0]} of {len(nearest.ids)} "
        f"at position {at})"
    )


def _spells(text: str, request: Mapping[str, Any]) -> bool:
    """Whether the text of every message of `request` stands in `text`, in order."""
    at = 0
    for message in request.get("messages") or ():
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        for part in parts:
            piece = part.get("text") if isinstance(part, Mapping) else None
            if not isinstance(piece, str) or not piece:
                continue
            found = text.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
    return at > 0
