"""What log-probabilities and stream boundaries prove of a completion: the candidate that they agree with, or the ids that they spell.

Belongs here: holding the witnesses (`witnesses.py`) against the candidates that the bill leaves. Does not belong here: the posterior
(`selection.py`), grades (`reconstruct.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eagle3_assets.exact.frames import ENDS_TURN
from eagle3_assets.exact.grammar import GrammarError, Parts, assemble, split
from eagle3_assets.exact.reconstruction import MAX_SURVIVORS
from eagle3_assets.exact.selection import Case, Chosen, Selection
from eagle3_assets.exact.wire_text import matching_spacing
from eagle3_assets.exact.witnesses import agree, boundaries, entry_ids, whole_completion

P_LOGPROBS, P_BOUNDARIES = 0.999, 0.995


@dataclass(frozen=True, slots=True)
class Found:
    """What the evidence says of a completion. `witness`: "", boundaries or logprobs; `way` the reading of its text, if one was
    needed."""

    parts: Parts
    p: float
    way: Chosen | None
    witness: str = ""


def with_witnesses(case: Case, chosen: Selection) -> Found | None:
    """The best candidate with what log-probabilities or stream boundaries say of its segmentation; None where nothing fits."""
    found = _from_logprobs(case, chosen)
    if found is not None:
        return found
    # a stream may show that the bill is met by other ids of the same text, where no encoding of it meets it
    best = chosen.completions[0] if chosen.completions else Chosen(chosen.usual, 1.0) if chosen.usual and case.window else None
    if best is None:
        return None
    parts = best.parts
    told = boundaries(case.profile, parts, case.fields) if not best.way.frame.leaked else None
    if told is None:
        return Found(parts, chosen.p, best) if chosen.completions else None
    ours = {"reasoning": parts.reasoning, "content": parts.content}
    ours |= {f"tool:{k}": call.arguments or () for k, call in enumerate(parts.calls)}
    if told == ours:
        if not chosen.completions:
            return None
        return Found(parts, max(chosen.p, best.share * P_BOUNDARIES), best, "boundaries")
    # the stream cuts the text elsewhere than the encoder: same bill, other ids
    calls = tuple(replace(c, arguments=told[f"tool:{k}"]) if c.arguments is not None else c for k, c in enumerate(parts.calls))
    cut = replace(parts, reasoning=told["reasoning"], content=told["content"], calls=calls)
    more = len(assemble(case.profile, cut)) - len(assemble(case.profile, parts))
    if best.way.billed + more == case.billed:
        return Found(cut, best.share * P_BOUNDARIES, best, "boundaries")
    return Found(parts, 0.5 * chosen.p, best) if chosen.completions else None


def _from_logprobs(case: Case, chosen: Selection) -> Found | None:
    """The completion that the entries spell, where they cover all of it and the bill counts them."""
    profile, fields = case.profile, case.fields
    if not fields.logprobs:
        return None
    told = whole_completion(profile, entry_ids(profile, fields.logprobs), ended=fields.finish_reason in ENDS_TURN)
    if told is None:
        return None
    for candidate in chosen.completions[:MAX_SURVIVORS]:
        if agree(candidate.ids(profile), told):
            return Found(candidate.parts, P_LOGPROBS, candidate, "logprobs")
    known = [token for token in told if token is not None]
    if len(known) != len(told):
        return None
    try:
        parts = split(profile, known, thinking=case.thinking, truncated=case.truncated)
    except GrammarError:
        return None
    billed = fields.billed_completion or 0
    if matching_spacing(profile, parts, fields)[1] is None and billed in (len(known), len(known) - int(parts.ended)):
        return Found(parts, P_LOGPROBS, chosen.completions[0] if chosen.completions else None, "logprobs")
    return None
