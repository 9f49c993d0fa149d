"""Requests that no sane client sends: each is a 400 in OpenRouter's shape or an answer, never a 500, and the money stays right."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import (
    KEY,
    TOOL,
    TRUTH_TOKEN,
    FakeAnswer,
    MakeStandin,
    chat,
    connected,
    only,
    settings,
    spell,
)
from openrouter_standin.vocabulary import Vocabulary

HALF_PAIR = "\ud800"
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "q"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "r",
        "tool_calls": [
            {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "x"},
]
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 10**30, 2**63, 0.5, float("nan"), float("inf"), "", "x", HALF_PAIR, "\x00", [], [[]], [None], [1],
    ["x"], [HALF_PAIR], [{}], {}, {"a": 1}, {"a": None}, {"by": []}, {HALF_PAIR: 1}, {"$defs": "x"}, {"type": []}, "9" * 400,
)  # fmt: skip


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, from the outside to the inside."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def mutated(draw: Random) -> dict[str, Any]:
    """A whole request with one or two odd values, in known places or new ones."""
    body: dict[str, Any] = copy.deepcopy(
        chat(
            messages=HISTORY,
            tools=[TOOL],
            stream=draw.random() < 0.3,
            session_id="s",
            reasoning={"effort": "high", "exclude": False},
            temperature=1.0,
            stop=["x"],
            provider={
                "order": [draw.choice(["verbatim", "injector", "stripper"])],
                "max_price": {"prompt": "9"},
                "sort": "price",
            },
        )
    )
    for _ in range(draw.choice((1, 1, 2))):
        *way, last = draw.choice(list(places(body)))
        target: Any = body
        for key in way:
            target = target[key]
        new = isinstance(target, dict) and draw.random() < 0.3
        target[draw.choice(("items", "enum", "only", "zdr", "type", "name", "$ref")) if new else last] = draw.choice(ODD)
    return body


@pytest.mark.parametrize("seed", range(4))
def test_odd_values_anywhere_are_refused_or_answered(
    seed: int, make_standin: MakeStandin, caplog: pytest.LogCaptureFixture
) -> None:
    standin = make_standin(settings(credit_usd=1e6))

    async def run() -> list[int]:
        draw, statuses = Random(seed), []
        async with connected(standin) as client:
            for _ in range(250):
                body = mutated(draw)
                status, _, raw = await client.post(body)
                statuses.append(status)
                if status != 200:
                    assert json.loads(raw)["error"]["code"] == status, body
        return statuses

    with caplog.at_level(logging.WARNING):
        statuses = asyncio.run(run())
    assert {200, 400} <= set(statuses) <= {200, 400, 404}
    assert not caplog.records  # no traceback
    truth = (standin.ledger.folder / "truth.jsonl").read_text().splitlines()
    assert standin.ledger.spent_pico == sum(json.loads(line)["cost_pico"] for line in truth)
    assert len(truth) == statuses.count(200)
    assert standin.gateway.account.held_pico == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"provider": 5}, "provider: expected an object"),
        ({"provider": {"only": 5}}, "provider.only"),
        ({"provider": {"order": "verbatim"}}, "provider.order"),
        ({"provider": {"quantizations": [{}]}}, "provider.quantizations"),
        ({"provider": {"max_price": "1"}}, "provider.max_price"),
        ({"provider": {"max_price": {"prompt": float("nan")}}}, "provider.max_price"),
        ({"provider": {"max_price": {"prompt": "cheap"}}}, "provider.max_price"),
        ({"provider": {"data_collection": "perhaps"}}, "provider.data_collection"),
        ({"provider": {"zdr": "yes"}}, "provider.zdr"),
        ({"provider": {"sort": 1}}, "provider.sort"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "tool_call_id": ["a"], "content": "x"}]}, "messages[0].tool_call_id"),
        ({"tools": [{"type": [], "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "other", "function": 5}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools[0].function.parameters"),
        ({"max_tokens": 5, "max_completion_tokens": 0}, "max_tokens"),
        ({"session_id": ["a"]}, "session_id"),
        ({"model": {"a": 1}}, "model"),
        ({"tools": [{**TOOL, "x": nested(600)}]}, "nested"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_400_that_names_the_field(
    changes: dict[str, Any], word: str, make_standin: MakeStandin
) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            status, _, raw = await client.post({**chat(), **changes})
            assert status == 400 and word in json.loads(raw)["error"]["message"]

    asyncio.run(run())


def test_nulls_and_prices_of_both_kinds_are_preferences_like_any_other(make_standin: MakeStandin) -> None:
    wanted = {"order": None, "only": ["verbatim"], "max_price": {"prompt": "0.5", "completion": 2, "image": None}, "zdr": None}

    async def run() -> None:
        async with connected(make_standin()) as client:
            assert json.loads((await client.post(chat(provider=wanted)))[2])["provider"] == "Verbatim"

    asyncio.run(run())


@pytest.mark.parametrize("step", ["truth.generation.render_prompt", "answers.source.prompt_key"])
def test_a_request_that_a_template_cannot_write_is_refused_by_the_provider_and_leaves_nothing_behind(
    step: str, make_standin: MakeStandin, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider renders the prompt; the bank looks up whether it was sampled on it."""

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("no form for this")

    monkeypatch.setattr(f"openrouter_standin.{step}", fails)
    standin = make_standin(bank=[FakeAnswer(spell(vocabulary, "r", "c"), prompt="of another prompt")])
    first = standin.generator.profiles.provider[0]

    async def run() -> None:
        async with connected(standin) as client:
            status, _, raw = await client.post(chat(**only("verbatim")))
            error = json.loads(raw)["error"]
            assert status == 400 and error["metadata"]["provider_name"] == "Verbatim"

    asyncio.run(run())
    assert standin.gateway.account.held_pico == 0 and standin.gateway.traffic.slots(first) is None
    assert not standin.ledger.generations


def test_half_a_surrogate_pair_in_a_session_id_is_written_down_as_a_question_mark(make_standin: MakeStandin) -> None:
    standin = make_standin()

    async def run() -> None:
        async with connected(standin) as client:
            assert (await client.post(chat(session_id=f"a{HALF_PAIR}")))[0] == 200

    asyncio.run(run())
    assert [account["session_id"] for account in standin.ledger.generations.values()] == ["a?"]
    assert standin.ledger.spent_pico > 0


def test_what_http_itself_refuses_has_the_same_shape(make_standin: MakeStandin, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            url, headers = f"{client.origin}/api/v1/chat/completions", {"Authorization": f"Bearer {KEY}"}
            async with client.session.put(url, headers=headers) as response:
                assert response.status == 405 and response.headers["Allow"] == "POST"
                assert json.loads(await response.read())["error"]["code"] == 405
            packed = {**headers, "Content-Encoding": "gzip"}
            async with client.session.post(url, data=b"no gzip", headers=packed) as response:
                assert response.status == 400
                assert json.loads(await response.read())["error"]["code"] == 400
            assert (await client.post(chat()))[0] == 200

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert not caplog.records


def test_the_truth_wants_its_token_as_a_bearer_token(make_standin: MakeStandin) -> None:
    standin = make_standin()

    async def run() -> None:
        async with connected(standin) as client:
            generation = json.loads((await client.post(chat()))[2])["id"]
            url = f"{client.origin}/truth?generation_id={generation}"
            for given, status in (
                (f"Bearer {TRUTH_TOKEN}", 200),
                (TRUTH_TOKEN, 403),
                (f"Basic {TRUTH_TOKEN}", 403),
                ("Bearer", 403),
                (f"Bearer {KEY}", 403),
            ):
                async with client.session.get(url, headers={"Authorization": given}) as response:
                    assert response.status == status, given

    asyncio.run(run())


def test_openrouter_does_not_know_the_generations_of_an_engine(make_standin: MakeStandin) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            for path in ("/engine/v1/chat/completions", "/sglang/v1/chat/completions"):
                generation = json.loads((await client.post(chat(), path=path, key=None))[2])["id"]
                assert (await client.get("/api/v1/generation", id=generation))[0] == 404

    asyncio.run(run())


def test_numbers_of_many_digits_in_a_query_or_a_header_are_not_read(make_standin: MakeStandin) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            assert (await client.get("/api/v1/models", offset="9" * 5000))[0] == 200
            headers = {"Authorization": f"Bearer {KEY}", "X-OpenRouter-Cache": "true", "X-OpenRouter-Cache-TTL": "9" * 5000}
            async with client.session.post(f"{client.origin}/api/v1/chat/completions", json=chat(), headers=headers) as response:
                assert response.status == 200

    asyncio.run(run())


@pytest.mark.parametrize("schema", [{"$defs": "x"}, {"type": []}, {"type": "object", "properties": {"a": {"type": []}}}])
@pytest.mark.parametrize("path", ["/engine/v1/chat/completions", "/sglang/v1/chat/completions", "/api/v1/chat/completions"])
def test_a_tool_schema_without_a_typescript_form_is_declared_as_json(path: str, schema: Any, make_standin: MakeStandin) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}

    async def run() -> int:
        async with connected(make_standin()) as client:
            return (await client.post(chat(tools=[tool]), path=path, key=KEY if path.startswith("/api") else None))[0]

    assert asyncio.run(run()) == 200
