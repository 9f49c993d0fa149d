"""The collector: one event loop that answers any selection of datasets and shards.

Belongs here: the order of things (locks, admission, reservation, sending, journal, settlement, retry, stop) and nothing else;
each of them lives in its own module. Does not belong here: Dagster, signals (the caller sets `stop`), approval of money.

Order for one answer, so that no paid byte is lost and no dollar is spent unseen: reserve -> send -> append to the journal ->
settle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import aiohttp

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.admission import Admission, backoff_s
from eagle3_assets.collect.completion import completion_tokens
from eagle3_assets.collect.desk import Desk
from eagle3_assets.collect.engines import EnginePool, build_engine_request
from eagle3_assets.collect.exchange import Exchange, new_session, send
from eagle3_assets.collect.imports import import_answer
from eagle3_assets.collect.journal import Journal, dump_json, require_room
from eagle3_assets.collect.lanes import Item, Lane, next_lane
from eagle3_assets.collect.ledger import Ledger, Money
from eagle3_assets.collect.openrouter import ApiKey, build_request, guard_url, look_up_cost, most_it_can_cost, request_headers
from eagle3_assets.collect.outcomes import Finding, classify, to_answer
from eagle3_assets.collect.progress import Meter, Progress
from eagle3_assets.collect.routing import Routing, is_same_model, require_eligible
from eagle3_assets.collect.shard_work import ShardJob, ShardResult, ShardWork
from eagle3_assets.collect.stopping import out_of_money, refused, settings_are_wrong
from eagle3_assets.collect.wire_answer import WireAnswer
from eagle3_assets.errors import BudgetStop, StoreError

__all__ = ["Pace", "Progress", "Servers", "ShardJob", "ShardResult", "collect"]
log = logging.getLogger(__name__)

SYSTEMATIC = 8  # so many systematic failures in a row, without one finished answer, end the run
REFUSALS_PER_PROMPT = 100  # 429 and its kin do not count as attempts, but no prompt waits for ever
LOOK_UPS_AT_ONCE = 16
IMPORTS_AT_ONCE = 64  # records written between two looks at the event loop


@dataclass(frozen=True, slots=True)
class Servers:
    """Who is asked. `base_url` and `api_key` for OpenRouter or its stand-in; `engine_urls` in the order of the campaign's
    engines.
    """

    base_url: str | None = None
    api_key: ApiKey | None = None
    engine_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """Times, in seconds."""

    backoff_first: float = 0.5
    backoff_most: float = 30.0
    retry_after_most: float = 120.0  # an absurd Retry-After is bounded to this
    sync: float = 0.1
    progress: float = 0.5
    look_up: float = 2.0  # /generation is written some seconds after the answer (contract 1.6)
    money_poll: float = 0.5


DEFAULT_PACE = Pace()


async def collect(
    campaign: Campaign,
    jobs: Iterable[ShardJob],
    *,
    servers: Servers,
    ledger: Ledger | None,
    routing: Routing | None,
    stop: asyncio.Event,
    on_progress: Callable[[Progress], None] | None = None,
    on_shard_done: Callable[[ShardResult], None] | None = None,
    tolerant: bool = False,
    pace: Pace = DEFAULT_PACE,
) -> list[ShardResult]:
    """Answer what the jobs' journals do not answer yet. Returns one result per job, in order.

    `on_shard_done` fires once per job: as soon as nothing is left to do for it and its journal is on disk, at the latest before
    this returns or raises; look at `result.complete`. `stop`: nothing new is sent, those in flight have `collect.stop_grace_s`,
    the rest is recorded as ambiguous, and the results are returned. `ledger` and `routing` may be None when no job goes to
    OpenRouter. `tolerant`: settings that do not work for one job (a systematic 404) leave its prompts missing instead of ending
    the run.

    Raises LockedError (a shard has another owner; nothing was sent), StoreError, WireError (refused key, nothing eligible),
    BudgetStop (everything paid for is kept); all after those in flight have finished and been journaled.
    """
    run = _Run(campaign, list(jobs), servers, ledger, routing, stop, tolerant, pace)
    run.on_progress, run.on_shard_done = on_progress, on_shard_done
    with ExitStack() as journals:
        run.open(journals)
        await run.answer_all()
    return [work.result() for work in run.works]


class _Run:
    """The state of one call of `collect`."""

    on_progress: Callable[[Progress], None] | None = None
    on_shard_done: Callable[[ShardResult], None] | None = None
    session: aiohttp.ClientSession

    def __init__(
        self,
        campaign: Campaign,
        jobs: list[ShardJob],
        servers: Servers,
        ledger: Ledger | None,
        routing: Routing | None,
        stop: asyncio.Event,
        tolerant: bool,
        pace: Pace,
    ) -> None:
        self.campaign, self.servers, self.ledger, self.routing = campaign, servers, ledger, routing
        self.stop, self.tolerant, self.pace = stop, tolerant, pace
        self.works = [ShardWork(job, campaign.collect.attempts) for job in jobs]
        self.desk = Desk(ledger, self.fail, self.money_came_back) if ledger is not None else None
        asks_engines = any(job.dataset.backend == "engine" for job in jobs)
        self.engines = EnginePool(campaign.engine, servers.engine_urls) if asks_engines else None
        self.admissions = {source: Admission(campaign.collect.in_flight) for source in ("openrouter", "engine")}
        self.lanes: dict[tuple[str, str, int], Lane] = {}
        self.chance = random.Random(campaign.campaign.seed)
        self.wake = asyncio.Event()
        self.requests: set[asyncio.Task[None]] = set()
        self.look_ups: set[asyncio.Task[None]] = set()
        self.endings: set[asyncio.Task[None]] = set()
        self.timers: set[asyncio.TimerHandle] = set()
        self.look_up_slots = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        self.unsaved: list[tuple[ShardWork, WireAnswer]] = []
        self.error: BaseException | None = None
        self.meter = Meter()

    # ------------------------------------------------------------------------------------------------ before
    def open(self, journals: ExitStack) -> None:
        """Take every lock, read every journal, settle what a killed run left. Nothing has been sent when this raises."""
        by_folder: dict[Path, list[ShardWork]] = {}
        for work in self.works:
            by_folder.setdefault(work.job.folder, []).append(work)
        for folder, works in by_folder.items():
            billed: list[WireAnswer] = []

            def on_record(answer: WireAnswer, works: list[ShardWork] = works, billed: list[WireAnswer] = billed) -> None:
                for work in works:
                    if len(works) == 1 or work.asks(answer.key):
                        work.note(answer)
                if answer.source == "openrouter":
                    billed.append(replace(answer, body=b"", request={}, dataset=works[0].scope))

            journal = Journal.open(folder, on_record=on_record)
            journals.callback(journal.close)
            for work in works:
                work.journal = journal
            if self.ledger is not None:
                self.ledger.reconcile(billed)
        for work in self.works:
            prompts = work.start()
            result = work.result()
            self.meter.total += result.selected
            self.meter.done += result.finished + result.failed
            for prompt in prompts:
                self.enqueue(Item(prompt, work))

    def enqueue(self, item: Item) -> None:
        self.meter.expected_left += item.prompt.expected_tokens
        if item.work.job.dataset.backend != "import":
            self.lane_of(item.work).push(item)

    def lane_of(self, work: ShardWork) -> Lane:
        source: Literal["openrouter", "engine"] = "engine" if work.job.dataset.backend == "engine" else "openrouter"
        routing = (work.job.routing or self.routing) if source == "openrouter" else None
        key = (work.job.dataset.name, work.scope, id(routing))
        if key not in self.lanes:
            if source == "openrouter":
                self.require_openrouter(routing)
            self.lanes[key] = Lane(source, work.scope, routing, self.admissions[source])
        return self.lanes[key]

    def require_openrouter(self, routing: Routing | None) -> None:
        if routing is None or self.ledger is None or self.servers.base_url is None or self.servers.api_key is None:
            raise ValueError("jobs for OpenRouter need a ledger, a routing, servers.base_url and servers.api_key")
        guard_url(self.servers.base_url, what="servers.base_url")
        require_eligible(routing)

    # ------------------------------------------------------------------------------------------------ the run
    async def answer_all(self) -> None:
        background: list[asyncio.Task[None]] = []
        try:
            async with new_session() as self.session:
                try:
                    background = [
                        asyncio.create_task(job) for job in (self.sync_often(), self.tell_progress(), self.watch_stop())
                    ]
                    await self.import_all()
                    for work in self.works:
                        self.end_shard_if_done(work)
                    await self.dispatch()
                    await self.let_finish()
                finally:
                    await self.cancel_in_flight()
                    for task in background:
                        task.cancel()
                    await asyncio.gather(*background, return_exceptions=True)
        finally:
            if self.desk is not None:
                await self.desk.close()
        self.save_unsaved()
        await self.end_shards()
        await self.tell_progress_once()
        if self.error is not None:
            raise self.error
        if (
            self.ledger is not None
            and not self.stop.is_set()
            and any(lane.blocked_by and len(lane) for lane in self.lanes.values())
        ):
            raise out_of_money(self.ledger, self.lanes.values())

    async def import_all(self) -> None:
        for work in self.works:
            prompts = work.start() if work.job.dataset.backend == "import" else []
            for number, prompt in enumerate(prompts, 1):
                if self.is_stopping:
                    return
                if self.record(work, import_answer(self.campaign, prompt)):
                    self.settle_prompt(Item(prompt, work))
                if number % IMPORTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    @property
    def is_stopping(self) -> bool:
        return self.stop.is_set() or self.error is not None

    def fail(self, error: BaseException) -> None:
        """End the run with the first error; those in flight finish."""
        self.error = self.error or error
        self.wake.set()

    async def dispatch(self) -> None:
        """Start requests while there is work, room and money. Returns when nothing is left that may be started."""
        most = self.campaign.collect.in_flight
        while not self.is_stopping:
            while len(self.requests) < most and (lane := next_lane(self.lanes.values())) is not None:
                self.launch(lane)
            if not self.requests and not self.timers and not await self.money_may_come():
                return
            await self.wake.wait()
            self.wake.clear()

    def launch(self, lane: Lane) -> None:
        item = lane.pop()
        lane.admission.in_flight += 1
        task = asyncio.create_task(self.ask_engine(lane, item) if lane.source == "engine" else self.ask_openrouter(lane, item))
        self.requests.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            lane.admission.in_flight -= 1
            self.requests.discard(task)
            self.wake.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                self.fail(error)

        task.add_done_callback(ended)

    async def money_may_come(self) -> bool:
        """With nothing in flight: whether a blocked lane may yet get money (wakes the loop when it should look again)."""
        if self.desk is None or self.ledger is None or not any(map(len, self.lanes.values())):
            return False
        await asyncio.gather(*self.look_ups, return_exceptions=True)
        await self.desk.drain()
        if next_lane(self.lanes.values()) is None:
            await asyncio.to_thread(self.ledger.sweep)
            if (await asyncio.to_thread(self.ledger.totals)).total.reserved_usd == 0:
                return False
            with contextlib.suppress(TimeoutError):  # another process holds reservations: most of them will come back
                await asyncio.wait_for(self.stop.wait(), self.pace.money_poll)
            for lane in self.lanes.values():
                lane.money_came_back(lane.scope)
        self.wake.set()
        return True

    async def let_finish(self) -> None:
        """Those in flight finish; after `stop` they have the grace period."""
        while self.requests and not self.stop.is_set():
            await self.wake.wait()
            self.wake.clear()
        if self.requests:
            await asyncio.wait(self.requests, timeout=self.campaign.collect.stop_grace_s)

    async def cancel_in_flight(self) -> None:
        for timer in self.timers:
            timer.cancel()
        cancelled = [*self.requests, *(self.look_ups if self.stop.is_set() else ())]
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        await asyncio.gather(*self.look_ups, *self.endings, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------ one request
    async def ask_engine(self, lane: Lane, item: Item) -> None:
        assert self.engines is not None
        with self.engines.borrow() as (engine, url):
            request = build_engine_request(self.campaign, item.work.job.dataset, item.prompt, engine)
            exchange, started = await self.exchange(url, request, {"Content-Type": "application/json"})
        finding = classify(exchange)
        answer = self.answer(lane, item, self.new_request_id(item), request, exchange, finding, started)
        self.after(lane, item, replace(answer, cost_usd=0.0, provider=engine.kind), finding)

    async def ask_openrouter(self, lane: Lane, item: Item) -> None:
        routing, key, desk = lane.routing, self.servers.api_key, self.desk
        assert routing is not None and key is not None and desk is not None  # require_openrouter
        request = build_request(self.campaign, item.work.job.dataset, item.prompt, routing)
        request_id = self.new_request_id(item)
        try:
            refused_by = await desk.reserve(request_id, lane.scope, most_it_can_cost(request, routing))
        except asyncio.CancelledError:
            desk.release(request_id)  # nothing was sent; applied after the reservation, this takes it back
            return
        except StoreError:  # `fail` has heard of it
            return lane.push(item)
        if refused_by is not None:
            lane.blocked_by = refused_by
            return lane.push(item)
        if self.is_stopping:
            desk.release(request_id)
            return lane.push(item)
        exchange, started = await self.exchange(f"{self.servers.base_url}/chat/completions", request, request_headers(key))
        finding = classify(
            exchange,
            is_asked_model=lambda model: is_same_model(self.campaign.target.model, model),
            is_eligible=routing.names_provider,
        )
        answer = self.answer(lane, item, request_id, request, exchange, finding, started)
        if finding.reason != "finished":  # some servers echo what they refuse
            answer = replace(answer, body=key.hide_in(answer.body))
            finding = replace(finding, message=key.hide_in_text(finding.message))
        self.after(lane, item, answer, finding)
        self.settle_money(lane, item, answer, desk)

    async def exchange(self, url: str, request: dict[str, Any], headers: dict[str, str]) -> tuple[Exchange, float]:
        """Send. Being cancelled is a fault like others (the answer is lost, perhaps billed), so that it is recorded like
        others.
        """
        exchange, started = Exchange(), time.time()
        timeout_s = self.campaign.collect.timeout_s
        try:
            await send(self.session, url, dump_json(request), headers=headers, timeout_s=timeout_s, into=exchange)
        except asyncio.CancelledError:
            exchange.fault = "cancelled"
        return exchange, started

    def new_request_id(self, item: Item) -> str:
        attempt = item.work.next_attempt(item.prompt.key)
        return f"{item.prompt.sample_id}-{item.prompt.turn}-{attempt}-{uuid.uuid4().hex[:10]}"

    def answer(
        self,
        lane: Lane,
        item: Item,
        request_id: str,
        request: dict[str, Any],
        exchange: Exchange,
        finding: Finding,
        started: float,
    ) -> WireAnswer:
        return to_answer(
            item.prompt,
            exchange,
            finding,
            source=lane.source,
            request_id=request_id,
            request=request,
            shard=item.work.job.shard,
            attempt=item.work.next_attempt(item.prompt.key),
            started_at=started,
        )

    # ------------------------------------------------------------------------------------------------ afterwards
    def after(self, lane: Lane, item: Item, answer: WireAnswer, finding: Finding) -> None:
        """Journal what must be kept, then decide what happens to the prompt. Awaits nothing."""
        handling = finding.handling
        item.tries += handling.then == "retry"
        item.refusals += handling.then == "slow"
        if handling.then == "slow":
            lane.admission.refused()
        elif handling.then == "done":
            lane.admission.answered()
        self.judge_settings(lane, finding)
        if handling.then in ("stop", "stop_budget"):
            self.fail(refused(lane, answer.status, finding))
            return lane.push(item)
        is_last = item.tries >= self.campaign.collect.attempts or item.refusals >= REFUSALS_PER_PROMPT
        # A refusal that costs nothing and is tried again leaves no record; everything else does.
        leaves_no_record = (
            handling.retry_class == "transient" and handling.money == "free" and answer.cost_usd == 0.0 and not is_last
        )
        if not leaves_no_record and not self.record(item.work, answer, finding.completion):
            return
        if item.work.is_settled(item.prompt.key):
            self.settle_prompt(item)
        elif is_last or lane.given_up is not None:
            self.put_aside(item, finding.reason)
        else:
            self.try_again_later(lane, item, finding)

    def record(self, work: ShardWork, answer: WireAnswer, completion: dict[str, Any] | None = None) -> bool:
        """Append. A record that finds no room is held in memory and tried again at the end, and the run ends."""
        try:
            work.journal.append(answer)
        except StoreError as error:
            self.unsaved.append((work, answer))
            self.fail(error)
            return False
        work.note(answer, completion)
        if answer.outcome == "finished" and completion is not None:
            self.meter.tokens += completion_tokens(completion)
        return True

    def save_unsaved(self) -> None:
        for work, answer in self.unsaved:
            try:
                work.journal.append(answer)
                work.note(answer)
            except StoreError:
                log.error("answer %s could not be stored; its money stays accounted for", answer.request_id)

    def settle_money(self, lane: Lane, item: Item, answer: WireAnswer, desk: Desk) -> None:
        if answer.cost_usd is not None:
            desk.settle(answer.request_id, lane.scope, answer.cost_usd)
            if lane.routing is not None and answer.cost_usd > most_it_can_cost(answer.request, lane.routing) * (1 + 1e-9):
                self.fail(  # the bound that keeps spending below the approval is false: nothing more is sent
                    BudgetStop(
                        f"an answer of {answer.provider} cost {answer.cost_usd:.6f} USD, more than max_price allows; nothing more is "
                        "sent, everything paid for is kept: look at the provider's bill, add it to routing.ignore, then run again"
                    )
                )
            return
        desk.keep(answer.request_id)
        if answer.generation_id is not None and not self.stop.is_set():
            _start(self.look_ups, self.look_up(lane, item.work, answer, desk))

    def money_came_back(self, scope: str) -> None:
        for lane in self.lanes.values():
            lane.money_came_back(scope)
        self.wake.set()

    async def look_up(self, lane: Lane, work: ShardWork, answer: WireAnswer, desk: Desk) -> None:
        """Ask /generation what a lost or unpriced answer cost; a record that is not there yet is asked for once more."""
        key, base_url = self.servers.api_key, self.servers.base_url
        assert key is not None and base_url is not None and answer.generation_id is not None
        async with self.look_up_slots:
            cost = await look_up_cost(self.session, base_url, key, answer.generation_id)
            if cost is None:
                await asyncio.sleep(self.pace.look_up)
                cost = await look_up_cost(self.session, base_url, key, answer.generation_id)
        if cost is not None:
            work.cost_usd += cost
            await desk.settle(answer.request_id, lane.scope, cost)

    def judge_settings(self, lane: Lane, finding: Finding) -> None:
        """Many systematic failures and not one answer: the settings are wrong, and more requests would not make them right."""
        if finding.reason == "finished":
            lane.streak = 0
        elif finding.handling.systematic:
            lane.streak += 1
        if lane.streak < SYSTEMATIC or lane.given_up is not None:
            return
        lane.given_up = finding.reason
        for item in lane.clear():
            self.put_aside(item, finding.reason)
        if not self.tolerant:
            self.fail(settings_are_wrong(lane, finding))

    def try_again_later(self, lane: Lane, item: Item, finding: Finding) -> None:
        if finding.retry_after_s is not None:
            delay = min(finding.retry_after_s, self.pace.retry_after_most)
        else:
            tries = item.tries + item.refusals
            delay = backoff_s(self.chance, tries, first_s=self.pace.backoff_first, most_s=self.pace.backoff_most)

        def back() -> None:
            self.timers.discard(timer)
            if lane.given_up is not None:
                self.put_aside(item, lane.given_up)
            else:
                lane.push(item)
            self.wake.set()

        item.work.remember(item.prompt, finding.reason)
        timer = asyncio.get_running_loop().call_later(delay, back)
        self.timers.add(timer)

    # ------------------------------------------------------------------------------------------------ prompts and shards end
    def settle_prompt(self, item: Item) -> None:
        """The prompt is finished or failed for good; a chain goes on with its next turn."""
        before = item.work.missing
        following = item.work.settle(item.prompt)
        self.meter.done += before - item.work.missing
        self.meter.expected_left -= item.prompt.expected_tokens
        if following is not None:
            self.enqueue(Item(following, item.work))
        self.end_shard_if_done(item.work)

    def put_aside(self, item: Item, reason: str) -> None:
        item.work.put_aside(item.prompt, reason)
        self.meter.expected_left -= item.prompt.expected_tokens
        self.end_shard_if_done(item.work)

    def end_shard_if_done(self, work: ShardWork) -> None:
        if work.is_done and not work.reported:
            work.reported = True
            _start(self.endings, self.end_shard(work))

    async def end_shards(self) -> None:
        """Those that were not reported because something was left to do."""
        for work in self.works:
            if not work.reported:
                work.reported = True
                await self.end_shard(work)

    async def end_shard(self, work: ShardWork) -> None:
        try:
            await asyncio.to_thread(work.journal.sync)
            if self.on_shard_done is not None:
                self.on_shard_done(work.result())
        except Exception as error:
            self.fail(error)

    # ------------------------------------------------------------------------------------------------ in the background
    async def watch_stop(self) -> None:
        await self.stop.wait()
        self.wake.set()

    async def sync_often(self) -> None:
        """Group fsync; and no request starts when its answer might find the disk full."""
        while True:
            try:
                await asyncio.to_thread(self.sync_all)
            except StoreError as error:
                self.fail(error)
            await asyncio.sleep(self.pace.sync)

    def sync_all(self) -> None:
        for work in self.works:
            work.journal.sync()
        if self.requests:
            require_room(self.works[0].job.folder, len(self.requests))

    async def tell_progress(self) -> None:
        while self.on_progress is not None:
            await self.tell_progress_once()
            await asyncio.sleep(self.pace.progress)

    async def tell_progress_once(self) -> None:
        if self.on_progress is None:
            return
        money = (await asyncio.to_thread(self.ledger.totals)).total if self.ledger is not None else Money()
        limit_usd = self.ledger.limit_usd if self.ledger is not None else 0.0
        refusals = sum(admission.refusals for admission in self.admissions.values())
        self.on_progress(self.meter.snapshot(in_flight=len(self.requests), money=money, limit_usd=limit_usd, refusals=refusals))


def _start(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
