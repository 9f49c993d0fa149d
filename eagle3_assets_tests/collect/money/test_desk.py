"""Claims about leased money: served from memory, exact beside other processes, given back, and right after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.collect.money import ledger as ledger_module
from eagle3_assets.collect.money import owners
from eagle3_assets.collect.money.account import read_totals
from eagle3_assets.collect.money.desk import BLOCK, Desk
from eagle3_assets.collect.money.ledger import Ledger, Posting, to_pico
from eagle3_assets.errors import StoreError
from eagle3_assets_tests.collect.fake_openrouter import FakeOpenRouter
from eagle3_assets_tests.collect.run.test_collector import Desk as Place
from eagle3_assets_tests.collect.run.test_collector import prompts, run
from eagle3_assets_tests.collect.samples import an_answer


@dataclass
class Office:
    """A desk and what it said."""

    ledger: Ledger
    errors: list[Exception] = field(default_factory=list)
    money: list[str] = field(default_factory=list)
    postings: list[Posting] = field(default_factory=list)

    def __post_init__(self) -> None:
        real = self.ledger.hand_in

        def hand_in(posting: Posting) -> dict[str, tuple[int, str | None]]:
            self.postings.append(posting)
            return real(posting)

        self.ledger.hand_in = hand_in  # type: ignore[method-assign]
        self.desk = Desk(self.ledger, self.errors.append, self.money.append, hand_in_s=3600.0)


def play(tmp_path: Path, story: Callable[[Office], Awaitable[None]], limit: float = 1.0, **caps: float) -> None:
    async def main() -> None:
        with Ledger(tmp_path / "ledger.sqlite", limit, caps=caps) as ledger:
            await asyncio.wait_for(story(Office(ledger)), 20)

    asyncio.run(main())


def test_a_thousand_requests_cost_a_handful_of_transactions(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        assert await asyncio.gather(*(o.desk.reserve(f"a{n}", "b3", 0.01) for n in range(500))) == [None] * 500
        for n in range(500):
            o.desk.settle(f"a{n}", "b3", 0.002)
            assert await o.desk.reserve(f"b{n}", "b3", 0.01) is None
        for n in range(500):
            o.desk.settle(f"b{n}", "b3", 0.002)
        await o.desk.close()
        assert len(o.postings) <= 3 and not o.errors
        total = o.ledger.totals().total
        assert total.spent_usd == pytest.approx(2.0) and total.reserved_usd == total.ambiguous_usd == 0
        assert len(o.ledger.entries("settled")) == 1000

    play(tmp_path, story, limit=100.0)


def test_money_that_was_not_used_is_given_back_so_that_another_process_may_have_it(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        with Ledger(tmp_path / "ledger.sqlite", 1.0) as other:
            second = Office(other)
            for n in range(10):
                assert await o.desk.reserve(f"a{n}", "b3", 0.1) is None
            assert await second.desk.reserve("x", "b3", 0.01) == "campaign"
            for n in range(10):
                o.desk.settle(f"a{n}", "b3", 0.01)
            assert not await second.desk.is_out_of_money({"b3"})  # the first one holds money that may come back
            await o.desk.drain()
            await second.desk.drain()
            assert await second.desk.reserve("x", "b3", 0.85) is None
            second.desk.settle("x", "b3", 0.85)
            await second.desk.drain()
            assert await o.desk.reserve("b", "b3", 0.06) == "campaign"
            assert await o.desk.is_out_of_money({"b3"})

    play(tmp_path, story)


def test_a_lease_is_ahead_of_what_is_needed_but_never_hoards_the_last_money(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        assert await o.desk.reserve("a", "b3", 0.001) is None
        assert o.ledger.totals().total.reserved_usd == pytest.approx(0.001 * (1 + BLOCK))
        assert await o.desk.reserve("b", "b8", 0.1) is None
        held = o.ledger.totals().total.reserved_usd
        assert held <= 0.001 * (1 + BLOCK) + 0.1 + (1.0 - 0.165) / 8 + 1e-9

    play(tmp_path, story)


def test_one_dataset_gets_what_another_one_has_leased_ahead(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        assert await o.desk.reserve("a", "b3", 0.01) is None
        assert await o.desk.reserve("b", "b8", 0.985) is None  # only without the block of b3
        assert await o.desk.reserve("c", "b8", 0.01) == "campaign"
        assert o.ledger.totals().total.committed_usd <= 1.0

    play(tmp_path, story)


def test_what_is_refused_is_named_and_asked_again_only_when_it_may_be_otherwise(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        assert await o.desk.reserve("a", "b3", 0.5) is None
        assert await o.desk.reserve("b", "b3", 0.2) == "b3"
        asked = len(o.postings)
        assert await o.desk.reserve("c", "b3", 0.2) == "b3" and len(o.postings) == asked  # from memory
        o.desk.settle("a", "b3", 0.1)
        assert o.money == ["b3"]
        assert await o.desk.reserve("d", "b3", 0.2) is None and len(o.postings) == asked  # freed by the settlement
        await o.desk.drain()
        assert await o.desk.reserve("e", "b3", 0.4) == "b3" and len(o.postings) > asked + 1

    play(tmp_path, story, b3=0.6)


def test_a_lost_answer_keeps_its_money_until_its_price_is_found_out(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        await o.desk.reserve("a", "b3", 0.5)
        o.desk.keep("a")
        await o.desk.drain()
        assert o.ledger.entries("ambiguous") == [("a", "b3", 0.5)] and o.ledger.totals().total.reserved_usd == 0
        await o.desk.reserve("b", "b3", 0.5)
        o.desk.keep("b")
        o.desk.settle("b", "b3", 0.2)  # before the ledger has heard of it
        o.desk.settle("a", "b3", 0.1)
        await o.desk.close()
        assert o.ledger.totals().total.spent_usd == pytest.approx(0.3) and not o.ledger.entries("ambiguous")

    play(tmp_path, story)


def test_a_cancelled_reservation_leaves_nothing_set_aside(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        task = asyncio.create_task(o.desk.reserve("a", "b3", 0.5))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        o.desk.release("a")
        await o.desk.close()
        assert o.ledger.totals().total.committed_usd == 0

    play(tmp_path, story)


def test_money_that_went_back_to_the_ledger_is_no_longer_anybodys_after_a_kill(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        await o.desk.reserve("a", "b3", 0.5)
        o.desk.release("a")
        await o.desk.drain()
        with Ledger(tmp_path / "ledger.sqlite", 1.0) as other:
            assert other.reserve("b", "b3", 0.9)
            left = owners.left_by(o.ledger.path, o.ledger.owner.name)  # what a kill would leave at this moment
            assert left.reservations == {} and left.settled == {}

    play(tmp_path, story)


def test_what_the_ledger_has_not_heard_of_yet_is_shown_and_what_is_leased_ahead_is_not(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        await asyncio.gather(*(o.desk.reserve(f"a{n}", "b3", 0.01) for n in range(4)))
        o.desk.settle("a0", "b3", 0.002)
        o.desk.keep("a1")
        money = o.desk.as_of_now(o.ledger.totals().total)
        assert (money.spent_usd, money.reserved_usd, money.ambiguous_usd) == pytest.approx((0.002, 0.02, 0.01))

    play(tmp_path, story)


def test_a_ledger_that_cannot_be_written_ends_the_run_and_the_next_one_knows_what_was_paid(tmp_path: Path) -> None:
    async def story(o: Office) -> None:
        await o.desk.reserve("a", "b3", 0.5)
        await o.desk.reserve("b", "b3", 0.1)
        o.desk.settle("a", "b3", 0.3)

        def full(posting: Posting) -> dict[str, tuple[int, str | None]]:
            raise StoreError("ledger: no space left")

        o.ledger.hand_in = full  # type: ignore[method-assign]
        await o.desk.drain()
        assert [str(error) for error in o.errors] == ["ledger: no space left"]
        with pytest.raises(StoreError, match="could not be written"):
            await o.desk.reserve("c", "b3", 0.01)

    play(tmp_path, story)
    with Ledger(tmp_path / "ledger.sqlite", 1.0) as ledger:
        assert ledger.entries("settled") == [("a", "b3", 0.3)] and ledger.entries("ambiguous") == [("b", "b3", 0.1)]
        assert ledger.totals().total.reserved_usd == 0


# ---------------------------------------------------------------------------------------------------- several processes, kills
WORKER = """
import asyncio, pathlib, random, sys
from eagle3_assets.collect.money.desk import Desk
from eagle3_assets.collect.money.ledger import Ledger
path, name, kill_after = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
chance = random.Random(name)
journal = path.with_name(f"journal-{name}").open("w", buffering=1)
async def main(ledger):
    desk = Desk(ledger, lambda error: sys.exit(str(error)), lambda scope: None, hand_in_s=0.01)
    async def ask(n):
        scope = chance.choice(["b3", "b8"])
        refused = await desk.reserve(f"{name}-{n}", scope, 0.02)
        if refused is None: journal.write(f"+ {name}-{n}\\n")    # sent
        if kill_after and n >= kill_after: import os; os.kill(os.getpid(), 9)
        if refused is not None: return
        await asyncio.sleep(chance.random() / 500)
        how = chance.random()
        if how < 0.6:
            journal.write(f"= {name}-{n} 0.01\\n"); desk.settle(f"{name}-{n}", scope, 0.01)
        elif how < 0.8: journal.write(f"- {name}-{n}\\n"); desk.release(f"{name}-{n}")
        else: desk.keep(f"{name}-{n}")
    for n in range(0, 120, 6):
        await asyncio.gather(*(ask(n + k) for k in range(6)))
    await desk.close()
with Ledger(path, 2.0, caps={"b3": 1.1}) as ledger: asyncio.run(main(ledger))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_four_processes_and_a_kill_never_pass_a_limit_and_every_request_is_accounted_for(tmp_path: Path, seed: int) -> None:
    path, chance = tmp_path / "ledger.sqlite", random.Random(seed)
    kills = [chance.randint(1, 60), 0, 0, chance.randint(1, 60)]
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(path), f"{seed}{k}", str(kill)]) for k, kill in enumerate(kills)
    ]
    while any(worker.poll() is None for worker in workers):
        if path.exists() and path.stat().st_size:
            try:
                totals = read_totals(path)
            except StoreError:  # its tables are being made
                continue
            assert totals.total.committed_usd <= 2.0 + 1e-9
            assert "b3" not in totals.scopes or totals.scopes["b3"].committed_usd <= 1.1 + 1e-9
    assert [worker.returncode for worker in workers] == [-9, 0, 0, -9]
    with Ledger(path, 2.0) as ledger:
        assert ledger.totals().total.reserved_usd == 0 and ledger.totals().total.committed_usd <= 2.0 + 1e-9
        settled, ambiguous = ({e[0] for e in ledger.entries(state)} for state in ("settled", "ambiguous"))  # type: ignore[arg-type]
        for k in range(4):
            lines = [line.split() for line in (tmp_path / f"journal-{seed}{k}").read_text().splitlines()]
            sent, paid, free = ({words[1] for words in lines if words[0] == kind} for kind in "+=-")
            mine = {e for e in settled | ambiguous if e.startswith(f"{seed}{k}-")}
            assert sent - free <= mine  # whatever was sent and may be billed counts
            assert len(mine - sent) <= 6  # set aside and killed before it was sent: those of one round at most
            assert mine & settled <= paid and not settled & free
            if not kills[k]:
                assert mine & settled == paid and mine & ambiguous == sent - paid - free
    assert not list(tmp_path.glob("*.owner-*"))


def _die_with(path: Path, lines: str) -> None:
    """A process that leased 0.5 USD for b3, wrote `lines`, and was killed."""
    ledger = Ledger(path, 1.0)
    ledger.hand_in(Posting(wanted={"b3": (1, to_pico(0.5), 0)}))
    with ledger.owner.path.open("a") as handle:
        handle.write(lines)
    ledger._db.close()
    owner = ledger.owner
    owners.os.close(owner._fd)  # as the kernel does
    owner._fd = -1


def test_of_a_dead_lease_only_what_was_sent_is_held_and_what_was_settled_is_spent(tmp_path: Path) -> None:
    pico = to_pico(0.1)
    lines = f"+ {pico}\tb3\ta\n+ {pico}\tb3\tb\n= {to_pico(0.02)}\ta\n+ {pico}\tb3\tc\n- c\n+ {pico}\tb3\ttor"
    _die_with(tmp_path / "ledger.sqlite", lines)
    with Ledger(tmp_path / "ledger.sqlite", 1.0) as ledger:
        assert ledger.entries("ambiguous") == [("b", "b3", 0.1)] and ledger.entries("settled") == [("a", "b3", 0.02)]
        assert ledger.totals().total.committed_usd == pytest.approx(0.12)
        assert ledger.reconcile([an_answer(1, request_id="b", cost_usd=0.03)]) == 1
        assert ledger.totals().total.committed_usd == pytest.approx(0.05)


@pytest.mark.parametrize("how", ["another boot", "the file is gone"])
def test_after_a_power_loss_the_whole_lease_is_held_because_lines_may_be_missing(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    _die_with(path, f"+ {to_pico(0.1)}\tb3\ta\n")
    if how == "another boot":
        monkeypatch.setattr(owners, "boot_id", lambda: "another")
    else:
        next(tmp_path.glob("*.owner-*")).unlink()
    with Ledger(path, 1.0) as ledger:
        assert ledger.totals().total.ambiguous_usd == pytest.approx(0.5) and ledger.totals().total.reserved_usd == 0
        assert ("a", "b3", 0.1) in ledger.entries("ambiguous") or how != "another boot"
        assert not ledger.reserve("x", "b3", 0.51)


def test_what_was_in_flight_at_a_kill_is_known_although_the_ledger_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    _die_with(path, f"+ {to_pico(0.1)}\tb3\ta\n")
    for file in tmp_path.glob("ledger.sqlite*"):
        if ".owner-" not in file.name:
            file.unlink()
    with Ledger(path, 1.0) as ledger:
        assert ledger.take_over([]) == 1 and ledger.entries("ambiguous") == [("a", "b3", 0.1)]


@pytest.mark.slow
def test_eight_processes_open_a_new_ledger_at_the_same_moment(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\nfrom eagle3_assets.collect.money.ledger import Ledger\nsys.stdin.readline()\n"
        "with Ledger(pathlib.Path(sys.argv[1]), 1.0) as ledger: ledger.reserve(sys.argv[2], 'b3', 0.01)"
    )
    opened = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "ledger.sqlite"), str(n)], stdin=subprocess.PIPE)
        for n in range(8)
    ]
    for process in opened:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in opened:
        process.communicate()
    assert [process.returncode for process in opened] == [0] * 8


def test_a_process_that_was_refused_while_another_one_opened_the_new_file_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses the change to its log mode at once while another connection is about to write (no timeout holds for it)."""
    path, pauses = tmp_path / "ledger.sqlite", []
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as first:
        first.execute("CREATE TABLE note (x)")
        first.execute("BEGIN IMMEDIATE")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if first.in_transaction:
                first.execute("COMMIT")

        monkeypatch.setattr(ledger_module.time, "sleep", pause)
        with Ledger(path, 1.0) as ledger:
            assert ledger.reserve("a", "b3", 0.1) and pauses


def test_a_run_does_not_stop_on_a_refusal_that_is_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process held all the money when we were refused, and gives it back before we look whether anybody holds some."""

    async def story(d: Place, server: FakeOpenRouter) -> None:
        with Ledger(tmp_path / "ledger.sqlite", 0.02) as other:
            assert other.reserve("x", "b3_magicoder", 0.0195)
            real, sweeps = Ledger.sweep, list[Ledger]()

            def sweep(self: Ledger) -> int:
                if sweeps and self is not other:  # the first one is that of opening the ledger
                    other.release("x")
                sweeps.append(self)
                return real(self)

            monkeypatch.setattr(Ledger, "sweep", sweep)
            (result,) = await d.collect(server, d.job(prompts(5)))
            assert result.finished == 5

    run(tmp_path, story, limit_usd=0.02)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_two_desks_do_the_limit_holds_and_the_ledger_adds_up(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, path = random.Random(seed), tmp_path_factory.mktemp("desk") / "ledger.sqlite"

    async def main() -> None:
        with Ledger(path, 1.0, caps={"a": 0.5}) as one, Ledger(path, 1.0, caps={"a": 0.5}) as two:
            offices = [Office(one), Office(two)]
            flying: list[tuple[Office, str, str, float]] = []
            spent = 0.0
            for step in range(60):
                office = chance.choice(offices)
                what = chance.random()
                if what < 0.55:
                    scope, usd = chance.choice("ab"), chance.choice((0.01, 0.05, 0.2))
                    if await office.desk.reserve(f"r{step}", scope, usd) is None:
                        flying.append((office, f"r{step}", scope, usd))
                elif what < 0.9 and flying:
                    owner, request_id, scope, usd = flying.pop(chance.randrange(len(flying)))
                    how = chance.random()
                    if how < 0.6:
                        owner.desk.settle(request_id, scope, usd * chance.random())
                    elif how < 0.8:
                        owner.desk.release(request_id)
                    else:
                        owner.desk.keep(request_id)
                elif what > 0.95:
                    await office.desk.drain()
                totals = one.totals()
                assert totals.total.committed_usd <= 1.0 + 1e-9
                assert "a" not in totals.scopes or totals.scopes["a"].committed_usd <= 0.5 + 1e-9
                assert spent <= totals.total.committed_usd
            for office in offices:
                await office.desk.drain()
            held = sum(usd for *_, usd in flying)
            assert one.totals().total.reserved_usd == pytest.approx(held, abs=1e-9)
            for office in offices:
                await office.desk.close()
                assert not office.errors

    asyncio.run(main())
    with sqlite3.connect(path) as db:
        summed = db.execute("SELECT scope, state, SUM(pico) FROM entry GROUP BY scope, state HAVING SUM(pico)").fetchall()
        assert sorted(summed) == sorted(db.execute("SELECT * FROM total WHERE pico != 0").fetchall())
