"""The ledger: money of a campaign, exact across processes and after `kill -9`.

Belongs here: the SQLite file, its limits and its arithmetic (integers of 1e-12 USD). Does not belong here: who is alive and what
it had in flight (`owners.py`), serving reservations from a lease (`desk.py`), what a request may cost (`openrouter.py`).

States of an entry: reserved (money that a live process holds), settled (cost known), ambiguous (sent, outcome lost: it may have
been billed, so it counts until somebody proves otherwise). What was proved not to be billed has no entry. A process leases money
in blocks: its lease of a scope is one reserved entry, granted only within every limit, and only leased money is spent; so at no
instant does spent + held of all processes together exceed a limit. What a dead process had set aside in its lease becomes
ambiguous, request by request; the rest of its lease comes back.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from eagle3_assets.collect.money.amounts import PICO, Money, Totals, add_up, to_pico
from eagle3_assets.collect.money.owners import Left, Owner, is_alive, left_by, names_beside, owner_file
from eagle3_assets.errors import StoreError
from eagle3_assets.wire.wire_answer import WireAnswer

__all__ = ["PICO", "Ledger", "Money", "Operation", "Payment", "Posting", "Totals", "to_pico"]

BUSY_S = 30.0
SHARE_AHEAD = 8  # a block beyond what is needed at once is at most this part of what is left: little money is not hoarded

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
  request_id TEXT PRIMARY KEY, scope TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('reserved', 'settled', 'ambiguous')),
  pico INTEGER NOT NULL, owner TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entry_open ON entry (owner) WHERE state = 'reserved';
CREATE TABLE IF NOT EXISTS total (
  scope TEXT NOT NULL, state TEXT NOT NULL, pico INTEGER NOT NULL, PRIMARY KEY (scope, state)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owner (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS look_up (
  request_id TEXT PRIMARY KEY, generation_id TEXT NOT NULL, tries INTEGER NOT NULL, next_at REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS remote (
  source TEXT PRIMARY KEY, baseline INTEGER NOT NULL, ours_then INTEGER NOT NULL, seen INTEGER NOT NULL, others INTEGER NOT NULL,
  at REAL NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = {
    "entry": ["request_id", "scope", "state", "pico", "owner", "at"],
    "total": ["scope", "state", "pico"],
    "owner": ["name"],
    "look_up": ["request_id", "generation_id", "tries", "next_at"],  # `look_ups.py`
    "remote": ["source", "baseline", "ours_then", "seen", "others", "at"],  # `reconcile.py`
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


@dataclass(frozen=True, slots=True)
class Operation:
    """One change; `apply` takes many in one transaction. `pico` is the reservation or the cost."""

    kind: Literal["reserve", "settle", "release", "keep"]
    request_id: str
    scope: str = ""
    pico: int = 0


@dataclass(frozen=True, slots=True)
class Posting:
    """What a process hands in at once, in 1e-12 USD. `rows`: (request id, scope, `settled` or `ambiguous`, amount) paid
    from its leases; `back`: what leaves each lease (the rows' part, and what is given back); `operations` on older entries;
    `wanted`: scope -> (the least that is of use, all that is needed at once, what is welcome beyond it).
    """

    rows: Sequence[tuple[str, str, str, int]] = ()
    back: Mapping[str, int] = field(default_factory=dict)
    operations: Sequence[Operation] = ()
    wanted: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Payment:
    """What a journal record says of one request's money. `pico` is the cost, or its bound where the cost is not known."""

    request_id: str
    scope: str
    pico: int
    is_settled: bool


class Ledger:
    """The campaign's money. `limit_usd` bounds everything, `caps` single scopes. Usable from any thread."""

    def __init__(self, path: Path, limit_usd: float, *, caps: Mapping[str, float] | None = None) -> None:
        self.path, self.limit_usd, self.caps = path, limit_usd, dict(caps or {})
        self._limit = to_pico(limit_usd)
        self._caps = {scope: to_pico(usd) for scope, usd in self.caps.items()}
        self._guard = threading.Lock()
        self._owner = Owner(path)
        try:
            self._open()
        except BaseException:
            self._owner.end()
            raise

    def _open(self) -> None:
        path = self.path
        with self._errors():
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._prepare()
            self._db.execute("PRAGMA synchronous=FULL")  # a lease must outlive a power loss: its requests will be billed
            with self._transaction():
                self._require_sound()
                self._db.execute("INSERT INTO owner VALUES (?)", (self._owner.name,))
        self.sweep()

    def _prepare(self) -> None:
        """Log mode and tables. Of processes that open a new ledger at the same moment all but one are refused at once, whatever the
        timeout says (SQLite calls no busy handler for a change of the mode): they try again.
        """
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.executescript(_SCHEMA)
                return
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

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
        return [name for name in names_beside(self.path) if name not in known and is_alive(self.path, name)]

    def take_over(self, payments: Iterable[Payment]) -> int:
        """Enter what is not entered yet and what processes that died by the lost file had in flight, and mark the ledger whole;
        returns how many entries changed. What a live process has reserved or settled meanwhile stays as it is.
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
            known = {name for (name,) in self._db.execute("SELECT name FROM owner")}
            for name in names_beside(self.path):
                if name not in known and not is_alive(self.path, name):  # it spent by the file that is gone, and died
                    changed += self._bury(name, left_by(self.path, name))
                    owner_file(self.path, name).unlink(missing_ok=True)
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
        """Settle from journal records what a killed process could not; returns how many entries changed. Of those whose price the
        journal does not know either, the generation id is kept for `look_ups.py`.

        Call it only with answers of shards whose lock is held: then none of their requests belongs to a live process.
        """
        changed = 0
        with self._guard, self._errors(), self._transaction():
            for answer in answers:
                if answer.source != "openrouter":
                    continue
                row = self._db.execute("SELECT state FROM entry WHERE request_id = ?", (answer.request_id,)).fetchone()
                if answer.cost_usd is None:
                    if answer.generation_id is not None and row is not None and row[0] == "ambiguous":
                        look_up = (answer.request_id, answer.generation_id)
                        self._db.execute("INSERT OR IGNORE INTO look_up VALUES (?,?,0,0)", look_up)
                elif (row is None and answer.cost_usd > 0) or (row is not None and row[0] != "settled"):
                    self._one(Operation("settle", answer.request_id, answer.dataset, to_pico(answer.cost_usd)))
                    changed += 1
        return changed

    def sweep(self) -> int:
        """What dead processes held: what they had set aside becomes ambiguous, the rest comes back; returns how many requests."""
        count = 0
        with self._guard, self._errors(), self._transaction():
            names = [name for (name,) in self._db.execute("SELECT name FROM owner WHERE name != ?", (self._owner.name,))]
            for name in names:
                if not is_alive(self.path, name):
                    count += self._bury(name, left_by(self.path, name))
                    owner_file(self.path, name).unlink(missing_ok=True)
        return count

    # ------------------------------------------------------------------------------------------------ leases
    @property
    def owner(self) -> Owner:
        """This process's own file, where it writes what it does with its leases; costs no transaction."""
        return self._owner

    def hand_in(self, posting: Posting) -> dict[str, tuple[int, str | None]]:
        """All of a posting in one transaction. For each wanted scope: 1e-12 USD granted, and the limit that left something out
        ("campaign" or the scope; None when everything needed was granted).
        """
        with self._guard, self._errors(), self._transaction():
            for scope, pico in posting.back.items():
                self._change_lease(scope, -pico)
            self._take_rows(posting.rows)
            for operation in posting.operations:
                self._one(operation)
            granted = {scope: self._lease(scope, *wanted) for scope, wanted in posting.wanted.items()}
        self._owner.entered(row[0] for row in posting.rows)
        return granted

    def is_out_of(self, needed: Mapping[str, int]) -> bool:
        """Whether nobody holds money that may come back, and no scope of `needed` has room for its 1e-12 USD."""
        with self._guard, self._errors(), self._transaction():
            held = self._sum("WHERE state = 'reserved'", ())
            return not held and all(self._refuses(scope, pico) for scope, pico in needed.items())

    def _take_rows(self, rows: Sequence[tuple[str, str, str, int]]) -> None:
        now, owner = time.time(), self._owner.name
        self._db.executemany("INSERT INTO entry VALUES (?,?,?,?,?,?)", [(*row, owner, now) for row in rows])
        sums: Counter[tuple[str, str]] = Counter()
        for _, scope, state, pico in rows:
            sums[scope, state] += pico
        for (scope, state), pico in sums.items():
            self._add(scope, state, pico)

    def _lease(self, scope: str, least: int, needed: int, ahead: int) -> tuple[int, str | None]:
        room, limit = self._room(scope)
        granted = min(needed, room) if room >= least else 0
        if granted == needed:
            granted += min(ahead, (room - needed) // SHARE_AHEAD)
        if granted > 0:
            self._change_lease(scope, granted)
        return granted, limit if granted < needed else None

    def _change_lease(self, scope: str, pico: int) -> None:
        """A lease that is not there (this process was taken for dead) can only be smaller than what leaves it."""
        request_id = _lease_id(self._owner.name, scope)
        row = self._db.execute("SELECT scope, state, pico FROM entry WHERE request_id = ?", (request_id,)).fetchone()
        held = row[2] if row else 0
        if held + pico < 0:
            raise StoreError(f"{self.path}: this process was taken for dead and lost its money; nothing more is sent, run again")
        self._drop(request_id, row)
        if held + pico:
            self._put(request_id, scope, "reserved", held + pico)

    def _bury(self, name: str, left: Left) -> int:
        """End an owner: what it had in flight becomes ambiguous, its leases end; returns how many requests that are."""
        held = self._db.execute(
            "SELECT request_id, scope, pico FROM entry WHERE state = 'reserved' AND owner = ?", (name,)
        ).fetchall()
        leases = {scope: pico for request_id, scope, pico in held if request_id == _lease_id(name, scope)}
        lost = [request_id for request_id, scope, _ in held if request_id != _lease_id(name, scope)]
        for request_id in lost:
            self._one(Operation("keep", request_id))
        for scope, pico in leases.items():
            self._drop(_lease_id(name, scope), (scope, "reserved", pico))
        for state, rows in (("ambiguous", left.reservations), ("settled", left.settled)):
            for request_id, (scope, pico) in rows.items():
                if self._db.execute("SELECT 1 FROM entry WHERE request_id = ?", (request_id,)).fetchone() is None:
                    self._put(request_id, scope, state, pico)
                    leases[scope] = leases.get(scope, 0) - pico
                    lost += [request_id] if state == "ambiguous" else []
        for scope, pico in leases.items():
            if pico > 0 and not left.whole:  # lines may be missing: whatever was leased may have been sent
                self._put(f"unknown requests of {name} for {scope}", scope, "ambiguous", pico)
        self._db.execute("DELETE FROM owner WHERE name = ?", (name,))
        return len(lost)

    # ------------------------------------------------------------------------------------------------ reading
    def totals(self) -> Totals:
        """Money by state, over all and per scope."""
        with self._guard, self._errors():
            return add_up(self._db.execute("SELECT scope, state, pico FROM total").fetchall())

    def entries(self, state: Literal["reserved", "settled", "ambiguous"]) -> list[tuple[str, str, float]]:
        """(request_id, scope, usd) of every entry in `state`, e.g. the ambiguous ones for a person to look up."""
        with self._guard, self._errors():
            rows = self._db.execute("SELECT request_id, scope, pico FROM entry WHERE state = ? ORDER BY at", (state,)).fetchall()
        return [(request_id, scope, pico / PICO) for request_id, scope, pico in rows]

    def close(self) -> None:
        """Leave the ledger; what is still set aside becomes ambiguous."""
        with self._guard, self._errors():
            with self._transaction():
                self._bury(self._owner.name, self._owner.left())
            self._db.close()
        self._owner.end()

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
        room, limit = self._room(scope)
        return limit if pico > room else None

    def _room(self, scope: str) -> tuple[int, str]:
        """1e-12 USD that may still be set aside for `scope` (below 0 after a limit was lowered), and the limit that bounds it."""
        room, limit = self._limit - self._sum("", ()), "campaign"
        cap = self._caps.get(scope)
        if cap is not None and (below := cap - self._sum("WHERE scope = ?", (scope,))) <= room:
            return below, scope
        return room, limit

    def _sum(self, where: str, values: tuple[str, ...]) -> int:
        return int(self._db.execute(f"SELECT COALESCE(SUM(pico), 0) FROM total {where}", values).fetchone()[0])

    def _put(self, request_id: str, scope: str, state: str, pico: int) -> None:
        self._db.execute(
            "INSERT INTO entry VALUES (?,?,?,?,?,?)", (request_id, scope, state, pico, self._owner.name, time.time())
        )
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
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """For the tables that other modules keep here (`look_ups.py`, `reconcile.py`). Raises StoreError."""
        with self._guard, self._errors(), self._transaction():
            yield self._db

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


def _lease_id(owner: str, scope: str) -> str:
    return f"lease of {owner} for {scope}"
