"""What a ledger file says, for people: read without writing, while others may be writing.

Belongs here: reading totals, look-ups and remote figures together. Does not belong here: changing any of them (`ledger.py`,
`look_ups.py`, `reconcile.py`), printing (`cli`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagle3_assets.collect.money.amounts import PICO, Totals, add_up
from eagle3_assets.collect.money.ledger import BUSY_S
from eagle3_assets.errors import StoreError

_UNKNOWN = """
SELECT COUNT(*), COALESCE(SUM(pico), 0) FROM entry LEFT JOIN look_up USING (request_id)
WHERE state = 'ambiguous' AND next_at IS NULL"""  # no generation id, or asked often enough


@dataclass(frozen=True, slots=True)
class Account:
    """USD. Of the ambiguous money, `unknown_usd` (of `unknown_requests`) is not asked for any more: it counts as spent for good.
    `foreign_usd`: what others spent on our key since the campaign first met it; `account_foreign_usd`: on the whole account, where
    /credits may be read. `lag_usd`: what the server has not shown yet of what our ledger settled. None: never seen.
    """

    totals: Totals = field(default_factory=lambda: add_up(()))
    unknown_usd: float = 0.0
    unknown_requests: int = 0
    foreign_usd: float | None = None
    account_foreign_usd: float | None = None
    lag_usd: float | None = None


def read_account(path: Path) -> Account:
    """The account of the ledger at `path`; an empty one when there is none. Raises StoreError."""
    if not path.exists():
        return Account()
    with reading(path) as db:
        totals = add_up(db.execute("SELECT scope, state, pico FROM total").fetchall())
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"look_up", "remote"} <= tables:  # of an earlier version, and not opened since
            return Account(totals, unknown_usd=totals.total.ambiguous_usd)
        requests, pico = db.execute(_UNKNOWN).fetchone()
        rows = db.execute("SELECT source, seen - baseline, ours_then, others FROM remote ORDER BY at").fetchall()
    seen = {source.split()[0]: (grown, then, others) for source, grown, then, others in rows}  # the key that was met last
    others = {route: facts[2] / PICO for route, facts in seen.items()}
    grown, then, _ = seen.get("key", (None, 0, 0))
    lag = None if grown is None else max(0.0, totals.total.spent_usd - (then + grown) / PICO)
    return Account(totals, pico / PICO, requests, others.get("key"), others.get("credits"), lag)


def read_totals(path: Path) -> Totals:
    """Totals alone. Raises StoreError."""
    with reading(path) as db:
        return add_up(db.execute("SELECT scope, state, pico FROM total").fetchall())


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. Raises StoreError for whatever is no ledger."""
    try:
        with contextlib.closing(_connect(path)) as db:
            yield db
    except (sqlite3.Error, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path}: cannot be read as a ledger ({error}); restore it from a backup, or run `answers` or `pilot` again: they "
            "count an empty ledger again from the journals before they spend, and say what to do with a damaged one"
        ) from None


def _connect(path: Path) -> sqlite3.Connection:
    reason: sqlite3.Error | None = None
    for mode in ("mode=ro", "mode=ro&immutable=1"):  # the second where even the log's index file may not be made
        try:
            db = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_S)
            db.execute("SELECT COUNT(*) FROM total").fetchone()
            return db
        except sqlite3.Error as error:
            reason = error
    assert reason is not None
    raise reason
