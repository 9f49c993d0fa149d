"""`corpus`: merged, admitted, deduplicated, shuffled, cut; its parts are the partitions of `hidden_states`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets import gate
from eagle3_assets.campaign import Campaign
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Gate, Made, Per, Stage, one_by_one
from eagle3_assets.stages import report, tokens


@dataclass(frozen=True, slots=True)
class Inputs:
    """`tokens`: digests by `dataset/shard`."""

    tokens: Mapping[str, str]


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    return {"policy": campaign.corpus.model_dump(mode="json"), "seed": campaign.campaign.seed}


def inputs(a: Artifact) -> Inputs:
    return Inputs({f"{t.dataset}/{t.partition}": t.digest() for t in a.all_of(tokens.STAGE)})


def gates(a: Artifact) -> list[Gate]:
    return [Gate(before) for stage in (tokens.STAGE, report.STAGE) for before in a.all_of(stage)]


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.corpus.merge import TokenFile, build_corpus

    made_from, before = a.inputs(), a.all_of(tokens.STAGE)
    files = [TokenFile(t.dataset, t.partition, t.path, t.digest()) for t in before]
    with a.store.lock("corpus", what="the corpus"):
        waived = gate.waivers_in_use(a.store, [*before, *a.all_of(report.STAGE)])
        manifest = build_corpus(a.campaign, a.store, files, commit_inputs=made_from, waived=waived)
    numbers = manifest.numbers
    message = numbers["change"]["message"]
    face.log(message)
    shown = {name: value for name, value in numbers.items() if name != "content"}  # digests: not for people
    shown |= {"what_changed": message, "folder": a.path}
    return Made(a, manifest, shown, rows=numbers["rows"], parts=tuple(str(k) for k in numbers["partitions"]))


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets.corpus.verify_corpus import judge_corpus

    return judge_corpus(a.store)


STAGE = Stage(
    name="corpus",
    per=Per.CAMPAIGN,
    version=2,
    path=lambda a: a.store.corpus,
    after=(report.STAGE,),
    gates=gates,
    settings=settings,
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["corpus"],
    card=lambda campaign, dataset: Card(
        frozenset({"duckdb", "parquet"}),
        "All datasets merged: admitted by grade policy, without copies and near copies, split, shuffled with the campaign's seed, "
        "dealt into parts by token budget. Says what it changes of an older corpus and why. Refuses over a failed, outdated or incomplete "
        "predecessor.",
    ),
)
