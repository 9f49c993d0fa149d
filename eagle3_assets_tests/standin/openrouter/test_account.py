"""The account: what it shows late, what it holds back, what others spend, and that none of it changes what an answer costs."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import FakeAnswer, MakeStandin, chat, connected, only, settings, spell
from openrouter_standin.clock import Clock
from openrouter_standin.profiles import PICO, Profiles
from openrouter_standin.schema.server import ForeignSpend, Money
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Vocabulary

ENOUGH = {"provider": {"only": ["verbatim"], "allow_fallbacks": False}}


def money(server: dict[str, Any] | None = None, **keys: Any) -> Profiles:
    return settings(money=Money(**keys), **(server or {}))


class Time:
    """A clock that a test turns."""

    def __init__(self, standin: Standin) -> None:
        self.now = 0.0
        standin.gateway.clock.now = lambda: self.now
        standin.gateway.clock.begun = 0.0


def test_credits_repeat_an_old_value_until_the_cache_is_over(make_standin: MakeStandin) -> None:
    standin = make_standin(money(credits_stale_s=60.0))
    time = Time(standin)

    async def run() -> None:
        async with connected(standin) as client:

            async def shown() -> float:
                return float((await client.get("/api/v1/credits"))[1]["data"]["total_usage"])

            assert await shown() == 0
            await client.post(chat("a", **ENOUGH))
            time.now = 59.0
            assert await shown() == 0
            assert (await client.get("/api/v1/key"))[1]["data"]["usage"] > 0
            time.now = 60.0
            assert await shown() == standin.ledger.spent_pico / PICO > 0

    asyncio.run(run())


def test_credits_of_several_caches_jump_and_go_back(make_standin: MakeStandin) -> None:
    standin = make_standin(money(credits_stale_s=60.0, credits_nodes=2, foreign_usd_per_s=0.01))
    time = Time(standin)
    shown = []
    for second in range(0, 300, 7):
        time.now = float(second)
        shown.append(standin.gateway.account.shown_credits_pico())
    assert any(later < earlier for earlier, later in itertools.pairwise(shown))
    assert all(value <= standin.gateway.account.usage_pico for value in shown)  # late, never ahead
    assert shown[-1] > 0


def test_after_a_restart_no_cache_shows_less_than_what_was_spent_before(make_standin: MakeStandin) -> None:
    standin = make_standin(money(foreign=(ForeignSpend(at_s=0.0, usd=1.5),)))
    assert standin.gateway.account.usage_pico == round(1.5 * PICO)
    standin.ledger.close()
    again = make_standin(money(credits_stale_s=60.0, credits_nodes=3))
    assert [again.gateway.account.shown_credits_pico() for _ in range(6)] == [round(1.5 * PICO)] * 6


def test_credits_can_refuse_the_inference_key(make_standin: MakeStandin) -> None:
    standin = make_standin(money(credits_need_management_key=True))
    standin.management_key = "sk-standin-mgmt-test"

    async def run() -> None:
        async with connected(standin) as client:
            assert (await client.get("/api/v1/credits"))[0] == 403
            assert (await client.get("/api/v1/credits", key="sk-standin-mgmt-test"))[0] == 200
            assert (await client.get("/api/v1/credits", key="wrong"))[0] == 401
            assert (await client.get("/api/v1/key"))[0] == 200
            status, _, _ = await client.post(chat("a"), key="sk-standin-mgmt-test")
            assert status == 401  # a management key does not infer

    asyncio.run(run())


@pytest.mark.parametrize("on_this_key", [True, False])
def test_foreign_spend_is_shown_and_survives_a_restart(on_this_key: bool, make_standin: MakeStandin) -> None:
    foreign = (ForeignSpend(at_s=10.0, usd=1.5), ForeignSpend(at_s=20.0, usd=0.5))
    standin = make_standin(money(foreign=foreign, foreign_on_this_key=on_this_key))
    time = Time(standin)
    account = standin.gateway.account
    assert account.usage_pico == 0
    time.now = 12.0
    assert account.usage_pico == round(1.5 * PICO)
    time.now = 30.0
    assert account.balance_pico == 23 * PICO
    assert account.key_usage_pico == (2 * PICO if on_this_key else 0)
    assert standin.ledger.spent_pico == 0  # not ours
    standin.ledger.close()
    assert Ledger(standin.ledger.folder).foreign_pico == 2 * PICO


def test_running_requests_hold_money_and_the_next_one_is_told_to_wait(make_standin: MakeStandin) -> None:
    """4,000 tokens at 1.80 USD per million are 0.0072 USD: two of them fit into 1 % of 1.5 USD."""
    standin = make_standin(
        money({"credit_usd": 1.5, "time_scale": 0.1}, in_flight_share=0.01, settlement_s=0.0, in_flight_retry_after_s=3)
    )

    async def run() -> None:
        async with connected(standin) as client:
            held, hold, account = asyncio.Semaphore(0), standin.gateway.account.hold, standin.gateway.account
            account.hold = lambda pico: (held.release(), hold(pico))[1]  # type: ignore[method-assign]
            tasks = [asyncio.create_task(client.post(chat(f"{k}", **only("verbatim")))) for k in range(2)]
            await held.acquire()
            await held.acquire()
            status, headers, raw = await client.post(chat("third", **only("verbatim")))
            assert (status, headers["retry-after"]) == (402, "3")
            metadata = json.loads(raw)["error"]["metadata"]
            assert metadata["limit_source"] == "openrouter_in_flight_budget"
            assert metadata["reason"] == "in_flight_budget_exhausted"
            assert [(await task)[0] for task in tasks] == [200, 200]
            assert (await client.post(chat("third", **only("verbatim"))))[0] == 200
            heavy = {**chat("heavy", **only("verbatim")), "max_tokens": 12_000}
            status, _, raw = await client.post(heavy)
            assert status == 402 and json.loads(raw)["error"]["metadata"]["reason"] == "weight_exceeds_budget"

    asyncio.run(run())
    assert standin.gateway.account.in_flight_pico == 0


def test_the_actual_cost_stays_held_for_the_settlement_window(make_standin: MakeStandin) -> None:
    standin = make_standin(money(in_flight_share=0.5, settlement_s=2.0))
    time, account = Time(standin), standin.gateway.account
    hold = account.hold(5_000)
    account.release(hold, 700)
    assert account.in_flight_pico == 700
    time.now = 1.9
    assert account.in_flight_pico == 700
    time.now = 2.0
    assert account.in_flight_pico == 0


@pytest.mark.parametrize("status", [402, 403])
def test_a_spent_key_limit_stops_requests_while_the_account_has_money(status: int, make_standin: MakeStandin) -> None:
    standin = make_standin(money(key_limit_usd=0.0073, key_limit_status=status))

    async def run() -> list[int]:
        seen = []
        async with connected(standin) as client:
            while len(seen) < 200 and (not seen or seen[-1] == 200):
                seen.append((await client.post(chat(f"{len(seen)}", **only("verbatim"))))[0])
            _, key = await client.get("/api/v1/key")
            assert key["data"]["limit"] == 0.0073
            assert key["data"]["limit_remaining"] == pytest.approx(0.0073 - standin.ledger.spent_pico / PICO)
            standin.ledger.spend_foreign(PICO)  # the limit is gone altogether
            _, _, raw = await client.post(chat("last", **only("verbatim")))
            assert json.loads(raw)["error"]["code"] == status
            assert json.loads(raw)["error"]["metadata"]["limit_source"] == "openrouter_key_limit"
        return seen

    seen = asyncio.run(run())
    assert seen[0] == 200 and seen[-1] == 402  # first the pre-authorisation: max_tokens no longer fits
    assert standin.gateway.account.balance_pico > 20 * PICO - PICO


def test_requests_in_flight_together_may_overdraw_the_account(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    """Each is checked against the whole balance before any of them is charged (docs/research/openrouter-contract.md#2.4: a
    negative balance)."""
    long = FakeAnswer(spell(vocabulary, " a" * 1500, "b"))
    standin = make_standin(money({"credit_usd": 0.008, "time_scale": 0.01}), bank=(long,))

    async def run() -> list[int]:
        async with connected(standin) as client:
            tasks = (client.post(chat(f"{k}", **only("verbatim"))) for k in range(10))
            return [answer[0] for answer in await asyncio.gather(*tasks)] + [(await client.post(chat("after")))[0]]

    assert asyncio.run(run()) == [200] * 10 + [402]
    assert standin.gateway.account.balance_pico < 0


@pytest.mark.slow
def test_an_account_without_holds_never_holds(make_standin: MakeStandin) -> None:
    standin = make_standin()

    async def run() -> None:
        async with connected(standin) as client:
            await asyncio.gather(*(client.post(chat(f"{k}")) for k in range(20)))

    asyncio.run(run())
    assert standin.gateway.account.in_flight_budget_pico is None and standin.gateway.account.in_flight_pico == 0


def test_a_clock_counts_simulated_seconds() -> None:
    now = [100.0]
    clock = Clock(0.02, now=lambda: now[0])
    now[0] += 1.0
    assert clock.now_s == pytest.approx(50.0) and clock.real(50.0) == pytest.approx(1.0)
    still = Clock(0.0, now=lambda: now[0])
    now[0] += 3.0
    assert still.now_s == pytest.approx(3.0) and still.real(50.0) == 0.0
