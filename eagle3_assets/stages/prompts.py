"""`prompts/<ds>`: the pinned prompt set: seeded sample, stable ids, reserve, shard of each id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets import gate
from eagle3_assets import store as st
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import PromptError
from eagle3_assets.review import invariants
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Made, Per, Pinned, Stage, one_by_one


@dataclass(frozen=True, slots=True)
class Inputs:
    """`source`: digests of the files of a local source, the pinned revision of another (`prompts.file`)."""

    source: Mapping[str, Any]


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    from eagle3_assets.prompts.file import prompt_settings

    return prompt_settings(campaign, campaign.dataset_named(dataset))


def inputs(a: Artifact) -> Inputs | Pinned:
    from eagle3_assets.prompts.sources import source_digests

    try:
        return Inputs(source_digests(a.campaign.dataset_named(a.dataset).source, a.campaign.path.parent))
    except PromptError:
        # a local source that went away: the prompts were pinned when they were made, and stay
        pinned = st.read_manifest(a.path)
        if pinned is None:
            raise
        return Pinned(pinned.inputs)


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.prompts.file import build_prompts, set_aside_path
    from eagle3_assets.targets.profile_facts import marker_pattern, profile_facts

    made_from = a.inputs()
    markers = marker_pattern(profile_facts(a.campaign.target.profile))
    numbers = build_prompts(a.campaign, a.campaign.dataset_named(a.dataset), a.path, markers=markers)
    manifest = st.commit(a.path, files=[a.path, set_aside_path(a.path)], inputs=made_from, numbers=numbers)
    return Made(a, manifest, {**numbers, "file": a.path}, rows=numbers["selected"])


def judge(a: Artifact) -> list[Verdict]:
    return invariants.judge_prompts(a.path, a.campaign.dataset_named(a.dataset), gate.committed(a).numbers)


def card(campaign: Campaign, name: str) -> Card:
    dataset = campaign.dataset_named(name)
    source = dataset.source
    return Card(
        frozenset({"parquet", source.kind if source.kind != "hf" else "huggingface"}),
        f"Prompts of {name}: a seeded sample of {dataset.n_rows:,} rows of {source.path} "
        f"({source.revision or 'local'}), stable ids, reserve, shard of each id. Bad rows are set aside with a reason.",
    )


STAGE = Stage(
    name="prompts",
    per=Per.DATASET,
    version=1,
    path=lambda a: a.store.prompts(a.dataset),
    settings=settings,
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["prompts"],
    card=card,
)
