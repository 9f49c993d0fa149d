"""Busy endpoints: buckets, slots, queues, outages, and the order in which endpoints are tried."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from eagle3_assets_tests.standin.conftest import TOOL, MakeStandin, chat, connected, only, settings
from openrouter_standin.clock import Clock
from openrouter_standin.openrouter.traffic import Bucket, Slots, Traffic
from openrouter_standin.profiles import Profiles
from openrouter_standin.schema.provider import Provider
from openrouter_standin.schema.server import Limits, Money
from openrouter_standin.service.server import Standin


def with_first(changes: dict[str, Any], **server: Any) -> Profiles:
    """The built-in profiles with `Verbatim` changed."""
    profiles = settings(**server)
    first = profiles.provider[0].model_copy(update={"shed_rate": 0.0, **changes})
    return profiles.model_copy(update={"provider": (first, *profiles.provider[1:])})


def turned(standin: Standin, now: list[float]) -> None:
    standin.gateway.clock.now = lambda: now[0]
    standin.gateway.clock.begun = 0.0


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(per_s=2.0, burst=3)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait_s() == 0.5
    assert [bucket.take(0.5), bucket.take(0.5), bucket.take(100.0)] == [True, False, True]
    assert sum(bucket.take(100.0) for _ in range(9)) == 2  # never more than the burst


def test_slots_go_round_in_order_of_arrival_and_survive_who_gives_up() -> None:
    async def run() -> None:
        slots = Slots(1)
        first, second, third = slots.take(), slots.take(), slots.take()
        assert (first.done(), second.done(), slots.queued) == (True, False, 2)
        slots.give(second)  # it gave up while it waited
        slots.give(first)
        assert third.done() and slots.queued == 0
        slots.give(third)
        assert slots.free == 1 and slots.take().done()

    asyncio.run(run())


def test_slots_that_shrink_serve_fewer_and_that_grow_wake_who_waits() -> None:
    async def run() -> None:
        slots = Slots(2)
        held = [slots.take() for _ in range(4)]
        slots.resize(1)
        slots.give(held[0])
        assert not held[2].done()  # one holder is left, and that is all there is now
        slots.resize(3)
        assert held[2].done() and held[3].done() and slots.free == 0

    asyncio.run(run())


def test_who_leaves_an_endpoint_that_has_shrunk_since_gives_back_one_slot_of_the_smaller_one() -> None:
    async def run() -> None:
        traffic = Traffic(Clock(1.0))
        before = settings().provider[0].model_copy(update={"capacity": 3})
        after = before.model_copy(update={"capacity": 1})

        def take(provider: Provider) -> asyncio.Future[None]:
            slots = traffic.slots(provider)
            assert slots is not None
            return slots.take()

        old, new = [take(before) for _ in range(3)], [take(after) for _ in range(3)]
        for slot in old[:2]:
            traffic.give_back(before, slot)
        assert [slot.done() for slot in new] == [False] * 3  # one of the old ones still holds the only slot
        traffic.give_back(before, old[2])
        assert [slot.done() for slot in new] == [True, False, False]

    asyncio.run(run())


def test_an_empty_bucket_passes_the_request_on_and_refuses_it_when_nobody_is_left(make_standin: MakeStandin) -> None:
    standin = make_standin(with_first({"requests_per_s": 0.5, "burst": 1}, time_scale=0.0))
    now = [0.0]
    turned(standin, now)

    async def run() -> None:
        async with connected(standin) as client:
            order = {"provider": {"order": ["verbatim", "stripper"]}}
            providers = [json.loads((await client.post(chat(f"{k}", **order)))[2])["provider"] for k in range(3)]
            assert providers == ["Verbatim", "Stripper", "Stripper"]
            status, headers, raw = await client.post(chat("alone", **only("verbatim")))
            error = json.loads(raw)["error"]
            assert status == 429 and error["availability"]["code"] == "capacity_exhausted"
            assert int(headers["retry-after"]) == error["availability"]["retry_after"] >= 1
            now[0] = 2.0
            assert (await client.post(chat("alone", **only("verbatim"))))[0] == 200

    asyncio.run(run())


def test_what_openrouter_itself_refuses_takes_nothing_from_the_bucket_of_an_endpoint(make_standin: MakeStandin) -> None:
    first = {"requests_per_s": 0.001, "burst": 2}
    standin = make_standin(with_first(first, credit_usd=0.01, money=Money(in_flight_share=0.5)))
    turned(standin, [0.0])

    async def run() -> None:
        async with connected(standin) as client:
            for max_tokens, word in ((60_000, "can only afford"), (4_000, "in-flight budget")):
                for k in range(3):
                    status, _, raw = await client.post({**chat(f"{k}", **only("verbatim")), "max_tokens": max_tokens})
                    assert status == 402 and word in json.loads(raw)["error"]["message"]
            small = [(await client.post({**chat(f"{k}", **only("verbatim")), "max_tokens": 20}))[0] for k in range(3)]
            assert small == [200, 200, 429]

    asyncio.run(run())


def test_a_hint_is_given_only_when_every_endpoint_gave_one(make_standin: MakeStandin) -> None:
    profiles = settings()
    full = profiles.provider[0].model_copy(update={"requests_per_s": 0.001, "burst": 1, "shed_rate": 0.0})
    down = profiles.provider[1].model_copy(update={"outages": ((0.0, 1e9),), "shed_rate": 0.0})
    standin = make_standin(profiles.model_copy(update={"provider": (full, down)}))

    async def run() -> None:
        async with connected(standin) as client:
            assert (await client.post(chat("first")))[0] == 200
            status, headers, raw = await client.post(chat("second", provider={"order": ["verbatim", "injector"]}))
            assert status == 503 and "retry-after" not in headers
            error = json.loads(raw)["error"]
            assert error["availability"]["affected_providers"] == ["Verbatim", "Injector"]
            assert "retry_after" not in error["availability"]

    asyncio.run(run())


def test_a_full_endpoint_makes_requests_wait_and_a_full_queue_turns_them_away(make_standin: MakeStandin) -> None:
    standin = make_standin(with_first({"capacity": 2, "max_queue": 3}, time_scale=0.02))

    async def run() -> list[int]:
        async with connected(standin) as client:
            return [a[0] for a in await asyncio.gather(*(client.post(chat(f"{k}", **only("verbatim"))) for k in range(12)))]

    seen = asyncio.run(run())
    assert seen.count(200) == 5 and seen.count(429) == 7
    slots = standin.gateway.traffic.slots(standin.generator.profiles.provider[0])
    assert slots is not None and slots.free == 2 and slots.queued == 0


def test_who_waits_for_a_slot_takes_longer_by_the_answer_before_it(make_standin: MakeStandin) -> None:
    """One slot, three answers: the last ends after all three durations, in simulated seconds."""
    standin = make_standin(with_first({"capacity": 1}, time_scale=0.01))

    async def run() -> float:
        loop = asyncio.get_running_loop()
        async with connected(standin) as client:
            begun = loop.time()
            await asyncio.gather(*(client.post(chat(f"{k}", **only("verbatim"))) for k in range(3)))
            return loop.time() - begun

    took_s = asyncio.run(run())
    assert took_s >= 0.01 * sum(account["duration_s"] for account in standin.ledger.generations.values())


def test_an_outage_is_avoided_for_thirty_seconds_after_its_end(make_standin: MakeStandin) -> None:
    """BaseTen aside, Verbatim is the cheapest and gets most requests; in and after its outage it gets none that another can serve."""
    standin = make_standin(with_first({"outages": ((100.0, 110.0),)}))
    now = [0.0]
    turned(standin, now)

    async def share(at: float) -> float:
        now[0] = at
        async with connected(standin) as client:
            bodies = [(await client.post(chat(f"{at}/{k}", provider={"ignore": ["baseten"]})))[2] for k in range(60)]
        return sum(json.loads(body)["provider"] == "Verbatim" for body in bodies) / 60

    shares = [asyncio.run(share(at)) for at in (0.0, 105.0, 139.0, 141.0)]
    assert shares[0] > 0.2 and shares[1:3] == [0.0, 0.0] and shares[3] > 0.2


def test_the_platform_limit_has_its_own_headers(make_standin: MakeStandin) -> None:
    standin = make_standin(settings(limits=Limits(requests_per_s=1.0, burst=2)))
    turned(standin, [0.0])

    async def run() -> list[tuple[int, bool]]:
        async with connected(standin) as client:
            answers = [await client.post(chat(f"{k}")) for k in range(3)]
            assert all("x-ratelimit-limit" not in headers for status, headers, _ in answers if status == 200)
            return [(status, "x-ratelimit-reset" in headers) for status, headers, _ in answers]

    assert asyncio.run(run()) == [(200, False), (200, False), (429, True)]


def test_requests_with_tools_go_to_the_better_caller_unless_sorted_by_price(make_standin: MakeStandin) -> None:
    standin = make_standin(with_first({"tool_quality": 0.5}))

    async def run() -> None:
        async with connected(standin) as client:

            async def served(**more: Any) -> set[str]:
                return {json.loads((await client.post(chat(f"{k}", **more)))[2])["provider"] for k in range(20)}

            assert "Verbatim" in await served(provider={"ignore": ["baseten"]})
            assert "Verbatim" not in await served(tools=[TOOL], provider={"ignore": ["baseten"]})
            by_price = await served(tools=[TOOL], provider={"ignore": ["baseten"], "sort": "price"})
            assert by_price == {"Verbatim"}
            assert await served(model="eagle3/kimi-mini:floor", provider={"ignore": ["baseten"]}) == {"Verbatim"}

    asyncio.run(run())


def test_a_session_stays_with_its_provider(make_standin: MakeStandin) -> None:
    standin = make_standin(with_first({}))

    async def run() -> None:
        async with connected(standin) as client:
            for session in ("a", "b", "c"):
                bodies = [
                    (await client.post(chat(f"{k}", session_id=session, provider={"ignore": ["injector"]})))[2] for k in range(8)
                ]
                assert len({json.loads(body)["provider"] for body in bodies}) == 1

    asyncio.run(run())


def test_a_provider_changes_in_mid_run_and_truth_names_the_version(make_standin: MakeStandin) -> None:
    profiles = settings()
    change = {"after_answers": 3, "price_completion": 3.5, "billing": {"counts_end": False}}
    keys = {**profiles.provider[0].model_dump(exclude_unset=True), "change": [change]}
    first = Provider.model_validate(keys)
    standin = make_standin(profiles.model_copy(update={"provider": (first,)}))

    async def run() -> None:
        async with connected(standin) as client:
            for k in range(5):
                await client.post(chat(f"{k}"))
            _, catalogue = await client.get("/api/v1/models/eagle3/kimi-mini/endpoints")
            assert catalogue["data"]["endpoints"][0]["pricing"]["completion"] == "0.0000035"

    asyncio.run(run())
    versions = [standin.ledger.truth_of(key)["profile"] for key in standin.ledger.generations]  # type: ignore[index]
    assert versions == ["verbatim/int4"] * 3 + ["verbatim/int4#1"] * 2
