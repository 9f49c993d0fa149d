"""Answers → `SampleRow`s of one shard.

Belongs here: which attempt of a sample counts, and putting the reconstruction into a row. Does not belong here: the
reconstruction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.errors import ExactError
from eagle3_assets.exact.providers.wire_profiles import entry_of, provider_of, wire_profile_fault
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.exact.second_opinion.audit import Audit, with_rates
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire import journal
from eagle3_assets.wire.fields import Fields, storable
from eagle3_assets.wire.values import usd
from eagle3_assets.wire.wire_answer import WireAnswer


def build_rows(
    profile: Profile,
    campaign: Campaign,
    dataset: Dataset,
    answers: Iterable[WireAnswer],
    wire_profiles: Mapping[str, Any] | None,
    audit: Audit | None = None,
) -> list[SampleRow]:
    """One row for each (sample_id, turn) from its highest finished attempt, sorted by key; failed samples give none. `audit`: the
    campaign's, if one was made of answers with this tokenizer.

    Rows with ids from a server carry `canonical` (encode(decode(ids)) == ids, field by field) in their evidence. Raises ExactError where
    `wire_profiles` were learned for another target: they would decide providers by another tokenizer's counts.
    """
    fault = wire_profile_fault(wire_profiles, profile) if wire_profiles else None
    if fault:
        raise ExactError(
            f"wire_profiles.json: {fault}; learn it again from this target's answers (`eagle3 run --until wire_profiles`)"
        )
    best = journal.best(answers)
    entries: dict[str, dict[str, Any] | None] = {}  # a provider's profile is taken apart once for all of its rows
    rows = []
    for key in sorted(best):
        fields = best[key].fields
        provider = provider_of(best[key].provider, fields.provider, best[key].source)
        if provider not in entries:
            entries[provider] = entry_of(wire_profiles, provider)
        found = _rebuild(profile, campaign, best[key], fields, entries[provider])
        if audit is not None and audit.tokenizer_sha256 == profile.tokenizer_sha256:
            found = with_rates(found, audit.rates(provider, dataset.name, bool(best[key].request.get("tools"))))
        rows.append(sample_row(profile, dataset.name, best[key], fields, found))
    return rows


def _rebuild(
    profile: Profile, campaign: Campaign, answer: WireAnswer, fields: Fields, entry: Mapping[str, Any] | None
) -> Reconstruction:
    return reconstruct(
        profile,
        answer.request,
        fields,
        entry,
        source=answer.source,
        thinking=campaign.target.thinking,
        at=answer.finished_at or None,
    )


def sample_row(profile: Profile, dataset: str, answer: WireAnswer, fields: Fields, found: Reconstruction) -> SampleRow:
    """The row of one answer. Text that cannot be UTF-8 is replaced and named in the reasons: one odd answer never stops a
    shard."""
    request = answer.request
    texts = {
        "provider": answer.provider or fields.provider,
        "model": answer.model or fields.model,
        "generation_id": answer.generation_id or fields.generation_id,
        "finish_reason": fields.finish_reason,
        "native_finish_reason": fields.native_finish_reason,
    }
    odd = tuple(f"{name}: holds a lone surrogate, replaced by '?'" for name, text in texts.items() if text != storable(text))
    max_tokens = request.get("max_tokens", request.get("max_completion_tokens"))
    return SampleRow(
        sample_id=answer.sample_id,
        turn=answer.turn,
        attempt=answer.attempt,
        dataset=dataset,
        shard=answer.shard,
        source=answer.source,
        provider=storable(texts["provider"]),
        model=storable(texts["model"]),
        generation_id=storable(texts["generation_id"]),
        input_ids=found.input_ids,
        prompt_len=found.prompt_len,
        loss_spans=found.loss_spans,
        grade=found.grade,
        survivors=found.survivors,
        p_exact=found.p_exact,
        p_basis=found.p_basis,
        evidence=json.dumps(found.evidence, ensure_ascii=True, sort_keys=True),
        reasons=(*(storable(reason) or "" for reason in found.reasons), *odd),
        billed_prompt=fields.billed_prompt,
        billed_completion=fields.billed_completion,
        billed_reasoning=fields.billed_reasoning,
        cost_usd=usd(answer.cost_usd),  # as settled: what a body says beyond that was refused as a price
        finish_reason=storable(texts["finish_reason"]),
        native_finish_reason=storable(texts["native_finish_reason"]),
        temperature=_number(request.get("temperature")),
        top_p=_number(request.get("top_p")),
        max_tokens=max_tokens if type(max_tokens) is int else None,
        tokenizer_sha256=profile.tokenizer_sha256,
        template_sha256=profile.template_sha256,
        wire_sha256=answer.body_sha256,
    )


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None
