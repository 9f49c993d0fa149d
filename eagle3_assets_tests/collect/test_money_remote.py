"""Claims about money as the server tells it: lost prices are asked for until they are found or given up, over restarts; usage figures
that lag, jump or hold other people's money change nothing of ours.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.collect.money import look_ups
from eagle3_assets.collect.money.account import read_account
from eagle3_assets.collect.money.amounts import PICO
from eagle3_assets.collect.money.desk import Desk
from eagle3_assets.collect.money.ledger import Ledger, to_pico
from eagle3_assets.collect.money.look_ups import MOST_TRIES, LookUp
from eagle3_assets.collect.money.reconcile import Reconciliation, Remote, source_name
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.exchange import new_session
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.errors import BudgetStop
from eagle3_assets.wire.journal import Journal
from eagle3_assets_tests.collect.fake_openrouter import COST, FakeOpenRouter
from eagle3_assets_tests.collect.run.test_collector import Desk as Place
from eagle3_assets_tests.collect.run.test_collector import prompts, run
from eagle3_assets_tests.collect.samples import KEY, QUICK, a_campaign, a_dataset, an_answer, everything_written

SLOW = replace(QUICK, look_up=0.02)  # a run ends after the two tries at once


# ---------------------------------------------------------------------------------------------------- prices looked up later
def test_a_price_that_is_not_there_yet_is_asked_for_by_the_next_run(tmp_path: Path) -> None:
    async def story(d: Place, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["cut"]}
        await d.collect(server, d.job(prompts(3)))
        held = d.totals.ambiguous_usd
        assert held > 0.002 and len(server.generation_asks) >= 2
        with Ledger(tmp_path / "ledger.sqlite", 1.0) as ledger:
            (look,) = look_ups.read_open(ledger)
            assert look.tries >= 2 and look.scope == "b3_magicoder"
        server.generations = {look.generation_id: 0.0007}
        await d.collect(server, d.job(prompts(3)))  # nothing is left to ask, but for that price
        assert len(server.requests) == 4 and d.totals.ambiguous_usd == 0
        assert d.totals.spent_usd == pytest.approx(3 * COST + 0.0007)
        before = len(server.generation_asks)
        await d.collect(server, d.job(prompts(3)))
        assert len(server.generation_asks) == before

    run(tmp_path, story, pace=SLOW)


def test_a_price_that_nobody_ever_tells_becomes_unknown_spend_and_is_asked_for_no_more(tmp_path: Path) -> None:
    async def story(d: Place, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["cut"]}
        for n in range(MOST_TRIES + 3):
            await d.collect(server, d.job(prompts(1)))
            account = read_account(tmp_path / "ledger.sqlite")
            assert n or account.unknown_usd == 0 < account.totals.total.ambiguous_usd
        assert len(server.generation_asks) == MOST_TRIES
        account = read_account(tmp_path / "ledger.sqlite")
        assert account.unknown_requests == 1 and account.unknown_usd == pytest.approx(account.totals.total.ambiguous_usd)

    run(tmp_path, story, pace=SLOW)


def test_a_run_without_money_first_asks_for_what_earlier_runs_lost(tmp_path: Path) -> None:
    """0.004 USD: one reservation (0.0024) is held for a lost answer, and only its price lets the rest be bought."""

    async def story(d: Place, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["cut"]}
        with pytest.raises(BudgetStop):
            await d.collect(server, d.job(prompts(3)))
        assert len(server.requests) == 1
        server.generations = {"gen-1": COST}
        (result,) = await d.collect(server, d.job(prompts(3)))
        assert result.finished == 3 and d.totals.spent_usd == pytest.approx(4 * COST)

    run(tmp_path, story, pace=SLOW, limit_usd=0.004, campaign=a_campaign(collect={"attempts": 1, "in_flight": 1}))


def test_the_generation_id_of_an_answer_that_only_the_journal_knows_is_asked_for_after_a_kill(tmp_path: Path) -> None:
    async def story(d: Place, server: FakeOpenRouter) -> None:
        with Ledger(tmp_path / "ledger.sqlite", 1.0) as ledger:  # journaled, killed before the ledger heard of the loss
            ledger.reserve("r7", "b3_magicoder", 0.003)
        with Journal.open(d.folder()) as opened:
            opened.append(
                an_answer(7, request_id="r7", outcome="ambiguous", cost_usd=None, generation_id="gen-old", reason="reset")
            )
        server.generations = {"gen-old": 0.0011}
        await d.collect(server, d.job(prompts(1)))
        assert d.totals.spent_usd == pytest.approx(COST + 0.0011) and d.totals.ambiguous_usd == 0

    run(tmp_path, story)


def test_a_stopped_run_asks_nothing_and_leaves_the_look_ups_to_the_next(tmp_path: Path) -> None:
    async def story(d: Place, server: FakeOpenRouter) -> None:
        server.scripts = {f"q{n}": ["hang"] for n in range(4)}
        task = asyncio.create_task(d.collect(server, d.job(prompts(4))))
        await server.wait_until(lambda: server.in_flight == 4)
        await asyncio.sleep(0.05)  # the headers, with their generation ids, arrive
        d.stop.set()
        await task
        assert server.generation_asks == [] and d.totals.ambiguous_usd > 0.008
        server.scripts, server.generations, d.stop = {}, {f"gen-{n}": 0.0002 for n in range(1, 5)}, asyncio.Event()
        await d.collect(server, d.job(prompts(4)))
        assert d.totals.ambiguous_usd == 0 and d.totals.spent_usd == pytest.approx(4 * COST + 4 * 0.0002)

    run(tmp_path, story)


def test_pauses_between_look_ups_grow_and_end() -> None:
    look, now, pauses = LookUp("r", "gen", "b3"), 0.0, []
    while look.next_at is not None:
        look = look.after_a_miss(now, 2.0)
        pauses.append(None if look.next_at is None else look.next_at - now)
        now = look.next_at or now
    assert pauses[-1] is None and len(pauses) == MOST_TRIES
    known = [pause for pause in pauses if pause is not None]
    assert known == sorted(known) and known[0] == 2.0 and 3600 < sum(known) < 3 * 3600


# ---------------------------------------------------------------------------------------------------- usage figures
def test_usage_of_the_key_is_seen_from_the_first_contact_on_and_money_of_others_is_shown_as_theirs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(d: Place, server: FakeOpenRouter) -> None:
        server.usages = [50.0, 50.001, 50.75, 50.2]  # somebody else spends 0.75, then a stale cache answers
        server.gate = asyncio.Event()
        task = asyncio.create_task(d.collect(server, d.job(prompts(8))))
        await server.wait_until(lambda: server.looks["key"] >= 5)
        server.gate.set()
        (result,) = await task
        assert result.finished == 8  # nothing of it stops a run
        account = read_account(tmp_path / "ledger.sqlite")
        assert account.foreign_usd == pytest.approx(0.75, abs=0.03) and account.totals.total.spent_usd == pytest.approx(8 * COST)
        assert d.progress[-1].foreign_usd == account.foreign_usd and account.account_foreign_usd is None
        assert server.looks["credits"] == 1  # refused once, not asked again
        assert "were spent on this key by somebody else" in caplog.text and KEY not in caplog.text

    with caplog.at_level(logging.WARNING):
        run(tmp_path, story)


def test_credits_that_lag_and_jump_back_neither_stop_a_run_nor_free_money(tmp_path: Path) -> None:
    async def story(d: Place, server: FakeOpenRouter) -> None:
        chance = random.Random(1)
        server.usages = [chance.choice((0.0, 3.0, 90.0)) for _ in range(400)]
        server.credits = [chance.choice((0.0, 3.0, 90.0)) for _ in range(400)]
        with pytest.raises(BudgetStop, match=r"limit 0\.02 USD in all"):
            await d.collect(server, d.job(prompts(100)))
        assert server.looks["credits"] > 2
        assert server.spent == pytest.approx(d.totals.spent_usd) and 0.02 - 0.0025 - COST < d.totals.committed_usd <= 0.02

    run(tmp_path, story, limit_usd=0.02, campaign=a_campaign(collect={"in_flight": 1}))


def test_a_key_that_answers_nothing_sensible_changes_nothing(tmp_path: Path) -> None:
    async def story(d: Place, server: FakeOpenRouter) -> None:
        server.usages = ["much", None, -3.0, True, 1e300, float("1e9")] * 20  # type: ignore[list-item]
        (result,) = await d.collect(server, d.job(prompts(20)))
        assert result.finished == 20 and read_account(tmp_path / "ledger.sqlite").foreign_usd is None

    run(tmp_path, story)


def test_figures_survive_a_restart_and_another_key_begins_anew(tmp_path: Path) -> None:
    async def look(usages: list[float], key: str = KEY, spend: float = 0.0) -> None:
        async with FakeOpenRouter() as server, new_session() as session:
            with Ledger(tmp_path / "ledger.sqlite", 10.0) as ledger:
                if spend:
                    ledger.settle(f"r{spend}", spend, scope="b3")
                desk = Desk(ledger, lambda error: None, lambda scope: None)
                watch = Reconciliation(ledger, desk, Servers(server.base_url, ApiKey(key)), QUICK, lambda error: None)
                for usage in usages:
                    server.usages = [usage]
                    await watch.look(session)
                await desk.close()

    path = tmp_path / "ledger.sqlite"
    asyncio.run(look([100.0]))
    asyncio.run(look([100.0], spend=2.0))
    assert read_account(path).lag_usd == pytest.approx(2.0) and read_account(path).foreign_usd == 0
    asyncio.run(look([103.5, 101.0]))
    assert read_account(path).foreign_usd == pytest.approx(1.5) and read_account(path).lag_usd == 0
    asyncio.run(look([102.0], spend=1.0))
    assert read_account(path).foreign_usd == pytest.approx(1.5)  # a stale read takes nothing back
    asyncio.run(look([7.0, 7.0], key="sk-or-v1-another"))
    assert read_account(path).foreign_usd == 0.0
    assert KEY.encode() not in everything_written(tmp_path) and KEY[:12] not in source_name("key", ApiKey(KEY))


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**13)), min_size=1))
def test_money_of_others_never_shrinks_and_never_exceeds_what_was_seen_to_grow(readings: list[tuple[int, int]]) -> None:
    remote, ours = Remote("key x", 5 * PICO, 0, 5 * PICO, 0, 0.0), 0
    for usage, spent in readings:
        ours = max(ours, spent)
        after = remote.after(usage, ours, 1.0)
        assert after.others >= remote.others and after.seen >= remote.seen
        assert after.others <= after.seen - after.baseline
        remote = after


def test_what_may_be_ours_is_never_called_foreign() -> None:
    """Requests in flight may be billed before we hear of it: their reservations are ours."""
    remote = Remote("key x", 0, 0, 0, 0, 0.0)
    assert remote.after(to_pico(10.0), to_pico(10.0), 1.0).others == 0
    assert remote.after(to_pico(10.009), to_pico(10.0), 1.0).others == 0  # refunds come late
    assert remote.after(to_pico(11.0), to_pico(10.0), 1.0).others == to_pico(1.0)


def test_no_server_is_asked_for_money_where_nothing_is_bought(tmp_path: Path) -> None:
    campaign = a_campaign(a_dataset("b1_glaive", "engine"), engine=({"kind": "vllm", "base_url": "embedded"},))

    async def story(d: Place, server: FakeOpenRouter) -> None:
        await d.collect(server, d.job(prompts(3, dataset="b1_glaive"), "00", "b1_glaive"))
        assert server.looks == {"key": 0, "credits": 0}

    run(tmp_path, story, campaign=campaign)
