"""How many requests may be in flight: additive increase, multiplicative decrease.

Belongs here: the limit of one server. Does not belong here: budgets, retries (`collector.py`).
"""

from __future__ import annotations

import random
import time

SHRINK = 0.7
SETTLE_S = 1.0  # after a decrease, refusals of requests that were already on their way say nothing new
GROWTH_STEPS = 50  # from almost nothing back to the full limit in this many rounds of answers


class Admission:
    """Starts at the full limit; a refusal (429, 503, in-flight 402) lowers it, every good answer raises it a little."""

    def __init__(self, most: int) -> None:
        self.most, self.limit, self.in_flight, self.refusals = most, float(most), 0, 0
        self._last_shrink = -SETTLE_S

    @property
    def has_room(self) -> bool:
        return self.in_flight < int(self.limit)

    def answered(self) -> None:
        self.limit = min(float(self.most), self.limit + max(1.0, self.most / GROWTH_STEPS) / self.limit)

    def refused(self) -> None:
        self.refusals += 1
        now = time.monotonic()
        if now - self._last_shrink >= SETTLE_S:
            self._last_shrink = now
            self.limit = max(1.0, min(self.limit, float(max(1, self.in_flight))) * SHRINK)


def backoff_s(chance: random.Random, tries: int, *, first_s: float, most_s: float) -> float:
    """Full jitter: uniform between 0 and first_s * 2^(tries-1), bounded."""
    return chance.uniform(0.0, min(most_s, first_s * 2 ** min(tries - 1, 20)))
