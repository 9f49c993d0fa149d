"""`eagle3 recheck`: every check again over what is on disk. Nothing is made and nothing is bought."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Annotated

import typer

from eagle3_assets import gate, stages
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.cli.chosen import partition_named, stage_named
from eagle3_assets.errors import GateError
from eagle3_assets.review.verdicts.over_all import over_all
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
    only = stage_named(stage).name if stage is not None else None
    part = partition_named(campaign, store, shard) if shard is not None else None
    found = [a for a in stages.made(campaign, store, name, part) if a.stage.checks and only in (None, a.stage.name)]
    found = [a for a in found if part in (None, a.partition)]
    if not found:
        chosen = " ".join(n for n in (only, name, part and f"shard {part}") if n)
        raise GateError(
            f"{store.root}: nothing with checks was made{f' for {chosen}' if chosen else ''}, so nothing was checked; "
            "`eagle3 status` says what is there"
        )
    stopping, lines = 0, []
    judged: dict[tuple[str, str], dict[str, list[Verdict]]] = {}
    for artifact, verdicts in _judged(campaign, found):
        judged.setdefault(artifact.place[:2], {})[artifact.partition] = verdicts
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
    if not as_json:
        _print_over_all(campaign, store, judged)
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


def _print_over_all(campaign: Campaign, store: Store, judged: Mapping[tuple[str, str], Mapping[str, Sequence[Verdict]]]) -> None:
    """What fails only over all partitions of an asset together, as the UI and the reports say it."""
    for (stage, dataset), verdicts in judged.items():
        known = stage_named(stage)
        whole = set(verdicts) == set(known.partitions(store))
        for v in over_all(stage, known.checks, verdicts, whole=whole):
            if not v.passed and not any(p.check == v.check and not p.passed for those in verdicts.values() for p in those):
                print(f"{stage} {dataset}, all shards together\n  {v.severity} {v.check}: {v.message}")
