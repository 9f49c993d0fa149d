"""What the bills leave: the ways to read one answer, their weights, and how likely the best of them is right.

Belongs here: the posterior over distinct id sequences and P(exact). Does not belong here: the ways themselves (`frames.py`,
`readings.py`), what is known of a provider (`wire_profiles.py`), grades and reasons (`reconstruct.py`).

P(exact). With weights of all ways summing to one before the bill is looked at, those that fit stand against what fits as well and
is none of them: an answer that is not canonical (1 - e^(-lambda n), of which f0 keep their count) and text that was damaged on
the way. So a way that is seldom a priori is not believed because it fits, and a long answer is believed less than a short one
(exactness.md 3.5, 3.6).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.frames import ODD_TOOL_ID, STYLES, UNCLOSED, CallHabits, Frame, count_calls, enumerate_frames
from eagle3_assets.exact.grammar import Ids, Parts, assemble
from eagle3_assets.exact.habits import PRIOR_F0, PRIOR_LAMBDA
from eagle3_assets.exact.hypotheses import PromptCandidate
from eagle3_assets.exact.readings import UNLEARNED, Reading, Way, reading_of, ways_of
from eagle3_assets.exact.tokenizer import Profile

PRIOR_OWN_FORM, PRIOR_OTHER_FORM = 0.8, 0.2
PRIOR_DAMAGE = 0.02
# Of damaged texts, those whose count stays the same: in general, and of arguments written anew with sorted keys (exactness.md 2b:
# 46.5 %)
SAME_COUNT, SAME_COUNT_SORTED = 0.25, 0.465
# Of deviations that change the count, those that land on one other given count: of other spellings, of damage
ODD_HITS_BILL, DAMAGE_HITS_BILL = 0.3, 0.15
AGAINST_REASONING_COUNT = 0.03
NEGLIGIBLE, NEGLIGIBLE_UNDECIDED = 0.035, 1e-3  # sequences that share no more than this among them are ruled out
# Ways that are more seldom than this are no hypotheses: what they would fit is sooner damage
SELDOM = 0.01


@dataclass(frozen=True, slots=True)
class Case:
    """One answer with everything that is known about it; `wire` is its provider's entry of the wire profiles, `at` the time of
    the answer (unix seconds, None: now)."""

    profile: Profile
    request: Mapping[str, Any]
    fields: Fields
    wire: Mapping[str, Any] | None
    source: str
    thinking: bool
    at: float | None = None

    @property
    def truncated(self) -> bool:
        return self.fields.finish_reason == "length"

    @property
    def window(self) -> Mapping[str, Any]:
        """What was learned of the provider for answers of this form at this time; {} without anything. An answer between two
        windows belongs to the later one."""
        if not self.wire:
            return {}
        windows = [
            w for w in self.wire.get("windows") or [self.wire] if w.get("stream", False) == bool(self.request.get("stream"))
        ]
        if self.at is not None:
            windows = [w for w in windows if float(w.get("to", math.inf)) >= self.at] or windows[-1:]
            return dict(windows[0]) if windows else {}
        return dict(windows[-1]) if windows else {}

    @property
    def decided(self) -> bool:
        return bool(self.window.get("decided"))

    @property
    def readings(self) -> tuple[Reading, ...]:
        learned = tuple(reading_of(value) for value in self.window.get("readings") or ())
        return learned or UNLEARNED

    @property
    def stratum(self) -> Mapping[str, Any]:
        strata = self.window.get("strata") or {}
        return dict(strata.get("tools" if self.request.get("tools") else "no_tools") or {})

    @property
    def learned_prompt(self) -> Mapping[str, Any]:
        return dict(self.stratum.get("prompt") or {})

    @property
    def sampling(self) -> Mapping[str, Any]:
        return dict(((self.wire or {}).get("model") or {}).get("sampling") or {})


@dataclass(frozen=True, slots=True)
class Chosen:
    """One id sequence of a completion that survives, with the likeliest way to it and its share of the posterior."""

    way: Way
    share: float

    @property
    def parts(self) -> Parts:
        return self.way.frame.filled(self.way.reasoning, self.way.content)

    def ids(self, profile: Profile) -> Ids:
        return assemble(profile, self.parts)


@dataclass(frozen=True, slots=True)
class Selection:
    """What equals the bill, best first. `tried`, `fitting`: ways; `contradicted`: only readings that the provider's profile rules
    out fit; `p`: P(exact) of the best completion; `usual`: the likeliest way before the bill is looked at (None: all are contradicted)."""

    completions: tuple[Chosen, ...]
    tried: int
    fitting: int
    contradicted: bool
    p: float
    usual: Way | None


def frames_of(case: Case) -> list[Frame]:
    """The frames of the answer, by what is known of the provider. Raises ExactError for text that has no ids."""
    return enumerate_frames(
        case.profile,
        case.fields,
        thinking=case.thinking,
        prior_calls=count_calls(case.request.get("messages") or []),
        numbering=str(case.window.get("tool_ids") or "unknown"),
        styles=STYLES if case.window.get("arguments") == "written anew" else ("wire",),
        habits=CallHabits(float(case.sampling.get("unclosed", UNCLOSED)), float(case.sampling.get("odd_tool_ids", ODD_TOOL_ID))),
    )


def select(case: Case, frames: Sequence[Frame]) -> Selection:
    """Keep what equals the bill; what the provider's profile rules out stays only when nothing else fits."""
    billed = case.fields.billed_completion
    ways = _weighed(case, ways_of(frames, case.readings, truncated=case.truncated))
    usual = max(ways, key=lambda way: way.weight, default=None)
    fitting = [way for way in ways if way.billed == billed]
    contradicted = False
    if not fitting and case.window and not case.decided:
        other = _weighed(case, ways_of(frames, UNLEARNED, truncated=case.truncated))
        fitting = [way for way in other if way.billed == billed]
        contradicted = bool(fitting)
        ways += other
    groups: dict[Any, list[Way]] = defaultdict(list)
    for way in fitting:
        groups[way.key].append(way)
    seldom = SELDOM * sum(way.weight for way in ways) if case.window else 0.0
    groups = {key: group for key, group in groups.items() if sum(way.weight for way in group) >= seldom}
    ranked = sorted(groups.values(), key=lambda group: -sum(way.weight for way in group))
    best = [(max(group, key=lambda way: way.weight), sum(way.weight for way in group)) for group in ranked]
    whole = sum(weight for _, weight in best)
    chosen: list[Chosen] = []
    left, negligible = whole, (NEGLIGIBLE if case.decided else NEGLIGIBLE_UNDECIDED) * whole
    for way, weight in best:
        if chosen and left <= negligible:
            break
        chosen.append(Chosen(way, weight / whole if whole else 0.0))
        left -= weight
    p = _p_exact(case, ways, best[0], whole) if best and whole else 0.0
    return Selection(tuple(chosen), len(ways), len(fitting), contradicted, p, usual)


def _weighed(case: Case, ways: list[Way]) -> list[Way]:
    """The weights with the billed reasoning tokens, where their convention is known."""
    rho, told = case.window.get("reasoning_count"), case.fields.billed_reasoning
    if rho is None or not told or not case.fields.reasoning:
        return ways
    return [
        way if way.reasoning_count + rho == told else replace(way, weight=way.weight * AGAINST_REASONING_COUNT) for way in ways
    ]


def _p_exact(case: Case, ways: Sequence[Way], best: tuple[Way, float], whole: float) -> float:
    way, weight = best
    total = sum(other.weight for other in ways) or 1.0
    usual = max(ways, key=lambda other: other.weight)
    odd, damaged, same = _deviations(case, way.billed)
    if way.billed == usual.billed:
        rival = odd * float(case.sampling.get("count_neutral", PRIOR_F0)) + damaged * same / (1 - same)
    else:
        rival = odd * ODD_HITS_BILL + damaged * DAMAGE_HITS_BILL
    canonical = max(1.0 - odd - damaged, 0.05)
    return weight * canonical / (whole * canonical + total * rival)


def _deviations(case: Case, tokens: int) -> tuple[float, float, float]:
    """(P(not canonical), P(damaged and missing its bill), share of damage that keeps the count) of an answer of so many
    tokens."""
    odd = 1 - math.exp(-float(case.sampling.get("lambda_per_token", PRIOR_LAMBDA)) * tokens)
    damaged = float(case.stratum.get("damage", PRIOR_DAMAGE))
    same = SAME_COUNT_SORTED if case.fields.tool_calls and case.window.get("one_style") else SAME_COUNT
    return odd, damaged, same


# ---------------------------------------------------------------------------------------------------- prompts
def select_prompts(case: Case, prompts: Sequence[PromptCandidate]) -> tuple[tuple[tuple[PromptCandidate, float], ...], bool]:
    """(prompts that equal the bill with their normalised weights, best first; whether only forms fit that the profile rules
    out)."""
    offset = int(case.learned_prompt.get("offset") or 0)
    billed = case.fields.billed_prompt
    fitting = [candidate for candidate in prompts if len(candidate.ids) + offset == billed]
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
