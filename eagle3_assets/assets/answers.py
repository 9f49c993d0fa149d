"""`answers/<ds>`: the verbatim wire bytes of every answer. One step, one event loop, one limiter, one budget for any selection.

Belongs here: the step around `collect.collector`, recording of each finished shard, signals, progress lines.
Does not belong here: sending, money, journals (`collect`).
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, Every, described, partition_keys, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.recount import recount
from eagle3_assets.collect.run.collector import Progress, ShardJob, ShardResult, collect
from eagle3_assets.collect.servers import routing as routes
from eagle3_assets.errors import GateError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.partitions import SHARD_PARTITIONS, SINGLE_RUN
from eagle3_assets.progress import Step, publish
from eagle3_assets.resources.openrouter import OpenRouterResource
from eagle3_assets.store import Store, commit

LINE_EVERY_S, OBSERVATION_EVERY_S = 15.0, 60.0


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    specs = [
        dg.AssetSpec(
            ["answers", d.name],
            group_name="answers",
            kinds={{"openrouter": "openrouter", "engine": "vllm", "import": "jsonl"}[d.backend]},
            owners=OWNERS,
            partitions_def=SHARD_PARTITIONS,
            skippable=True,
            deps=[dg.AssetKey(["prompts", d.name]), *(["plan"] if d.backend == "openrouter" else [])],
            description=f"Answers of {d.name} ({d.backend}): the response bytes as received, never re-bought, never edited. "
            "A shard is complete when every selected prompt is answered, counted as failed, or the dataset was closed.",
        )
        for d in campaign.dataset
    ]

    @dg.multi_asset(specs=specs, name="answers", can_subset=True, backfill_policy=SINGLE_RUN)
    def answers(context: dg.AssetExecutionContext, openrouter: OpenRouterResource) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        with stage(context, campaign) as store:
            names = [d.name for d in campaign.dataset if dg.AssetKey(["answers", d.name]) in context.selected_asset_keys]
            results = _run(_collect(context, campaign, store, openrouter, names, partition_keys(context)))
            complete = {n for n in names if all(r.complete for r in results if r.dataset == n)}
            for name in sorted(complete):
                yield dg.MaterializeResult(asset_key=dg.AssetKey(["answers", name]))
            open_shards = [r for r in results if not r.complete]
            if open_shards:
                raise GateError(_incomplete(open_shards))

    return [answers]


def _run(work: Coroutine[Any, Any, list[ShardResult]]) -> list[ShardResult]:
    """On uvloop where there is one: with TLS 15 % less CPU and a third of the memory (perf-baselines.md 2d). An asynchronous asset
    would run on the loop that Dagster makes, which is asyncio's own.
    """
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):  # no wheel for this platform
        import uvloop

        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


async def _collect(
    context: dg.AssetExecutionContext,
    campaign: Campaign,
    store: Store,
    openrouter: OpenRouterResource,
    names: list[str],
    shards: list[str],
) -> list[ShardResult]:
    from eagle3_assets.prompts.file import read_shard

    datasets = [campaign.dataset_named(n) for n in names]
    paid = any(d.backend == "openrouter" for d in datasets)
    gate.require_probe(campaign, store)
    for d in datasets:
        gate.require(campaign, store, "prompts", d.name)
    approved = planning.approved_usd(campaign, store) if paid else 0.0
    servers = openrouter.servers(campaign, store) if paid else openrouter.engines_only(campaign, store)
    inputs = {(d.name, s): lineage.answers_inputs(campaign, store, d.name, s) for d in datasets for s in shards}
    jobs = [
        ShardJob(d, s, tuple(read_shard(store.prompts(d.name), s)), store.answers(d.name, s), store.closed(d.name).exists())
        for d in datasets
        for s in shards
    ]

    def shard_done(result: ShardResult) -> None:
        if result.complete:
            record_shard(context, store, result, inputs[result.dataset, result.shard])

    store.bind(campaign, answered=names)  # from here on there is something that a changed campaign would contradict
    stop = asyncio.Event()
    with stopping_on_signals(stop), open_ledger(campaign, store, approved) as ledger:
        results = await collect(
            campaign,
            jobs,
            servers=servers,
            ledger=ledger,
            routing=resolved_routing(campaign, store) if paid else None,
            stop=stop,
            on_progress=_reporter(context, names),
            on_shard_done=shard_done,
        )
    if stop.is_set():
        raise dg.DagsterExecutionInterruptedError()
    return results


def record_shard(context: dg.AssetExecutionContext, store: Store, result: ShardResult, inputs: dict[str, Any]) -> None:
    """Commit the shard's manifest and tell Dagster at once: a later failure of another shard must not undo this one."""
    folder = store.answers(result.dataset, result.shard)
    numbers = {
        "selected": result.selected,
        "finished": result.finished,
        "failed": result.failed,
        "ambiguous": result.ambiguous,
        "cost_usd": result.cost_usd,
        "completion_tokens": result.completion_tokens,
        "reasons": result.reasons,
    }
    manifest = commit(folder, files=sorted(folder.glob("segment-*")), inputs=inputs, numbers=numbers)
    context.log_event(
        dg.AssetMaterialization(
            asset_key=dg.AssetKey(["answers", result.dataset]),
            partition=result.shard,
            metadata=described(numbers, **{"dagster/row_count": result.finished}, folder=folder, digest=manifest.digest),
        )
    )


def _reporter(context: dg.AssetExecutionContext, names: list[str]) -> Any:
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
            context.log.info(f"{p.done}/{p.total} answers, {note}")
        if observation.due():
            for name in names:
                context.log_event(dg.AssetObservation(asset_key=dg.AssetKey(["answers", name]), metadata=described(figures)))

    return report


def _incomplete(results: list[ShardResult]) -> str:
    shown = ", ".join(f"answers/{r.dataset} shard {r.shard} lacks {r.missing} of {r.selected}" for r in results[:4])
    more = f" and {len(results) - 4} more shards" if len(results) > 4 else ""
    reasons: dict[str, int] = {}
    for r in results:
        for reason, count in r.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    why = f" ({', '.join(f'{k}: {v}' for k, v in sorted(reasons.items()))})" if reasons else ""
    return f"{shown}{more}{why}; finished shards are recorded; run again to resume, or `eagle3 close DATASET` to go on without"


def pilot_limit(campaign: Campaign, store: Store) -> float:
    """What may be spent in all while the pilot runs: its own cap before any approval, the approved amount after."""
    try:
        return planning.approved_usd(campaign, store)
    except GateError:
        return min(campaign.budget.pilot_usd, campaign.budget.campaign_usd)


def resolved_routing(campaign: Campaign, store: Store) -> routes.Routing:
    """The policy applied to the committed endpoints snapshot, with what pilot and wire profiles say of each endpoint."""
    return routes.stored_routing(campaign, store)


@contextmanager
def open_ledger(campaign: Campaign, store: Store, limit_usd: float) -> Iterator[Ledger]:
    """The campaign's ledger: `limit_usd` for everything together, and the caps of the pilot and of single datasets.

    A ledger that was lost is first counted again from every journal (`collect.recount`).
    """
    caps = {"pilot": campaign.budget.pilot_usd}
    caps |= {d.name: cap for d in campaign.dataset if (cap := planning.dataset_cap(campaign, d)) is not None}
    ledger = Ledger(store.ledger, limit_usd=limit_usd, caps=caps)
    try:
        recount(ledger, pilot=store.pilot_dir, pilot_figures=store.pilot, answers=store.root / "answers")
        yield ledger
    finally:
        ledger.close()


@contextmanager
def stopping_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set `stop`, so that requests in flight get their grace period and the journal is flushed.

    Dagster's own handler raises wherever the loop happens to be, without cancelling tasks. The previous handlers come back after.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signals here (tests, threaded callers)
        return
    loop = asyncio.get_running_loop()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for s in before:
        loop.add_signal_handler(s, stop.set)
    try:
        yield
    finally:
        for s, handler in before.items():
            loop.remove_signal_handler(s)
            signal.signal(s, handler)
