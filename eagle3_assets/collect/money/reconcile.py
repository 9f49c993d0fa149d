"""What the server says was spent, beside what our ledger says. Only shown: it never stops a run, never frees a dollar.

Belongs here: asking /key (and /credits where the key may), the ledger's table of what was seen, money of others.
Does not belong here: single bills (`bills.py`), limits (`ledger.py`).

A remote figure lags by a minute or more and may jump back (docs/research/openrouter-contract.md#1.4): so only its highest value
counts, as growth since this campaign first met that key. Where the server says more than our spent + held money (and a tolerance:
refunds come late), somebody else spent on the key: *foreign*. Where we say more, the server lags. Our spending is bounded by
reservations alone (docs/research/openrouter-contract.md#2.6).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from eagle3_assets.collect.money.amounts import PICO, to_pico
from eagle3_assets.collect.money.desk import Desk
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.servers.openrouter import ApiKey, look_at_usage
from eagle3_assets.collect.servers.servers import Pace, Servers

log = logging.getLogger(__name__)

TOLERANCE_USD, TOLERANCE_SHARE = 0.01, 0.005
ROUTES = ("key", "credits")


@dataclass(frozen=True, slots=True)
class Remote:
    """One remote figure, in 1e-12 USD: at the first contact, at its highest, what of ours was settled at the first contact, and what
    others spent since. `at`: unix seconds of the last reading.
    """

    source: str
    baseline: int
    ours_then: int
    seen: int
    others: int
    at: float

    def after(self, usage: int, ours: int, now: float) -> Remote:
        """With one more reading. `ours`: the most that our spent and held money was around it."""
        seen = max(self.seen, usage)
        mine = max(0, ours - self.ours_then)
        excess = seen - self.baseline - mine
        tolerance = max(to_pico(TOLERANCE_USD), int(mine * TOLERANCE_SHARE))
        others = max(self.others, excess) if excess > tolerance else self.others
        return Remote(self.source, self.baseline, self.ours_then, seen, others, now)


def source_name(route: str, key: ApiKey) -> str:
    """Names the account without showing the key: a new key begins a new count."""
    return f"{route} {hashlib.sha256(b'eagle3 ' + key.reveal().encode()).hexdigest()[:12]}"


def note(ledger: Ledger, source: str, usage: int, ours: int, settled: int) -> Remote:
    """Keep one reading. Raises StoreError."""
    now = time.time()
    with ledger.transaction() as db:
        row = db.execute("SELECT * FROM remote WHERE source = ?", (source,)).fetchone()
        remote = Remote(*row).after(usage, ours, now) if row else Remote(source, usage, settled, usage, 0, now)
        values = (source, remote.baseline, remote.ours_then, remote.seen, remote.others, remote.at)
        db.execute("INSERT OR REPLACE INTO remote VALUES (?,?,?,?,?,?)", values)
    return remote


class Reconciliation:
    """Of one run. `foreign_usd` is what others spent on this key."""

    def __init__(
        self, ledger: Ledger, desk: Desk, servers: Servers, pace: Pace, on_error: Callable[[BaseException], None]
    ) -> None:
        self._ledger, self._desk, self._servers, self._pace, self._on_error = ledger, desk, servers, pace, on_error
        self._routes = list(ROUTES)
        self.foreign_usd = self._told_usd = 0.0

    async def watch(self, session: aiohttp.ClientSession) -> None:
        """Look now and then until cancelled."""
        while True:
            try:
                await self.look(session)
            except Exception as error:  # the ledger could not be written
                return self._on_error(error)
            await asyncio.sleep(self._pace.reconcile)

    async def look(self, session: aiohttp.ClientSession) -> None:
        """One reading of each route that answers."""
        key, base_url = self._servers.api_key, self._servers.base_url
        if key is None or base_url is None:
            return
        for route in tuple(self._routes):
            before, settled = await self._ours()
            status, usage = await look_at_usage(session, base_url, key, route)
            if usage is None:
                if status in (401, 403, 404):  # an inference key may not read /credits: normal
                    self._routes.remove(route)
                continue
            after, _ = await self._ours()
            source, seen = source_name(route, key), to_pico(usage)
            remote = await asyncio.to_thread(note, self._ledger, source, seen, max(before, after), settled)
            if route == "key":
                self._tell(remote.others / PICO)

    async def _ours(self) -> tuple[int, int]:
        """(spent + held, spent) as of now."""
        money = self._desk.as_of_now((await asyncio.to_thread(self._ledger.totals)).total)
        return to_pico(max(0.0, money.committed_usd)), to_pico(money.spent_usd)

    def _tell(self, foreign_usd: float) -> None:
        self.foreign_usd = foreign_usd
        if foreign_usd > 2 * self._told_usd:
            log.warning(
                "%.4f USD were spent on this key by somebody else since this campaign began (or are not in our ledger); they do not "
                "count against the approval, but against the key's own limit: a dedicated key is best",
                foreign_usd,
            )
            self._told_usd = foreign_usd
