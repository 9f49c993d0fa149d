"""Claims about routing: who may answer, why not, what is sent, and that no price can pass the reservation's bound."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.collect import routing
from eagle3_assets.errors import WireError

from .fake_openrouter import FakeOpenRouter
from .samples import MODEL, a_campaign, a_snapshot, an_endpoint

REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"provider_name": "BaseTen", "tag": "baseten/fp8"}, "routing.ignore names BaseTen"),
    ({"provider_name": "Other", "tag": "BASETEN/int4"}, "routing.ignore names BaseTen"),
    ({"quantization": "nvfp4"}, "quantization nvfp4 is not in routing.quantizations"),
    ({"quantization": None}, "quantization unknown is not"),
    ({"status": -5}, "status -5 is below routing.min_status = -1"),
    ({"uptime_last_30m": 12.5}, "uptime 12.5 % is below routing.min_uptime = 90.0"),
    ({"pricing": {"prompt": "0.0000001", "completion": "0.0000031"}}, "completion price 3.1 USD/M is above"),
    ({"pricing": {"prompt": "0.000009", "completion": "0.000001"}}, "prompt price 9 USD/M is above"),
    ({"pricing": {"prompt": "-1", "completion": "-1"}}, "price cannot be read"),
    ({"pricing": {"prompt": "free"}}, "price cannot be read"),
    ({"max_completion_tokens": 999}, "answers at most 999 tokens, sampling.max_tokens is 1000"),
    ({"supported_parameters": ["max_tokens", "temperature", "reasoning"]}, "does not take top_p"),
    ({"supported_parameters": ["max_completion_tokens", "temperature", "top_p"]}, "does not take reasoning"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSALS, ids=[reason for _, reason in REFUSALS])
def test_a_refused_endpoint_says_why(changes: dict[str, Any], reason: str) -> None:
    campaign = a_campaign(routing={"min_status": -1, "min_uptime": 90.0, "max_price_prompt": 1.0})
    resolved = routing.resolve(campaign, a_snapshot(an_endpoint(**changes), an_endpoint("Good", "good")))
    assert [e.tag for e in resolved.eligible] == ["good"]
    ((_, why),) = resolved.refused
    assert reason in why
    assert resolved.provider_object["only"] == ["good"]


def test_what_is_not_known_does_not_refuse() -> None:
    unknown = an_endpoint(uptime_last_30m=None, status=None, supported_parameters=[], max_completion_tokens=None)
    resolved = routing.resolve(a_campaign(routing={"min_uptime": 90.0}), a_snapshot(unknown))
    assert len(resolved.eligible) == 1


def test_a_family_of_quantizations_covers_its_members_and_only_narrows() -> None:
    endpoints = [
        an_endpoint("A", "a/mxfp4", quantization="mxfp4"),
        an_endpoint("B", "b", quantization="fp4"),
        an_endpoint("C", "c"),
    ]
    resolved = routing.resolve(a_campaign(routing={"quantizations": ("fp4",), "only": ("a", "B", "C")}), a_snapshot(*endpoints))
    assert [e.tag for e in resolved.eligible] == ["a/mxfp4", "b"]


def test_the_provider_object_states_the_whole_policy_and_never_an_empty_filter() -> None:
    cheap, dear = an_endpoint(), an_endpoint("Dear", "dear", pricing={"prompt": "0.0000006", "completion": "0.00000225"})
    sent = routing.resolve(a_campaign(), a_snapshot(cheap, dear)).provider_object
    assert sent == {
        "only": ["chutes/int4", "dear"],
        "ignore": ["BaseTen"],
        "quantizations": ["int4", "fp8"],
        "sort": "price",
        "max_price": {"prompt": 0.600001, "completion": 2.250001},
        "allow_fallbacks": True,
        "require_parameters": True,
        "data_collection": "deny",
    }
    bare = routing.resolve(a_campaign(routing={"ignore": (), "quantizations": ()}), a_snapshot()).provider_object
    assert "ignore" not in bare and "quantizations" not in bare


@given(st.lists(st.integers(1, 3_000_000), min_size=1, max_size=4))
def test_the_bound_for_reservations_is_the_price_that_the_server_may_route_to(prices: list[int]) -> None:
    endpoints = [
        an_endpoint(tag=f"t{n}", pricing={"prompt": f"0.{p:012d}", "completion": f"0.{p:012d}"}) for n, p in enumerate(prices)
    ]
    resolved = routing.resolve(a_campaign(), a_snapshot(*endpoints))
    for endpoint in endpoints:
        price = float(endpoint["pricing"]["completion"])
        assert price <= resolved.max_completion_price
        assert price * 1e6 <= resolved.provider_object["max_price"]["completion"]  # however the server rounds
    assert resolved.max_completion_price == pytest.approx(resolved.provider_object["max_price"]["completion"] / 1e6)
    assert (
        resolved.max_completion_price - max(prices) / 1e12 < 2.1e-12
    )  # a hair above the dearest: two millionths of a USD per million


def test_the_dearest_override_and_the_request_fee_count() -> None:
    pricing = {"prompt": "0.0000004", "completion": "0.000001", "request": "0.001", "overrides": [{"completion": "0.0000025"}]}
    resolved = routing.resolve(a_campaign(), a_snapshot(an_endpoint(pricing=pricing)))
    assert resolved.max_completion_price == pytest.approx(2.5e-6, rel=1e-5)
    assert resolved.max_request_price == 0.001


def test_nobody_eligible_is_one_line_that_names_each_endpoint_and_its_reason() -> None:
    resolved = routing.resolve(a_campaign(), a_snapshot(an_endpoint("BaseTen", "baseten"), an_endpoint(quantization="fp4")))
    with pytest.raises(WireError, match=r"baseten \(routing.ignore names BaseTen\), chutes/int4 \(quantization fp4"):
        routing.require_eligible(resolved)


@pytest.mark.parametrize(
    ("answered", "same"),
    [
        (MODEL, True),
        (f"{MODEL}-0127", True),
        (f"{MODEL}-20260127", True),
        (f"{MODEL}-2026-01-27", True),
        (f"{MODEL}-thinking", False),
        ("moonshotai/kimi-k2", False),
        ("moonshotai/kimi-k2-0905", False),
        (f"{MODEL}:free", False),
        (None, False),
    ],
)
def test_only_a_dated_release_is_the_same_model(answered: str | None, same: bool) -> None:
    assert routing.is_same_model(MODEL, answered) is same


def test_the_snapshot_is_verbatim_and_an_unknown_model_is_one_line() -> None:
    async def run() -> None:
        async with FakeOpenRouter() as server, aiohttp.ClientSession() as session:
            assert await routing.fetch_endpoints(session, server.base_url, MODEL) == server.snapshot
            server.snapshot = {"error": {"code": 404}}
            with pytest.raises(WireError, match=r"is target\.model = 'moonshotai/kimi-k2\.5' the slug"):
                await routing.fetch_endpoints(session, server.base_url, MODEL)
            with pytest.raises(WireError, match="cannot be reached"):
                await routing.fetch_endpoints(session, "http://127.0.0.1:9", MODEL)

    asyncio.run(run())
