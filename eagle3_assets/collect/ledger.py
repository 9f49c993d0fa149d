"""Money. A reservation before a request is sent, the real cost after it; exact across processes and after `kill -9`.

Belongs here: the SQLite ledger and its arithmetic (integers of 1e-12 USD). Does not belong here: what a request may cost
(`openrouter.py`), when to stop (`collector.py`), reading the journal.

States of an entry: reserved (a live process sent it or is about to), settled (cost known), ambiguous (sent, outcome lost: it may
have been billed, so its reservation counts until somebody proves otherwise). What was proved not to be billed has no entry. A
process is alive while it holds the `flock` on its owner file; the kernel drops that lock on any death, so no pid is ever guessed
at.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Literal

from eagle3_assets.collect.wire_answer import WireAnswer
from eagle3_assets.errors import StoreError
from eagle3_assets.store import full_disk

PICO = 10**12  # 64-bit integers of 1e-12 USD hold 9 million USD; one token costs about 4e-7 USD, so nothing is ever rounded away
BUSY_S = 30.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
  request_id TEXT PRIMARY KEY, scope TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('reserved', 'settled', 'ambiguous')),
  pico INTEGER NOT NULL, owner TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entry_open ON entry (owner) WHERE state = 'reserved';
CREATE TABLE IF NOT EXISTS total (
  scope TEXT NOT NULL, state TEXT NOT NULL, pico INTEGER NOT NULL, PRIMARY KEY (scope, state)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owner (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_COLUMNS = {
    "entry": ["request_id", "scope", "state", "pico", "owner", "at"],
    "total": ["scope", "state", "pico"],
    "owner": ["name"],
}
# Sums of entries that `total` does not hold, sums in `total` that entries do not have, amounts that are no amounts.
_CONTRADICTIONS = """
WITH found AS (SELECT scope, state, SUM(pico) AS pico FROM entry GROUP BY scope, state),
     held AS (SELECT scope, state, pico FROM total)
SELECT COUNT(*) FROM (
  SELECT scope, state FROM (SELECT * FROM found WHERE pico != 0 EXCEPT SELECT * FROM held)
  UNION ALL SELECT scope, state FROM (SELECT * FROM held WHERE pico != 0 EXCEPT SELECT * FROM found)
  UNION ALL SELECT scope, state FROM entry WHERE typeof(pico) != 'integer' OR pico < 0)
"""
# Kept in the file's header (user_version). A file without it is new, was emptied, or is older than the mark: what the journals
# say was paid must be in it before anything is spent (`recount.py`).
WHOLE = 1
# Primary result codes that speak of the content of the file: error (a table or column is missing), corrupt, not a database.
_DAMAGE_CODES = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
REMEDY = "move it elsewhere with its -wal and -shm files, and run again: the money is then counted again from the journals"


def to_pico(usd: float | Decimal | str) -> int:
    """USD -> integer 1e-12 USD, rounded up. A float counts as its shortest decimal form, the one a server sent."""
    value = (Decimal(repr(usd) if isinstance(usd, float) else usd) * PICO).to_integral_value(ROUND_CEILING)
    if value < 0 or value >= 2**62:
        raise ValueError(f"not an amount of money: {usd!r} USD")
    return int(value)


@dataclass(frozen=True, slots=True)
class Money:
    """Amounts in USD."""

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


@dataclass(frozen=True, slots=True)
class Operation:
    """One change; `apply` takes many in one transaction. `pico` is the reservation or the cost."""

    kind: Literal["reserve", "settle", "release", "keep"]
    request_id: str
    scope: str = ""
    pico: int = 0


@dataclass(frozen=True, slots=True)
class Payment:
    """What a journal record says of one request's money. `pico` is the cost, or its bound where the cost is not known."""

    request_id: str
    scope: str
    pico: int
    is_settled: bool


def read_totals(path: Path) -> Totals:
    """Totals of a ledger that others may be writing, without writing anything. Raises StoreError."""
    for mode in ("mode=ro", "mode=ro&immutable=1"):  # the second where even the log's index file may not be made
        try:
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_S)) as db:
                return _add_up(db.execute("SELECT scope, state, pico FROM total").fetchall())
        except (sqlite3.Error, TypeError) as error:
            reason = error
    raise StoreError(
        f"{path}: cannot be read as a ledger ({reason}); restore it from a backup, or run `answers` or `pilot` again: they count "
        "an empty ledger again from the journals before they spend, and say what to do with a damaged one"
    )


def _add_up(rows: Iterable[tuple[str, str, int]]) -> Totals:
    sums: dict[str, dict[str, int]] = {}
    for scope, state, pico in rows:
        for key in (scope, ""):  # "" collects all
            sums.setdefault(key, {}).setdefault(state, 0)
            sums[key][state] += pico
    money = {key: Money(*(by.get(s, 0) / PICO for s in ("settled", "reserved", "ambiguous"))) for key, by in sums.items()}
    return Totals(money.pop("", Money()), money)


class Ledger:
    """The campaign's money. `limit_usd` bounds everything, `caps` single scopes. Usable from any thread."""

    def __init__(self, path: Path, limit_usd: float, *, caps: Mapping[str, float] | None = None) -> None:
        self.path, self.limit_usd, self.caps = path, limit_usd, dict(caps or {})
        self._limit = to_pico(limit_usd)
        self._caps = {scope: to_pico(usd) for scope, usd in self.caps.items()}
        self._guard = threading.Lock()
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._owner_fd = -1
        try:
            self._open()
        except BaseException:
            self._disown()
            raise

    def _open(self) -> None:
        path = self.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._owner_fd = os.open(self._owner_file(self._owner), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._owner_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise full_disk(path, error) from None
        with self._errors():
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")  # a reservation must outlive a power loss: its request will be billed
            self._db.executescript(_SCHEMA)
            with self._transaction():
                self._require_sound()
                self._db.execute("INSERT INTO owner VALUES (?)", (self._owner,))
        self.sweep()

    def _require_sound(self) -> None:
        """Another program's tables, or sums that do not add up, are no ledger to spend by."""
        for table, columns in _COLUMNS.items():
            found = [row[1] for row in self._db.execute(f"PRAGMA table_info({table})")]
            if found != columns:
                raise StoreError(
                    f"{self.path}: the ledger cannot be used (table {table}: expected columns {', '.join(columns)}, found "
                    f"{', '.join(found)}); nothing more was spent; {REMEDY}"
                )
        if self._db.execute(_CONTRADICTIONS).fetchone()[0]:
            raise StoreError(
                f"{self.path}: the ledger cannot be used (its entries and its totals differ); nothing more was spent; {REMEDY}"
            )

    # ------------------------------------------------------------------------------------------------ after a loss
    @property
    def is_whole(self) -> bool:
        """Whether every earlier payment is known to be in it."""
        with self._guard, self._errors():
            return bool(self._db.execute("PRAGMA user_version").fetchone()[0] == WHOLE)

    def strangers(self) -> list[str]:
        """Owner files of live processes that this ledger does not know: they spend by a ledger file that is gone."""
        with self._guard, self._errors():
            known = {name for (name,) in self._db.execute("SELECT name FROM owner")}
        prefix = self._owner_file("").name
        names = (path.name.removeprefix(prefix) for path in self.path.parent.glob(f"{prefix}*"))
        return sorted(name for name in names if name not in known and self._is_alive(name))

    def take_over(self, payments: Iterable[Payment]) -> int:
        """Enter what is not entered yet, and mark the ledger whole; returns how many entries changed. What a live process has
        reserved or settled meanwhile stays as it is.
        """
        changed = 0
        with self._guard, self._errors(), self._transaction():
            for p in payments:
                row = self._db.execute("SELECT scope, state, pico FROM entry WHERE request_id = ?", (p.request_id,)).fetchone()
                if row is None:
                    self._put(p.request_id, p.scope, "settled" if p.is_settled else "ambiguous", p.pico)
                elif p.is_settled and row[1] != "settled":
                    self._one(Operation("settle", p.request_id, p.scope, p.pico))
                else:
                    continue
                changed += 1
            self._db.execute(f"PRAGMA user_version = {WHOLE}")
        return changed

    # ------------------------------------------------------------------------------------------------ changes
    def apply(self, operations: Sequence[Operation]) -> list[str | None]:
        """Do all operations in one transaction. For each: None = done, or (reserve) the name of the limit that refused it:
        "campaign" or the scope."""
        with self._guard, self._errors(), self._transaction():
            return [self._one(operation) for operation in operations]

    def reserve(self, request_id: str, scope: str, usd: float) -> bool:
        """Set `usd` aside for one request, or refuse: spent + reserved + ambiguous + usd must stay within every limit."""
        return self.apply([Operation("reserve", request_id, scope, to_pico(usd))])[0] is None

    def settle(self, request_id: str, usd: float, *, scope: str = "") -> None:
        """Replace a reservation (or an ambiguous entry) by the real cost. Settling twice changes nothing."""
        self.apply([Operation("settle", request_id, scope, to_pico(usd))])

    def release(self, request_id: str) -> None:
        """Nothing was sent, or it is certain that nothing was billed."""
        self.apply([Operation("release", request_id)])

    def keep(self, request_id: str) -> None:
        """Sent and lost: the reservation stays as ambiguous money."""
        self.apply([Operation("keep", request_id)])

    def reconcile(self, answers: Iterable[WireAnswer]) -> int:
        """Settle from journal records what a killed process could not; returns how many entries changed.

        Call it only with answers of shards whose lock is held: then none of their requests belongs to a live process.
        """
        changed = 0
        with self._guard, self._errors(), self._transaction():
            for answer in answers:
                if answer.source != "openrouter" or answer.cost_usd is None:
                    continue
                row = self._db.execute("SELECT state FROM entry WHERE request_id = ?", (answer.request_id,)).fetchone()
                if (row is None and answer.cost_usd > 0) or (row is not None and row[0] != "settled"):
                    self._one(Operation("settle", answer.request_id, answer.dataset, to_pico(answer.cost_usd)))
                    changed += 1
        return changed

    def sweep(self) -> int:
        """Reservations of dead processes become ambiguous; returns how many did."""
        count = 0
        with self._guard, self._errors(), self._transaction():
            owners = [name for (name,) in self._db.execute("SELECT name FROM owner WHERE name != ?", (self._owner,))]
            for owner in owners:
                if self._is_alive(owner):
                    continue
                rows = self._db.execute(
                    "SELECT request_id FROM entry WHERE state = 'reserved' AND owner = ?", (owner,)
                ).fetchall()
                for (request_id,) in rows:
                    self._one(Operation("keep", request_id))
                self._db.execute("DELETE FROM owner WHERE name = ?", (owner,))
                self._owner_file(owner).unlink(missing_ok=True)
                count += len(rows)
        return count

    # ------------------------------------------------------------------------------------------------ reading
    def totals(self) -> Totals:
        """Money by state, over all and per scope."""
        with self._guard, self._errors():
            return _add_up(self._db.execute("SELECT scope, state, pico FROM total").fetchall())

    def entries(self, state: Literal["reserved", "settled", "ambiguous"]) -> list[tuple[str, str, float]]:
        """(request_id, scope, usd) of every entry in `state`, e.g. the ambiguous ones for a person to look up."""
        with self._guard, self._errors():
            rows = self._db.execute("SELECT request_id, scope, pico FROM entry WHERE state = ? ORDER BY at", (state,)).fetchall()
        return [(request_id, scope, pico / PICO) for request_id, scope, pico in rows]

    def close(self) -> None:
        """Leave the ledger; entries that are still reserved become ambiguous."""
        with self._guard, self._errors():
            with self._transaction():
                for (request_id,) in self._db.execute(
                    "SELECT request_id FROM entry WHERE state = 'reserved' AND owner = ?", (self._owner,)
                ).fetchall():
                    self._one(Operation("keep", request_id))
                self._db.execute("DELETE FROM owner WHERE name = ?", (self._owner,))
            self._db.close()
        self._disown()

    def _disown(self) -> None:
        if self._owner_fd >= 0:
            self._owner_file(self._owner).unlink(missing_ok=True)
            os.close(self._owner_fd)
            self._owner_fd = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ inside a transaction
    def _one(self, op: Operation) -> str | None:
        row = self._db.execute("SELECT scope, state, pico FROM entry WHERE request_id = ?", (op.request_id,)).fetchone()
        if op.kind == "reserve":
            if row is not None:
                raise ValueError(f"request id {op.request_id} was used twice")
            refused_by = self._refuses(op.scope, op.pico)
            if refused_by is None:
                self._put(op.request_id, op.scope, "reserved", op.pico)
            return refused_by
        if op.kind == "settle" and (row is None or row[1] != "settled"):
            self._drop(op.request_id, row)
            self._put(op.request_id, row[0] if row else op.scope, "settled", op.pico)
        elif op.kind == "release" and row is not None and row[1] != "settled":
            self._drop(op.request_id, row)
        elif op.kind == "keep" and row is not None and row[1] == "reserved":
            self._drop(op.request_id, row)
            self._put(op.request_id, row[0], "ambiguous", row[2])
        return None

    def _refuses(self, scope: str, pico: int) -> str | None:
        cap = self._caps.get(scope)
        if cap is not None and self._sum("WHERE scope = ?", (scope,)) + pico > cap:
            return scope
        return "campaign" if self._sum("", ()) + pico > self._limit else None

    def _sum(self, where: str, values: tuple[str, ...]) -> int:
        return int(self._db.execute(f"SELECT COALESCE(SUM(pico), 0) FROM total {where}", values).fetchone()[0])

    def _put(self, request_id: str, scope: str, state: str, pico: int) -> None:
        self._db.execute("INSERT INTO entry VALUES (?,?,?,?,?,?)", (request_id, scope, state, pico, self._owner, time.time()))
        self._add(scope, state, pico)

    def _drop(self, request_id: str, row: tuple[str, str, int] | None) -> None:
        if row is not None:
            self._db.execute("DELETE FROM entry WHERE request_id = ?", (request_id,))
            self._add(row[0], row[1], -row[2])

    def _add(self, scope: str, state: str, pico: int) -> None:
        self._db.execute(
            "INSERT INTO total VALUES (?,?,?) ON CONFLICT (scope, state) DO UPDATE SET pico = pico + excluded.pico",
            (scope, state, pico),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")  # the write lock first: what is read inside cannot change before it is acted upon
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite has rolled back by itself on a full disk
                self._db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE_CODES
            remedy = REMEDY if damaged else "free disk space or restore the file and run again"
            raise StoreError(f"{self.path}: the ledger cannot be used ({error}); nothing more was spent; {remedy}") from None

    def _owner_file(self, owner: str) -> Path:
        return self.path.with_name(f"{self.path.name}.owner-{owner}")

    def _is_alive(self, owner: str) -> bool:
        try:
            fd = os.open(self._owner_file(owner), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False
