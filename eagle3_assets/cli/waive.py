"""`eagle3 waive`: a person accepts the failure of one check of one artifact until a day."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from eagle3_assets import gate, stages
from eagle3_assets.campaign import load_campaign
from eagle3_assets.errors import GateError
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.review.verdicts.waivers import Waiver, add_waiver, read_waivers
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import report, tokens
from eagle3_assets.store import Store

LONGEST_DAYS = 366


def command(
    stage: Annotated[str | None, typer.Argument(help="stage, e.g. tokens")] = None,
    check: Annotated[str | None, typer.Argument(help="name of the check")] = None,
    dataset: Annotated[str, typer.Option("--dataset", help="whose")] = ALL,
    shard: Annotated[str, typer.Option("--shard", help="which shard")] = ALL,
    who: Annotated[str | None, typer.Option("--who", help="who answers for it")] = None,
    why: Annotated[str | None, typer.Option("--why", help="the reason, in words")] = None,
    until: Annotated[str | None, typer.Option("--until", help="last day it holds, YYYY-MM-DD")] = None,
) -> None:
    """Accept the failure of one check, for the bytes as they are; without arguments: list what was waived.

    \b
    eagle3 waive tokens no_loops --dataset b3_magicoder --shard 03 --who ada --why "poems" --until 2027-01-31
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    if stage is None:
        given = read_waivers(store)
        if not given:
            print("nothing is waived")
        for w in given:
            print(f"{w.stage} {w.dataset} {w.shard} {w.check}: {w.words} (given {w.given})")
        return
    named = {s.name: s for s in stages.STAGES}
    checks = [c.name for c in named[stage].checks] if stage in named else []
    if check not in checks:
        known = ", ".join(checks) or f"stages are {', '.join(named)}"
        raise typer.BadParameter(f"no check {check!r} of stage {stage!r}: {known}")
    if not (who and who.strip() and why and why.strip()):
        raise typer.BadParameter("a waiver needs --who and --why in words")
    artifact = Artifact(named[stage], campaign, store, dataset, shard)
    add_waiver(store, _waiver(artifact, str(check), who.strip(), why.strip(), _day(until)))
    its_report = artifact.of(report.STAGE)
    if named[stage] is tokens.STAGE and its_report.manifest() is not None:
        gate.judge(its_report)  # its check `tokens_pass` reads the shards' verdicts
    print(f"{stage} {dataset} {shard}: {check} is waived until {until} for the bytes that are there now")


def _day(until: str | None) -> dt.date:
    today = dt.datetime.now(dt.UTC).date()
    try:
        day = dt.date.fromisoformat(until or "")
    except ValueError:
        raise typer.BadParameter(f"--until {until!r}: expected a day as YYYY-MM-DD") from None
    if not today <= day <= today + dt.timedelta(days=LONGEST_DAYS):
        raise typer.BadParameter(f"--until {day}: must lie between today and {LONGEST_DAYS} days from now")
    return day


def _waiver(artifact: Artifact, check: str, who: str, why: str, day: dt.date) -> Waiver:
    if artifact.place not in [a.place for a in artifact.stage.artifacts(artifact.campaign, artifact.store)]:
        stage, dataset, shard = artifact.place
        raise GateError(f"{stage} has no artifact for {dataset}, shard {shard}")
    verdicts = {v.check: v for v in gate.judge(artifact)}
    subject = gate.filed_of(artifact, gate.committed(artifact)).subject
    if check not in verdicts or verdicts[check].passed:
        raise GateError(f"{subject}: check {check} does not fail; there is nothing to waive")
    given = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Waiver(who, why, day.isoformat(), *subject[:3], check, subject.digest, given)
