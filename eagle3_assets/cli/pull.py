"""`eagle3 pull`: a campaign, or partitions of its hidden states, back from the object store of `[store] remote`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from eagle3_assets.campaign import load_campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store
from eagle3_assets.tier.campaign_copy import pull
from eagle3_assets.tier.copier import remote_of


def command(
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="K", help="hidden states of this partition too; may be repeated; all: every one"),
    ] = None,
) -> None:
    """Bring back what is not here: commits, their files, verdicts; of hidden states only the records, unless a partition is named.

    \b
    eagle3 pull                         everything but the states; readers fetch a part of them when they ask for it
    eagle3 pull --partition 00003       and the states of this partition now
    """
    campaign = load_campaign()
    remote = remote_of(campaign)
    if remote is None:
        raise StoreError(f"{campaign.path}: has no [store] remote; name the one that the campaign was copied to")
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("pull")
        artifacts, fetched = pull(
            remote,
            Store.of(campaign),
            keep_free=int(campaign.store.keep_free_gb * 1e9),
            partitions=partition or (),
            on_file=lambda name, size: progress.update(task, description=f"pull {name} ({size / 1e9:.3f} GB)"),
        )
    print(f"{artifacts} artifacts came back, {fetched / 1e9:.3f} GB were fetched from {remote.url}")
