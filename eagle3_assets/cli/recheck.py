"""`eagle3 recheck`: every check again over what is on disk. Nothing is made and nothing is bought."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Annotated

import typer

from eagle3_assets import gate, stages
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import GateError
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact
from eagle3_assets.store import Store
from eagle3_assets.workers import over_cores, seats


def command(
    dataset: Annotated[str | None, typer.Argument(help="only this dataset")] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="only this shard, e.g. 03")] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="only this stage, e.g. tokens")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="all verdicts as JSON")] = False,
) -> None:
    """Run every check again over what is there, and file the verdicts. Ends with 1 when data must not go on.

    \b
    eagle3 recheck                            everything
    eagle3 recheck b3_magicoder --shard 03    one shard of one dataset
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    name = campaign.dataset_named(dataset).name if dataset else None
    found = [a for a in stages.made(campaign, store, name, shard) if a.stage.checks and stage in (None, a.stage.name)]
    if not found:
        raise GateError(f"{store.root}: nothing with checks was made for that; `eagle3 status` says what is there")
    stopping, lines = 0, []
    for artifact, verdicts in _judged(campaign, found):
        named = dict(zip(("stage", "dataset", "shard"), artifact.place, strict=True))
        where = " ".join(n for n in artifact.place if n != ALL)
        stopping += sum(v.stops for v in verdicts)
        lines += [{**named, **asdict(v)} for v in verdicts]
        if not as_json:
            failed = [v for v in verdicts if not v.passed]
            print(f"{where}: {len(verdicts) - len(failed)} of {len(verdicts)} checks pass")
            for v in failed:
                print(f"  {'STOP' if v.stops else v.severity} {v.check}: {v.message}")
                for sample in v.examples[:2]:
                    print(f"       eagle3 show {sample}")
    if as_json:
        print(json.dumps(lines, indent=2))
    if stopping:
        raise typer.Exit(1)


def _judged(campaign: Campaign, found: list[Artifact]) -> Iterator[tuple[Artifact, list[Verdict]]]:
    """Stage by stage: the checks of a later one read the verdicts of an earlier one."""
    for _, group in groupby(found, key=lambda a: a.stage.name):
        mine = list(group)
        workers = seats(campaign.execution.workers, len(mine), sum(a.size() for a in mine))
        yield from zip(mine, over_cores(gate.judge_anew, mine, workers), strict=True)
