"""`eagle3 show`: one sample, as a person wants to see it.

Belongs here: finding the row in the campaign's tokens files. Does not belong here: how it is drawn (`exact/show.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from eagle3_assets.campaign import SHARDS, Campaign, load_campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.exact.sample_row import SampleRow, read_table, rows_of
from eagle3_assets.store import Store, write_bytes
from eagle3_assets.viewer_links import row_url

MAX_LISTED = 8


def command(
    sample_id: Annotated[str, typer.Argument(help="The sample's id, or its first digits.")],
    dataset: Annotated[str | None, typer.Option("--dataset", help="Look only in this dataset.")] = None,
    turn: Annotated[int | None, typer.Option("--turn", help="Which assistant turn, where a sample has several.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file instead of the terminal.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The row as one JSON object.")] = False,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="Folder with the tokenizer files.")] = None,
) -> None:
    """One sample: coloured tokens, markers, loss mask, survivors, evidence.

    Examples: `eagle3 show 3fa9` · `eagle3 show 3fa9 --dataset b3_magicoder --html sample.html`
    """
    from eagle3_assets.exact.show import as_html, as_rich
    from eagle3_assets.targets.tokenizer import load_profile

    campaign = load_campaign()
    row = find_row(campaign, sample_id, dataset, turn)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(row)))
        return
    profile = load_profile(campaign.target.profile, tokenizer)
    if html is not None:
        write_bytes(html, as_html(profile, row).encode("utf-8", "replace"))
        typer.echo(f"{html}: {row.sample_id} turn {row.turn}, {len(row.input_ids)} ids, grade {row.grade}")
        return
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    console.print(as_rich(profile, row))
    address = row_url(row.dataset, row.sample_id, row.turn)
    console.print(f"beside its wire text, request and bill, while `eagle3 view` runs: {address}", style="dim", markup=False)


def find_row(campaign: Campaign, prefix: str, dataset: str | None, turn: int | None) -> SampleRow:
    """The one row whose id starts with `prefix`; raises StoreError when there is none or more than one."""
    found = list(_matches(campaign, prefix, dataset))
    if turn is not None:
        found = [row for row in found if row.turn == turn]
    names = [f"{row.sample_id} turn {row.turn} ({row.dataset})" for row in found]
    if not found:
        root = Store.of(campaign).root
        elsewhere = [f"turn {r.turn} of {r.dataset}" for r in _matches(campaign, prefix, None)]
        if elsewhere:
            raise StoreError(
                f"{root}: {prefix!r} is not there with this --dataset and --turn, but is {', '.join(elsewhere[:MAX_LISTED])}"
            )
        raise StoreError(f"{root}: no token row starts with {prefix!r}; `eagle3 status` says which stages have run")
    if len(found) > 1:
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        raise StoreError(
            f"{prefix!r} is {len(found)} rows: {', '.join(names[:MAX_LISTED])}{more}; give more digits, --dataset or --turn"
        )
    return found[0]


def _matches(campaign: Campaign, prefix: str, dataset: str | None) -> Iterator[SampleRow]:
    import pyarrow.compute as pc

    if not prefix.isascii():  # ids are hex; what is no text at all (bytes of another encoding) could not even be asked for
        return
    store = Store.of(campaign)
    names = [campaign.dataset_named(dataset).name] if dataset else [d.name for d in campaign.dataset]
    for name in names:
        for shard in SHARDS:
            path = store.tokens(name, shard)
            if path.exists() and _holds(path, prefix):
                table = read_table(path)
                yield from rows_of(table.filter(pc.starts_with(table.column("sample_id"), pattern=prefix)))


def _holds(path: Path, prefix: str) -> bool:
    """Whether the file has such a row, from its ids alone (a shard of long answers has hundreds of megabytes). A damaged file counts as
    one: reading the whole of it says what is wrong."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        names = pq.read_table(path, columns=["sample_id"]).column("sample_id")
    except (OSError, pa.ArrowException, KeyError):
        return True
    return bool(pc.any(pc.starts_with(names, pattern=prefix)).as_py())
