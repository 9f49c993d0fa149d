"""`Reconstruction`: ids with their evidence. Only the type and how it is filled live here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eagle3_assets.exact.prompt_side.hypotheses import PromptCandidate
from eagle3_assets.grades import GRADES
from eagle3_assets.targets.grammar import Parts
from eagle3_assets.wire.fields import Fields

if TYPE_CHECKING:
    from eagle3_assets.exact.search.selection import Case

P_BASIS = "simulated"  # no number is called audited without an audit (docs/design.md#columns)
MAX_SURVIVORS = 16
B1_FLOOR = GRADES["B1"].floor  # of p_exact


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """The ids that the evidence supports best.

    `input_ids` = prompt ids as the server saw them, then response ids; `loss_spans` half-open spans of ids that the target
    generated (unshifted); `survivors` the other full id sequences that the evidence leaves open; `residual` rebuilt minus billed
    {prompt, completion, reasoning}, None where nothing was billed; `hypotheses` {tried, surviving, distinct}.
    """

    input_ids: tuple[int, ...]
    prompt_len: int
    loss_spans: tuple[tuple[int, int], ...]
    grade: str
    p_exact: float
    p_basis: str
    residual: dict[str, int | None]
    hypotheses: dict[str, int]
    reasons: tuple[str, ...] = ()
    survivors: tuple[tuple[int, ...], ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)


def residual_of(
    fields: Fields, prompt: int | None, completion: int | None, parts: Parts | None, rho: int = 0
) -> dict[str, int | None]:
    """Rebuilt minus billed; None where either is missing. Reasoning is counted with its closing marker (R + 1) plus the
    provider's convention `rho`, and a billed 0 is absent (vllm#44398)."""
    reasoning = None
    if parts is not None and fields.billed_reasoning:
        reasoning = len(parts.reasoning) + int(parts.closed) + rho - fields.billed_reasoning
    return {
        "prompt": None if prompt is None or fields.billed_prompt is None else prompt - fields.billed_prompt,
        "completion": None if completion is None or fields.billed_completion is None else completion - fields.billed_completion,
        "reasoning": reasoning,
    }


def prompt_misfit(prompts: Sequence[PromptCandidate], billed: int) -> str:
    nearest = min(prompts, key=lambda candidate: abs(candidate.count - billed))
    return (
        f"prompt_equals_bill: no form fits (the model's own {prompts[0].count}, nearest {nearest.forms[0]} "
        f"{nearest.count}, billed {billed})"
    )


def result(
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
    """The reconstruction of a case. `counts`: hypotheses tried, surviving, distinct."""
    hypotheses = dict(zip(("tried", "surviving", "distinct"), counts, strict=True))
    return Reconstruction(
        input_ids=(*prompt, *completion),
        prompt_len=len(prompt),
        loss_spans=((len(prompt), len(prompt) + len(completion)),) if completion else (),
        grade=grade,
        p_exact=min(max(p_exact, 0.0), 1.0),
        p_basis=P_BASIS,
        residual=residual,
        hypotheses=hypotheses,
        reasons=tuple(reasons),
        survivors=survivors,
        evidence={
            **evidence,
            "profile": case.profile.name,
            "thinking": case.thinking,
            "prompt_thinking": case.mode.prompt,
            "wire_profile": (case.wire or {}).get("version"),
            "provider_decided": case.decided,
            "residual": residual,
            "hypotheses": hypotheses,
        },
    )
