"""What an answer cost: settled at once where its body says so, else asked for, now and later, else held.

Belongs here: cost -> ledger, asking for a cost by generation id, the stop when a price breaks its bound.
Does not belong here: reservations (`collector.py`), arithmetic (`ledger.py`), times of look-ups (`look_ups.py`), HTTP
(`openrouter.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import aiohttp

from eagle3_assets.collect.money import look_ups
from eagle3_assets.collect.money.desk import Desk
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.money.look_ups import LookUp
from eagle3_assets.collect.run.lanes import Item, Lane
from eagle3_assets.collect.run.shard_work import ShardWork
from eagle3_assets.collect.servers.openrouter import look_up_cost
from eagle3_assets.collect.servers.servers import Pace, Servers
from eagle3_assets.errors import BudgetStop
from eagle3_assets.wire.wire_answer import WireAnswer

log = logging.getLogger(__name__)

LOOK_UPS_AT_ONCE = 16
FIRST_TRIES = 2  # at once, and once more after `Pace.look_up`: those a run waits for at its end
LAST_WAIT_S = 60.0


class Bills:
    """The bills of one run. `session` is set before the first answer comes."""

    session: aiohttp.ClientSession

    def __init__(
        self,
        ledger: Ledger,
        desk: Desk,
        servers: Servers,
        pace: Pace,
        stop: asyncio.Event,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._ledger, self._desk, self._servers, self._pace, self._stop = ledger, desk, servers, pace, stop
        self._on_error = on_error
        self._first: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        self._later: dict[str, LookUp] = {}  # request id -> to be asked again
        self._found: list[str] = []
        self._more_to_ask = asyncio.Event()

    def settle(self, lane: Lane, item: Item, answer: WireAnswer) -> None:
        """Replace the reservation of an answer by its cost; one whose cost is not known stays held and is looked up."""
        if answer.cost_usd is not None:
            self._desk.settle(answer.request_id, lane.scope, answer.cost_usd)
            if answer.cost_usd > item.hold_usd * (1 + 1e-9):
                self._on_error(  # the bound that keeps spending below the approval is false: nothing more is sent
                    BudgetStop(
                        f"an answer of {answer.provider} cost {answer.cost_usd:.6f} USD, more than max_price allows; nothing "
                        "more is sent, everything paid for is kept: look at the provider's bill, add it to routing.ignore, "
                        "then run again"
                    )
                )
            return
        self._desk.keep(answer.request_id)
        if answer.generation_id is not None:
            look = LookUp(answer.request_id, answer.generation_id, lane.scope)
            if self._stop.is_set():
                self._later[look.request_id] = look
            else:
                self._start(look, FIRST_TRIES, item.work)

    # ------------------------------------------------------------------------------------------------ asking at once
    async def take_up(self) -> None:
        """Ask again for what earlier runs could not find out. A run waits for these before it stops on budget."""
        for look in await asyncio.to_thread(look_ups.read_open, self._ledger):
            self._start(look, 1, None)

    def _start(self, look: LookUp, tries: int, work: ShardWork | None) -> None:
        task = asyncio.create_task(self._ask_first(look, tries, work))
        self._first.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._first.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def _ask_first(self, look: LookUp, tries: int, work: ShardWork | None) -> None:
        """A record that is not there yet is asked for once more; then it waits for `ask_again`, or for a later run."""
        missed: LookUp | None = look
        try:
            async with self._slots:
                for left in reversed(range(tries)):
                    missed = await self._ask(look, work)
                    if missed is None:
                        return
                    look = missed
                    if left:
                        await asyncio.sleep(self._pace.look_up)
        finally:  # a cancelled one, too
            if missed is not None:
                self._later[look.request_id] = look
                self._more_to_ask.set()

    async def _ask(self, look: LookUp, work: ShardWork | None = None) -> LookUp | None:
        """Ask /generation and settle; None then, else the look-up that is left to do."""
        key, base_url = self._servers.api_key, self._servers.base_url
        assert key is not None and base_url is not None
        cost = await look_up_cost(self.session, base_url, key, look.generation_id)
        if cost is None:
            missed = look.after_a_miss(time.time(), self._pace.look_up)
            if missed.next_at is None:
                log.warning("what request %s cost is not to be found out; its bound counts as spent", look.request_id)
            return missed
        self._found.append(look.request_id)
        if work is not None:
            work.cost_usd += cost
        self._desk.settle(look.request_id, look.scope, cost)
        return None

    # ------------------------------------------------------------------------------------------------ asking later
    async def ask_again(self) -> None:
        """As long as the run lasts: ask for what was not there at first, with growing pauses. Ends by being cancelled."""
        while True:
            self._more_to_ask.clear()
            times = [look.next_at for look in self._later.values() if look.next_at is not None]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more_to_ask.wait(), max(0.0, min(times) - time.time()) if times else None)
            try:
                await self._ask_those_due()
            except Exception as error:
                return self._on_error(error)

    async def _ask_those_due(self) -> None:
        now = time.time()
        due = [look for look in self._later.values() if look.next_at is not None and look.next_at <= now]
        for look in due[:LOOK_UPS_AT_ONCE]:
            missed = await self._ask(look)
            if missed is None:
                del self._later[look.request_id]
            else:
                self._later[look.request_id] = missed
        if due:
            await self._write()

    async def _write(self) -> None:
        """What a later run needs to know. (The ledger may hear of the entry itself a little later.)"""
        found, self._found = self._found, []
        await asyncio.to_thread(look_ups.write, self._ledger, list(self._later.values()), found)
        self._later = {key: look for key, look in self._later.items() if look.next_at is not None}

    # ------------------------------------------------------------------------------------------------ ends
    async def wait(self) -> None:
        """Until everything was asked for at once, within reason."""
        if self._first:
            await asyncio.wait(set(self._first), timeout=LAST_WAIT_S)

    async def close(self) -> None:
        """Those under way are given up when the run was stopped. Their money stays held, and the next run asks for them."""
        if not self._stop.is_set():
            await self.wait()
        for task in set(self._first):
            task.cancel()
        await asyncio.gather(*self._first, return_exceptions=True)
        if self._later or self._found:
            await self._write()
