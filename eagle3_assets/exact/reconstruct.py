"""Fields + request → `Reconstruction`: the ids that the evidence supports, with a grade that means what it says.

Belongs here: selection by bills, the posterior over what survives, grades. Does not belong here: the hypotheses themselves
(`hypotheses.py`), what is known of a provider (`wire_profiles.py`), rows of a dataset (`rows.py`).

Grades given here (design section 5; exactness.md section 6):
    A0  ids from a server: the grammar accepts them, they decode to the returned text, their number is the bill where there is one,
        and the prompt is a rendering of the request (`_prompt_fault`)
    B1  one id sequence survives, its provider is decided by data, p_exact >= 0.95
    C1  fits the bill, but the provider is undecided, or several sequences survive
    I   imported text without ids and without a bill      D  no usable bill, or no template for the prompt
    Q   nothing fits, or something about the answer is wrong (reasons say what)
A reason that is the name of a check (review/table.py) stands in front of its detail: `completion_equals_bill: …`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.grammar import Parts, check, split
from eagle3_assets.exact.hypotheses import (
    BILLS,
    ENDS_TURN,
    Completion,
    PromptCandidate,
    count_calls,
    enumerate_completions,
    enumerate_prompts,
)
from eagle3_assets.exact.reconstruction import Reconstruction
from eagle3_assets.exact.render import history_arguments, wants_thinking
from eagle3_assets.exact.selection import PRIOR_Q, Case, Fit, Selection, p_exact_of, select
from eagle3_assets.exact.tokenizer import Profile
from eagle3_assets.exact.wire_profiles import VERSION
from eagle3_assets.exact.wire_text import canonical_fields, matching_spacing

P_BASIS = "simulated"  # no number is called audited without an audit (design section 5)
B1_FLOOR = 0.95
MAX_SURVIVORS = 16

P_SERVER_IDS, P_IMPORTED, P_UNVERIFIED = 0.9995, 1 - PRIOR_Q, 0.5


def reconstruct(
    profile: Profile,
    request: Mapping[str, Any],
    fields: Fields,
    wire_profile: Mapping[str, Any] | None,
    *,
    source: str,
    thinking: bool = True,
) -> Reconstruction:
    """Rebuild one answer. `wire_profile` is the provider's entry (`wire_profiles.entry_of`) or None; `source` openrouter,
    engine or import; `thinking` what holds where the request says nothing. Never raises for a bad answer: it becomes grade Q
    with reasons.
    """
    thinks = profile.opened_by != "never" and (wants_thinking(request, thinking) or not profile.facts["reasoning"].get("instant"))
    if fields.finish_reason is None and source == "import":
        fields = _with_finish(fields)
    case = Case(profile, request, fields, wire_profile, source, thinks)
    try:
        prompts, no_prompt = enumerate_prompts(profile, request, thinking=thinks), None
    except ExactError as error:
        prompts, no_prompt = [], str(error)
    if fields.output_ids is not None:
        return _from_server_ids(case, prompts, no_prompt)
    return _from_text(case, prompts, no_prompt)


def _with_finish(fields: Fields) -> Fields:
    """A given message without a finish reason is a complete one."""
    return replace(fields, finish_reason="tool_calls" if fields.tool_calls else "stop")


# ---------------------------------------------------------------------------------------------------- ids from a server
def _from_server_ids(case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None) -> Reconstruction:
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
    residual = _residual(fields, len(prompt) if prompt else None, len(output), parts)
    if foreign:  # a row holds ids of its tokenizer only (the wire's bytes keep the rest): one bad answer must not stop its shard
        prompt = output = ()
    return _result(case, prompt, output, grade, p, residual, (1, int(not reasons), int(not reasons)), reasons, evidence)


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
        reasons.append(_prompt_misfit(prompts, fields.billed_prompt))
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


# ---------------------------------------------------------------------------------------------------- text and a bill
def _from_text(case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None) -> Reconstruction:
    profile, fields = case.profile, case.fields
    reasons = list(fields.problems)
    try:
        prior_calls = count_calls(case.request.get("messages") or [])
        completions = enumerate_completions(profile, fields, thinking=case.thinking, prior_calls=prior_calls)
    except ExactError as error:
        reasons.append(f"wire_text: {error}")
        return _result(case, (), (), "Q", 0.0, _residual(fields, None, None, None), (0, 0, 0), reasons, {"basis": "none"})
    if fields.finish_reason not in (*ENDS_TURN, "length"):
        reasons.append(f"finish reason {fields.finish_reason!r}: not a usable end")
    if not (fields.reasoning or fields.content or fields.tool_calls):
        reasons.append("the answer is empty")
    if "\ufffd" in "".join((fields.reasoning or "", fields.content or "", *(call.arguments for call in fields.tool_calls))):
        reasons.append("wire_text: U+FFFD in the text: bytes were lost, the ids cannot be known")
    if not fields.billed_completion or (not fields.billed_prompt and prompts):
        return _unbilled(case, prompts, completions, no_prompt, reasons)
    return _from_bill(case, prompts, completions, no_prompt, reasons)


def _unbilled(
    case: Case, prompts: Sequence[PromptCandidate], completions: Sequence[Completion], no_prompt: str | None, reasons: list[str]
) -> Reconstruction:
    """No usable bill: the text as it stands, grade I for imports and D for everything else."""
    first = completions[0]
    prompt = prompts[0].ids if prompts else ()
    bills = ((case.fields.billed_prompt, len(prompt)), (case.fields.billed_completion, len(first.ids)))
    other_bill = any(billed is not None and billed != ids for billed, ids in bills)
    grade, p = ("I", P_IMPORTED) if case.source == "import" and not other_bill else ("D", P_UNVERIFIED)
    if reasons:
        grade, p = "Q", 0.0
    elif not prompts:
        grade, p = "D", P_UNVERIFIED
        reasons.append(f"prompt: {no_prompt}")
    elif grade == "D":
        found = "half a bill, which does not fit" if other_bill else "nothing was billed"
        reasons.append(f"no usage: {found}, so nothing is verified")
    evidence = {"basis": "none", "spacing": "verbatim", "wire_text": True, **canonical_fields(case.profile, first.parts)}
    residual = _residual(case.fields, len(prompt) or None, len(first.ids), first.parts)
    return _result(case, prompt, first.ids, grade, p, residual, (len(completions), 1, 1), reasons, evidence)


def _from_bill(
    case: Case, prompts: Sequence[PromptCandidate], completions: Sequence[Completion], no_prompt: str | None, reasons: list[str]
) -> Reconstruction:
    """The hypothesis that the bills and the provider's profile support best; the text as it stands where nothing fits."""
    chosen = select(case, prompts, completions)
    best = chosen.fits[0] if chosen.fits else Fit(completions[0], True, 0.0)
    prompt = chosen.prompts[0][0] if chosen.prompts else prompts[0] if prompts else PromptCandidate((), ())
    ids = best.completion.ids
    if not chosen.fits:
        stands, billed = completions[0].billed(True), case.fields.billed_completion
        hint = _respaced_hint(case, stands)
        reasons.append(f"completion_equals_bill: no hypothesis fits (as the text stands {stands}, billed {billed}{hint})")
    if prompts and not chosen.prompts:
        reasons.append(_prompt_misfit(prompts, case.fields.billed_prompt or 0))
    fault = check(case.profile, ids, thinking=case.thinking, truncated=case.truncated)
    if fault:
        reasons.append(f"grammar: {fault}")
    sequences = [(p.ids, c) for p, _ in chosen.prompts or ((prompt, 1.0),) for c, _ in chosen.completions]
    share = (chosen.completions[0][1] if chosen.completions else 0.0) * (chosen.prompts[0][1] if chosen.prompts else 1.0)
    grade, p = _grade(case, chosen, best.completion, share, len(sequences), reasons, no_prompt if not prompts else None)
    rebuilt = best.completion.billed(best.counts_end)
    evidence = {
        "basis": "bill",
        "spacing": best.completion.spacing,
        "edits": dict(best.completion.texts.edits),
        "tool_ids": best.completion.tool_ids,
        "reasoning_closed": best.completion.parts.closed,
        "counts_end": best.counts_end,
        "convention": {"completion": rebuilt - len(ids), "prompt": 0},
        "prompt_forms": list(prompt.forms) if chosen.prompts else [],
        "wire_text": True,
        "posterior": round(share, 6),
    }
    tried = len(completions) * len(BILLS) * max(1, len(prompts))
    surviving = len(chosen.fits) * (len(chosen.prompts) if prompts else 1)
    residual = _residual(case.fields, len(prompt.ids) if prompts else None, rebuilt, best.completion.parts)
    others = [(*p_ids, *c_ids) for p_ids, c_ids in sequences if (p_ids, c_ids) != (prompt.ids, ids)]
    survivors = tuple(others[:MAX_SURVIVORS]) if grade == "C1" else ()
    counts = (tried, surviving, len(sequences) if surviving else 0)
    return _result(case, prompt.ids, ids, grade, p, residual, counts, reasons, evidence, survivors)


def _grade(
    case: Case,
    chosen: Selection,
    best: Completion,
    share: float,
    distinct: int,
    reasons: list[str],
    no_prompt: str | None,
) -> tuple[str, float]:
    """Grade and p_exact of a billed text answer; may add the reason for a low grade."""
    if reasons:
        return "Q", 0.0
    if no_prompt is not None:
        reasons.append(f"prompt: {no_prompt}")
        return "D", P_UNVERIFIED
    p = share * p_exact_of(case, best)
    if chosen.contradicted:
        reasons.append("the provider's wire profile does not fit this row, another reading does")
        return "C1", 0.5 * p
    return ("B1" if case.decided and distinct == 1 and p >= B1_FLOOR else "C1"), p


# ---------------------------------------------------------------------------------------------------- results
def _respaced_hint(case: Case, stands: int) -> str:
    """A word for the reader when re-serialised arguments (contract 4.3 #6) would explain the bill; they are not put in: the
    model's own text is lost then."""
    encode = case.profile.encode
    texts = [(call.arguments, history_arguments(call.arguments, "spaced")) for call in case.fields.tool_calls]
    try:
        change = sum(len(encode(spaced)) - len(encode(sent)) for sent, spaced in texts)
    except ExactError:  # an escaped lone surrogate in the arguments is one in what they parse to
        return ""
    fits = change and stands + change == case.fields.billed_completion
    return f"; {stands + change} with spaced tool arguments: re-serialised on the way?" if fits else ""


def _prompt_misfit(prompts: Sequence[PromptCandidate], billed: int) -> str:
    nearest = min(prompts, key=lambda candidate: abs(len(candidate.ids) - billed))
    return (
        f"prompt_equals_bill: no form fits (the model's own {len(prompts[0].ids)}, nearest {nearest.forms[0]} "
        f"{len(nearest.ids)}, billed {billed})"
    )


def _residual(fields: Fields, prompt: int | None, completion: int | None, parts: Parts | None) -> dict[str, int | None]:
    """Rebuilt minus billed; None where either is missing. Reasoning is counted with its closing marker (R + 1), and a billed 0 is
    absent (vllm#44398)."""
    reasoning = (
        None
        if parts is None or not fields.billed_reasoning
        else len(parts.reasoning) + int(parts.closed) - fields.billed_reasoning
    )
    return {
        "prompt": None if prompt is None or fields.billed_prompt is None else prompt - fields.billed_prompt,
        "completion": None if completion is None or fields.billed_completion is None else completion - fields.billed_completion,
        "reasoning": reasoning,
    }


def _result(
    case: Case,
    prompt: tuple[int, ...],
    completion: tuple[int, ...],
    grade: str,
    p_exact: float,
    residual: dict[str, int | None],
    counts: tuple[int, int, int],
    reasons: Sequence[str],
    evidence: dict[str, Any],
    survivors: tuple[tuple[int, ...], ...] = (),
) -> Reconstruction:
    hypotheses = dict(zip(("tried", "surviving", "distinct"), counts, strict=True))
    return Reconstruction(
        input_ids=(*prompt, *completion),
        prompt_len=len(prompt),
        loss_spans=((len(prompt), len(prompt) + len(completion)),) if completion else (),
        grade=grade,
        p_exact=p_exact,
        p_basis=P_BASIS,
        residual=residual,
        hypotheses=hypotheses,
        reasons=tuple(reasons),
        survivors=survivors,
        evidence={
            **evidence,
            "profile": case.profile.name,
            "thinking": case.thinking,
            "wire_profile": VERSION if case.wire else None,
            "provider_decided": bool((case.wire or {}).get("decided")),
            "residual": residual,
            "hypotheses": hypotheses,
        },
    )
