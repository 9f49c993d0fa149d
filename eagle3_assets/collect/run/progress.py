"""How far a run is. Belongs here: counting and rates. Does not belong here: showing it (`cli`, Dagster)."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from eagle3_assets.collect.money.ledger import Money


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot for a live line. `reserved_usd` includes money of lost answers; `retries_429` counts all refusals for load
    (429, 503, in-flight 402); `tokens_per_s` is completion tokens over the last seconds; `eta_s` is None until there is a
    rate.
    """

    done: int
    total: int
    in_flight: int
    spent_usd: float
    reserved_usd: float
    limit_usd: float
    tokens_per_s: float
    retries_429: int
    eta_s: float | None
    foreign_usd: float = 0.0  # spent on the same key by somebody else, as far as /key tells (`reconcile.py`)


@dataclass(slots=True)
class Meter:
    """Counts of a run: turns selected and done, completion tokens received, tokens expected of what is left."""

    total: int = 0
    done: int = 0
    tokens: int = 0
    expected_left: int = 0
    _seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=20))

    def snapshot(self, *, in_flight: int, money: Money, limit_usd: float, refusals: int) -> Progress:
        self._seen.append((time.monotonic(), self.tokens))
        (t0, n0), (t1, n1) = self._seen[0], self._seen[-1]
        rate = (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
        return Progress(
            done=self.done,
            total=self.total,
            in_flight=in_flight,
            spent_usd=money.spent_usd,
            reserved_usd=money.reserved_usd + money.ambiguous_usd,
            limit_usd=limit_usd,
            tokens_per_s=rate,
            retries_429=refusals,
            eta_s=max(0, self.expected_left) / rate if rate > 0 else None,
        )
