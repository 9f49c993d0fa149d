"""`answers/<ds>`: the verbatim wire bytes of every answer. One step, one event loop, one limiter, one budget for any selection.

Belongs here: what of the campaign goes to `collect.collector`, the commit of each finished shard, progress lines.
Does not belong here: sending, money, journals (`collect`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from eagle3_assets import gate
from eagle3_assets import store as st
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.campaign_ledger import open_ledger
from eagle3_assets.collect.money.account import read_account
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.run.collector import Progress, Servers, ShardJob, ShardResult, collect
from eagle3_assets.collect.servers.routing import stored_routing
from eagle3_assets.collect.signals import run, stopping_on_signals
from eagle3_assets.errors import GateError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.progress import Every, Step, publish
from eagle3_assets.review import invariants
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import After, Artifact, Card, Gate, Interrupted, Job, Made, Option, Per, Stage
from eagle3_assets.stages import plan, prompts, tokenizer_probe
from eagle3_assets.stages.pilot import rented, token_counter
from eagle3_assets.store import Store, commit, manifest_path
from eagle3_assets.wire import journal

LINE_EVERY_S, OBSERVATION_EVERY_S = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """`prompts`: their digest; `closed`: whether a person said that what is there is the dataset. Never what decides a price or a
    provider: what was paid for is not outdated by it."""

    prompts: str
    shard: str
    closed: bool


def inputs(a: Artifact) -> Inputs:
    return Inputs(a.of(prompts.STAGE).digest(), a.partition, a.store.closed(a.dataset).exists())


OPTIONS = (
    Option("in_flight", int, "requests on their way at once", lambda c: c.collect.in_flight),
    Option("attempts", int, "tries a prompt, transport and server faults together", lambda c: c.collect.attempts),
    Option(
        "stop_grace_s", float, "seconds that requests in flight have when the run is stopped", lambda c: c.collect.stop_grace_s
    ),
    Option(
        "budget_usd", float, "the most that this run may spend, in USD, below what is left of the approval; left out: all of it"
    ),
    Option("dry_run", bool, "only say in the run's log what would be asked; nothing is sent", lambda _: False),
)


def work(job: Job) -> None:
    if job.chosen.get("dry_run"):
        job.face.log(f"dry run, nothing is sent: {_would_ask(job)}")
        return
    results = run(_collect(job))
    if open_shards := [r for r in results if not r.complete]:
        raise GateError(_incomplete(open_shards))


async def _collect(job: Job) -> list[ShardResult]:
    from eagle3_assets.prompts.file import read_shard

    campaign, store, datasets = as_chosen(job.campaign, job.chosen), job.store, job.datasets
    paid = any(rented(d) for d in datasets)
    approved = planning.approved_usd(campaign, store) if paid else 0.0
    if (most := job.chosen.get("budget_usd")) is not None:
        approved = min(approved, committed_usd(store) + most)
    servers = job.face.servers(campaign, store, rented=paid)
    shards = {(a.dataset, a.partition): (a, a.inputs()) for a in job.artifacts}
    jobs = [
        ShardJob(
            campaign.dataset_named(name),
            shard,
            tuple(read_shard(store.prompts(name), shard)),
            a.path,
            store.closed(name).exists(),
        )
        for (name, shard), (a, _) in shards.items()
    ]

    def shard_done(result: ShardResult) -> None:
        if result.complete:
            job.face.done(_commit(*shards[result.dataset, result.shard], result))

    store.bind(
        campaign, answered=[d.name for d in datasets]
    )  # from here on there is something that a changed campaign would contradict
    stop = asyncio.Event()
    with stopping_on_signals(stop), open_ledger(campaign, store, approved) as ledger:
        if paid:
            await probe_again(job, ledger, servers, stop, count_tokens=token_counter(campaign))
        results = await collect(
            campaign,
            jobs,
            servers=servers,
            ledger=ledger,
            routing=stored_routing(campaign, store) if paid else None,
            stop=stop,
            on_progress=_reporter(job),
            on_shard_done=shard_done,
        )
    if stop.is_set():
        raise Interrupted
    return results


def as_chosen(campaign: Campaign, chosen: Mapping[str, Any]) -> Campaign:
    """The campaign with what one run chose of `[collect]`. Raises GateError for what that table would refuse."""
    given = {name: chosen[name] for name in ("in_flight", "attempts", "stop_grace_s") if name in chosen}
    try:
        table = type(campaign.collect).model_validate({**campaign.collect.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        raise GateError(f"{first['loc'][0]} = {first['input']!r}: {first['msg'].lower()}; change it in the launchpad") from None
    return campaign.model_copy(update={"collect": table})


def committed_usd(store: Store) -> float:
    """What is spent, reserved or held so far."""
    total = read_account(store.ledger).totals.total
    return total.spent_usd + total.reserved_usd + total.ambiguous_usd


def _would_ask(job: Job) -> str:
    from eagle3_assets.prompts.file import read_shard

    lacking: Counter[str] = Counter()
    for a in job.artifacts:
        selected = {p.key for p in read_shard(job.store.prompts(a.dataset), a.partition) if not p.reserve}
        lacking[a.dataset] += len(selected - set(journal.best(journal.read(a.path))))
    return ", ".join(f"{n:,} answers of {name}" for name, n in lacking.items())


async def probe_again(
    job: Job, ledger: Ledger, servers: Servers, stop: asyncio.Event, *, count_tokens: Callable[[str], int]
) -> None:
    """Probes for endpoints whose provider changed since they were asked, by what is learned so far: its new form is known from its first
    answers on."""
    from eagle3_assets.collect.pilot import repeats
    from eagle3_assets.exact.providers.drift import changes

    campaign, store = job.campaign, job.store
    if not manifest_path(store.wire_profiles).exists():
        return
    found = changes(st.read_committed(store.wire_profiles, made_by="wire_profiles"))
    if not found:
        return
    routing = stored_routing(campaign, store)
    asked = [answer for folder in (store.pilot_dir, store.probes_again) for answer in journal.read(folder)]
    due = repeats.due({change.provider: change.at for change in found}, routing.eligible, asked)
    for repeat in due:
        job.face.log(f"{repeat.endpoint.provider_name} changed its form: asking {repeat.endpoint.tag} the pilot's probes again")
    await repeats.ask_again(
        campaign,
        due,
        servers=servers,
        ledger=ledger,
        routing=routing,
        folder=store.probes_again,
        stop=stop,
        count_tokens=count_tokens,
    )


def _commit(a: Artifact, made_from: dict[str, Any], result: ShardResult) -> Made:
    numbers = {
        "selected": result.selected,
        "finished": result.finished,
        "failed": result.failed,
        "ambiguous": result.ambiguous,
        "cost_usd": result.cost_usd,
        "completion_tokens": result.completion_tokens,
        "reasons": result.reasons,
        "server": a.campaign.server_address if rented(a.campaign.dataset_named(result.dataset)) else None,
    }
    manifest = commit(a.path, files=sorted(a.path.glob("segment-*")), inputs=made_from, numbers=numbers)
    return Made(a, manifest, {**numbers, "folder": a.path}, rows=result.finished)


def _reporter(job: Job) -> Callable[[Progress], None]:
    """Live figures to whoever listens in this process, a log line now and then, an observation a minute (plotted in the UI)."""
    line, observation = Every(LINE_EVERY_S), Every(OBSERVATION_EVERY_S)

    def report(p: Progress) -> None:
        figures = {
            "in_flight": p.in_flight, "spent_usd": p.spent_usd, "reserved_usd": p.reserved_usd, "limit_usd": p.limit_usd,
            "tokens_per_s": p.tokens_per_s, "retries_429": p.retries_429, "eta_s": p.eta_s,
            "foreign_usd": p.foreign_usd,
        }  # fmt: skip
        note = (
            f"{p.in_flight} in flight, {p.tokens_per_s:,.0f} tokens/s, {p.spent_usd:.4f} USD spent "
            f"+ {p.reserved_usd:.4f} reserved of {planning.usd_text(p.limit_usd)}, {p.retries_429} x 429"
            + (f", {p.foreign_usd:.4f} USD spent on this key by others" if p.foreign_usd else "")
        )
        publish(Step("answers", p.done, p.total, note, figures))
        if line.due():
            job.face.log(f"{p.done}/{p.total} answers, {note}")
        if observation.due():
            job.face.observe(job.artifacts, figures)

    return report


def _incomplete(results: Sequence[ShardResult]) -> str:
    shown = ", ".join(f"answers/{r.dataset} shard {r.shard} lacks {r.missing} of {r.selected}" for r in results[:4])
    more = f" and {len(results) - 4} more shards" if len(results) > 4 else ""
    reasons: Counter[str] = Counter()
    for r in results:
        reasons.update(r.reasons)
    why = f" ({', '.join(f'{k}: {v}' for k, v in sorted(reasons.items()))})" if reasons else ""
    return f"{shown}{more}{why}; finished shards are recorded; run again to resume, or `eagle3 close DATASET` to go on without"


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets.prompts.file import read_shard

    eligible: list[str] = []
    if rented(a.campaign.dataset_named(a.dataset)):
        eligible = [e["provider_name"] for e in st.read_committed(a.store.endpoints, made_by="endpoints")["eligible"]]
    return invariants.judge_answers(
        gate.committed(a).numbers,
        list(journal.read(a.path)),
        {p.key for p in read_shard(a.store.prompts(a.dataset), a.partition)},
        model=a.campaign.target.model,
        providers=eligible,
        closed=a.store.closed(a.dataset).exists(),
    )


def card(campaign: Campaign, name: str) -> Card:
    backend = campaign.dataset_named(name).backend
    return Card(
        frozenset({{"openrouter": "openrouter", "engine": "vllm", "import": "jsonl"}[backend]}),
        f"Answers of {name} ({backend}): the response bytes as received, never re-bought, never edited. "
        "A shard is complete when every selected prompt is answered, counted as failed, or the dataset was closed.",
    )


STAGE = Stage(
    name="answers",
    per=Per.SHARD,
    version=1,
    path=lambda a: a.store.answers(a.dataset, a.partition),
    after=(prompts.STAGE, After(plan.STAGE, rented)),
    gates=lambda a: [Gate(a.of(tokenizer_probe.STAGE)), Gate(a.of(prompts.STAGE), current=False)],
    inputs=inputs,
    work=work,
    judge=judge,
    checks=CHECKS["answers"],
    resources=frozenset({"openrouter"}),
    one_step=True,
    costs_money=True,
    options=OPTIONS,
    card=card,
)
