"""`eagle3 requeue`: send rejected answers of one kind back to `answers`. The next run asks again, under the approval."""

from __future__ import annotations

from typing import Annotated

import typer

from eagle3_assets.campaign import SHARDS, load_campaign
from eagle3_assets.cli.chosen import partition_named
from eagle3_assets.collect.run.shard_work import requeue
from eagle3_assets.errors import GateError
from eagle3_assets.exact.sample_row import read_table
from eagle3_assets.review.rows.quarantine import with_reason
from eagle3_assets.store import Store, manifest_path, read_manifest


def command(
    reason: Annotated[str, typer.Option("--reason", help="name of the check in the rows' reasons, e.g. wire_text")],
    dataset: Annotated[str | None, typer.Option("--dataset", help="only this dataset")] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="only this shard")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count")] = False,
) -> None:
    """Ask again for rejected rows (grade Q or D) with this reason. Old answers stay in the journal, byte for byte.

    \b
    eagle3 requeue --reason error_text --dry-run
    eagle3 requeue --reason error_text && eagle3 run
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    names = [campaign.dataset_named(dataset).name] if dataset else [d.name for d in campaign.dataset if d.backend != "import"]
    if shard is not None:
        partition_named(campaign, store, shard)
    total = 0
    with store.lock("run", what=f"campaign {campaign.name}"):
        for name in names:
            closed = store.closed(name).exists()
            for s in SHARDS if shard is None else (shard,):
                rows = with_reason(read_table(store.tokens(name, s)), reason) if read_manifest(store.tokens(name, s)) else []
                if not rows:
                    continue
                total += len(rows)
                print(f"{name} shard {s}: {len(rows)} answers" + (" (closed: `eagle3 close --reopen` first)" if closed else ""))
                if not dry_run and not closed:
                    requeue(store.answers(name, s), {(r["sample_id"], r["turn"]): r["attempt"] for r in rows}, reason)
                    manifest_path(store.answers(name, s)).unlink(missing_ok=True)  # the shard is incomplete again
    if not total:
        raise GateError(f"{store.root}: no rejected row has the reason {reason!r}; reports/ list the reasons there are")
    if not dry_run:
        print(f"{total} answers are asked for again by the next `eagle3 run`; the old ones stay in the journal")
