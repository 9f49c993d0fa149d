"""`eagle3 audit`: how often rebuilt ids are right, measured where the true ids are known.

Belongs here: which answers are looked at, asking again for more with log-probabilities (`--buy`, under the approval, through the
collector and the one ledger), the table. Does not belong here: the statistics (`second_opinion/audit.py`), one answer (`blind.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_assets.campaign import SHARDS, Campaign, load_campaign
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.pilot import probes
from eagle3_assets.collect.run.collector import Progress, Servers, ShardJob, ShardResult, collect
from eagle3_assets.collect.servers.endpoint import Endpoint
from eagle3_assets.collect.servers.routing import RequestForm, Routing, seen_by_pilot, stored_routing
from eagle3_assets.errors import GateError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.store import Store, manifest_path, read_committed
from eagle3_assets.wire import journal
from eagle3_assets.wire.wire_answer import WireAnswer

if TYPE_CHECKING:
    from rich.progress import TaskID

    from eagle3_assets.targets.tokenizer import Profile

# The audit's own scope of the ledger, and the folder of its journal among the answers: a lost ledger is counted again from there, too.
# No dataset can have this name.
SCOPE = "(audit)"
MOST_PER_STRATUM = 1000  # answers rebuilt: more narrow the bounds by little (0 errors in 1,000: at most 0.4 %)
# What a body with ids or log-probabilities holds; the others are not parsed.
_SPEAKS = re.compile(rb'"(token_ids|response_token_ids|output_ids|logprobs)"\s*:\s*[\[{]')


def command(
    buy: Annotated[
        int, typer.Option("--buy", min=0, help="First ask for so many answers per provider, dataset and tools or none.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The audit as one JSON object.")] = False,
) -> None:
    """How often are rebuilt ids right? Every answer whose true ids are known (an engine's, or with log-probabilities) is rebuilt without
    them and compared: q, f0, lambda with their 95 % bounds go to audit.json.

    With --buy, endpoints that give log-probabilities are asked again for a sample of the campaign's prompts: real money, within the
    approved amount, never bought twice.

    Examples: `eagle3 audit` · `eagle3 audit --buy 40`
    """
    from eagle3_assets.exact.second_opinion import audit

    campaign = load_campaign()
    store = Store.of(campaign)
    if buy:
        for line in buy_answers(campaign, store, buy):
            typer.echo(line, err=True)
    summary = audit_answers(campaign, store)
    path = store.audit
    audit.write(path, summary)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    _print_table(summary, path)


# ---------------------------------------------------------------------------------------------------- what is there
def audit_answers(campaign: Campaign, store: Store) -> dict[str, Any]:
    """audit.json's content. Raises GateError when no answer of the campaign has ids or log-probabilities."""
    from rich.console import Console
    from rich.progress import track

    from eagle3_assets.exact.second_opinion import audit
    from eagle3_assets.targets.tokenizer import load_profile

    profile = load_profile(campaign.target.profile)
    wire_profiles = _wire_profiles(store)
    judged, unknown = [], 0
    answers = list(_answers(campaign, store))
    for answer in track(answers, "rebuilding", transient=True, console=Console(stderr=True)):
        found = _judge(profile, campaign, answer, wire_profiles)
        if found is None:
            unknown += 1
        else:
            judged.append(found)
    if not judged:
        raise GateError(
            f"{store.root}: none of its answers has token ids or whole log-probabilities ({unknown} have something like them), so nothing "
            "can be audited; `eagle3 audit --buy 40` asks endpoints that give log-probabilities"
        )
    return audit.summarize(profile, judged, unknown=unknown)


def _wire_profiles(store: Store) -> Mapping[str, Any] | None:
    """What is known of each provider: the learned profiles, else the pilot's first ones."""
    if manifest_path(store.wire_profiles).exists():
        return dict(read_committed(store.wire_profiles, made_by="wire_profiles"))
    if manifest_path(store.pilot).exists():
        return dict(read_committed(store.pilot, made_by="pilot").get("wire_profiles") or {})
    return None


def _answers(campaign: Campaign, store: Store) -> Iterator[WireAnswer]:
    """Finished answers of real prompts that hold ids or log-probabilities, at most `MOST_PER_STRATUM` of a stratum."""
    folders = [
        store.pilot_dir,
        store.answers(SCOPE, SHARDS[0]),
        *(store.answers(d.name, s) for d in campaign.dataset for s in SHARDS),
    ]
    taken: Counter[tuple[str | None, str, str, bool]] = Counter()
    for folder in folders:
        if not folder.is_dir():
            continue
        best = journal.best(journal.read(folder))
        for key in sorted(best):
            answer = best[key]
            stratum = (answer.provider, answer.source, answer.dataset, bool(answer.request.get("tools")))
            if probes.is_probe(answer) or not _SPEAKS.search(answer.body) or taken[stratum] >= MOST_PER_STRATUM:
                continue
            taken[stratum] += 1
            yield answer


def _judge(profile: Profile, campaign: Campaign, answer: WireAnswer, wire_profiles: Mapping[str, Any] | None) -> Any:
    from eagle3_assets.exact.providers.wire_profiles import entry_of, provider_of
    from eagle3_assets.exact.second_opinion.blind import judge
    from eagle3_assets.wire.parse import parse_fields

    fields = parse_fields(answer.body, answer.content_type)
    provider = provider_of(answer.provider, fields.provider, answer.source)
    return judge(
        profile,
        answer.request,
        fields,
        entry_of(wire_profiles, provider),
        provider=provider,
        dataset=answer.dataset,
        source=answer.source,
        thinking=campaign.target.thinking,
        at=answer.finished_at,
    )


# ---------------------------------------------------------------------------------------------------- asking again
def buy_answers(campaign: Campaign, store: Store, count: int) -> list[str]:
    """Ask for up to `count` answers a stratum with log-probabilities; returns lines about what came of it. Raises GateError (nothing
    approved, no endpoint gives them), BudgetStop, WireError, LockedError; everything paid for is kept."""
    from eagle3_assets.answering import find_servers
    from eagle3_assets.collect.campaign_ledger import open_ledger
    from eagle3_assets.prompts.file import read_prompts

    approved = planning.approved_usd(campaign, store)
    routing = stored_routing(campaign, store)
    pilot = read_committed(store.pilot, made_by="pilot")
    endpoints = telling_endpoints(routing, pilot)
    if not endpoints:
        raise GateError(
            f"{store.pilot}: none of the {len(routing.eligible)} eligible endpoints gives log-probabilities, so none can be audited; "
            "`eagle3 endpoints` shows what each offers"
        )
    prompts = {d.name: read_prompts(store.prompts(d.name)) for d in campaign.dataset if d.backend == "openrouter"}
    jobs = audit_jobs(campaign, store, routing, endpoints, prompts, count)
    servers = find_servers(campaign, store, rented=True)
    with open_ledger(campaign, store, approved) as ledger:
        results = asyncio.run(ask_again(campaign, jobs, servers, ledger, routing))
    asked, answered = sum(r.selected for r in results), sum(r.finished for r in results)
    cost = results[0].cost_usd if results else 0.0  # jobs share one journal, and each counts all of it
    lines = [f"audit: {answered} of {asked} answers from {len(endpoints)} endpoints, {cost:.4f} USD so far"]
    silent = len(routing.eligible) - len(endpoints)
    if silent:
        lines.append(f"audit: {silent} eligible endpoints give no log-probabilities: only the model's rates speak about them")
    return lines


def telling_endpoints(routing: Routing, pilot: Mapping[str, Any]) -> list[Endpoint]:
    """Eligible endpoints that gave log-probabilities to the pilot, or list them and were not asked."""
    seen = {e.tag: seen_by_pilot(pilot, e.tag, "logprobs", "given") for e in routing.eligible}
    return [e for e in routing.eligible if seen[e.tag] or (seen[e.tag] is None and "logprobs" in e.supported_parameters)]


def audit_jobs(
    campaign: Campaign,
    store: Store,
    routing: Routing,
    endpoints: Sequence[Endpoint],
    prompts: Mapping[str, Sequence[Prompt]],
    count: int,
) -> list[ShardJob]:
    """One job per endpoint and dataset: `count` of its selected prompts with tools and `count` without, each with a sample id of its own, so
    that no answer of the audit is taken for one of the dataset, and the same command asks for the same ones again."""
    jobs = []
    for endpoint in endpoints:
        pinned = routing.only(endpoint, RequestForm(logprobs=True))
        takes_tools = not endpoint.supported_parameters or "tools" in endpoint.supported_parameters
        for dataset in campaign.dataset:
            chosen: list[Prompt] = []
            for tools in (False, True) if takes_tools else (False,):
                fit = [p for p in prompts.get(dataset.name, ()) if not p.reserve and bool(p.tools) == tools]
                chosen += sorted((_as_audit(p, endpoint) for p in fit), key=lambda p: p.sample_id)[:count]
            if chosen:
                one_turn = dataset.model_copy(update={"turns": "last"})
                folder = store.answers(SCOPE, SHARDS[0])
                jobs.append(ShardJob(one_turn, SCOPE, tuple(chosen), folder, routing=pinned, scope=SCOPE))
    return jobs


def _as_audit(prompt: Prompt, endpoint: Endpoint) -> Prompt:
    """Its id is a hash, so the first ones by id are a random sample that depends on nothing else."""
    name = hashlib.sha256(f"audit\0{endpoint.tag}\0{prompt.sample_id}\0{prompt.turn}".encode()).hexdigest()[:32]
    return replace(prompt, sample_id=name, shard=SCOPE, follow_ups=())


async def ask_again(
    campaign: Campaign, jobs: Sequence[ShardJob], servers: Servers, ledger: Ledger, routing: Routing
) -> list[ShardResult]:
    """Through the collector, with a bar. Raises what it raises, KeyboardInterrupt when a signal stopped it."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    from eagle3_assets.collect.signals import stopping_on_signals

    stop = asyncio.Event()
    with Bars(console=Console(stderr=True), transient=True) as bars, stopping_on_signals(stop):
        bar: TaskID = bars.add_task("asking", total=None)

        def show(p: Progress) -> None:
            bars.update(bar, completed=p.done, total=p.total, description=f"asking, {p.spent_usd:.4f} USD")

        results = await collect(
            campaign, jobs, servers=servers, ledger=ledger, routing=routing, stop=stop, on_progress=show, tolerant=True
        )
    if stop.is_set():
        raise KeyboardInterrupt
    return results


# ---------------------------------------------------------------------------------------------------- the table
def _print_table(summary: Mapping[str, Any], path: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from eagle3_assets.exact.second_opinion.audit import ENOUGH
    from eagle3_assets.exact.show import visible

    table = Table(title="Rebuilt without their ids, compared with them (95 % bounds)", box=box.SIMPLE)
    for column in ("provider", "dataset", "tools"):
        table.add_column(column, overflow="fold")
    for column in ("answers", "q %", "f0 %", "lambda / 1,000"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in [*summary["strata"], {"provider": "all", "dataset": "", "tools": None, **summary["pooled"]}]:
        cells = [row["provider"], row["dataset"], {True: "yes", False: "no", None: ""}[row["tools"]], f"{row['rows']:,}"]
        cells += [_rate(row["q"], 100), _rate(row["f0"], 100), _rate(row["lambda_per_id"], 1000)]
        table.add_row(*(Text(visible(cell)) for cell in cells), style="" if row["rows"] >= ENOUGH else "dim")
    console = Console()
    console.print(table)
    for grade, found in summary["grades"].items():
        exact = found["exact"]
        line = f"{grade}: {exact['events']} of {exact['n']} exact (at least {exact['low']:.2%}), p_exact says {found['mean_p_exact']:.2%}"
        console.print(Text(line), highlight=False)
    legend = (
        "q: rebuilt ids are not the sampled ones; f0: of those, the bill agrees all the same; lambda: regions of sampled ids that the "
        f"tokenizer would cut otherwise. Dim: fewer than {ENOUGH} answers, counted in the last line only. Written: {path}"
    )
    console.print(Text(legend), highlight=False, soft_wrap=True)


def _rate(rate: Mapping[str, Any], times: int) -> str:
    if not rate["n"]:
        return "-"
    return f"{rate['value'] * times:.3g} ({rate['low'] * times:.3g}-{rate['high'] * times:.3g})"
