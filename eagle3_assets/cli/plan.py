"""`eagle3 plan`: what the campaign will cost, and the approval to spend it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle3_assets import plan as planning
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.collect.account import read_account
from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.store import Store


def command(
    approve: Annotated[float | None, typer.Option(metavar="USD", help="let answers spend up to USD (pilot included)")] = None,
    network: Annotated[bool, typer.Option(help="ask OpenRouter what the key may still spend (GET /key; costs nothing)")] = True,
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
    show(campaign, store, found, key_line=_key_line(campaign, store, found) if network else None)


def _key_line(campaign: Campaign, store: Store, plan: dict[str, Any]) -> str | None:
    """What /key says, beside what the plan still needs; None where no key is needed, or none is set yet."""
    from eagle3_assets.cli.doctor import ask_key, judge_key
    from eagle3_assets.collect.openrouter import KEY_VARIABLE, ApiKey, allowed_base_url

    if campaign.server.kind == "embedded" or not os.environ.get(KEY_VARIABLE):
        return None
    try:
        facts = asyncio.run(ask_key(allowed_base_url(campaign), ApiKey.from_environment()))
        spent = read_account(store.ledger).totals.total.spent_usd
    except Eagle3Error as error:  # a plan is a plan without it
        return f"not known ({error})"
    finding = judge_key(facts, campaign.budget.campaign_usd, planning.still_needed_usd(plan, spent))
    return finding.found + ("" if finding.level == "ok" else f"; {finding.do}")


def _money_now(campaign: Campaign, store: Store, plan: dict[str, Any]) -> tuple[str, str]:
    """(approved, in flight) as things stand: what was approved, spent and held, and how many requests the rest can hold at once."""
    hold, asked = plan["in_flight"]["hold_usd"], plan["in_flight"]["asked"]
    steps = ", ".join(f"{n:,} with {planning.usd_text(round(usd, 2))} USD left" for usd, n in plan["in_flight"]["by_money_left"])
    in_flight = f"{asked:,} asked for, {hold:.4f} USD held a request: {steps}"
    try:
        approved = planning.approved_usd(campaign, store)
        money = read_account(store.ledger).totals.total
    except Eagle3Error as error:  # shown, not raised: this command is how one gets approved
        return f"no ({error})", in_flight
    left = max(0.0, approved - money.committed_usd)
    now = planning.in_flight_possible(left, hold, asked)
    return (
        f"{planning.usd_text(approved)} USD: {money.spent_usd:,.4f} spent, {money.ambiguous_usd + money.reserved_usd:,.4f} held, "
        f"{left:,.4f} left",
        f"{now:,} now; {in_flight}",
    )


def show(campaign: Campaign, store: Store, plan: dict[str, Any], *, key_line: str | None = None) -> None:
    console = Console()
    table = Table(title=f"Plan of campaign {campaign.name}")
    for name in ("dataset", "backend"):
        table.add_column(name)
    for name in ("rows", "prompt tokens", "output tokens", "USD expected", "low … high", "USD cap", "hours if local"):
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
            "{:,.4f} … {:,.4f}".format(*row["usd_interval"]),
            cap,
            f"{row['hours_if_served_locally']:,.1f}",
        )
    console.print(table)
    usd, states, hours = plan["usd"], plan["states"], plan["hours"]
    assumed = plan["assumptions"]
    approved, in_flight = _money_now(campaign, store, plan)
    lines = [
        (
            "money",
            f"{usd['expected']:,.4f} USD expected ({usd['low']:,.4f} … {usd['high']:,.4f}) + {usd['pilot_spent']:,.4f} spent on the "
            f"pilot, of {planning.usd_text(usd['budget'])} ({'fits' if usd['fits'] else 'DOES NOT FIT'})",
        ),
        ("approved", approved),
        ("in flight", in_flight),
        (
            "answers",
            f"{plan['minutes']['answers']:,.1f} min rented ({plan['minutes']['answers_if_money_held_nothing_up']:,.1f} if money held "
            f"nothing up); {hours['answers_if_served_locally']:,.1f} h if served locally at {assumed['local_tokens_per_s']:g} tokens/s",
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
            f"prompt / completion tokens at most, {assumed['expected_usd_per_million']['prompt']:.3g} / "
            f"{assumed['expected_usd_per_million']['completion']:.3g} expected; lengths from {assumed['lengths_from']}; interval: "
            f"{assumed['interval']}; {assumed['seconds_per_answer']:.1f} s an answer",
        ),
    ]
    if key_line is not None:
        lines.insert(2, ("key", key_line))
    for name, text in lines:
        console.print(Text.assemble((f"{name:>10}", "bold"), "  ", text), highlight=False)
