"""The desk of one run: reservations from leased money in memory, everything handed in to the ledger in few transactions.

Belongs here: what this process has leased, set aside and not yet handed in; when it asks for more and gives back.
Does not belong here: limits (`ledger.py`), when to reserve (`collector.py`), what an answer cost (`bills.py`).

A transaction costs a millisecond of CPU and waits for the disk. Per request that would be more than the rest of a run; so a
reservation is one line in the owner's file and a few dictionary entries, and what was settled goes to the ledger together, every
`Desk.hand_in_s`. Everything here happens on the event loop's thread, transactions in one thread of their own.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from eagle3_assets.collect.money.amounts import PICO, Money, to_pico
from eagle3_assets.collect.money.ledger import Ledger, Operation, Posting
from eagle3_assets.errors import StoreError

BLOCK = 64  # reservations that a lease is ahead of what is needed at once
HAND_IN_S = 0.2


@dataclass(slots=True)
class _Waiting:
    request_id: str
    scope: str
    pico: int
    answer: asyncio.Future[str | None]


@dataclass(slots=True)
class _Purse:
    """This process's lease of one scope. `free` is leased and not set aside; `back` has left the lease, and the ledger has not
    heard of it; `is_idle`: nobody took from it since the last posting.
    """

    free: int = 0
    back: int = 0
    one: int = 0  # the last reservation
    is_idle: bool = True
    refused_by: str | None = None  # by the ledger, lately
    refused_at: float = 0.0
    refused_one: int = 0


class Desk:
    """`on_error` hears of a failed posting (the run must end), `on_money` of the scope in whose purse there is more again."""

    def __init__(
        self,
        ledger: Ledger,
        on_error: Callable[[Exception], None],
        on_money: Callable[[str], None],
        *,
        hand_in_s: float = HAND_IN_S,
    ) -> None:
        self._ledger, self._on_error, self._on_money, self.hand_in_s = ledger, on_error, on_money, hand_in_s
        self._purses: defaultdict[str, _Purse] = defaultdict(_Purse)
        self._set_aside: dict[str, tuple[str, int]] = {}  # request id -> (scope, 1e-12 USD)
        self._rows: list[tuple[str, str, str, int]] = []
        self._operations: list[Operation] = []
        self._waiting: list[_Waiting] = []
        self._is_draining = self._is_broken = False
        self._timer: asyncio.TimerHandle | None = None
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    # ------------------------------------------------------------------------------------------------ one request
    async def reserve(self, request_id: str, scope: str, usd: float) -> str | None:
        """None when the money is set aside, else the limit that refuses it. Raises StoreError."""
        pico, purse = to_pico(usd), self._purses[scope]
        purse.one, purse.is_idle = pico, False
        if self._is_broken:
            raise StoreError(f"{self._ledger.path}: the ledger could not be written; no further request was sent, run again")
        if purse.free >= pico:
            self._take(request_id, scope, pico)
            return None
        loop = asyncio.get_running_loop()
        if purse.refused_by is not None and loop.time() - purse.refused_at < self.hand_in_s:
            return purse.refused_by
        waiting = _Waiting(request_id, scope, pico, loop.create_future())
        self._waiting.append(waiting)
        self._hand_in_soon()
        return await waiting.answer

    def _take(self, request_id: str, scope: str, pico: int) -> None:
        try:
            self._ledger.owner.set_aside(request_id, scope, pico)
        except StoreError as error:
            self._on_error(error)
            raise
        self._purses[scope].free -= pico
        self._set_aside[request_id] = (scope, pico)

    def settle(self, request_id: str, scope: str, usd: float) -> None:
        """The cost is known; nothing at all is a release."""
        if usd <= 0:
            return self.release(request_id)
        cost, aside = to_pico(usd), self._set_aside.pop(request_id, None)
        if aside is None:  # an ambiguous entry whose price was found out
            self._operations.append(Operation("settle", request_id, scope, cost))
            return self._moved(scope)
        scope, pico = aside
        self._ledger.owner.settle(request_id, cost)
        self._rows.append((request_id, scope, "settled", cost))
        self._purses[scope].back += min(cost, pico)
        self._purses[scope].free += pico - min(cost, pico)
        self._moved(scope)

    def release(self, request_id: str) -> None:
        """Nothing was sent, or it is certain that nothing was billed."""
        scope, pico = self._set_aside.pop(request_id, ("", 0))
        if pico:
            self._ledger.owner.take_back(request_id)
            self._purses[scope].free += pico
            self._moved(scope)
        else:
            self._operations.append(Operation("release", request_id))
            self._hand_in_later()

    def keep(self, request_id: str) -> None:
        """Sent and lost."""
        scope, pico = self._set_aside.pop(request_id)
        self._rows.append((request_id, scope, "ambiguous", pico))
        self._purses[scope].back += pico
        self._hand_in_later()

    def _moved(self, scope: str) -> None:
        self._hand_in_later()
        self._on_money(scope)

    def as_of_now(self, money: Money) -> Money:
        """The ledger's totals with what it has not heard of yet, and without what is leased ahead."""
        spent, lost = (sum(row[3] for row in self._rows if row[2] == state) / PICO for state in ("settled", "ambiguous"))
        unused = sum(purse.free + purse.back for purse in self._purses.values()) / PICO
        return Money(money.spent_usd + spent, max(0.0, money.reserved_usd - unused), money.ambiguous_usd + lost)

    # ------------------------------------------------------------------------------------------------ with the ledger
    def _hand_in_later(self) -> None:
        if self._working is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.hand_in_s, self._hand_in_soon)

    def _hand_in_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._working is None:
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Postings until nobody waits. What is to be handed in while one is under way goes with the next."""
        loop, is_scarce = asyncio.get_running_loop(), False
        try:
            while True:
                waiting, self._waiting = [w for w in self._waiting if not w.answer.done()], []
                posting = self._posting(waiting, is_scarce)
                try:
                    self._ledger.owner.write_freed()
                    granted = await loop.run_in_executor(self._thread, self._ledger.hand_in, posting)
                except Exception as error:  # whatever went wrong, those who wait must hear it
                    return self._broke(error, waiting)
                is_scarce = self._serve(waiting, granted, is_scarce)
                if not self._waiting:
                    break
        finally:
            self._working = None
        if self._has_something:
            self._hand_in_later()

    @property
    def _has_something(self) -> bool:
        return bool(self._rows or self._operations or any(p.back or (p.free and p.is_idle) for p in self._purses.values()))

    def _posting(self, waiting: list[_Waiting], is_scarce: bool) -> Posting:
        needed: dict[str, list[int]] = defaultdict(list)
        for w in waiting:
            needed[w.scope].append(w.pico)
        back = {}
        for scope, purse in self._purses.items():
            if scope not in needed:
                ahead = 0 if purse.is_idle or is_scarce or self._is_draining or purse.refused_by else BLOCK * purse.one
                spare = purse.free - ahead if purse.free > 2 * ahead else 0
                purse.free -= spare
                purse.back += spare
                purse.is_idle = True
            if purse.back:
                back[scope], purse.back = purse.back, 0
        wanted = {}
        for scope, picos in needed.items():
            purse = self._purses[scope]
            if (lacking := sum(picos) - purse.free) > 0:
                ahead = 0 if is_scarce else BLOCK * purse.one
                wanted[scope] = (max(1, min(picos) - purse.free), lacking, ahead)
        posting = Posting(self._rows, back, self._operations, wanted)
        self._rows, self._operations = [], []
        return posting

    def _serve(self, waiting: list[_Waiting], granted: dict[str, tuple[int, str | None]], was_scarce: bool) -> bool:
        """Answer those who wait, in order. When the ledger lacks money and another purse has some, they wait for one more
        posting that brings it back: returns True then.
        """
        now, is_scarce = asyncio.get_running_loop().time(), False
        for scope, (pico, refused_by) in granted.items():
            purse = self._purses[scope]
            purse.free += pico
            purse.refused_by, purse.refused_at = refused_by, now
            if refused_by == "campaign" and not was_scarce:
                is_scarce |= any(other.free for name, other in self._purses.items() if name != scope)
        for w in waiting:
            purse = self._purses[w.scope]
            if w.answer.done():  # cancelled meanwhile
                continue
            if purse.free >= w.pico:
                try:
                    self._take(w.request_id, w.scope, w.pico)
                    w.answer.set_result(None)
                except StoreError as error:
                    w.answer.set_exception(error)
            elif purse.refused_by is None or is_scarce:
                self._waiting.append(w)
            else:
                purse.refused_one = w.pico
                w.answer.set_result(purse.refused_by)
        return is_scarce

    def _broke(self, error: Exception, waiting: list[_Waiting]) -> None:
        """Nothing more is reserved. What was settled is in the journals and in the owner's file: the next run finds it there."""
        self._is_broken = True
        self._on_error(error)
        for w in (*waiting, *self._waiting):
            if not w.answer.done():
                w.answer.set_exception(error)
                w.answer.exception()  # nobody may be waiting for it, and `on_error` knows
        self._waiting = []

    # ------------------------------------------------------------------------------------------------ ends
    async def drain(self) -> None:
        """Hand in everything, and give back what is leased and not set aside."""
        self._is_draining = True
        try:
            while self._working is not None or (self._has_something_or_free and not self._is_broken):
                self._hand_in_soon()
                assert self._working is not None
                await asyncio.shield(self._working)
        finally:
            self._is_draining = False
        for purse in self._purses.values():
            purse.refused_at = -math.inf  # the next answer comes from the ledger

    async def is_out_of_money(self, scopes: Iterable[str]) -> bool:
        """Whether what was refused to `scopes` is refused for good: no process holds money that may come back."""
        needed = {scope: self._purses[scope].refused_one for scope in scopes}
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.is_out_of, needed)

    @property
    def _has_something_or_free(self) -> bool:
        return self._has_something or any(purse.free for purse in self._purses.values())

    async def close(self) -> None:
        await self.drain()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=False)
