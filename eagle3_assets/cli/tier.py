"""`eagle3 tier`: where the bytes of a campaign lie, here and in the object store of `[store] remote`."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from eagle3_assets import stages
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import hidden_states
from eagle3_assets.store import Store
from eagle3_assets.tier.campaign_copy import Whereabouts, compare, copy_all, whereabouts
from eagle3_assets.tier.copier import remote_of
from eagle3_assets.tier.moves import evict
from eagle3_assets.tier.remote import Remote


def command(
    copy: Annotated[bool, typer.Option("--copy", help="copy every finished artifact that is not there yet")] = False,
    free: Annotated[bool, typer.Option("--free", help="delete local parts of states that the remote is proven to hold")] = False,
    compare_: Annotated[bool, typer.Option("--compare", help="ask the remote whether it still holds what was copied")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the table as JSON")] = False,
) -> None:
    """Where the bytes of the campaign lie: on this disk, in the object store, or both.

    \b
    eagle3 tier              a table; asks nobody
    eagle3 tier --copy       copy what is finished and not there yet; nothing is deleted
    eagle3 tier --compare    every object against its checksum (read whole where the file is not here)
    eagle3 tier --free       parts of hidden states that are there leave this disk; `eagle3 pull` brings them back
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    artifacts = {a.path: a for a in stages.artifacts(campaign, store)}
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        if copy:
            task = progress.add_task("copy")
            copied = copy_all(
                _remote(campaign), store, artifacts,
                keep_free=int(campaign.store.keep_free_gb * 1e9),
                on_artifact=lambda path: progress.update(task, description=f"copy {artifacts[path].name}"),
            )  # fmt: skip
            console.print(f"{copied / 1e9:.3f} GB copied to {_remote(campaign).url}")
        bad = list(compare(store, artifacts)) if compare_ else []
    for line in bad:
        console.print(line, highlight=False)
    if free:
        gone = sum(evict(store.root, path) for path, a in artifacts.items() if a.stage is hidden_states.STAGE)
        console.print(f"{gone / 1e9:.3f} GB left this disk")
    rows = [(artifacts[row.artifact], row) for row in whereabouts(store, artifacts)]
    if as_json:
        print(
            json.dumps({"remote": campaign.store.remote, "artifacts": [_facts(*row) for row in rows], "damaged": bad}, indent=2)
        )
    else:
        _print(campaign, rows)
    if bad:
        raise typer.Exit(1)


def _remote(campaign: Campaign) -> Remote:
    remote = remote_of(campaign)
    if remote is None:
        raise StoreError(f'{campaign.path}: has no [store] remote; name one, e.g. remote = "s3://bucket/prefix"')
    return remote


def _facts(artifact: Artifact, row: Whereabouts) -> dict[str, object]:
    return {
        "key": "/".join(artifact.key),
        "partition": artifact.partition if artifact.stage.per.partitioned else None,
        "bytes": row.bytes,
        "here": row.local,
        "remote": row.remote,
        "where": row.where,
    }


def _print(campaign: Campaign, rows: list[tuple[Artifact, Whereabouts]]) -> None:
    table = Table(title=Text(f"Campaign {campaign.name}; remote: {campaign.store.remote or 'none ([store] remote)'}"))
    table.add_column("stage")
    for name in ("artifacts", "GB", "GB here", "GB in the remote", "only there", "not there yet"):
        table.add_column(name, justify="right")
    of_stage: dict[str, list[Whereabouts]] = defaultdict(list)
    for artifact, row in rows:
        of_stage[artifact.stage.name].append(row)
    for stage, found in of_stage.items():
        table.add_row(
            stage,
            str(len(found)),
            *(f"{sum(getattr(row, part) for row in found) / 1e9:.3f}" for part in ("bytes", "local", "remote")),
            str(sum(row.where in ("tier", "partly here") for row in found) or ""),
            str(sum(row.remote < row.bytes for row in found) or ""),
        )
    Console().print(table)
