"""Claims about money: exact, never above a limit, kept through a kill."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.collect.money.account import read_totals
from eagle3_assets.collect.money.ledger import PICO, Ledger, Operation, to_pico
from eagle3_assets.errors import StoreError
from eagle3_assets_tests.collect.samples import an_answer


def open_ledger(tmp_path: Path, limit: float = 1.0, **caps: float) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", limit, caps=caps)


def test_spent_reserved_and_ambiguous_all_count_against_the_limit(tmp_path: Path) -> None:
    with open_ledger(tmp_path, 1.0) as ledger:
        assert ledger.reserve("a", "b3", 0.4) and ledger.reserve("b", "b3", 0.3) and ledger.reserve("c", "b3", 0.3)
        assert not ledger.reserve("d", "b3", 0.000001)
        ledger.settle("a", 0.1)
        ledger.keep("b")
        assert ledger.reserve("e", "b8", 0.3)
        assert not ledger.reserve("f", "b8", 0.000001)
        ledger.release("c")
        assert ledger.reserve("g", "b8", 0.3)
        totals = ledger.totals()
        assert (totals.total.spent_usd, totals.total.reserved_usd, totals.total.ambiguous_usd) == (0.1, 0.6, 0.3)
        assert totals.scopes["b3"].committed_usd == pytest.approx(0.4)


def test_a_scope_has_its_own_cap_and_says_which_limit_refused(tmp_path: Path) -> None:
    with open_ledger(tmp_path, 1.0, pilot=0.2) as ledger:
        assert ledger.reserve("a", "pilot", 0.15)
        assert ledger.apply([Operation("reserve", "b", "pilot", to_pico(0.1))]) == ["pilot"]
        assert ledger.apply([Operation("reserve", "c", "b3", to_pico(0.9))]) == ["campaign"]
        assert ledger.reserve("d", "b3", 0.85)


def test_a_reservation_that_fits_to_the_last_picodollar_is_granted(tmp_path: Path) -> None:
    with open_ledger(tmp_path, 0.3) as ledger:
        assert ledger.reserve("a", "x", 0.1) and ledger.reserve("b", "x", 0.2)  # 0.1 + 0.2 > 0.3 in floats
        assert not ledger.reserve("c", "x", 1e-12)


@given(st.floats(0, 1000, allow_nan=False))
def test_money_is_never_rounded_down(usd: float) -> None:
    assert to_pico(usd) >= usd * PICO * (1 - 1e-15)
    assert to_pico("0.00016236") == 162_360_000


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_totals_always_equal_the_sum_of_the_entries(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    with open_ledger(tmp_path_factory.mktemp("ledger"), 1.0, b=0.4) as ledger:
        for step in range(40):
            known, scope = f"r{chance.randrange(step + 1)}", chance.choice("abc")
            kind = chance.choice(KINDS)
            operation = Operation(kind, f"r{step}" if kind == "reserve" else known, scope, chance.randrange(PICO // 5))
            if not (kind == "reserve" and any(operation.request_id == e[0] for s in STATES for e in ledger.entries(s))):
                ledger.apply([operation])
        total = ledger.totals().total
        for state, value in zip(STATES, (total.spent_usd, total.reserved_usd, total.ambiguous_usd), strict=True):
            assert value == pytest.approx(sum(usd for _, _, usd in ledger.entries(state)), abs=1e-11)


STATES: tuple[Literal["settled", "reserved", "ambiguous"], ...] = ("settled", "reserved", "ambiguous")
KINDS: tuple[Literal["reserve", "settle", "release", "keep"], ...] = ("reserve", "settle", "release", "keep")


def test_settling_twice_changes_nothing_and_a_request_id_is_used_once(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.reserve("a", "b3", 0.4)
        ledger.settle("a", 0.1)
        ledger.settle("a", 0.3)
        ledger.release("a")
        ledger.keep("a")
        assert ledger.totals().total.spent_usd == 0.1
        with pytest.raises(ValueError, match="used twice"):
            ledger.reserve("a", "b3", 0.1)


HAMMER = """
import random, sys, pathlib
from eagle3_assets.collect.money.ledger import Ledger
ledger = Ledger(pathlib.Path(sys.argv[1]), 1.0, caps={"b3": 0.6})
name, chance = sys.argv[2], random.Random(int(sys.argv[2]))
sys.stdin.readline()
granted = 0
for n in range(40):
    scope = chance.choice(["b3", "b8"])
    if ledger.reserve(f"{name}-{n}", scope, 0.02):
        granted += 1
        how = chance.random()
        if how < 0.5: ledger.settle(f"{name}-{n}", 0.01)
        elif how < 0.6: ledger.release(f"{name}-{n}")
        elif how < 0.7: ledger.keep(f"{name}-{n}")
    totals = ledger.totals()
    assert totals.total.committed_usd <= 1.0 + 1e-9, totals
    assert "b3" not in totals.scopes or totals.scopes["b3"].committed_usd <= 0.6 + 1e-9, totals
ledger.close()
print(granted)
"""


@pytest.mark.slow
def test_four_processes_together_never_pass_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(path), str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(4)
    ]
    granted = [int(w.communicate("go\n")[0]) for w in workers]
    assert [w.returncode for w in workers] == [0, 0, 0, 0]
    with Ledger(path, 1.0) as ledger:
        total = ledger.totals().total
        assert 0.98 - 1e-9 <= total.committed_usd <= 1.0 + 1e-9  # there was more work than money: all of it was used
        assert sum(granted) >= 50  # many were settled for less than reserved


KILLED = """
import sys, pathlib
from eagle3_assets.collect.money.ledger import Ledger
ledger = Ledger(pathlib.Path(sys.argv[1]), 1.0)
for n in range(3): ledger.reserve(f"r{n}", "b3", 0.1)
ledger.settle("r2", 0.05)
print("ready", flush=True)
sys.stdin.read()
"""


def test_reservations_of_a_killed_process_become_ambiguous_unless_the_journal_has_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with Ledger(path, 1.0) as ledger:  # it is alive: its reservations are not touched
            assert ledger.totals().total.reserved_usd == pytest.approx(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Ledger(path, 1.0) as ledger:
        assert ledger.totals().total.ambiguous_usd == pytest.approx(0.2)
        assert [e[0] for e in ledger.entries("ambiguous")] == ["r0", "r1"]
        assert ledger.reconcile([an_answer(0, cost_usd=0.03), an_answer(2, cost_usd=0.05), an_answer(1, cost_usd=None)]) == 1
        total = ledger.totals().total
        assert (total.spent_usd, total.ambiguous_usd) == pytest.approx((0.08, 0.1))
    assert not list(tmp_path.glob("*.owner-*"))


def test_a_lost_ledger_learns_from_the_journal_what_was_spent(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        assert (
            ledger.reconcile([an_answer(n, cost_usd=0.2) for n in range(4)] + [an_answer(9, cost_usd=0.0, outcome="failed")]) == 4
        )
        assert ledger.totals().scopes["b3_magicoder"].spent_usd == pytest.approx(0.8)
        assert not ledger.reserve("x", "b3", 0.21)


REMEDY = "move it elsewhere with its -wal and -shm files, and run again: the money is then counted again from the journals"


def damaged(path: Path, how: str) -> None:
    if how == "a sentence":
        return void(path.write_bytes(b"this is not a database, it is a sentence" * 100))
    if how != "another program's":
        with Ledger(path, 1.0) as ledger:
            ledger.apply([Operation("settle", f"r{n}", "b3", PICO // 1000) for n in range(400)])
    if how == "half of it":
        data = path.read_bytes()
        return void(path.write_bytes(data[: len(data) // 2]))
    if how == "noise inside":
        data = bytearray(path.read_bytes())
        data[4096:20480] = b"\xa5" * 16384
        return void(path.write_bytes(data))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            {
                "another program's": "CREATE TABLE entry (id TEXT, note TEXT); CREATE TABLE total (a)",
                "a column short": "DROP TABLE total; CREATE TABLE total (scope TEXT, state TEXT)",
                "a column more": "ALTER TABLE total ADD COLUMN note TEXT DEFAULT 'x'",
                "no totals": "DELETE FROM total",
                "other totals": "UPDATE total SET pico = pico - 1",
                "no entries": "DELETE FROM entry",
                "words for money": "UPDATE entry SET pico = 'much' WHERE request_id = 'r7'",
                "money back": "UPDATE entry SET pico = -pico; UPDATE total SET pico = -pico",
            }[how]
        )


def void(_: object) -> None: ...


DAMAGE = [
    "a sentence", "half of it", "noise inside", "another program's", "a column short", "a column more", "no totals",
    "other totals", "no entries", "words for money", "money back",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_ledger_is_one_readable_line_that_says_what_to_do(tmp_path: Path, how: str) -> None:
    damaged(tmp_path / "ledger.sqlite", how)
    with pytest.raises(StoreError, match=r"ledger\.sqlite: the ledger cannot be used \(.*\); nothing more was spent; ") as caught:
        open_ledger(tmp_path)
    assert str(caught.value).endswith(REMEDY) and "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.owner-*"))  # the refused process owns nothing
    for file in tmp_path.glob("ledger.sqlite*"):
        file.rename(file.with_name("aside-" + file.name))
    open_ledger(tmp_path).close()  # the remedy works


@pytest.mark.parametrize("how", ["a sentence", "half of it", "another program's", "words in totals", "empty", "a folder"])
def test_totals_of_a_damaged_ledger_are_one_readable_line(tmp_path: Path, how: str) -> None:
    path = tmp_path / "ledger.sqlite"
    if how == "empty":
        path.touch()
    elif how == "a folder":
        path.mkdir()
    elif how == "words in totals":
        damaged(path, "a column short")
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.executescript(
                "DROP TABLE total; CREATE TABLE total (scope, state, pico); INSERT INTO total VALUES (1, 'settled', 'x')"
            )
    else:
        damaged(path, how)
    with pytest.raises(StoreError, match=r"ledger\.sqlite: cannot be read as a ledger") as caught:
        read_totals(path)
    assert "\n" not in str(caught.value)


def test_a_folder_in_the_place_of_the_ledger_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").mkdir()
    with pytest.raises(StoreError, match=r"ledger\.sqlite: the ledger cannot be used"):
        open_ledger(tmp_path)
