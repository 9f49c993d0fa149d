"""`eagle3 prune`: old hidden states: what may go and how much it gives back; only `--yes` removes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3_assets.campaign import load_campaign
from eagle3_assets.old_states import find_old_states
from eagle3_assets.states.care.prune import remove
from eagle3_assets.store import Store


def command(
    yes: Annotated[bool, typer.Option("--yes", help="remove what is listed; without it nothing is touched")] = False,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="move it there instead (copied, compared, then deleted)")
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", metavar="K", help="this partition too, current or not")
    ] = None,
    unfinished: Annotated[
        bool, typer.Option(help="also partitions that were begun and not finished (they would resume)")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the list as JSON")] = False,
) -> None:
    """Hidden states that nothing needs: outdated partitions, partitions that the corpus has no more, stray files.

    \b
    eagle3 prune                            what may go, with its bytes; touches nothing
    eagle3 prune --yes                      delete it
    eagle3 prune --yes --archive /mnt/cold  move it there
    eagle3 prune --yes --partition 00007    a partition that is current, by name
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    candidates = find_old_states(campaign, store, asked=partition or (), unfinished=unfinished)
    total = sum(c.bytes for c in candidates)
    if yes:
        remove(store, candidates, archive=archive)
    if as_json:
        rows = [{"path": str(c.path), "why": c.why, "bytes": c.bytes} for c in candidates]
        print(json.dumps({"candidates": rows, "bytes": total, "removed": yes}, indent=2))
        return
    for c in candidates:
        print(f"{c.bytes / 1e9:12.3f} GB  {c.path.name}: {c.why}")
    done = ("moved to " + str(archive) if archive else "deleted") if yes else "may go; nothing was touched (--yes removes it)"
    print(f"{total / 1e9:12.3f} GB  in {len(candidates)} places {done}" if candidates else "nothing to remove")
