"""The ledger without blocking the event loop: changes queue up and go to one thread, many in one transaction.

Belongs here: batching. Does not belong here: rules of money (`ledger.py`), when to reserve (`collector.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from eagle3_assets.collect.ledger import Ledger, Operation, to_pico


class Desk:
    """Changes are applied in the order they were asked for. `on_error` hears of a failed batch (the run must end), `on_money`
    of the scope whose reservation was replaced by its cost or taken back.
    """

    def __init__(self, ledger: Ledger, on_error: Callable[[Exception], None], on_money: Callable[[str], None]) -> None:
        self._ledger, self._on_error, self._on_money = ledger, on_error, on_money
        self._queue: list[tuple[Operation, asyncio.Future[str | None]]] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    async def reserve(self, request_id: str, scope: str, usd: float) -> str | None:
        """None when the money is set aside, else the limit that refuses it. Raises StoreError."""
        return await asyncio.shield(self._submit(Operation("reserve", request_id, scope, to_pico(usd))))

    def settle(self, request_id: str, scope: str, usd: float) -> asyncio.Future[str | None]:
        """The cost is known; nothing at all is a release."""
        kind = Operation("settle", request_id, scope, to_pico(usd)) if usd > 0 else Operation("release", request_id, scope)
        return self._submit(kind)

    def release(self, request_id: str) -> None:
        """Nothing was sent."""
        self._submit(Operation("release", request_id))

    def keep(self, request_id: str) -> None:
        """Sent and lost."""
        self._submit(Operation("keep", request_id))

    def _submit(self, operation: Operation) -> asyncio.Future[str | None]:
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._queue.append((operation, future))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            batch, self._queue = self._queue, []
            try:
                answers = await loop.run_in_executor(self._thread, self._ledger.apply, [op for op, _ in batch])
            except Exception as error:  # whatever went wrong, those who wait must hear it
                self._on_error(error)
                for _, future in batch:
                    future.set_exception(error)
                    future.exception()  # nobody may be waiting for it, and `on_error` knows
                continue
            for (operation, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)
                if operation.kind in ("settle", "release"):
                    self._on_money(operation.scope)
        self._working = None

    async def drain(self) -> None:
        """Wait until every change asked for so far is in the ledger."""
        while self._working is not None:
            await asyncio.shield(self._working)

    async def close(self) -> None:
        await self.drain()
        self._thread.shutdown(wait=False)
