"""`eagle3 doctor`: is this machine ready, and what to do about what is not."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.stages import names
from eagle3_assets.store import Store, data_root

if TYPE_CHECKING:
    from eagle3_assets.collect.servers.openrouter import ApiKey, KeyFacts

Level = Literal["ok", "warn", "fail"]
NEEDED = (
    "dagster",
    "dagster-webserver",
    "aiohttp",
    "transformers",
    "torch",
    "duckdb",
    "tiktoken",
    "pyarrow",
    "safetensors",
    "datasets",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and what to do when it is not ok."""

    what: str
    level: Level
    found: str
    do: str = ""


def command(
    network: Annotated[bool, typer.Option(help="ask OpenRouter about the key (GET /key; costs nothing)")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="findings as JSON")] = False,
) -> None:
    """Is this machine ready? What is missing, and what to do. Exit 1 when something will stop a run.

    \b
    eagle3 doctor
    eagle3 doctor --no-network
    """
    findings = list(examine(network=network))
    if as_json:
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        _print(findings)
    if any(f.level == "fail" for f in findings):
        raise typer.Exit(1)


def examine(*, network: bool = True) -> Iterator[Finding]:
    """All findings, in the order of the flow. A check that cannot be made is a finding, never an exception."""
    yield _python()
    yield from _packages()
    try:
        campaign = load_campaign()
    except Eagle3Error as error:
        yield Finding("campaign", "fail", str(error), "mend the campaign file")
        return
    try:
        store = Store.of(campaign)
    except StoreError as error:
        yield Finding("data root", "fail", str(error))
        return
    yield Finding("campaign", "ok", f"{campaign.name} ({campaign.path.name}): {', '.join(d.name for d in campaign.dataset)}")
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("data root", lambda: _data_root(campaign, store)),
        ("campaign lock", lambda: _lock(campaign, store)),
        ("tokenizer", lambda: _tokenizer(campaign)),
        ("key", lambda: _key(campaign, network)),
        ("approval", lambda: _approval(campaign, store)),
        ("dagster", _dagster_home),
        ("extraction", lambda: _device(campaign)),
    ]
    looks += [(f"source of {d.name}", lambda d=d: _source(campaign, d)) for d in campaign.dataset]  # type: ignore[misc]
    for what, look in looks:
        try:
            yield look()
        except Eagle3Error as error:
            yield Finding(what, "fail", str(error))


def require_ready(campaign: Campaign, until: str | None) -> None:
    """What a run would stumble over later, asked before it starts: tokenizer, key, sources. Costs nothing, asks no network.

    Raises Eagle3Error with the first thing that is missing and how many more there are.
    """
    flow = names()
    reached = flow.index(until) if until else len(flow)
    looks: list[Callable[[], Finding]] = [lambda: _tokenizer(campaign)]
    if campaign.rents and reached >= flow.index("endpoints"):
        looks.append(lambda: _key(campaign, False))
    if reached >= flow.index("prompts"):
        store = Store.of(campaign)
        looks += [lambda d=d: _source(campaign, d) for d in campaign.dataset if not store.prompts(d.name).exists()]  # type: ignore[misc]
    lacking: list[Eagle3Error] = []
    if (Store.of(campaign).root / "campaign.lock").exists():
        Store.of(campaign).bind(campaign)  # answers of another server are not current, however fresh they look
    for look in looks:
        try:
            finding = look()
            if finding.level == "fail":
                lacking.append(StoreError(f"{finding.what}: {finding.found}; {finding.do}"))
        except Eagle3Error as error:
            lacking.append(error)
    if lacking:
        more = f" (and {len(lacking) - 1} more things are missing: see `eagle3 doctor`)" if len(lacking) > 1 else ""
        raise type(lacking[0])(f"{lacking[0]}{more}")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok" if sys.version_info >= (3, 11) else "fail", version, "use Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    found, missing = [], []
    for name in NEEDED:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("packages", "fail", f"missing: {', '.join(missing)}", "run `make setup`")
    yield Finding("packages", "ok", ", ".join(found))


def _data_root(campaign: Campaign, store: Store) -> Finding:
    root = data_root()
    parent = root
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        return Finding("data root", "fail", f"{root} cannot be written", "set EAGLE3_DATA to a folder you own")
    free = planning.free_bytes(root)
    plan = planning.read_plan(store)
    needed = plan["states"]["bytes"] if plan else 0
    text = f"{root.resolve()}, {free / 1e9:,.0f} GB free" + (f", hidden states will take {needed / 1e9:,.1f} GB" if plan else "")
    return Finding("data root", "fail" if needed > free else "ok", text, "set EAGLE3_DATA to a larger disk")


def _lock(campaign: Campaign, store: Store) -> Finding:
    if not (store.root / "campaign.lock").exists():
        return Finding("campaign lock", "ok", "nothing bought yet")
    store.bind(campaign)
    return Finding("campaign lock", "ok", "the campaign file fits the data")


def _tokenizer(campaign: Campaign) -> Finding:
    from eagle3_assets.targets.tokenizer import load_profile

    profile = load_profile(campaign.target.profile)
    end = profile.end_id
    return Finding("tokenizer", "ok", f"{campaign.target.profile}, end of turn {end}, sha256 {profile.tokenizer_sha256[:12]}…")


def _key(campaign: Campaign, network: bool) -> Finding:
    if campaign.server.kind == "embedded":
        return Finding("key", "ok", "not needed: the server is embedded")
    if not campaign.rents:
        return Finding("key", "ok", "not needed: no dataset is answered through OpenRouter")
    from eagle3_assets.collect.money.account import read_account
    from eagle3_assets.collect.servers.openrouter import ApiKey, allowed_base_url

    key, base = ApiKey.from_environment(), allowed_base_url(campaign)
    if not network:
        return Finding("key", "ok", "set (not asked: --no-network)")
    facts = asyncio.run(ask_key(base, key))
    store = Store.of(campaign)
    plan = planning.read_plan(store)
    spent = read_account(store.ledger).totals.total.spent_usd
    return judge_key(facts, campaign.budget.campaign_usd, planning.still_needed_usd(plan, spent) if plan else None)


def judge_key(facts: KeyFacts, budget_usd: float, needed_usd: float | None) -> Finding:
    """What to say of a key. `needed_usd`: what the plan still expects to be spent, None without a plan."""
    usd, advice = (
        planning.usd_text,
        f"make a dedicated key with a limit of {planning.usd_text(budget_usd)} USD at openrouter.ai/keys",
    )
    used = "" if facts.used_usd is None else f", {usd(facts.used_usd)} used so far"
    left = "no limit" if facts.limit_usd is None else f"limit {usd(facts.limit_usd)} USD"
    left += "" if facts.left_usd is None else f", {usd(facts.left_usd)} left"
    found = f"{left}{used}; the campaign's budget is {usd(budget_usd)}"
    if needed_usd is not None:
        found += f", the plan still needs about {usd(round(needed_usd, 2))}"
    if facts.left_usd is not None and facts.left_usd < (budget_usd * 0.01 if needed_usd is None else needed_usd):
        return Finding("key", "fail" if needed_usd else "warn", found, f"raise the key's limit, or {advice}")
    if facts.limit_usd is None:
        return Finding("key", "warn", found, f"{advice}: whatever happens here, it cannot spend more")
    is_equal = abs(facts.limit_usd - budget_usd) <= 0.005 * budget_usd
    return Finding("key", "ok" if is_equal else "warn", found, f"{advice}: equal to the budget is best")


async def ask_key(base_url: str, key: ApiKey) -> KeyFacts:
    """GET /key. Raises WireError."""
    import aiohttp

    from eagle3_assets.collect.servers.openrouter import KeyFacts, check_key

    async with aiohttp.ClientSession(trust_env=False) as session:
        return KeyFacts.of(await check_key(session, base_url, key))


def _approval(campaign: Campaign, store: Store) -> Finding:
    if not campaign.rents:
        return Finding("approval", "ok", "not needed: no dataset is answered through OpenRouter")
    try:
        return Finding("approval", "ok", f"answers may spend {planning.approved_usd(campaign, store):g} USD")
    except Eagle3Error as error:
        return Finding("approval", "warn", str(error))


def _dagster_home() -> Finding:
    home = os.environ.get("DAGSTER_HOME")
    if home:
        ok = Path(home).is_absolute() and (Path(home) / "dagster.yaml").exists()
        return Finding("dagster", "ok" if ok else "fail", f"DAGSTER_HOME={home}", "it must be absolute and hold a dagster.yaml")
    if Path("dagster.yaml").exists():
        return Finding("dagster", "ok", "state in data/dagster (./dagster.yaml)")
    return Finding(
        "dagster", "fail", "no dagster.yaml in this folder", "start from the folder of the checkout, or set DAGSTER_HOME"
    )


def _device(campaign: Campaign) -> Finding:
    x = campaign.extraction
    if x.device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            return Finding("extraction", "fail", f"extraction.device = {x.device!r}, and torch {torch.__version__} sees no GPU",
                           "install the torch build for your driver (README), or set device = \"cpu\"")  # fmt: skip
    weights = campaign.target.weights
    if weights != "embedded" and not Path(weights).exists():
        return Finding("extraction", "warn", f"weights {weights!r} are not a local folder: they would be fetched from the hub")
    return Finding(
        "extraction", "ok", f"{x.engine} on {x.device}, {x.dtype}, layers E_{', E_'.join(map(str, campaign.layers))} + final"
    )


def _source(campaign: Campaign, dataset: object) -> Finding:
    from eagle3_assets.campaign import Dataset

    assert isinstance(dataset, Dataset)
    source, what = dataset.source, f"source of {dataset.name}"
    if source.kind == "hf":
        return Finding(what, "ok", f"{source.path} at {source.revision} (by streaming; not asked)")
    path = campaign.path.parent / source.path
    found = (
        path.exists() or any(campaign.path.parent.glob(source.path))
        if not Path(source.path).is_absolute()
        else Path(source.path).exists()
    )
    return Finding(
        what,
        "ok" if found else "fail",
        str(source.path) if found else f"{path} does not exist",
        "put the file there, or change dataset.source.path",
    )


def _print(findings: list[Finding]) -> None:
    table = Table(title="eagle3 doctor")
    for name in ("", "what", "found", "do"):
        table.add_column(name, overflow="fold")
    marks = {"ok": "[green]✓[/green]", "warn": "[yellow]![/yellow]", "fail": "[red]✗[/red]"}
    for f in findings:
        table.add_row(marks[f.level], Text(f.what), Text(f.found), Text(f.do if f.level != "ok" else ""))
    Console().print(table)
