"""What the prompt's bill leaves: the prompts that a server may have made of one request, with their weights.

Belongs here: choosing among candidates by the bill and by what is known of the provider. Does not belong here: the candidates
themselves (`hypotheses.py`), learning (`prompt_learning.py`), completions (`selection.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_assets.exact.hypotheses import PromptCandidate, open_forms
from eagle3_assets.exact.selection import Case

PRIOR_OWN_FORM, PRIOR_OTHER_FORM = 0.8, 0.2


def select_prompts(case: Case, prompts: Sequence[PromptCandidate]) -> tuple[tuple[tuple[PromptCandidate, float], ...], bool]:
    """(prompts that equal the bill with their normalised weights, best first; whether only forms fit that the profile rules
    out)."""
    offset = int(case.learned_prompt.get("offset") or 0)
    billed = case.billed_prompt
    fitting = [candidate for candidate in prompts if len(candidate.ids) + offset == billed]
    out = set(case.learned_prompt.get("ruled_out") or ())
    allowed = [candidate for candidate in fitting if not out.issuperset(candidate.forms)]
    if fitting and not allowed:
        left_open = open_forms(case.profile, case.request, case.learned_prompt) or set()
        allowed = [candidate for candidate in fitting if left_open.intersection(candidate.forms)]
    kept = allowed or fitting
    counts = case.learned_prompt.get("forms") or {}

    def weight(candidate: PromptCandidate) -> float:
        if counts:
            return float(max(counts.get(form, 0) for form in candidate.forms)) + 0.1
        return PRIOR_OWN_FORM if candidate is prompts[0] else PRIOR_OTHER_FORM

    total = sum(weight(candidate) for candidate in kept) or 1.0
    weighed = sorted(((candidate, weight(candidate) / total) for candidate in kept), key=lambda item: -item[1])
    return tuple(weighed), bool(fitting) and not allowed
