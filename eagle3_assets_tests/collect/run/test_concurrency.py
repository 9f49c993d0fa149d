"""Claims about how many requests are in flight: refusals bend it, it recovers by itself, and nobody is hammered."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from eagle3_assets.collect.run import concurrency
from eagle3_assets.collect.run.concurrency import GROWTH_STEPS, Admission
from eagle3_assets.collect.run.outcomes import classify
from eagle3_assets.collect.servers.exchange import Exchange
from eagle3_assets_tests.collect.fake_openrouter import FakeOpenRouter
from eagle3_assets_tests.collect.run.test_collector import Desk, prompts, run
from eagle3_assets_tests.collect.samples import QUICK, a_campaign

HOLD = 0.05


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(concurrency.time, "monotonic", lambda: now[0])
    return now


def fill(a: Admission) -> list[float]:
    """Send while there is room; what was held before each."""
    before = []
    while a.has_room:
        a.in_flight += 1
        before.append(a.hold(HOLD))
    return before


def end(a: Admission, count: int = 1, *, is_answer: bool = False) -> None:
    for _ in range(count):
        a.let_go(HOLD)
        a.in_flight -= 1
        if is_answer:
            a.answered(HOLD)


def at_the_ceiling(a: Admission, held_usd: float, usd: float = HOLD) -> None:
    """A burst of refusals: where money is the limit, everything that follows is refused."""
    for _ in range(4):
        a.refused_for_money(held_usd, usd, None)


def test_a_burst_of_402_finds_the_ceiling_at_once_and_nothing_is_sent_until_retry_after(clock: list[float]) -> None:
    a = Admission(2000)
    before = fill(a)
    assert a.in_flight == 2000
    for held in reversed(before[1000:]):  # the account holds a thousand; the refusals come in any order
        a.refused_for_money(held, HOLD, 1.0)
        end(a)
    assert a.in_flight == 1000 and a.ceiling_usd == pytest.approx(950 * HOLD)
    end(a, 200, is_answer=True)
    assert not a.has_room
    clock[0] += 1.0
    assert 145 <= len(fill(a)) <= 160  # not the thousand that wait
    assert a.limit == 2000  # the number in flight was never what was refused


def test_the_money_ceiling_is_tried_again_now_and_then_and_goes_away(clock: list[float]) -> None:
    a = Admission(100)
    at_the_ceiling(a, 40 * HOLD)
    fill(a)
    assert a.in_flight == 38
    rounds = 0
    while a.in_flight < 100 and rounds < 500:
        end(a, a.in_flight, is_answer=True)
        fill(a)
        rounds += 1
    assert 4 <= rounds < 20  # 2 %, 4 %, 8 %, ... a round


def test_a_402_now_and_then_is_weather_far_from_a_known_ceiling_and_a_limit_close_to_it(clock: list[float]) -> None:
    a = Admission(2000)
    for _ in range(10):
        a.refused_for_money(50 * HOLD, HOLD, 5.0)
        for _ in range(100):
            a.answered(HOLD)
    assert a.ceiling_usd == float("inf") and a.has_room
    at_the_ceiling(a, 1000 * HOLD)
    for _ in range(100):
        a.answered(HOLD)
    known = a.ceiling_usd
    a.refused_for_money(500 * HOLD, HOLD, None)
    assert a.ceiling_usd == known
    a.refused_for_money(known - HOLD, HOLD, None)
    assert a.ceiling_usd < known


def test_a_false_ceiling_far_too_low_is_forgotten_within_some_rounds(clock: list[float]) -> None:
    a = Admission(2000)
    at_the_ceiling(a, 0.5, 0.05)
    rounds = 0
    while a.ceiling_usd < 100.0:  # two thousand requests of 0.05 USD
        for _ in range(int(a.ceiling_usd / 0.05)):
            a.answered(0.05)
        rounds += 1
    assert rounds <= 14


def test_one_request_is_always_tried(clock: list[float]) -> None:
    a = Admission(100)
    at_the_ceiling(a, 0.0)
    assert len(fill(a)) == 1
    end(a)
    assert a.held_usd == 0.0 and a.has_room


def test_requests_that_are_about_to_be_sent_count_already(clock: list[float]) -> None:
    a = Admission(100)
    at_the_ceiling(a, 20 * HOLD)
    a.hold(HOLD)
    a.in_flight += 1
    taken = 0
    while a.has_room:  # the dispatcher takes many before the first of them has asked for money
        a.in_flight += 1
        taken += 1
    assert taken == 18


def test_a_refusal_now_and_then_is_weather_and_a_third_of_them_is_a_limit(clock: list[float]) -> None:
    a = Admission(1000)
    a.in_flight = 1000
    for k in range(5000):
        clock[0] += 0.01
        a.refused() if k % 100 == 0 else a.answered()
    assert a.limit == 1000
    for k in range(300):
        clock[0] += 0.01
        a.refused() if k % 3 == 0 else a.answered()
    assert a.limit < 700


def test_a_refusal_for_load_shrinks_once_a_second_and_grows_back(clock: list[float]) -> None:
    a = Admission(1000)
    a.in_flight = 1000
    for _ in range(300):
        a.refused()
    assert a.limit == pytest.approx(700)
    clock[0] += 1.0
    a.refused()
    assert a.limit == pytest.approx(490)
    for _ in range(GROWTH_STEPS * 1000):
        a.answered()
    assert a.limit == 1000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0), ("0", 0.0), ("-5", 0.0), ("1.5", 1.5), ("999999999", 999999999.0), ("1e400", float("inf")), ("nan", None),
        ("", None), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Wed, 99 Foo 2015 07:28:00 GMT", None),
        ("in an hour", 3600.0), ("\x00", None), ("9" * 5000, float("inf")),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_as_a_date_and_nothing_breaks_it(value: str, seconds: float | None) -> None:
    value = formatdate(time.time() + 3600, usegmt=True) if value == "in an hour" else value
    found = classify(Exchange(429, {"retry-after": value}, b'{"error":{"code":429}}')).retry_after_s
    assert found == (pytest.approx(seconds, abs=5.0) if seconds == 3600.0 else seconds)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["429", "429_date", "402_in_flight"])
def test_a_server_that_asks_for_no_pause_gets_the_usual_one(tmp_path: Path, fault: str) -> None:
    """Retry-After 0, or a date that has passed, is no leave to ask again at once for ever."""

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": [fault] * 3}
        begun = time.monotonic()
        await d.collect(server, d.job(prompts(1)))
        assert server.asked["q0"] == 4 and time.monotonic() - begun > 0.2  # three pauses of 0 to 0.4 s, the same in every run

    run(tmp_path, story, pace=replace(QUICK, backoff_first=0.4, backoff_most=0.4))


@pytest.mark.slow
def test_an_account_that_holds_little_is_not_hammered_and_everything_is_answered(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.holds_most, server.takes_s, count = 20, 0.005, 600
        (result,) = await d.collect(server, d.job(prompts(count)))
        assert result.finished == count and max(server.asked.values()) <= 12
        # the opening burst of 100 finds 80 refusals; behind it only probes are refused
        assert server.refused_402 <= 80 + 0.15 * count, server.refused_402
        assert d.progress[-1].retries_429 == server.refused_402

    run(tmp_path, story, campaign=a_campaign(collect={"in_flight": 100}), limit_usd=100.0)


@pytest.mark.slow
def test_after_the_account_holds_more_again_the_number_in_flight_recovers(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.holds_most, server.takes_s = 10, 0.005
        task = asyncio.create_task(d.collect(server, d.job(prompts(3000))))
        await server.wait_until(lambda: len(server.requests) > 300)
        server.holds_most, server.peak = None, 0
        (result,) = await task
        assert result.finished == 3000 and server.peak >= 30, server.peak

    run(tmp_path, story, campaign=a_campaign(collect={"in_flight": 60}), limit_usd=100.0)


def test_refusals_come_before_the_answers_and_are_measured_by_what_was_sent(clock: list[float]) -> None:
    a = Admission(2000)
    fill(a)
    for _ in range(20):  # one in a hundred, and not one answer yet
        a.refused()
        a.refused_for_money(50 * HOLD, HOLD, 5.0)
        clock[0] += 2.0
    assert a.limit == 2000 and a.ceiling_usd == float("inf")
    for _ in range(200):
        a.refused()
    assert a.limit < 1500
