"""`eagle3 plan`: what the campaign will cost, and the approval to spend it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle3_assets import plan as planning
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.store import Store


def command(
    approve: Annotated[float | None, typer.Option(metavar="USD", help="let answers spend up to USD (pilot included)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the plan as JSON")] = False,
) -> None:
    """What the campaign will cost in tokens, dollars, minutes, hours and terabytes.

    \b
    eagle3 plan                 the plan (materialize it first: eagle3 run --until plan)
    eagle3 plan --approve 100   allow answers to spend up to 100 USD
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    found = planning.read_plan(store)
    if found is None:
        raise StoreError(
            f"{store.plan}: there is no plan yet; run `eagle3 run --until plan` (the pilot costs at most {campaign.budget.pilot_usd:g} USD)"
        )
    if approve is not None:
        store.bind(campaign)
        path = planning.approve(campaign, store, approve)
        Console(stderr=True).print(f"approved {approve:g} USD for campaign {campaign.name} ({path})", markup=False)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    show(campaign, store, found)


def show(campaign: Campaign, store: Store, plan: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"Plan of campaign {campaign.name}")
    for name in ("dataset", "backend"):
        table.add_column(name)
    for name in ("rows", "prompt tokens", "output tokens", "USD expected", "USD cap"):
        table.add_column(name, justify="right")
    for row in plan["datasets"]:
        cap = "" if row["usd_cap"] is None else planning.usd_text(row["usd_cap"])
        table.add_row(
            row["dataset"],
            row["backend"],
            f"{row['rows']:,}",
            f"{row['prompt_tokens']:,}",
            f"{row['output_tokens']:,}",
            f"{row['usd_expected']:,.4f}",
            cap,
        )
    console.print(table)
    usd, states, hours = plan["usd"], plan["states"], plan["hours"]
    assumed = plan["assumptions"]
    try:
        approved = f"{planning.usd_text(planning.approved_usd(campaign, store))} USD"
    except Eagle3Error as error:  # shown, not raised: this command is how one gets approved
        approved = f"no ({error})"
    lines = [
        (
            "money",
            f"{usd['expected']:,.4f} USD expected + {usd['pilot_spent']:,.4f} spent on the pilot, of {planning.usd_text(usd['budget'])} "
            f"({'fits' if usd['fits'] else 'DOES NOT FIT'})",
        ),
        ("approved", approved),
        (
            "answers",
            f"{plan['minutes']['answers']:,.1f} min rented at {plan['in_flight']['asked']:,} in flight "
            f"(money allows {plan['in_flight']['money_allows_at_start']:,} at the start: {plan['in_flight']['hold_usd']:.4f} USD held a request); "
            f"{hours['answers_if_served_locally']:,.1f} h if served locally at {assumed['local_tokens_per_s']:g} tokens/s",
        ),
        (
            "states",
            f"{states['bytes'] / 1e9:,.2f} GB = {states['terabytes']:.4f} TB = {states['tebibytes']:.4f} TiB "
            f"({states['layers']} layers, {states['dtype']}, {states['bytes_per_token']:,} bytes a token; "
            f"{'fits' if states['disk_fits'] else 'DOES NOT FIT'} in {states['disk_free_bytes'] / 1e9:,.0f} GB free)",
        ),
        ("extraction", f"{hours['extraction']:,.2f} h at {assumed['extraction_tokens_per_s']:g} tokens/s"),
        (
            "assumed",
            f"{assumed['prices_usd_per_million']['prompt']:g} / {assumed['prices_usd_per_million']['completion']:g} USD per million "
            f"prompt / completion tokens; lengths from {assumed['lengths_from']}; {assumed['seconds_per_answer']:.1f} s an answer",
        ),
    ]
    for name, text in lines:
        console.print(Text.assemble((f"{name:>10}", "bold"), "  ", text), highlight=False)
