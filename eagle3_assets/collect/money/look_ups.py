"""Prices that are not known yet: which generation to ask /generation about, how often it was asked, when again; over restarts.

Belongs here: the ledger's table of look-ups, their times. Does not belong here: asking (`bills.py`, `openrouter.py`), the money itself
(`ledger.py`).

An answer whose price is not known stays in the ledger as ambiguous money. /generation writes its record some seconds after the
answer (docs/research/openrouter-contract.md#1.6), after a fault perhaps much later or never: so it is asked again with growing
pauses, by later runs too, and after `MOST_TRIES` the money is *unknown spend*: it counts for ever, and nobody asks any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from eagle3_assets.collect.money.ledger import Ledger

MOST_TRIES = 9
GROWTH = 3.0  # 2 s at first: 2, 6, 18 … 73 minutes, about two hours in all


@dataclass(frozen=True, slots=True)
class LookUp:
    """`next_at` in unix seconds, None when it is not asked any more."""

    request_id: str
    generation_id: str
    scope: str
    tries: int = 0
    next_at: float | None = 0.0

    def after_a_miss(self, now: float, first_s: float) -> LookUp:
        """The same after /generation did not know it."""
        tries = self.tries + 1
        next_at = None if tries >= MOST_TRIES else now + first_s * GROWTH ** (tries - 1)
        return replace(self, tries=tries, next_at=next_at)


def read_open(ledger: Ledger) -> list[LookUp]:
    """Those of earlier runs that may still be answered. Raises StoreError."""
    with ledger.transaction() as db:
        rows = db.execute(
            "SELECT request_id, generation_id, scope, tries, next_at FROM look_up JOIN entry USING (request_id) "
            "WHERE state = 'ambiguous' AND next_at IS NOT NULL ORDER BY next_at"
        ).fetchall()
    return [LookUp(*row) for row in rows]


def write(ledger: Ledger, look_ups: Iterable[LookUp], found: Iterable[str] = ()) -> None:
    """Keep `look_ups`, forget the request ids in `found`. Raises StoreError."""
    with ledger.transaction() as db:
        rows = [(look.request_id, look.generation_id, look.tries, look.next_at) for look in look_ups]
        db.executemany("INSERT OR REPLACE INTO look_up VALUES (?,?,?,?)", rows)
        db.executemany("DELETE FROM look_up WHERE request_id = ?", [(request_id,) for request_id in found])
