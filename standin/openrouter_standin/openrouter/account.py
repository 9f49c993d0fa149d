"""The account above the ledger: balance, what /credits and /key show of it, holds of running requests, foreign spend.

Belongs here: money that is told or promised. Does not belong here: money that was spent (`ledger`), refusals' bodies (`gateway`).
Facts: docs/research/openrouter-contract.md#1.4, #1.5, #2.4. All amounts are whole picodollars.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field

from openrouter_standin.clock import Clock
from openrouter_standin.profiles import PICO
from openrouter_standin.schema.server import Server
from openrouter_standin.truth.ledger import Ledger


@dataclass
class _Shown:
    """A value as one cache of the gateway shows it."""

    value: int = 0
    until_s: float = -1.0


@dataclass
class Hold:
    """Money set aside for a running request."""

    pico: int


@dataclass
class Account:
    """One prepaid account with one inference key."""

    server: Server
    ledger: Ledger
    clock: Clock
    held_pico: int = 0
    _settling: deque[tuple[float, int]] = field(default_factory=deque)  # (until, actual cost), in order of time
    _credits: list[_Shown] = field(default_factory=list)
    _key: _Shown = field(default_factory=_Shown)
    _asked: int = 0
    _foreign_until_s: float = 0.0
    _foreign_left: deque[tuple[float, int]] = field(default_factory=deque)
    _foreign_owed: int = 0

    def __post_init__(self) -> None:
        money = self.server.money
        kept = self.ledger.spent_pico + self.ledger.foreign_pico  # a cache is late, but it does not forget an earlier run
        self._credits = [
            _Shown(kept, until_s=-1.0 if k == 0 else money.credits_stale_s * k / money.credits_nodes)
            for k in range(money.credits_nodes)
        ]
        self._foreign_left.extend(sorted((entry.at_s, round(entry.usd * PICO)) for entry in money.foreign))

    # ------------------------------------------------------------------------------------------------ what is left
    @property
    def credit_pico(self) -> int:
        return round(self.server.credit_usd * PICO)

    @property
    def usage_pico(self) -> int:
        """Spent by us and by others."""
        self._let_others_spend()
        return self.ledger.spent_pico + self.ledger.foreign_pico

    @property
    def balance_pico(self) -> int:
        return self.credit_pico - self.usage_pico

    @property
    def key_usage_pico(self) -> int:
        return self.usage_pico if self.server.money.foreign_on_this_key else self.ledger.spent_pico

    @property
    def key_left_pico(self) -> int | None:
        """What the key's limit leaves; None without a limit."""
        limit = self.server.money.key_limit_usd
        return None if limit is None else round(limit * PICO) - self.key_usage_pico

    def _let_others_spend(self) -> None:
        """Write down what somebody else has spent since the last look. While the disk is full it is not spent yet."""
        money, now_s = self.server.money, self.clock.now_s
        while self._foreign_left and self._foreign_left[0][0] <= now_s:
            self._foreign_owed += self._foreign_left.popleft()[1]
        if money.foreign_usd_per_s and now_s - self._foreign_until_s >= 1.0:
            self._foreign_owed += round(money.foreign_usd_per_s * (now_s - self._foreign_until_s) * PICO)
            self._foreign_until_s = now_s
        if self._foreign_owed:
            with contextlib.suppress(OSError):
                self.ledger.spend_foreign(self._foreign_owed)
                self._foreign_owed = 0

    # ------------------------------------------------------------------------------------------------ what is shown
    def shown_credits_pico(self) -> int:
        """total_usage as the cache shows it whose turn it is."""
        cache = self._credits[self._asked % len(self._credits)]
        self._asked += 1
        return self._show(cache, self.usage_pico, self.server.money.credits_stale_s)

    def shown_key_pico(self) -> int:
        return self._show(self._key, self.key_usage_pico, self.server.money.key_stale_s)

    def _show(self, cache: _Shown, value: int, stale_s: float) -> int:
        now_s = self.clock.now_s
        if now_s >= cache.until_s:
            cache.value, cache.until_s = value, now_s + stale_s
        return cache.value

    # ------------------------------------------------------------------------------------------------ holds
    @property
    def in_flight_budget_pico(self) -> int | None:
        """How much the estimates of running and just finished requests may fill; None = no holds on this account."""
        money = self.server.money
        if money.in_flight_share is None:
            return None
        budget = int(max(self.balance_pico, 0) * money.in_flight_share)
        ceiling = money.in_flight_ceiling_usd
        return budget if ceiling is None else min(budget, round(ceiling * PICO))

    @property
    def in_flight_pico(self) -> int:
        now_s = self.clock.now_s
        while self._settling and self._settling[0][0] <= now_s:
            self.held_pico -= self._settling.popleft()[1]
        return self.held_pico

    def hold(self, pico: int) -> Hold:
        self.held_pico += pico
        return Hold(pico)

    def release(self, hold: Hold, cost_pico: int) -> None:
        """The actual cost takes the place of the estimate for the settlement window, then nothing is held."""
        if self.server.money.in_flight_share is None:
            return
        self.held_pico += cost_pico - hold.pico
        self._settling.append((self.clock.now_s + self.server.money.settlement_s, cost_pico))
        hold.pico = 0
