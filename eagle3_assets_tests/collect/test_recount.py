"""Claims about a lost ledger: what was paid is counted again from every journal before anything more is spent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets import store
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.recount import recount
from eagle3_assets.collect.servers.openrouter import build_request, most_it_can_cost, most_it_could_cost
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets.errors import BudgetStop, StoreError
from eagle3_assets.wire import journal
from eagle3_assets.wire.journal import Journal
from eagle3_assets_tests.collect.fake_openrouter import COST, FakeOpenRouter
from eagle3_assets_tests.collect.run.test_collector import Desk, prompts, run
from eagle3_assets_tests.collect.samples import a_campaign, a_dataset, a_prompt, a_snapshot, an_answer, an_endpoint, first_dataset

CAMPAIGN = a_campaign()
ROUTING = resolve(
    CAMPAIGN, a_snapshot(an_endpoint(pricing={"prompt": "0.00000044", "completion": "0.000002", "request": "0.003"}))
)
REQUEST = build_request(CAMPAIGN, first_dataset(CAMPAIGN), a_prompt(), ROUTING)
HELD = most_it_can_cost(REQUEST, ROUTING)


def write(folder: Path, *answers: Any) -> None:
    with Journal.open(folder) as opened:
        for answer in answers:
            opened.append(answer)


def a_paid_campaign(root: Path) -> None:
    """0.5 USD on the pilot, 0.3 on shards of two datasets, three answers whose price is not known."""
    lost: dict[str, Any] = {"outcome": "ambiguous", "cost_usd": None, "request": REQUEST, "reason": "timeout"}
    write(root / "pilot", an_answer(1, request_id="p1", cost_usd=0.5), an_answer(2, request_id="p2", **lost))
    write(
        root / "answers" / "b3_magicoder" / "00",
        an_answer(1, request_id="a1", cost_usd=0.1),
        an_answer(2, request_id="a2", cost_usd=0.1, outcome="failed", reason="empty"),
        an_answer(3, request_id="a3", cost_usd=None, request=REQUEST),  # finished, without a price
        an_answer(4, request_id="a4", cost_usd=0.0, outcome="failed"),
    )
    write(root / "answers" / "gone_from_the_campaign" / "15", an_answer(5, request_id="g1", cost_usd=0.1), an_answer(6, **lost))
    write(root / "answers" / "b1_glaive" / "00", an_answer(7, request_id="e1", source="engine", cost_usd=0.0))
    (root / "answers" / "b3_magicoder" / "closed.json").write_text("{}")


def open_ledger(root: Path, limit: float = 1.0) -> Ledger:
    return Ledger(root / "ledger.sqlite", limit, caps={"pilot": 2.0})


def count(ledger: Ledger, root: Path) -> str | None:
    return recount(ledger, pilot=root / "pilot", pilot_figures=root / "pilot.json", answers=root / "answers")


def lose(root: Path, how: str) -> None:
    (root / "ledger.sqlite").write_bytes(b"") if how == "emptied" else (root / "ledger.sqlite").unlink()


@pytest.mark.parametrize("how", ["emptied", "deleted"])
def test_a_lost_ledger_is_counted_again_from_all_journals_and_says_so(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_ledger(tmp_path) as ledger:
        assert count(ledger, tmp_path) is None  # a new campaign has nothing to say
    a_paid_campaign(tmp_path)
    lose(tmp_path, how)
    with open_ledger(tmp_path) as ledger:
        line = count(ledger, tmp_path)
        totals = ledger.totals()
        assert totals.total.spent_usd == pytest.approx(0.8) and totals.total.ambiguous_usd == pytest.approx(3 * HELD)
        assert totals.scopes["pilot"].spent_usd == 0.5 and totals.scopes["pilot"].ambiguous_usd == pytest.approx(HELD)
        assert totals.scopes["b3_magicoder"].spent_usd == pytest.approx(0.2)
        assert totals.scopes["gone_from_the_campaign"].committed_usd == pytest.approx(0.1 + HELD)
        assert not ledger.reserve("x", "b3_magicoder", 0.2)  # the approval is still spent
        assert line is not None and "counted again from 7 paid records of 4 journals: 0.8000 USD spent, 0.01" in line
        assert line in caplog.text and "\n" not in line
    with open_ledger(tmp_path) as ledger:
        assert ledger.is_whole and count(ledger, tmp_path) is None


def test_a_whole_ledger_is_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_paid_campaign(tmp_path)
    with open_ledger(tmp_path) as ledger:
        count(ledger, tmp_path)
    monkeypatch.setattr("eagle3_assets.collect.recount.read", lambda folder: pytest.fail("a journal was read"))
    with open_ledger(tmp_path) as ledger:
        assert count(ledger, tmp_path) is None


def test_a_ledger_that_knows_already_is_only_marked(tmp_path: Path) -> None:
    """One from before there was a mark: nothing is counted twice, and what a look-up found out is kept."""
    a_paid_campaign(tmp_path)
    with open_ledger(tmp_path, 10.0) as ledger:
        for request_id, scope, usd in (("p1", "pilot", 0.5), ("a1", "b3_magicoder", 0.1), ("a2", "b3_magicoder", 0.1)):
            ledger.settle(request_id, usd, scope=scope)
        ledger.settle("a3", 0.0007, scope="b3_magicoder")  # /generation said so
        ledger.reserve("p2", "pilot", 0.004)
        ledger.keep("p2")
        ledger.reserve("g1", "gone_from_the_campaign", 0.2)
        count(ledger, tmp_path)
        entries = {request_id: usd for state in ("settled", "ambiguous") for request_id, _, usd in ledger.entries(state)}  # type: ignore[arg-type]
        assert entries == {"p1": 0.5, "a1": 0.1, "a2": 0.1, "a3": 0.0007, "p2": 0.004, "g1": 0.1, "r6": pytest.approx(HELD)}
        assert ledger.is_whole


def test_the_bound_of_a_sent_request_is_the_one_it_was_reserved_with() -> None:
    assert most_it_could_cost(REQUEST) == pytest.approx(HELD, rel=1e-12) and HELD > 0.003
    for broken in ({}, {"provider": {}}, {**REQUEST, "provider": {"max_price": {"prompt": "x", "completion": 1}}}):
        with pytest.raises(ValueError):
            most_it_could_cost(broken)


def test_a_record_without_any_bound_is_refused_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "answers" / "b3" / "00", an_answer(1, cost_usd=None, outcome="ambiguous"))
    with open_ledger(tmp_path) as ledger:
        with pytest.raises(StoreError, match=r"b3/00: record r1 has no known price and states no max_price"):
            count(ledger, tmp_path)
        assert not ledger.is_whole


@pytest.mark.parametrize("harm", ["gone", "shorter"])
@pytest.mark.parametrize("whose", ["pilot", "answers/b3_magicoder/00"])
def test_a_committed_segment_that_is_missing_refuses(tmp_path: Path, harm: str, whose: str) -> None:
    a_paid_campaign(tmp_path)
    (tmp_path / "pilot.json").write_text("{}")
    (segment,) = journal.segments(tmp_path / whose)
    artifact = tmp_path / "pilot.json" if whose == "pilot" else tmp_path / whose
    store.commit(artifact, files=[segment], inputs={})
    write(tmp_path / whose, an_answer(90, request_id="later", cost_usd=0.01))  # appended after the commit: still fine
    with open_ledger(tmp_path) as ledger:
        assert count(ledger, tmp_path)
    lose(tmp_path, "deleted")
    if harm == "gone":
        segment.unlink()
    else:
        segment.write_bytes(segment.read_bytes().splitlines(keepends=True)[0])
    with open_ledger(tmp_path) as ledger:
        with pytest.raises(
            StoreError, match=rf"{segment.name}: is missing or shorter than .*manifest.json says, and the ledger is new"
        ):
            count(ledger, tmp_path)
        assert not ledger.is_whole  # and the next run refuses, too


def test_a_damaged_journal_refuses(tmp_path: Path) -> None:
    a_paid_campaign(tmp_path)
    (segment,) = journal.segments(tmp_path / "pilot")
    segment.write_bytes(segment.read_bytes().replace(b"timeout", b"timeour"))
    with open_ledger(tmp_path) as ledger, pytest.raises(StoreError, match=r"segment-000\.jsonl line 2: .*damage"):
        count(ledger, tmp_path)


HOLDER = """
import pathlib, sys
from eagle3_assets.collect.money.ledger import Ledger
ledger = Ledger(pathlib.Path(sys.argv[1]), 1.0)
ledger.reserve("theirs", "b3", 0.4)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_ledger_deleted_under_a_live_process_refuses_until_that_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3_assets.collect.recount.WAITS", 2)
    path = tmp_path / "ledger.sqlite"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with Ledger(path, 1.0) as ledger:
            assert count(ledger, tmp_path) is None  # beside each other on one file: no strangers
        for file in tmp_path.glob("ledger.sqlite*"):
            if ".owner-" not in file.name:
                file.unlink()
        with Ledger(path, 1.0) as ledger, pytest.raises(StoreError, match=rf"a live process .pid {holder.pid}. still spends"):
            count(ledger, tmp_path)
        holder.kill()
        holder.wait()
    with Ledger(path, 1.0) as ledger:
        assert count(ledger, tmp_path) is None and ledger.is_whole


def test_a_budget_that_was_spent_stays_spent_when_the_ledger_is_lost_and_another_shard_is_run(tmp_path: Path) -> None:
    """The finding as it was met: spend by shard 00, empty the ledger, run shard 01."""

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["cut"], "q1": ["no_usage"]}
        with pytest.raises(BudgetStop):
            await d.collect(server, d.job(prompts(60), "00"))
        before, asked = d.totals.committed_usd, len(server.requests)
        assert before > 0.02 - 0.0025 - COST
        lose(tmp_path, "emptied")
        with Ledger(tmp_path / "ledger.sqlite", d.limit_usd) as ledger:
            assert count(ledger, tmp_path)
            assert ledger.totals().total.committed_usd == pytest.approx(before)
        with pytest.raises(BudgetStop):
            await d.collect(server, d.job(prompts(60, "other"), "01"))
        assert server.spent <= d.totals.committed_usd <= 0.02 and len(server.requests) == asked

    run(tmp_path, story, limit_usd=0.02, campaign=a_campaign(a_dataset(), collect={"attempts": 1}))
