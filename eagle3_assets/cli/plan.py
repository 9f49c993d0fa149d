"""`eagle3 plan`: what the campaign will cost, and the approval to spend it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.collect.money.account import read_account
from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.estimate.page import Section, sections
from eagle3_assets.store import Store


def command(
    approve: Annotated[float | None, typer.Option(metavar="USD", help="let answers spend up to USD (pilot included)")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="NAME=VALUE", help="what another setting would change; several are one case"),
    ] = None,
    network: Annotated[bool, typer.Option(help="ask OpenRouter what the key may still spend (GET /key; costs nothing)")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="the plan as JSON")] = False,
) -> None:
    """What the campaign will cost in tokens, dollars, minutes, hours and terabytes.

    \b
    eagle3 plan                              the plan; before `eagle3 run --until plan` an estimate from the campaign file
    eagle3 plan --what-if max_length=8192    and what a cap would change
    eagle3 plan --what-if without=a1_deepswekimi --what-if layers=3
    eagle3 plan --approve 100                allow answers to spend up to 100 USD
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    planned = planning.read_plan(store)
    if planned is None and approve is not None:
        raise StoreError(
            f"{store.plan}: there is no plan yet; run `eagle3 run --until plan` (the pilot costs at most {campaign.budget.pilot_usd:g} USD)"
        )
    found = planned or planning.outline_plan(campaign, planning.free_bytes(store.root))
    asked = planning.what_if(campaign, found, what_if) if what_if else None
    if approve is not None:
        store.bind(campaign)
        path = planning.approve(campaign, store, approve)
        Console(stderr=True).print(f"approved {approve:g} USD for campaign {campaign.name} ({path})", markup=False)
    if as_json:
        print(json.dumps({**found, "estimate": planned is None, **({"asked": asked} if asked else {})}, indent=2))
        return
    key_line = _key_line(campaign, store, found) if network and planned else None
    show(campaign, store, found, asked=asked, key_line=key_line, estimate=planned is None)


def _key_line(campaign: Campaign, store: Store, plan: dict[str, Any]) -> str | None:
    """What /key says, beside what the plan still needs; None where no key is needed, or none is set yet."""
    from eagle3_assets.cli.doctor import ask_key, judge_key
    from eagle3_assets.collect.servers.openrouter import KEY_VARIABLE, ApiKey, allowed_base_url

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


def show(
    campaign: Campaign,
    store: Store,
    plan: dict[str, Any],
    *,
    asked: dict[str, Any] | None = None,
    key_line: str | None = None,
    estimate: bool = False,
) -> None:
    """Print the plan. `asked` is the user's own what-if; `estimate`: from the campaign file alone."""
    console = Console()
    for section in sections(plan, asked):
        title = f"{section.title} of campaign {campaign.name}" if section.title == "Datasets" else section.title
        _print_table(console, title, section)
        for note in section.notes:
            console.print(Text(note, style=_style(note)), soft_wrap=True)
    approved, in_flight = _money_now(campaign, store, plan)
    local = f"{plan['hours']['answers_if_served_locally']:,.1f} h if served locally at {plan['scenario']['local_tokens_per_s']:g} tokens/s"
    lines = [("approved", approved), ("in flight", in_flight), ("rented", f"{plan['minutes']['answers']:,.1f} min; {local}")]
    if key_line is not None:
        lines.insert(1, ("key", key_line))
    if estimate:
        lines.insert(0, ("estimate", _ESTIMATE.format(campaign.budget.pilot_usd)))
    for name, text in lines:
        console.print(Text.assemble((f"{name:>10}", "bold"), "  ", text), highlight=False)


WIDE, WORDS = 140, 26  # below WIDE columns, words beside figures get so many


def _print_table(console: Console, title: str, section: Section) -> None:
    """Figures are never cut: a table of them may be wider than the terminal."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    narrow = bool(section.numbers) and console.width < WIDE
    for k, name in enumerate(section.columns):
        if k >= len(section.columns) - section.numbers:
            table.add_column(name.replace(" ", "\n") if narrow else name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", max_width=WORDS if narrow else None)
    for row in section.rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row), style="bold" if row[0].startswith("ASKED") else None)
    needed = Console(width=400).measure(table).maximum if section.numbers else 0
    (Console(width=needed) if needed > console.width else console).print(table)


_ESTIMATE = (
    "from the campaign file alone: rows x mean_tokens, prompts and prices as assumed above. `eagle3 run --until plan` counts the prompts and "
    "asks a pilot (at most {:g} USD)"
)


def _style(text: str) -> str:
    return "red" if text.startswith(("NO", "buys", "DOES NOT FIT", "IT DOES NOT FIT")) else ""
