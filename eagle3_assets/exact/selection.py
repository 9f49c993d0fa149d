"""What the bills leave: the hypotheses that fit one answer, their weights, and how likely the best of them is right.

Belongs here: priors, learned weights, the posterior over distinct id sequences, P(exact | fits). Does not belong here:
enumerating hypotheses (`hypotheses.py`), grades and reasons (`reconstruct.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.hypotheses import BILLS, Completion, PromptCandidate
from eagle3_assets.exact.tokenizer import Profile
from eagle3_assets.exact.wire_profiles import reading_name

# Documented priors, used only to order what the evidence leaves open: shares of providers met in the recorded traffic and in the
# simulator profiles of the contract (section 5). A learned profile replaces the first two.
PRIOR_SPACING = {
    "verbatim": 0.35,
    "injected": 0.30,
    "injected_inner": 0.15,
    "stripped_reasoning": 0.10,
    "stripped_both": 0.08,
    "stripped_content": 0.02,
}
PRIOR_COUNTS_END = {True: 0.9, False: 0.1}
PRIOR_ODD_TOOL_ID = 0.1  # an id on the wire that has not the model's form is the model's all the same
PRIOR_CLOSED = {True: 0.95, False: 0.05}  # reasoning that a tool section ended without its marker
PRIOR_OWN_FORM, PRIOR_OTHER_FORM = 0.8, 0.2
# exactness.md 3.6: share of answers that are not canonical or wrongly read, and the part of those that no count shows
PRIOR_Q, F0_EDGES_KNOWN, F0_EDGES_HIDDEN = 0.05, 0.25, 0.75

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One answer with everything that is known about it; `wire` is its provider's entry of the wire profiles."""

    profile: Profile
    request: Mapping[str, Any]
    fields: Fields
    wire: Mapping[str, Any] | None
    source: str
    thinking: bool

    @property
    def truncated(self) -> bool:
        return self.fields.finish_reason == "length"

    @property
    def decided(self) -> bool:
        return bool((self.wire or {}).get("decided"))

    @property
    def learned_prompt(self) -> Mapping[str, Any]:
        strata = (self.wire or {}).get("strata") or {}
        stratum = strata.get("tools" if self.request.get("tools") else "no_tools") or {}
        return dict(stratum.get("prompt") or {})


@dataclass(frozen=True, slots=True)
class Fit:
    """One completion under one billing convention, with the weight of its hypotheses."""

    completion: Completion
    counts_end: bool
    weight: float


@dataclass(frozen=True, slots=True)
class Selection:
    """What equals the bills, best first. `contradicted`: only readings or prompts fit that the provider's profile rules out.

    `completions` and `prompts` are the distinct id sequences that survive with their normalised weights, best first.
    """

    fits: tuple[Fit, ...]
    contradicted: bool
    completions: tuple[tuple[Ids, float], ...]
    prompts: tuple[tuple[PromptCandidate, float], ...]


def select(case: Case, prompts: Sequence[PromptCandidate], completions: Sequence[Completion]) -> Selection:
    """Keep what equals the bills; what the provider's profile rules out stays only when nothing else fits."""
    billed = case.fields.billed_completion
    fits = [
        Fit(completion, counts_end, _weight(case, completion, counts_end))
        for completion in completions
        for counts_end in BILLS
        if completion.billed(counts_end) == billed
    ]
    out = set((case.wire or {}).get("ruled_out") or ())
    kept = [fit for fit in fits if reading_name((fit.completion.spacing, fit.counts_end)) not in out]
    chosen_prompts, odd_prompt = _select_prompts(case, prompts)
    contradicted = (bool(fits) and not kept) or odd_prompt
    fits = kept or fits
    weights: dict[Ids, float] = defaultdict(float)
    for fit in fits:  # hypotheses with equal ids are one
        weights[fit.completion.ids] += fit.weight
    fits.sort(key=lambda fit: (-weights[fit.completion.ids], -fit.weight))
    total = sum(weights.values()) or 1.0
    distinct = sorted(((ids, weight / total) for ids, weight in weights.items()), key=lambda item: -item[1])
    return Selection(tuple(fits), contradicted, tuple(distinct), chosen_prompts)


def _weight(case: Case, completion: Completion, counts_end: bool) -> float:
    readings: dict[str, int] = (case.wire or {}).get("readings") or {}
    if readings:
        fitting = readings.get(reading_name((completion.spacing, counts_end)), 0)
        weight = float(fitting + 0.1) / (sum(readings.values()) + 1.0)
    else:
        weight = PRIOR_SPACING[completion.spacing] * PRIOR_COUNTS_END[counts_end]
    pattern = case.profile.tool_id_pattern
    if completion.tool_ids == "wire" and any(pattern.match(call.id) is None for call in case.fields.tool_calls):
        weight *= PRIOR_ODD_TOOL_ID
    if _may_be_unclosed(case, completion):
        weight *= PRIOR_CLOSED[completion.parts.closed]
    return weight


def _may_be_unclosed(case: Case, completion: Completion) -> bool:
    """A tool section behind reasoning, no content between: it may have ended the reasoning without the closing marker."""
    return case.thinking and completion.parts.section is not None and not completion.parts.content


def _select_prompts(case: Case, prompts: Sequence[PromptCandidate]) -> tuple[tuple[tuple[PromptCandidate, float], ...], bool]:
    """(what equals the bill with normalised weights, best first; whether only forms fit that the profile rules out)."""
    fitting = [candidate for candidate in prompts if len(candidate.ids) == case.fields.billed_prompt]
    out = set(case.learned_prompt.get("ruled_out") or ())
    allowed = [candidate for candidate in fitting if not set(candidate.forms) <= out]
    kept = allowed or fitting
    counts = case.learned_prompt.get("forms") or {}

    def weight(candidate: PromptCandidate) -> float:
        if counts:
            return float(max(counts.get(form, 0) for form in candidate.forms)) + 0.1
        return PRIOR_OWN_FORM if candidate is prompts[0] else PRIOR_OTHER_FORM

    total = sum(weight(candidate) for candidate in kept) or 1.0
    weighed = sorted(((candidate, weight(candidate) / total) for candidate in kept), key=lambda item: -item[1])
    return tuple(weighed), bool(fitting) and not allowed


def p_exact_of(case: Case, completion: Completion) -> float:
    """P(exact | fits the bill, this hypothesis is right): non-canonical sampling and damage at edges that no count shows.

    With u the share of the provider's rows that fit nothing and f0 the part of the errors that is count-neutral, the wrong ones
    among the fitting are u f0 / (1 - f0) of all (exactness.md 3.6); each edge of the row multiplies its own certainty.

    Reasoning without its closing marker costs one token less than with it, and so does any damage that adds one token to the text
    (spaces put into tool arguments). The bill cannot tell the two apart: the prior of the reading stands against the prior of the
    other one times u, the most that damage can account for.
    """
    wire = case.wire
    if not wire or not wire.get("rows"):
        unfit = PRIOR_Q * (1 - F0_EDGES_KNOWN)
        return (1 - PRIOR_Q * F0_EDGES_KNOWN / (1 - unfit)) * _closing_certainty(case, completion, PRIOR_Q)
    unfit = (wire["rows"] - wire["explained"] + 0.5) / (wire["rows"] + 1)
    certainty, hidden = 1.0, False
    present = {"reasoning": bool(completion.texts.reasoning), "content": bool(completion.texts.content)}
    for edge, status in (wire.get("edges") or {}).items():
        if present.get(edge.partition("_")[0]):
            hidden = hidden or status["certainty"] is None
            certainty *= 1.0 if status["certainty"] is None else float(status["certainty"])
    f0 = F0_EDGES_HIDDEN if hidden else F0_EDGES_KNOWN
    wrong = float(unfit) * f0 / (1 - f0) / max(1 - float(unfit), 1e-9)
    return max(0.0, 1 - wrong) * certainty * _closing_certainty(case, completion, float(unfit))


def _closing_certainty(case: Case, completion: Completion, unfit: float) -> float:
    """P(the marker is where this reading has it | the bill fits), where both readings are possible; else 1."""
    if not _may_be_unclosed(case, completion):
        return 1.0
    ours, other = PRIOR_CLOSED[completion.parts.closed], PRIOR_CLOSED[not completion.parts.closed]
    return ours / (ours + other * unfit)
