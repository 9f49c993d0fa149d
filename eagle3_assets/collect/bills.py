"""What an answer cost: settled at once where its body says so, else asked for, else held.

Belongs here: cost -> ledger, the look-up of a cost by generation id, the stop when a price breaks its bound.
Does not belong here: reservations (`collector.py`), arithmetic (`ledger.py`), the HTTP of a look-up (`openrouter.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from eagle3_assets.collect.desk import Desk
from eagle3_assets.collect.lanes import Lane
from eagle3_assets.collect.openrouter import look_up_cost, most_it_can_cost
from eagle3_assets.collect.servers import Pace, Servers
from eagle3_assets.collect.shard_work import ShardWork
from eagle3_assets.collect.wire_answer import WireAnswer
from eagle3_assets.errors import BudgetStop

LOOK_UPS_AT_ONCE = 16


class Bills:
    """The bills of one run. `session` is set before the first answer comes."""

    session: aiohttp.ClientSession

    def __init__(
        self, desk: Desk, servers: Servers, pace: Pace, stop: asyncio.Event, on_error: Callable[[BaseException], None]
    ) -> None:
        self._desk, self._servers, self._pace, self._stop, self._on_error = desk, servers, pace, stop, on_error
        self._look_ups: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

    def settle(self, lane: Lane, work: ShardWork, answer: WireAnswer) -> None:
        """Replace the reservation of an answer by its cost; one whose cost is not known stays held and is looked up."""
        if answer.cost_usd is not None:
            self._desk.settle(answer.request_id, lane.scope, answer.cost_usd)
            if lane.routing is not None and answer.cost_usd > most_it_can_cost(answer.request, lane.routing) * (1 + 1e-9):
                self._on_error(  # the bound that keeps spending below the approval is false: nothing more is sent
                    BudgetStop(
                        f"an answer of {answer.provider} cost {answer.cost_usd:.6f} USD, more than max_price allows; nothing "
                        "more is sent, everything paid for is kept: look at the provider's bill, add it to routing.ignore, "
                        "then run again"
                    )
                )
            return
        self._desk.keep(answer.request_id)
        if answer.generation_id is not None and not self._stop.is_set():
            task = asyncio.create_task(self._look_up(lane, work, answer))
            self._look_ups.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._look_ups.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def _look_up(self, lane: Lane, work: ShardWork, answer: WireAnswer) -> None:
        """Ask /generation what a lost or unpriced answer cost; a record that is not there yet is asked for once more."""
        key, base_url = self._servers.api_key, self._servers.base_url
        assert key is not None and base_url is not None and answer.generation_id is not None
        async with self._slots:
            cost = await look_up_cost(self.session, base_url, key, answer.generation_id)
            if cost is None:
                await asyncio.sleep(self._pace.look_up)
                cost = await look_up_cost(self.session, base_url, key, answer.generation_id)
        if cost is not None:
            work.cost_usd += cost
            await self._desk.settle(answer.request_id, lane.scope, cost)

    async def wait(self) -> None:
        """Until every look-up has ended."""
        await asyncio.gather(*self._look_ups, return_exceptions=True)

    async def close(self) -> None:
        """Those under way are given up when the run was stopped; their money stays held."""
        if self._stop.is_set():
            for task in self._look_ups:
                task.cancel()
        await self.wait()
