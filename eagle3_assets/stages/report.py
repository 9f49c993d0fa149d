"""`report/<ds>`: the validation report of a dataset: verdict first, then figures and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets import gate
from eagle3_assets.campaign import Campaign
from eagle3_assets.review import invariants
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.review.verdicts.waivers import read_waivers
from eagle3_assets.stage import Artifact, Card, Gate, Job, Made, Markdown, Per, Stage, Url
from eagle3_assets.stages import prompts, tokens
from eagle3_assets.store import Manifest, commit, manifest_path, read_json
from eagle3_assets.workers import over_cores, seats


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what it is made from; `tokens` by shard."""

    tokens: Mapping[str, str]
    prompts: str


def inputs(a: Artifact) -> Inputs:
    return Inputs({t.partition: t.digest() for t in a.all_of(tokens.STAGE)}, a.of(prompts.STAGE).digest())


def work(job: Job) -> None:
    from eagle3_assets.review.report.campaign_page import write_campaign_page

    rows = [t for a in job.artifacts for t in a.all_of(tokens.STAGE)]
    workers = seats(job.campaign.execution.workers, len(job.artifacts), sum(t.size() for t in rows))
    for made in over_cores(make, job.artifacts, workers):
        write_campaign_page(job.campaign, job.store)
        job.face.done(made)


def make(a: Artifact) -> Made:
    from eagle3_assets.review.report.report import build_report, report_files
    from eagle3_assets.viewer_links import report_url, rows_url

    made_from = a.inputs()
    verdicts = {shard.partition: gate.judge(shard) for shard in a.all_of(tokens.STAGE)}
    built = build_report(a.campaign, a.store, a.campaign.dataset_named(a.dataset), verdicts)
    manifest = commit(a.path, files=report_files(a.store, a.dataset), inputs=made_from, numbers=built.numbers)
    links = {"page": Url(report_url(a.dataset)), "look_at_rows": Url(rows_url(dataset=a.dataset))}
    return Made(a, manifest, {**built.numbers, "report": Markdown(built.markdown), **links})


def judge(a: Artifact) -> list[Verdict]:
    shards = {t.partition: t for t in a.all_of(tokens.STAGE)}
    verdicts = {s: gate.judge(t) for s, t in shards.items() if manifest_path(t.path).exists()}
    return invariants.judge_report(read_json(a.path), verdicts, {s: t.state() == "current" for s, t in shards.items()})


def waived_shards(a: Artifact, manifest: Manifest) -> dict[str, Any]:
    """The waivers of its shards that hold today: its check `tokens_pass` reads the shards' verdicts."""
    mine = [w for w in read_waivers(a.store) if (w.stage, w.dataset) == (tokens.STAGE.name, a.dataset) and w.in_force()]
    return {"waived": sorted(f"{w.shard} {w.check} {w.digest}" for w in mine)} if mine else {}


def card(campaign: Campaign, name: str) -> Card:
    return Card(
        frozenset({"html", "duckdb"}),
        f"Validation report of {name}: verdict, grades, billing per provider, residuals, lengths, funnel, worst samples.",
    )


STAGE = Stage(
    name="report",
    per=Per.DATASET,
    version=5,
    path=lambda a: a.store.report(a.dataset),
    after=(tokens.STAGE,),
    gates=lambda a: [Gate(t, passed=False) for t in a.all_of(tokens.STAGE)],
    inputs=inputs,
    work=work,
    judge=judge,
    bound_to=waived_shards,
    checks=CHECKS["report"],
    card=card,
)
