"""Claims about routing: who may answer, why not, what is sent, and that no price can pass the reservation's bound."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.servers import routing
from eagle3_assets.errors import WireError
from eagle3_assets.store import Store, commit, write_json
from eagle3_assets_tests.collect.fake_openrouter import FakeOpenRouter
from eagle3_assets_tests.collect.samples import MODEL, a_campaign, a_snapshot, an_endpoint

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


PRICE = {"prompt": "0.00000044", "completion": "0.000002"}
MALFORMED: list[tuple[Any, str]] = [
    (None, "expected an object, found None"),
    ("chutes", "expected an object, found 'chutes'"),
    ([1], r"expected an object, found \[1\]"),
    ({}, "tag, provider_name: expected a name, found neither"),
    (an_endpoint(tag=["a"]), r"tag: expected a name, found \['a'\]"),
    (an_endpoint(tag="bad\nname"), r"tag: expected a name, found 'bad\\nname'"),
    (an_endpoint(provider_name=7), "provider_name: expected a name, found 7"),
    (an_endpoint(quantization=["int4"]), "quantization: expected a name or null"),
    (an_endpoint(status="ok"), "status: expected a whole number or null, found 'ok'"),
    (an_endpoint(status=[0]), "status: expected a whole number"),
    (an_endpoint(status=True), "status: expected a whole number"),
    (an_endpoint(status=float("nan")), "status: expected a whole number or null, found nan"),
    (an_endpoint(status=10**400), "status: expected a whole number"),
    (an_endpoint(uptime_last_30m="99"), "uptime_last_30m: expected a number or null, found '99'"),
    (an_endpoint(uptime_last_30m={}), "uptime_last_30m: expected a number"),
    (an_endpoint(uptime_last_30m=float("nan")), "uptime_last_30m: expected a number"),
    (an_endpoint(context_length="long"), "context_length: expected a whole number"),
    (an_endpoint(max_completion_tokens=[1000]), "max_completion_tokens: expected a whole number"),
    (an_endpoint(max_completion_tokens=1.5), "max_completion_tokens: expected a whole number or null, found 1.5"),
    (an_endpoint(supported_parameters=3), "supported_parameters: expected a list of names, found 3"),
    (an_endpoint(supported_parameters={"top_p": 1}), "supported_parameters: expected a list of names"),
    (an_endpoint(supported_parameters=[["top_p"]]), "supported_parameters: expected a list of names"),
    (an_endpoint(pricing=None), "pricing: expected an object, found None"),
    (an_endpoint(pricing=["0.1"]), "pricing: expected an object"),
    (an_endpoint(pricing={**PRICE, "prompt": "abc"}), "pricing.prompt: expected USD, at least 0 and below 1, found 'abc'"),
    (an_endpoint(pricing={**PRICE, "completion": "NaN"}), "pricing.completion: .*found 'NaN'"),
    (an_endpoint(pricing={**PRICE, "completion": float("nan")}), "pricing.completion: .*found nan"),
    (an_endpoint(pricing={**PRICE, "completion": "Infinity"}), "pricing.completion: .*found 'Infinity'"),
    (an_endpoint(pricing={**PRICE, "completion": [1]}), r"pricing.completion: .*found \[1\]"),
    (an_endpoint(pricing={**PRICE, "completion": True}), "pricing.completion: .*found True"),
    (an_endpoint(pricing={**PRICE, "prompt": "1e999999"}), "pricing.prompt: .*below 1, found"),
    (an_endpoint(pricing={**PRICE, "request": "x"}), "pricing.request: .*below 1000, found 'x'"),
    (an_endpoint(pricing={"prompt": "0.0000001"}), "pricing.completion: is missing"),
    (an_endpoint(pricing={**PRICE, "overrides": 5}), r"pricing.overrides\[0\]: expected an object, found 5"),
    (an_endpoint(pricing={**PRICE, "overrides": [{"pricing": 5}]}), r"pricing.overrides\[0\]: expected an object"),
    (an_endpoint(pricing={**PRICE, "overrides": [{"prompt": "y"}]}), r"pricing.overrides\[0\].prompt: .*found 'y'"),
]


@pytest.mark.parametrize(("raw", "reason"), MALFORMED, ids=[reason for _, reason in MALFORMED])
def test_an_endpoint_that_cannot_be_read_is_refused_by_field_and_the_others_go_on(raw: Any, reason: str) -> None:
    resolved = routing.resolve(a_campaign(), {"data": {"endpoints": [raw, an_endpoint("Good", "good")]}})
    assert [e.tag for e in resolved.eligible] == ["good"]
    ((endpoint, why),) = resolved.refused
    assert re.search(reason, why) and "\n" not in why + endpoint.tag
    json.dumps([dataclasses.asdict(e) for e, _ in resolved.refused], allow_nan=False)  # endpoints.json shows it


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.lists(st.tuples(st.sampled_from([*an_endpoint(), "overrides", "prompt", "completion", "request"]), anything), max_size=3)
)
def test_nothing_in_a_listing_is_a_fault_of_ours(changes: list[tuple[str, Any]]) -> None:
    raw = an_endpoint()
    for name, value in changes:
        if name in ("overrides", "prompt", "completion", "request"):
            if isinstance(raw["pricing"], dict):
                raw["pricing"][name] = value
        else:
            raw[name] = value
    resolved = routing.resolve(a_campaign(routing={"min_uptime": 90.0}), {"data": {"endpoints": [raw]}})
    assert len(resolved.eligible) + len(resolved.refused) == 1
    json.dumps(resolved.provider_object, allow_nan=False)


@pytest.mark.parametrize("snapshot", [None, [], {"data": None}, {"data": [1]}, {"data": {"endpoints": {"a": 1}}}, {"data": {}}])
def test_a_snapshot_without_a_list_of_endpoints_is_one_line(snapshot: Any) -> None:
    with pytest.raises(WireError, match=r"data\.endpoints of the endpoints snapshot: expected a list, found"):
        routing.resolve(a_campaign(), snapshot)


def test_of_endpoints_with_one_tag_equal_twins_count_once_and_different_ones_not_at_all() -> None:
    twins = routing.resolve(a_campaign(), a_snapshot(an_endpoint(), an_endpoint(), an_endpoint("Good", "good")))
    assert [e.tag for e in twins.eligible] == ["chutes/int4", "good"]
    assert [why for _, why in twins.refused] == ["tag chutes/int4 is listed 2 times; the first is taken"]
    assert twins.provider_object["only"] == ["chutes/int4", "good"]
    dear = an_endpoint(tag="CHUTES/int4", pricing={"prompt": "0.000001", "completion": "0.000003"})
    different = routing.resolve(a_campaign(), a_snapshot(an_endpoint(), dear, an_endpoint("Good", "good")))
    assert [e.tag for e in different.eligible] == ["good"]
    assert all("is listed 2 times, with different facts" in why for _, why in different.refused)


@pytest.mark.parametrize(
    ("body", "eligible"),
    [
        (b'{"data":{"endpoints":[NaN,{"status":1e999}]}}', 0),
        (b'{"data":{"endpoints":[{"provider_name":"A","tag":"a","quantization":"int4","x":"\\ud83d","status":Infinity}]}}', 0),
        (b'{"data":{"endpoints":3}}', None),
        (b'{"data":{"endpoints":[' + b"9" * 5000 + b"]}}", None),
        (b"[" * 100_000, None),
        (b"\xff\xfe", None),
        (b" " * (20 << 20), None),
    ],
)
def test_whatever_the_endpoints_route_says_is_a_snapshot_that_can_be_written_or_one_line(
    body: bytes, eligible: int | None
) -> None:
    async def run() -> None:
        async with FakeOpenRouter() as server, aiohttp.ClientSession() as session:
            server.listing = body
            if eligible is None:
                with pytest.raises(WireError, match=r"endpoints: (expected HTTP 200 with a list in data.endpoints|cannot be)"):
                    await routing.fetch_endpoints(session, server.base_url, MODEL)
                return
            snapshot = await routing.fetch_endpoints(session, server.base_url, MODEL)
            json.dumps(snapshot, allow_nan=False, ensure_ascii=False).encode()
            assert len(routing.resolve(a_campaign(), snapshot).eligible) == eligible

    asyncio.run(run())


def test_a_request_fee_is_bounded_by_what_is_sent() -> None:
    resolved = routing.resolve(a_campaign(), a_snapshot(an_endpoint(pricing={**PRICE, "request": "0.001"})))
    assert resolved.provider_object["max_price"]["request"] == 0.001
    assert "request" not in routing.resolve(a_campaign(), a_snapshot()).provider_object["max_price"]


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
        (f"{MODEL}:free", True),
        (f"{MODEL}-0127:nitro", True),
        (f"{MODEL}:thinking", False),
        (None, False),
    ],
)
def test_only_a_dated_release_or_a_variant_of_the_slug_is_the_same_model(answered: str | None, same: bool) -> None:
    assert routing.is_same_model(MODEL, answered) is same


@pytest.mark.parametrize("variant", ["nitro", "floor", "exacto", "online", "free"])
def test_a_variant_that_was_asked_for_comes_back_without_it(variant: str) -> None:
    assert routing.is_same_model(f"{MODEL}:{variant}", f"{MODEL}-0127")
    assert not routing.is_same_model(f"{MODEL}:{variant}", "moonshotai/kimi-k2.6")


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


# ---------------------------------------------------------------------------------------------------- what was learned
def profiles_of(**rows: tuple[int, int]) -> dict[str, Any]:
    """wire_profiles.json as far as routing reads it: provider -> (rows, explained)."""
    known = {name: {"rows": n, "explained": explained} for name, (n, explained) in rows.items()}
    return {"rule": {"deciding_rows": 8, "explains": 0.8}, "providers": known}


TWO = a_snapshot(an_endpoint("Chutes", "chutes/int4"), an_endpoint("Estimator", "estimator/int4"))


def test_a_provider_that_cannot_be_exact_is_named_and_left_out_only_when_the_campaign_says_so() -> None:
    profiles = profiles_of(chutes=(40, 39), estimator=(40, 3))
    named = routing.resolve(a_campaign(), TWO, wire_profiles=profiles)
    assert [e.tag for e in named.eligible] == ["chutes/int4", "estimator/int4"]
    assert named.remarks == {"estimator/int4": "cannot be exact: 3 of 40 bills fit the best reading of its text"}
    left_out = routing.resolve(a_campaign(routing={"leave_out_inexact": True}), TWO, wire_profiles=profiles)
    assert left_out.provider_object["only"] == ["chutes/int4"] and not left_out.names_provider("Estimator")
    ((_, why),) = left_out.refused
    assert why == "cannot be exact: 3 of 40 bills fit the best reading of its text (routing.leave_out_inexact)"


@pytest.mark.parametrize("rows", [(7, 0), (8, 7), (0, 0)], ids=["too few rows", "nearly all fit", "no rows"])
def test_a_provider_is_not_called_inexact_by_a_few_rows_or_a_few_misses(rows: tuple[int, int]) -> None:
    resolved = routing.resolve(a_campaign(), TWO, wire_profiles=profiles_of(estimator=rows))
    assert resolved.remarks == {} and len(resolved.eligible) == 2


def pilot_saw(**streams: bool | None) -> dict[str, Any]:
    return {"probes": {f"{tag}/int4": {"stream": {"token_by_token": seen}} for tag, seen in streams.items()}}


@pytest.mark.parametrize(
    ("setting", "pilot", "streams"),
    [
        ("never", pilot_saw(chutes=True, estimator=True), False),
        ("always", None, True),
        ("auto", None, False),
        ("auto", {}, False),
        ("auto", pilot_saw(chutes=True), False),
        ("auto", pilot_saw(chutes=True, estimator=None), False),
        ("auto", pilot_saw(chutes=True, estimator=False), False),
        ("auto", pilot_saw(chutes=True, estimator=True, somebody=False), True),
    ],
)
def test_answers_are_streamed_when_the_pilot_saw_every_eligible_endpoint_stream_by_token(
    setting: str, pilot: dict[str, Any] | None, streams: bool
) -> None:
    resolved = routing.resolve(a_campaign(collect={"stream": setting}), TWO, pilot=pilot)
    assert resolved.form.stream is streams


def test_parameters_that_the_campaign_names_must_be_listed() -> None:
    asked = a_campaign(routing={"parameters": ("logprobs", "tools")})
    listing = [*an_endpoint()["supported_parameters"], "logprobs"]
    snapshot = a_snapshot(
        an_endpoint("Full", "full", supported_parameters=listing),
        an_endpoint("Less", "less"),
        an_endpoint("Silent", "silent", supported_parameters=None),
        an_endpoint("Bare", "bare", supported_parameters=["temperature", "top_p", "reasoning", "logprobs", "tools"]),
        an_endpoint("None", "none", supported_parameters=["temperature", "top_p", "reasoning"]),
    )
    resolved = routing.resolve(asked, snapshot)
    assert [e.tag for e in resolved.eligible] == ["full"]
    assert {e.tag: why for e, why in resolved.refused} == {
        "less": "does not take logprobs (routing.parameters)",
        "silent": "does not take logprobs, tools (routing.parameters)",
        "bare": "does not take max_tokens (routing.require_parameters)",
        "none": "does not take logprobs, tools, max_tokens (routing.parameters, routing.require_parameters)",
    }


def test_the_table_has_a_row_for_every_endpoint_with_its_verdict_and_what_the_pilot_saw() -> None:
    snapshot = a_snapshot(an_endpoint(), an_endpoint("BaseTen", "baseten"))
    pilot = {"probes": {"chutes/int4": {"stream": {"token_by_token": False}, "logprobs": {"given": True}}}}
    resolved = routing.resolve(a_campaign(), snapshot, wire_profiles=profiles_of(Chutes=(10, 0)))
    taken, refused = routing.routing_table(resolved, pilot)
    assert taken["tag"] == "chutes/int4" and taken["verdict"] == "taken" and "0 of 10 bills" in taken["why"]
    assert (taken["prompt_usd_per_million"], taken["completion_usd_per_million"]) == (0.44, 2.0)
    assert (taken["streams_by_token"], taken["gives_logprobs"]) == (False, True)
    assert (refused["tag"], refused["verdict"], refused["why"]) == ("baseten", "refused", "routing.ignore names BaseTen")
    assert (refused["streams_by_token"], refused["lists_tools"], refused["lists_logprobs"]) == (None, True, False)
    json.dumps([taken, refused], allow_nan=False)


def test_the_stored_routing_knows_what_the_pilot_found_until_there_are_wire_profiles(store: Store, campaign: Campaign) -> None:
    def keep(path: Path, value: Any) -> None:
        write_json(path, value)
        commit(path, files=[path], inputs={})

    snapshot = a_snapshot(an_endpoint("Chutes", "chutes/int4"))
    keep(store.endpoints, {"snapshot": snapshot})
    assert routing.stored_routing(campaign, store).remarks == {}
    keep(store.pilot, {"wire_profiles": profiles_of(Chutes=(20, 1)), **pilot_saw(chutes=True)})
    assert "1 of 20" in routing.stored_routing(campaign, store).remarks["chutes/int4"]
    automatic = campaign.model_copy(update={"collect": campaign.collect.model_copy(update={"stream": "auto"})})
    assert routing.stored_routing(automatic, store).form.stream and not routing.stored_routing(campaign, store).form.stream
    keep(store.wire_profiles, profiles_of(Chutes=(200, 199)))
    assert routing.stored_routing(campaign, store).remarks == {}
