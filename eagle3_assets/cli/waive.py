"""`eagle3 waive`: a person accepts the failure of one check of one artifact until a day."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from eagle3_assets import gate
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import GateError
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.waivers import Waiver, add_waiver, read_waivers
from eagle3_assets.store import Store

LONGEST_DAYS = 366


def command(
    stage: Annotated[str | None, typer.Argument(help="stage, e.g. tokens")] = None,
    check: Annotated[str | None, typer.Argument(help="name of the check")] = None,
    dataset: Annotated[str, typer.Option("--dataset", help="whose")] = gate.ALL,
    shard: Annotated[str, typer.Option("--shard", help="which shard")] = gate.ALL,
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
        for w in read_waivers(store):
            print(f"{w.stage} {w.dataset} {w.shard} {w.check}: {w.words} (given {w.given})")
        return
    if stage not in CHECKS or check not in {c.name for c in CHECKS[stage]}:
        names = ", ".join(c.name for c in CHECKS.get(stage, ())) or f"stages are {', '.join(CHECKS)}"
        raise typer.BadParameter(f"no check {check!r} of stage {stage!r}: {names}")
    if not (who and who.strip() and why and why.strip()):
        raise typer.BadParameter("a waiver needs --who and --why in words")
    add_waiver(store, _waiver(store, campaign, stage, str(check), dataset, shard, who.strip(), why.strip(), _day(until)))
    if stage == "tokens" and ("report", dataset, gate.ALL) in gate.made(campaign, store, dataset):
        gate.judge(campaign, store, "report", dataset)  # its check `tokens_pass` reads the shards' verdicts
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


def _waiver(
    store: Store, campaign: Campaign, stage: str, check: str, dataset: str, shard: str, who: str, why: str, day: dt.date
) -> Waiver:
    verdicts = {v.check: v for v in gate.judge(campaign, store, stage, dataset, shard)}
    if check not in verdicts or verdicts[check].passed:
        raise GateError(f"{stage}/{dataset}, shard {shard}: check {check} does not fail; there is nothing to waive")
    digest = gate.filed_under(stage, gate.committed(campaign, store, stage, dataset, shard), store, dataset)
    given = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Waiver(who, why, day.isoformat(), stage, dataset, shard, check, digest, given)
