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
import math
import random
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import aiohttp

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.given_answers import import_answer
from eagle3_assets.collect.money.desk import Desk
from eagle3_assets.collect.money.ledger import Ledger, Money
from eagle3_assets.collect.money.reconcile import Reconciliation
from eagle3_assets.collect.run.attempt import Attempt
from eagle3_assets.collect.run.bills import Bills
from eagle3_assets.collect.run.concurrency import Admission, backoff_s
from eagle3_assets.collect.run.cycle_collector import rarely_collected
from eagle3_assets.collect.run.doubt import Doubt
from eagle3_assets.collect.run.filing import Filing
from eagle3_assets.collect.run.lanes import Item, Lane, next_lane
from eagle3_assets.collect.run.outcomes import Finding
from eagle3_assets.collect.run.progress import Meter, Progress
from eagle3_assets.collect.run.ramp import Ramp
from eagle3_assets.collect.run.shard_work import ShardJob, ShardResult, ShardWork
from eagle3_assets.collect.run.stopping import nobody_answers, out_of_money, refused, settings_are_wrong
from eagle3_assets.collect.servers.breaker import Breaker, Change, Kind, folded
from eagle3_assets.collect.servers.engines import EnginePool, build_engine_request
from eagle3_assets.collect.servers.exchange import new_session
from eagle3_assets.collect.servers.openrouter import ApiKey, build_request, guard_url, most_it_can_cost, request_headers
from eagle3_assets.collect.servers.routing import Routing, is_same_model, require_eligible
from eagle3_assets.collect.servers.servers import DEFAULT_PACE, Pace, Servers
from eagle3_assets.errors import StoreError
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire.wire_answer import WireAnswer

__all__ = ["DEFAULT_PACE", "Pace", "Progress", "Servers", "ShardJob", "ShardResult", "collect"]
log = logging.getLogger(__name__)

SYSTEMATIC = 8  # so many systematic failures in a row, without one finished answer, end the run
REFUSALS_PER_PROMPT = 100  # 429 and its kin do not count as attempts, but no prompt waits for ever
# What a failure says of the provider that it names: its own account or key, a row that it does not take, a server that is down.
_KINDS: dict[str, Kind] = {
    "provider_refused": "refused",
    "bad_request": "row", "too_large": "row", "unprocessable": "row", "moderated": "row",
    "server_error": "down", "provider_down": "down", "error_finish": "down", "gateway_timeout": "down",
}  # fmt: skip
IMPORTS_AT_ONCE = 64  # records written between two looks at the event loop


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
    run = _Run(campaign, list(jobs), servers, ledger, routing, stop, tolerant, pace, on_progress, on_shard_done)
    with ExitStack() as journals:
        run.open(journals)
        with rarely_collected():  # after everything is loaded
            await run.answer_all()
    return [work.result() for work in run.works]


class _Run:
    """The state of one call of `collect`."""

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
        on_progress: Callable[[Progress], None] | None,
        on_shard_done: Callable[[ShardResult], None] | None,
    ) -> None:
        self.campaign, self.servers, self.ledger, self.routing = campaign, servers, ledger, routing
        self.stop, self.tolerant, self.pace, self.on_progress = stop, tolerant, pace, on_progress
        self.works = [ShardWork(job, campaign.collect.attempts) for job in jobs]
        # A pilot asks each endpoint alone, and wants to know what that one does: nobody is left out there.
        self.breaker = None if tolerant else Breaker(self.provider_changed, first_s=pace.provider_pause)
        self.address = campaign.server_address
        self.doubt, self.deciding = Doubt(pace), False
        self.nobody_since: float | None = None  # every provider is left out since (monotonic)
        self.desk = Desk(ledger, self.fail, self.money_came_back) if ledger is not None else None
        self.bills = self.reconciliation = None
        if ledger is not None and self.desk is not None:
            self.bills = Bills(ledger, self.desk, servers, pace, stop, self.fail)
            self.reconciliation = Reconciliation(ledger, self.desk, servers, pace, self.fail)
        asks_engines = any(job.dataset.backend == "engine" for job in jobs)
        self.engines = EnginePool(campaign.engine, servers.engine_urls) if asks_engines else None
        self.admissions = {source: Admission(campaign.collect.in_flight) for source in ("openrouter", "engine")}
        self.lanes: dict[tuple[str, str, int], Lane] = {}
        self.ramp = Ramp()
        self.chance = random.Random(campaign.campaign.seed)
        self.wake = asyncio.Event()
        self.requests: set[asyncio.Task[None]] = set()
        self.timers: set[asyncio.TimerHandle] = set()
        self.error: BaseException | None = None
        self.is_cancelling = False
        self._headers: dict[str, str] | None = None
        self.meter = Meter()
        self.filing = Filing(self.works, self.meter, self.fail, on_shard_done)

    # ------------------------------------------------------------------------------------------------ before
    def open(self, journals: ExitStack) -> None:
        """Take every lock, read every journal, settle what a killed run left. Nothing has been sent when this raises."""
        self.filing.open(journals, self.ledger)
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
                if self.bills is not None:
                    self.bills.session = self.session
                try:
                    syncing = self.filing.sync_often(self.pace.sync, lambda: len(self.requests))
                    background = [asyncio.create_task(job) for job in (syncing, self.tell_progress(), self.watch_stop())]
                    background += await self.watch_money()
                    await self.import_all()
                    for work in self.works:
                        self.filing.end_if_done(work)
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
        await self.filing.end()
        await self.tell_progress_once()
        if self.error is not None:
            raise self.error
        if (
            self.ledger is not None
            and not self.stop.is_set()
            and any(lane.blocked_by and len(lane) for lane in self.lanes.values())
        ):
            raise out_of_money(self.ledger, self.lanes.values())

    async def watch_money(self) -> list[asyncio.Task[None]]:
        """Look-ups of earlier runs, and what the server says was spent."""
        buys = any(work.job.dataset.backend == "openrouter" for work in self.works)
        if self.bills is None or self.reconciliation is None or not buys or self.servers.api_key is None:
            return []
        await self.bills.take_up()
        return [asyncio.create_task(job) for job in (self.bills.ask_again(), self.reconciliation.watch(self.session))]

    async def import_all(self) -> None:
        for work in self.works:
            prompts = work.start() if work.job.dataset.backend == "import" else []
            number = 0
            for prompt in prompts:
                turn: Prompt | None = prompt
                while turn is not None:
                    if self.is_stopping:
                        return
                    recorded = self.filing.record(work, import_answer(self.campaign, turn))
                    turn = self.settle_prompt(Item(turn, work)) if recorded else None
                    number += 1
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
        most, loop = self.campaign.collect.in_flight, asyncio.get_running_loop()
        look_again: asyncio.TimerHandle | None = None
        while not self.is_stopping:
            while len(self.requests) < most and (lane := next_lane(self.lanes.values())) is not None:
                if (wait_s := self.ramp.wait_s(len(self.requests), loop.time())) > 0:
                    if look_again is None or look_again.when() <= loop.time():  # one timer, however often answers wake this up
                        look_again = loop.call_later(wait_s, self.wake.set)
                    break
                self.launch(lane)
            if not self.requests and not self.timers and not await self.money_may_come():
                return
            await self.wake.wait()
            self.wake.clear()

    def launch(self, lane: Lane) -> None:
        task = asyncio.create_task(self.keep_asking(lane, self.take(lane)))
        self.requests.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self.requests.discard(task)
            self.wake.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                self.fail(error)

        task.add_done_callback(ended)

    def take(self, lane: Lane) -> Item:
        lane.admission.in_flight += 1
        return lane.pop()

    async def keep_asking(self, lane: Lane, item: Item) -> None:
        """One request after the other while there is a next one that may start: a task each, and a turn of the dispatcher in
        between, would cost three rounds of the event loop an answer.
        """
        while True:
            try:
                await (self.ask_engine(lane, item) if lane.source == "engine" else self.ask_openrouter(lane, item))
            finally:
                lane.admission.in_flight -= 1
            following = None if self.is_stopping or self.is_cancelling else next_lane(self.lanes.values())
            if following is None:
                return
            lane, item = following, self.take(following)
            if len(self.requests) < self.campaign.collect.in_flight:
                self.wake.set()  # this answer may have made room for one more

    async def money_may_come(self) -> bool:
        """With nothing in flight: whether a blocked lane may yet get money (wakes the loop when it should look again)."""
        if self.desk is None or self.bills is None or self.ledger is None or not any(map(len, self.lanes.values())):
            return False
        await self.bills.wait()
        await self.desk.drain()
        if next_lane(self.lanes.values()) is None:
            await asyncio.to_thread(self.ledger.sweep)
            waiting = [lane for lane in self.lanes.values() if len(lane)]
            blocked = {lane.scope for lane in waiting if lane.blocked_by}
            if all(lane.blocked_by for lane in waiting) and await self.desk.is_out_of_money(blocked):
                return False
            with contextlib.suppress(TimeoutError):  # another process holds money: most of it will come back
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
        self.is_cancelling = True
        for timer in self.timers:
            timer.cancel()
        cancelled = list(self.requests)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        if self.bills is not None:
            await self.bills.close()
        await self.filing.wait()

    # ------------------------------------------------------------------------------------------------ one request
    async def ask_engine(self, lane: Lane, item: Item) -> None:
        assert self.engines is not None
        with self.engines.borrow() as (engine, url):
            request = build_engine_request(self.campaign, item.work.job.dataset, item.prompt, engine)
            attempt = self.attempt(lane, item, request, url)
            exchange = await attempt.send(self.session, url, {"Content-Type": "application/json"}, self.campaign.collect)
        answer, finding = attempt.judge(exchange)
        self.after(lane, item, replace(answer, cost_usd=0.0, provider=engine.kind), finding)

    async def ask_openrouter(self, lane: Lane, item: Item) -> None:
        key, bills = self.servers.api_key, self.bills
        assert lane.routing is not None and key is not None and bills is not None  # require_openrouter
        if (routing := self.whom_to_ask(lane, item)) is None:
            return
        request = build_request(self.campaign, item.work.job.dataset, item.prompt, routing)
        attempt = self.attempt(lane, item, request, self.address)
        item.hold_usd = most_it_can_cost(request, routing)
        if not await self.has_money(lane, item, attempt.request_id, item.hold_usd):
            self.probe_told_nothing(item)
            return
        item.held_before_usd = lane.admission.hold(item.hold_usd)
        url = f"{self.servers.base_url}/chat/completions"
        exchange = await attempt.send(self.session, url, self.headers(key), self.campaign.collect)
        answer, finding = attempt.judge(
            exchange,
            key=key,
            is_asked_model=lambda model: is_same_model(self.campaign.target.model, model),
            is_eligible=lane.routing.names_provider,  # one that is left out may still have answered: it is paid for
        )
        answer, finding = self.blame(lane, item, answer, finding)
        if answer.cost_usd == 0 and finding.handling.then == "done" and not routing.may_be_free:
            answer = replace(answer, cost_usd=None)  # a claim against the price list: looked up, like a lost one
        try:
            self.after(lane, item, answer, finding)
        finally:  # whatever happens to the prompt, the answer was paid for
            lane.admission.let_go(item.hold_usd)
            bills.settle(lane, item, answer)

    def headers(self, key: ApiKey) -> dict[str, str]:
        if self._headers is None:
            self._headers = request_headers(key, self.campaign)
        return self._headers

    # ------------------------------------------------------------------------------------------------ whom to ask
    def whom_to_ask(self, lane: Lane, item: Item) -> Routing | None:
        """The routing of the next request; None when nobody may be asked now: the prompt went back to wait."""
        assert lane.routing is not None
        item.probes, item.is_reduced = None, False
        if self.breaker is None:
            return lane.routing
        now = asyncio.get_running_loop().time()
        choice = self.breaker.choose(lane.routing, refused_by=item.refused_by, avoids=item.avoids, now_s=now)
        if choice.routing is not None:
            item.probes, item.is_reduced = choice.probes, choice.is_reduced
            return choice.routing
        if not choice.is_for_all:  # those who are asked refused this row; it waits for the others, the other rows go on
            item.waits_since = item.waits_since or now
            if now - item.waits_since > self.pace.row_wait_most:
                self.put_aside(item, "providers_left_out")
            else:
                self.come_back_in(choice.wait_s, lane, item)
            return None
        self.nobody_since = self.nobody_since or now
        lane.push(item)
        if now - self.nobody_since > self.pace.outage_most:
            self.fail(nobody_answers(lane, self.breaker.left_out, now - self.nobody_since))
        else:
            lane.admission.close(choice.wait_s)
            self.look_again_in(choice.wait_s)
        return None

    def blame(self, lane: Lane, item: Item, answer: WireAnswer, finding: Finding) -> tuple[WireAnswer, Finding]:
        """Tell the provider's circuit what came of a request. What one provider refuses is asked of another, while there is one."""
        if self.breaker is None or lane.routing is None:
            return answer, finding
        now = asyncio.get_running_loop().time()
        if finding.reason == "finished":
            item.avoids.clear()
            self.nobody_since = None
            self.breaker.answered(answer.provider, probes=item.probes)
        elif (kind := _KINDS.get(finding.reason)) is not None and finding.provider is not None:
            name, why = folded(finding.provider), f"{finding.reason}: {finding.message}" if finding.message else finding.reason
            self.breaker.failed(finding.provider, kind=kind, why=why, probes=item.probes, now_s=now)
            item.avoids = {name}
            if kind == "row":
                item.refused_by.add(name)
                if any(folded(e.provider_name) not in item.refused_by for e in lane.routing.eligible):
                    finding = replace(finding, reason="row_refused")
                    answer = replace(answer, reason="row_refused", retry_class="transient")
        self.probe_told_nothing(item)
        return answer, finding

    def probe_told_nothing(self, item: Item) -> None:
        """Nothing happens to a circuit that has heard of its probe."""
        if self.breaker is not None and item.probes is not None:
            self.breaker.told_nothing(item.probes, now_s=asyncio.get_running_loop().time())

    def look_again_in(self, seconds: float) -> None:
        def look() -> None:
            self.timers.discard(timer)
            self.wake.set()

        timer = asyncio.get_running_loop().call_later(seconds, look)
        self.timers.add(timer)

    def provider_changed(self, change: Change) -> None:
        self.filing.note_change(change)
        self.wake.set()

    def doubt_key(self, lane: Lane, status: int, finding: Finding) -> None:
        """Nothing more is sent until `/key` has said whether the key is good."""
        if self.deciding or self.doubt.is_trusted or self.is_stopping:
            return
        self.deciding = True
        lane.admission.close(math.inf)
        task = asyncio.create_task(self.settle_doubt(lane, status, finding))
        self.requests.add(task)  # the run waits for it like for an answer

        def ended(task: asyncio.Task[None]) -> None:
            self.requests.discard(task)
            self.wake.set()

        task.add_done_callback(ended)

    async def settle_doubt(self, lane: Lane, status: int, finding: Finding) -> None:
        key, base_url = self.servers.api_key, self.servers.base_url
        assert key is not None and base_url is not None
        what = f"HTTP {status}{': ' + finding.message if finding.message else ''}"
        try:
            error = await self.doubt.settle(
                self.session, base_url, key, refused=lambda: refused(lane, status, finding), what=what
            )
        finally:
            self.deciding = False
            lane.admission.reopen()
        if error is not None:
            self.fail(error)

    async def has_money(self, lane: Lane, item: Item, request_id: str, usd: float) -> bool:
        """Set `usd` aside; when that fails, or the run ends meanwhile, the prompt goes back to its lane and nothing is sent."""
        assert self.desk is not None
        try:
            refused_by = await self.desk.reserve(request_id, lane.scope, usd)
        except asyncio.CancelledError:
            self.desk.release(request_id)  # nothing was sent; applied after the reservation, this takes it back
            return False
        except StoreError:  # `fail` has heard of it
            lane.push(item)
            return False
        if refused_by is None and not self.is_stopping:
            return True
        if refused_by is None:
            self.desk.release(request_id)
        else:
            lane.blocked_by = refused_by
        lane.push(item)
        return False

    def attempt(self, lane: Lane, item: Item, request: dict[str, Any], server: str | None) -> Attempt:
        number = item.work.next_attempt(item.prompt.key)
        return Attempt(item.prompt, item.work.job.shard, lane.source, request, number, server)

    # ------------------------------------------------------------------------------------------------ afterwards
    def after(self, lane: Lane, item: Item, answer: WireAnswer, finding: Finding) -> None:
        """Journal what must be kept, then decide what happens to the prompt. Awaits nothing."""
        handling = finding.handling
        item.tries += handling.then == "retry"
        item.refusals += handling.then in ("slow", "elsewhere", "ask_key")
        if finding.reason == "in_flight_budget":
            lane.admission.refused_for_money(item.held_before_usd, item.hold_usd, self.bounded(finding.retry_after_s))
        elif handling.then == "slow":
            lane.admission.refused()
        elif handling.then == "done":
            lane.admission.answered(item.hold_usd)
            self.doubt.answered()
        self.judge_settings(lane, item, finding)
        if handling.then == "ask_key" and lane.source == "openrouter":
            self.doubt_key(lane, answer.status, finding)
        elif handling.then in ("stop", "stop_budget", "ask_key"):
            self.fail(refused(lane, answer.status, finding))
            return lane.push(item)
        is_last = item.tries >= self.campaign.collect.attempts or item.refusals >= REFUSALS_PER_PROMPT
        # A refusal that costs nothing and is tried again leaves no record; everything else does.
        leaves_no_record = (
            handling.retry_class == "transient" and handling.money == "free" and answer.cost_usd == 0.0 and not is_last
        )
        if not leaves_no_record and not self.filing.record(item.work, answer, finding.completion):
            return
        if item.work.is_settled(item.prompt.key):
            self.settle_prompt(item)
        elif is_last or lane.given_up is not None:
            self.put_aside(item, finding.reason)
        else:
            self.try_again_later(lane, item, finding)

    def money_came_back(self, scope: str) -> None:
        """After every settled answer: a turn of the dispatcher each would cost more than the settling."""
        for lane in self.lanes.values():
            if lane.blocked_by is not None:
                lane.money_came_back(scope)
                self.wake.set()

    def judge_settings(self, lane: Lane, item: Item, finding: Finding) -> None:
        """Many systematic failures and not one answer: the settings are wrong, and more requests would not make them right."""
        if finding.reason == "finished":
            lane.streak = 0
        elif finding.handling.systematic and not item.is_reduced:  # fewer providers than usual: no word about the settings
            lane.streak += 1
        if lane.streak < SYSTEMATIC or lane.given_up is not None:
            return
        lane.given_up = finding.reason
        for waiting in lane.clear():
            self.put_aside(waiting, finding.reason)
        if not self.tolerant:
            self.fail(settings_are_wrong(lane, finding))

    def bounded(self, retry_after_s: float | None) -> float | None:
        return None if retry_after_s is None else min(retry_after_s, self.pace.retry_after_most)

    def try_again_later(self, lane: Lane, item: Item, finding: Finding) -> None:
        tries = item.tries + item.refusals
        delay = backoff_s(self.chance, tries, first_s=self.pace.backoff_first, most_s=self.pace.backoff_most)
        asked = self.bounded(finding.retry_after_s)
        if asked is not None:  # no sooner; a server that asks for 0 s, or for a date that has passed, gets the usual pause
            delay = max(delay, asked)

        item.work.remember(item.prompt, finding.reason)
        self.come_back_in(delay, lane, item)

    def come_back_in(self, delay: float, lane: Lane, item: Item) -> None:
        def back() -> None:
            self.timers.discard(timer)
            if lane.given_up is not None:
                self.put_aside(item, lane.given_up)
            else:
                lane.push(item)
            self.wake.set()

        timer = asyncio.get_running_loop().call_later(delay, back)
        self.timers.add(timer)

    # ------------------------------------------------------------------------------------------------ prompts and shards end
    def settle_prompt(self, item: Item) -> Prompt | None:
        """The prompt is finished or failed for good; a sample with several turns goes on with the next one, which is returned."""
        before = item.work.missing
        following = item.work.settle(item.prompt)
        self.meter.done += before - item.work.missing
        self.meter.expected_left -= item.prompt.expected_tokens
        if following is not None:
            self.enqueue(Item(following, item.work))
        self.filing.end_if_done(item.work)
        return following

    def put_aside(self, item: Item, reason: str) -> None:
        item.work.put_aside(item.prompt, reason)
        self.meter.expected_left -= item.prompt.expected_tokens
        self.filing.end_if_done(item.work)

    # ------------------------------------------------------------------------------------------------ in the background
    async def watch_stop(self) -> None:
        await self.stop.wait()
        self.wake.set()

    async def tell_progress(self) -> None:
        while self.on_progress is not None:
            await self.tell_progress_once()
            await asyncio.sleep(self.pace.progress)

    async def tell_progress_once(self) -> None:
        if self.on_progress is None:
            return
        money = (await asyncio.to_thread(self.ledger.totals)).total if self.ledger is not None else Money()
        money = self.desk.as_of_now(money) if self.desk is not None else money
        foreign_usd = self.reconciliation.foreign_usd if self.reconciliation is not None else 0.0
        limit_usd = self.ledger.limit_usd if self.ledger is not None else 0.0
        refusals = sum(admission.refusals for admission in self.admissions.values())
        progress = self.meter.snapshot(in_flight=len(self.requests), money=money, limit_usd=limit_usd, refusals=refusals)
        self.on_progress(replace(progress, foreign_usd=foreign_usd))
