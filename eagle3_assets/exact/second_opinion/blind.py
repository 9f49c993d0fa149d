"""Answers whose ids are known, rebuilt as if they were not: what the audit counts.

Belongs here: which ids may be called the truth, the blind rebuild and its comparison. Does not belong
here: rates and bounds (`audit.py`), regions that are not canonical (`canonicality.py`), which answers are looked at (`cli/audit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eagle3_assets.exact.search.canonicality import noncanonical_regions
from eagle3_assets.exact.search.modes import thinks_in
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.witnesses import Told, entry_ids, spelled_ids, whole_completions
from eagle3_assets.exact.second_opinion.audit import Judged
from eagle3_assets.targets.grammar import Ids, split
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields


def judge(
    profile: Profile,
    request: Mapping[str, Any],
    fields: Fields,
    wire_profile: Mapping[str, Any] | None,
    *,
    provider: str,
    dataset: str,
    source: str,
    thinking: bool = True,
    at: float | None = None,
) -> Judged | None:
    """Rebuild an answer from its text and bill alone and compare. None where its true ids are not known beyond doubt."""
    thinks = thinks_in(profile, request, fields.output_ids or (), truncated=fields.finish_reason == "length", default=thinking)
    truncated = fields.finish_reason == "length"
    known = true_ids(profile, fields, thinking=thinks, truncated=truncated)
    if known is None:
        return None
    truth, how = known
    parts = split(profile, truth, thinking=thinks, truncated=truncated)
    blind = replace(fields, prompt_ids=None, output_ids=None, logprobs=None)
    if blind.billed_completion is None:  # engines that return ids may leave out the bill; the number of ids is what it would say
        blind = replace(blind, billed_completion=len(truth))
    found = reconstruct(profile, request, blind, wire_profile, source=source, thinking=thinking)
    rebuilt = found.input_ids[found.prompt_len :]
    prompt = None if fields.prompt_ids is None else found.input_ids[: found.prompt_len] == fields.prompt_ids
    return Judged(
        provider=provider,
        dataset=dataset,
        tools=bool(request.get("tools")),
        truth=how,
        length=len(truth),
        exact=rebuilt == truth,
        same_count=len(rebuilt) == len(truth),
        regions=noncanonical_regions(profile, parts),
        grade=found.grade,
        p_exact=found.p_exact,
        prompt_exact=prompt,
    )


def true_ids(profile: Profile, fields: Fields, *, thinking: bool, truncated: bool) -> tuple[Ids, str] | None:
    """(the sampled ids, server_ids or logprob_bytes), or None. Ids are believed when the grammar accepts them and they decode to the
    returned text; log-probabilities also when they leave out the end of turn. A hole in them is no evidence, here as in `proofs.py`;
    and here it is not filled by the encoder, whose ids are what is audited."""
    candidates: Sequence[Told]
    if fields.output_ids is not None:
        candidates, how = [fields.output_ids], "server_ids"
    else:
        told = entry_ids(profile, fields.logprobs or ())
        candidates, how = whole_completions(profile, told, ended=not truncated), "logprob_bytes"
    for candidate in candidates:
        ids = spelled_ids(profile, fields, candidate, thinking=thinking, truncated=truncated)
        if ids is not None:
            return ids, how
    return None
