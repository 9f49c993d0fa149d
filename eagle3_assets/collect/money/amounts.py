"""Amounts of money: exact integers inside, USD for people.

Belongs here: the unit, the value objects of totals. Does not belong here: limits, files (`ledger.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

PICO = 10**12  # 64-bit integers of 1e-12 USD hold 9 million USD; one token costs about 4e-7 USD, so nothing is ever rounded away


_PICO, _MOST = Decimal(PICO), 2**62


def to_pico(usd: float | Decimal | str) -> int:
    """USD -> integer 1e-12 USD, rounded up. A float counts as its shortest decimal form, the one a server sent."""
    value = int((Decimal(repr(usd) if isinstance(usd, float) else usd) * _PICO).to_integral_value(ROUND_CEILING))
    if not 0 <= value < _MOST:
        raise ValueError(f"not an amount of money: {usd!r} USD")
    return value


@dataclass(frozen=True, slots=True)
class Money:
    """Amounts in USD. `reserved_usd`: what live processes have leased, for requests in flight and a few that follow."""

    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    ambiguous_usd: float = 0.0

    @property
    def committed_usd(self) -> float:
        """What counts against a limit."""
        return self.spent_usd + self.reserved_usd + self.ambiguous_usd


@dataclass(frozen=True, slots=True)
class Totals:
    """All money, and the part of each scope (a dataset's name, or `pilot`)."""

    total: Money
    scopes: Mapping[str, Money]


def add_up(rows: Iterable[tuple[str, str, int]]) -> Totals:
    """Totals of (scope, state, 1e-12 USD) rows."""
    sums: dict[str, dict[str, int]] = {}
    for scope, state, pico in rows:
        for key in (scope, ""):  # "" collects all
            sums.setdefault(key, {}).setdefault(state, 0)
            sums[key][state] += pico
    money = {key: Money(*(by.get(s, 0) / PICO for s in ("settled", "reserved", "ambiguous"))) for key, by in sums.items()}
    return Totals(money.pop("", Money()), money)
