"""`eagle3 endpoints`: who may answer and why the others may not; with --used, what each provider gave for its money.

Belongs here: the two tables. Does not belong here: the policy (`collect/servers/routing.py`), counting (`review/report/providers.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from eagle3_assets.campaign import SHARDS, Campaign, load_campaign
from eagle3_assets.collect.servers.routing import routing_table, stored_routing
from eagle3_assets.store import Store, manifest_path, read_committed
from eagle3_assets.wire import journal
from eagle3_assets.wire.wire_answer import WireAnswer

Row = dict[str, Any]


def command(
    used: Annotated[bool, typer.Option("--used", help="what each provider gave so far, pilot included")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the same as JSON")] = False,
) -> None:
    """Who may answer under [routing], and why the others may not. Asks no network: the snapshot is that of the endpoints asset.

    \b
    eagle3 endpoints              price, precision, status, what the pilot saw, verdict
    eagle3 endpoints --used       answers, errors, tokens/s, USD, USD per trainable token, exact share
    eagle3 endpoints --json       the table, and the provider object that is sent
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    if used:
        rows = used_rows(campaign, store, quiet=as_json)
        print(json.dumps({"providers": rows}, indent=2)) if as_json else _print_used(rows)
        return
    routing = stored_routing(campaign, store)
    pilot = read_committed(store.pilot, made_by="pilot") if manifest_path(store.pilot).exists() else None
    rows = routing_table(routing, pilot)
    if as_json:
        sent = {"provider_object": routing.provider_object, "stream": routing.form.stream}
        print(json.dumps({"endpoints": rows, **sent}, indent=2))
        return
    _print_endpoints(campaign, rows, routing.form.stream)


def used_rows(campaign: Campaign, store: Store, *, quiet: bool = False) -> list[Row]:
    """The statistics of every provider in the campaign's journals. Raises StoreError for a damaged journal."""
    from eagle3_assets.review.report.figures import count_dataset
    from eagle3_assets.review.report.providers import merge_providers, provider_statistics

    folders = [store.pilot_dir, *(store.answers(d.name, s) for d in campaign.dataset if d.backend != "import" for s in SHARDS)]
    known = [folder for folder in folders if folder.is_dir()]

    def records() -> Iterator[WireAnswer]:
        shown = track(known, "journals", transient=True, console=Console(stderr=True), disable=quiet)
        for folder in shown:
            yield from journal.read(folder)

    tallies = merge_providers(count_dataset(campaign, store, d.name) for d in campaign.dataset if d.backend != "import")
    return provider_statistics(records(), tallies)


def _print_endpoints(campaign: Campaign, rows: list[Row], stream: bool) -> None:
    """The table; beneath it, a line of its own for each reason: they are longer than a column."""
    table = Table(title=Text(f"Endpoints of {campaign.target.model}"), box=box.SIMPLE)
    for name in ("provider", "tag", ""):
        table.add_column(name, overflow="fold")
    for name in ("USD/M in, out", "status, up"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("offers", "verdict"):
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = [
            row["provider"],
            row["tag"],
            row["quantization"],
            f"{row['prompt_usd_per_million']:g}, {row['completion_usd_per_million']:g}",
            f"{row['status']}, " + ("?" if row["uptime"] is None else f"{row['uptime']:g} %"),
            _offers(row),
            row["verdict"] + (" *" if row["why"] else ""),
        ]
        table.add_row(*(_shown(cell) for cell in cells), style="" if row["verdict"] == "taken" else "dim")
    console = Console()
    console.print(table)
    for row in rows:
        if row["why"]:
            console.print(_shown(f"* {row['tag']} {row['verdict']}: {row['why']}"), soft_wrap=True)
    how = "streamed" if stream else "whole"
    console.print(Text(f'Answers are asked for {how} (collect.stream = "{campaign.collect.stream}").'), highlight=False)


def _offers(row: Row) -> str:
    """What the endpoint lists, and what the pilot saw of it."""
    seen = {True: "given", False: "not given", None: "listed"}[row["gives_logprobs"]]
    offers = {
        "tools": row["lists_tools"],
        f"logprobs {seen}": row["lists_logprobs"],
        "streams by token": row["streams_by_token"] is True,
        "streams in batches": row["streams_by_token"] is False,
    }
    return ", ".join(name for name, is_so in offers.items() if is_so)


def _print_used(rows: list[Row]) -> None:
    """`trained` is USD per million tokens that the corpus may take, `exact` the expected share of exact rows."""
    table = Table(title="What each provider gave so far (pilot included)", box=box.SIMPLE)
    table.add_column("provider", overflow="fold", min_width=8)
    for name in ("answers", "tokens", "tok/s", "USD", "USD/M", "trained", "exact"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("errors", overflow="fold", min_width=6)
    for row in rows:
        cells = [
            row["provider"],
            f"{row['answers']:,}",
            f"{row['tokens']:,}",
            _number(row["tokens_per_s"], ",.1f"),
            f"{row['usd']:.4f}",
            _number(row["usd_per_million"], ".2f"),
            _number(row["usd_per_million_trainable"], ".2f"),
            _number(row["exact_share"], ".1%"),
            ", ".join(f"{reason}: {n}" for reason, n in row["errors"].items()),
        ]
        table.add_row(*map(_shown, cells))
    console = Console()
    console.print(table)
    console.print(Text("trained: USD per million tokens that the corpus may take; exact: expected share of exact rows"))


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def _shown(text: str) -> Text:
    """Names come from servers: no markup and no terminal escapes."""
    return Text("".join(c if c.isprintable() else "?" for c in text))
