"""What the prompt's bill leaves: the prompts that a server may have made of one request, with their weights.

Belongs here: the posterior over candidates, from priors (`prompt_forms.PRIORS`) and what is learned of the provider. Does not belong
here: the candidates themselves (`hypotheses.py`), learning (`prompt_learning.py`), completions (`selection.py`).

The weights of all candidates sum to one before the bill is looked at. Those that meet it stand against "no form that we know": a prompt
that is seldom a priori is not believed because it fits (of 250 later turns whose first turns never fit, 33 "fitted" one of 576 forms:
docs/research/recorded-traffic.md#3-11). So the weights that are returned sum to less than one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.exact.prompt_side.hypotheses import is_open
from eagle3_assets.exact.prompt_side.prompt_forms import factor_of, prior_of_tools, prior_of_word
from eagle3_assets.exact.prompt_side.prompt_table import NO_TOOLS, Part, PromptCandidate
from eagle3_assets.exact.search.selection import Case

UNKNOWN_FORM = (
    0.1  # of providers that nothing is known of: 185 of 686 rows of K2-0905 fit no form that explains their provider's month
)
MEETS_BY_CHANCE = 0.02  # 33 of 250 placebo rows met one of about 20 different counts near the bill, and the nearest count of all
# A template that is none of ours, by what conversations of another shape say (`prompt_learning`, contradiction): their bills fit nothing, so
# this one's fits by what the two templates share, or by luck. Judged, not counted.
OTHER_TEMPLATE = 0.3
ASKED = 0.5  # the weight of a word that the request itself asks for, where the provider was only seen unasked
FORGOTTEN = 1e-5  # the weight of a word that a learned factor does not list


Weighed = tuple[tuple[PromptCandidate, float], ...]


def select_prompts(case: Case, prompts: Sequence[PromptCandidate]) -> tuple[Weighed, bool]:
    """(all distinct prompts that equal the bill with their weights, best first; whether only forms fit that the profile rules out)."""
    learned = case.learned_prompt
    offset = int(learned.get("offset") or 0)
    fitting = [candidate for candidate in prompts if candidate.count + offset == case.billed_prompt]
    ruled_out = frozenset(learned.get("ruled_out") or ())
    allowed = [candidate for candidate in fitting if is_open(candidate, ruled_out)] if ruled_out else fitting
    return weigh_prompts(learned, prompts, allowed or fitting), bool(fitting) and not allowed


def weigh_prompts(
    learned: Mapping[str, Any], prompts: Sequence[PromptCandidate], left: Sequence[PromptCandidate], *, billed: bool = True
) -> Weighed:
    """The posterior of the candidates that are `left` of `prompts`, best first: `billed`, they met a bill, else nothing is known."""
    weigh = _Weigher(learned)
    total = sum(weigh(candidate) for candidate in prompts) or 1.0
    shares = [weigh(candidate) / total for candidate in left]
    unknown = max(
        _unknown(learned) * (MEETS_BY_CHANCE if billed else 1.0), OTHER_TEMPLATE if learned.get("contradiction") else 0.0
    )
    whole = sum(shares) + unknown
    weighed = [(candidate, share / whole) for candidate, share in zip(left, shares, strict=True)]
    return tuple(sorted(weighed, key=lambda item: -item[1]))


def _unknown(learned: Mapping[str, Any]) -> float:
    """The share of a provider's prompts that no form explains."""
    rows = int(learned.get("rows") or 0)
    return (rows - int(learned.get("explained") or 0) + UNKNOWN_FORM) / (rows + 1)


class _Weigher:
    """The weight of a candidate before its count is looked at: the sum over all forms that lead to it, of the product over their words."""

    def __init__(self, learned: Mapping[str, Any]) -> None:
        self._factors: Mapping[str, Mapping[str, float]] = learned.get("factors") or {}
        self._parts: dict[int, float] = {}

    def __call__(self, candidate: PromptCandidate) -> float:
        if not self._factors or not candidate.parts:
            return candidate.prior
        tools, history = candidate.parts
        return self._part(tools) * self._part(history)

    def _part(self, part: Part) -> float:
        if id(part) not in self._parts:
            weights = (math.prod(self._word(word, part) for word in words) for words in part.words)
            self._parts[id(part)] = sum(weights)
        return self._parts[id(part)]

    def _word(self, word: str, part: Part) -> float:
        if word == NO_TOOLS or word in part.silent:
            return 1.0
        if word in part.asked:
            return ASKED
        factor = factor_of(word)
        known = self._factors.get(factor)
        if known is not None:
            return float(known.get(word, FORGOTTEN))
        return prior_of_word(word) if factor != "tools" else prior_of_tools(word, "")
