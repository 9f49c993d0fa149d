"""How many requests may be in flight, and how much money in holds: additive increase, multiplicative decrease.

Belongs here: the limits of one server as we learn them. Does not belong here: our own budgets (`ledger.py`), retries
(`collector.py`).
"""

from __future__ import annotations

import math
import random
import time

SHRINK = 0.7
SETTLE_S = 1.0  # after a decrease, refusals of requests that were already on their way say nothing new
GROWTH_STEPS = 20  # from almost nothing back to the full limit in this many rounds of answers
# A refusal now and then is weather, not a limit: with one in a hundred requests refused at random, a decrease for each would leave
# half of the requests unsent (measured: 48 % of the slots busy). Only a share of refusals above PATIENCE speaks of a limit: of the last
# requests (exponentially weighted), and of no fewer than are in flight, because a refusal comes minutes before the answers to what was
# sent beside it (seen with a fixed window: 2,000 in flight fell to 1,445 in the opening, and took half the run to come back).
PATIENCE, WINDOW = 0.05, 64
# A prepaid account lets the estimates of running requests fill a fixed part of its balance
# (docs/research/openrouter-contract.md#2.4). That ceiling does not move like a rate limit: stay close below it, and try a little
# more only now and then; but what is tried doubles with every round without a refusal, because one that came by chance, while
# little was held, must not bound the whole run (measured: 19 % of the slots busy after a single one). One refusal far from a
# known ceiling is weather, too; at a ceiling every request is refused, so a burst of them is soon above PATIENCE, and the first
# of the burst says where it is.
BELOW_CEILING, NEAR_CEILING = 0.95, 0.9
MONEY_GROWTH = 0.02  # in the first round of answers after a refusal
CLOCK_S = 0.01  # a timer may fire so much early


class Admission:
    """Starts at the full limit; refusals (429, 503) lower it, every good answer raises it a little. The transient 402 is another
    limit: `ceiling_usd` bounds the holds in flight (`held_usd`, the sum of our own bounds; theirs are in proportion).
    """

    def __init__(self, most: int) -> None:
        self.most, self.limit, self.in_flight, self.refusals = most, float(most), 0, 0
        self.held_usd, self.ceiling_usd = 0.0, math.inf
        self._holding, self._last_hold = 0, 0.0
        self._last_shrink, self._refused_share = -SETTLE_S, 0.0
        self._closed_until = -math.inf
        self._money_growth, self._round_usd = MONEY_GROWTH, 0.0
        self._money_share, self._first_of_burst_usd = 0.0, math.inf

    @property
    def has_room(self) -> bool:
        if self.in_flight >= int(self.limit):
            return False
        if self.ceiling_usd == math.inf or not self.in_flight:
            return time.monotonic() >= self._closed_until - CLOCK_S
        about_to_be_held = (self.in_flight + 1 - self._holding) * self._last_hold
        return (
            self.held_usd + about_to_be_held <= self.ceiling_usd * (1 + 1e-9) and time.monotonic() >= self._closed_until - CLOCK_S
        )

    def close(self, seconds: float) -> None:
        """Nothing is sent for so long."""
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    def reopen(self) -> None:
        self._closed_until = -math.inf

    def hold(self, usd: float) -> float:
        """A request whose price is bounded by `usd` is about to be sent; returns what was held before it."""
        before = self.held_usd
        self.held_usd, self._holding, self._last_hold = before + usd, self._holding + 1, usd
        return before

    def let_go(self, usd: float) -> None:
        """It has ended."""
        self._holding -= 1
        self.held_usd = max(0.0, self.held_usd - usd) if self._holding else 0.0

    @property
    def _one(self) -> float:
        """The weight of one request in the shares."""
        return 1.0 / max(WINDOW, self.in_flight)

    def answered(self, usd: float = 0.0) -> None:
        one = self._one
        self._refused_share -= self._refused_share * one
        self._money_share -= self._money_share * one
        if self._money_share < 0.5 * one:
            self._first_of_burst_usd = math.inf
        self.limit = min(float(self.most), self.limit + max(1.0, self.most / GROWTH_STEPS) / self.limit)
        if self.ceiling_usd == math.inf:
            return
        self.ceiling_usd += usd * self._money_growth
        self._round_usd += usd
        if self._round_usd >= self.ceiling_usd:
            self._money_growth, self._round_usd = min(1.0, 2 * self._money_growth), 0.0

    def refused(self) -> None:
        self.refusals += 1
        self._refused_share += (1.0 - self._refused_share) * self._one
        now = time.monotonic()
        if self._refused_share > PATIENCE and now - self._last_shrink >= SETTLE_S:
            self._last_shrink = now
            self.limit = max(1.0, min(self.limit, float(max(1, self.in_flight))) * SHRINK)

    def refused_for_money(self, held_before_usd: float, usd: float, retry_after_s: float | None) -> None:
        """The transient 402 of a request of `usd` that was sent beside `held_before_usd`. Where it speaks of the account, and not of
        the weather, nothing is sent for `retry_after_s`.
        """
        self.refusals += 1
        self._money_share += (1.0 - self._money_share) * self._one
        self._first_of_burst_usd = min(self._first_of_burst_usd, max(usd, held_before_usd * BELOW_CEILING))
        is_near = held_before_usd + usd >= self.ceiling_usd * NEAR_CEILING
        if self._money_share <= PATIENCE and not is_near:
            return
        self._closed_until = max(self._closed_until, time.monotonic() + (retry_after_s or 0.0))
        self.ceiling_usd = min(self.ceiling_usd, self._first_of_burst_usd)
        self._money_growth, self._round_usd = MONEY_GROWTH, 0.0


def backoff_s(chance: random.Random, tries: int, *, first_s: float, most_s: float) -> float:
    """Full jitter: uniform between 0 and first_s * 2^(tries-1), bounded."""
    return chance.uniform(0.0, min(most_s, first_s * 2 ** min(tries - 1, 20)))
