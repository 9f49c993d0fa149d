"""`vocab_map`: the draft vocabulary, d2t offsets and t2d mask, with coverage per dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Gate, Made, Per, Stage, one_by_one
from eagle3_assets.stages import corpus


@dataclass(frozen=True, slots=True)
class Inputs:
    """`corpus`: its digest; the tokenizer's hash, whose control tokens are forced in."""

    corpus: str
    tokenizer_sha256: str


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    return {"vocab": campaign.vocab.model_dump(mode="json"), "target_vocab_size": campaign.target.vocab_size}


def inputs(a: Artifact) -> Inputs:
    from eagle3_assets.corpus.vocab import tokenizer_sha256

    return Inputs(a.of(corpus.STAGE).digest(), tokenizer_sha256(a.campaign))


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.corpus.vocab import build_vocab_map
    from eagle3_assets.targets.tokenizer import load_profile

    made_from, profile = a.inputs(), load_profile(a.campaign.target.profile)
    # control tokens that the model emits must be draftable however rare they are in this corpus
    forced = sorted(profile.marker_ids)
    with a.store.lock("vocab_map", what="vocab_map"):
        manifest = build_vocab_map(a.campaign, a.store, forced_ids=forced, commit_inputs=made_from)
    return Made(a, manifest, {**manifest.numbers, "folder": a.path})


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets.corpus.vocab import judge_vocab_map

    return judge_vocab_map(a.campaign, a.store)


STAGE = Stage(
    name="vocab_map",
    per=Per.CAMPAIGN,
    version=2,
    path=lambda a: a.store.vocab_map,
    after=(corpus.STAGE,),
    gates=lambda a: [Gate(a.of(corpus.STAGE))],
    settings=settings,
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["vocab_map"],
    card=lambda campaign, dataset: Card(
        frozenset({"numpy"}),
        f"Draft vocabulary of {campaign.vocab.draft_vocab_size:,} ids: "
        "counts over supervised tokens, ties by id, control tokens forced in.",
    ),
)
