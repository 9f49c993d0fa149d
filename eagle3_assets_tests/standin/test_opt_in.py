"""What a request may opt in to (docs/research/openrouter-contract.md#1): routing metadata and the response cache, asked for by
the official package."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import SLUG, TRUTH_TOKEN, MakeStandin, served, settings
from eagle3_assets_tests.standin.sdk_openrouter import HI, client, overheard, with_faults
from openrouter_standin.openrouter import response_cache
from openrouter_standin.profiles import PICO

pytest.importorskip("openrouter")
import httpx
from openrouter import components, errors


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_metadata_is_there_when_asked_for_and_tells_the_route(stream: bool, make_standin: MakeStandin) -> None:
    profiles = settings()
    broken = profiles.provider[0].model_copy(update={"faults": {"503": 1.0}, "shed_rate": 0.0})
    standin = make_standin(profiles.model_copy(update={"provider": (broken, *profiles.provider[1:])}))
    order = components.ProviderPreferences(order=["verbatim", "stripper"], ignore=["baseten"])
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "provider": order, "stream": stream}
    with served(standin) as origin, client(origin) as api:
        for level in (None, "disabled", "something"):
            told = api.chat.send(**asked, x_open_router_metadata=level)
            assert all(part.openrouter_metadata is None for part in (told if stream else [told]))
        told = api.chat.send(**asked, x_open_router_metadata="enabled")
        *before, last = told if stream else [told]
        legacy = api.chat.send(**asked, http_headers={"X-OpenRouter-Experimental-Metadata": "Enabled"})
        *_, last_of_legacy = legacy if stream else [legacy]
    assert all(part.openrouter_metadata is None for part in before)
    metadata = last.openrouter_metadata
    assert isinstance(metadata, components.OpenRouterMetadata) and last_of_legacy.openrouter_metadata is not None
    assert (metadata.requested, metadata.strategy, metadata.attempt, metadata.is_byok) == (SLUG, "direct", 2, False)
    assert [(one.provider, one.status) for one in metadata.attempts] == [("Verbatim", 503), ("Stripper", 200)]
    available = {one.provider: one.selected for one in metadata.endpoints.available}
    assert available == {"Verbatim": False, "Stripper": True, "Injector": False} and metadata.endpoints.total == 4
    account = standin.ledger.generations[last.id]
    assert metadata.generation_time == round(1000 * account["duration_s"])
    assert last.usage is not None  # nothing else of the last chunk is lost


def cached(api: Any, seen: list[httpx.Response], **more: Any) -> tuple[Any, dict[str, str]]:
    """A request with the cache on: the result (of a stream: its chunks), and the cache headers of the response."""
    headers = {"X-OpenRouter-Cache": "true", **more.pop("headers", {})}
    told = api.chat.send(model=SLUG, messages=HI, http_headers=headers, **more)
    told = list(told) if more.get("stream") else told
    name = "x-openrouter-cache-"
    return told, {key[len(name) :]: value for key, value in seen[-1].headers.items() if key.startswith(name)}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_request_is_a_hit_that_costs_nothing(stream: bool, make_standin: MakeStandin) -> None:
    standin = make_standin()
    with served(standin) as origin, overheard(origin) as (api, seen):
        first, miss = cached(api, seen, stream=stream)
        spent, lines = standin.ledger.spent_pico, dict(standin.ledger.generations)
        again, hit = cached(api, seen, stream=stream)
        body = again[-1] if stream else again
        source = (first[-1] if stream else first).id
        record = api.generations.get_generation(id=body.id).data
        _, other = cached(api, seen, stream=stream, temperature=0.5)
        ask = {"params": {"generation_id": body.id}, "headers": {"Authorization": f"Bearer {TRUTH_TOKEN}"}}
        truth = httpx.get(f"{origin}/truth", **ask).json()
    assert miss == {"status": "MISS", "ttl": "300"} and other["status"] == "MISS"
    assert hit == {"status": "HIT", "age": "0", "ttl": "300", "source-id": source}
    assert seen[1].headers["x-generation-id"] == body.id != source
    usage = json.loads(body.usage.model_dump_json())
    numbers = [value for part in (usage, *usage.values()) if isinstance(part, dict) for value in part.values()]
    assert {n for n in numbers if not isinstance(n, dict | bool)} == {0}
    if stream:
        assert [c.choices[0].delta for c in again] == [c.choices[0].delta for c in first]
    else:
        assert again.choices == first.choices
    assert (record.id, record.total_cost, record.response_cache_source_id) == (body.id, 0, source)
    assert body.id not in standin.ledger.generations and spent == lines[source]["cost_pico"]
    assert len(standin.ledger.generations) == 2  # the source, and the request with another temperature
    assert truth["generation_id"] == source  # what it repeats is its truth


def test_what_is_kept_ends_with_its_time_and_with_clear(make_standin: MakeStandin) -> None:
    standin, now = make_standin(), [0.0]
    standin.gateway.clock.now, standin.gateway.clock.begun = lambda: now[0], 0.0
    with served(standin) as origin, overheard(origin) as (api, seen):
        short = {"X-OpenRouter-Cache-TTL": "20"}
        told = [cached(api, seen, headers=short)[1]]
        now[0] = 19.5
        told.append(cached(api, seen, headers=short)[1])
        now[0] = 20.0
        told.append(cached(api, seen, headers={"X-OpenRouter-Cache-TTL": "999999"})[1])
        told.append(cached(api, seen, headers={"X-OpenRouter-Cache-Clear": "true"})[1])
        told.append(cached(api, seen)[1])
        api.chat.send(model=SLUG, messages=HI)  # without the header nobody looks
        assert "x-openrouter-cache-status" not in seen[-1].headers
    assert [one["status"] for one in told] == ["MISS", "HIT", "MISS", "MISS", "HIT"]
    assert [one["ttl"] for one in told] == ["20", "20", "86400", "300", "300"] and told[1]["age"] == "19"


def test_only_so_many_answers_are_kept(make_standin: MakeStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_cache, "_MOST", 2)
    with served(make_standin()) as origin, overheard(origin) as (api, seen):
        told = [cached(api, seen, seed=seed)[1]["status"] for seed in (0, 1, 2, 2, 1, 0)]
    assert told == ["MISS", "MISS", "MISS", "HIT", "HIT", "MISS"]


@pytest.mark.parametrize("fault", ["502", "finish_error", "error_in_200"])
def test_only_sound_answers_are_kept(fault: str, make_standin: MakeStandin) -> None:
    standin = make_standin(with_faults(script=[{"fault": fault, "nth": 0, "times": 1}]))
    with served(standin) as origin, overheard(origin) as (api, seen):
        try:
            cached(api, seen)
        except errors.OpenRouterError:
            assert fault != "finish_error"
        told = [cached(api, seen)[1]["status"] for _ in range(2)]
    assert told == ["MISS", "HIT"]


def test_a_hit_needs_the_same_key_and_no_money_and_keeps_its_metadata(make_standin: MakeStandin) -> None:
    standin = make_standin()
    with served(standin) as origin, overheard(origin) as (api, seen):
        cached(api, seen)
        attempts = dict(standin.ledger.attempts)
        standin.ledger.spent_pico += 26 * PICO
        told, headers = cached(api, seen, x_open_router_metadata="enabled")
        with pytest.raises(errors.PaymentRequiredResponseError):
            api.chat.send(model=SLUG, messages=HI)
        with overheard(origin, "sk-wrong") as (stranger, seen_there):
            with pytest.raises(errors.UnauthorizedResponseError):
                cached(stranger, seen_there)
    assert headers["status"] == "HIT" and dict(standin.ledger.attempts) == attempts
    metadata = told.openrouter_metadata
    assert metadata.generation_time is None and metadata.attempts is None
    assert sum(one.selected for one in metadata.endpoints.available) == 1
