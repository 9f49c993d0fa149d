"""`tokenizer_probe`: the target tokenizer, verified. Gates everything: a wrong end of turn corrupts every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.review.verdicts.table import CHECKS, verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Made, Per, Stage, one_by_one
from eagle3_assets.store import commit, read_json, write_json


@dataclass(frozen=True, slots=True)
class Inputs:
    tokenizer_sha256: str
    template_sha256: str | None


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    return {"profile": campaign.target.profile, "end_of_turn_id": campaign.target.end_of_turn_id}


def inputs(a: Artifact) -> Inputs:
    from eagle3_assets.targets.tokenizer import load_profile

    profile = load_profile(a.campaign.target.profile)
    return Inputs(profile.tokenizer_sha256, profile.template_sha256)


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.exact.probe import probe
    from eagle3_assets.targets.tokenizer import load_profile

    found = probe(a.campaign, load_profile(a.campaign.target.profile))
    write_json(a.path, found)
    return Made(a, commit(a.path, files=[a.path], inputs=a.inputs()), {**found["facts"], "file": a.path})


def judge(a: Artifact) -> list[Verdict]:
    found = read_json(a.path)["checks"]
    return [verdict(STAGE.name, name, c["passed"], c["message"], numbers=c.get("numbers", {})) for name, c in found.items()]


STAGE = Stage(
    name="tokenizer_probe",
    per=Per.CAMPAIGN,
    version=1,
    path=lambda a: a.store.probe,
    settings=settings,
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["tokenizer_probe"],
    card=lambda campaign, dataset: Card(
        frozenset({"tiktoken"}),
        "The target tokenizer, verified: special ids by name, boundaries, merges across joins, round trips. Gates everything.",
    ),
)
