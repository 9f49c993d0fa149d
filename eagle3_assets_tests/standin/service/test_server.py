"""The server as a client sees it: shapes of recorded traffic, routing, money, faults, and what it never says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eagle3_assets_tests.standin.conftest import (
    SLUG,
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
from openrouter_standin.profiles import load_profiles
from openrouter_standin.schema.faults import Faults
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Vocabulary

PREFIX = re.compile(rb"(?:\n {9}\n)+")
TOOLS: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}


def events(body: bytes) -> list[bytes]:
    assert body.endswith(b"\n\n")
    return body[:-2].split(b"\n\n")


def join_stream(body: bytes) -> dict[str, Any]:
    """What a client rebuilds from the deltas."""
    out: dict[str, Any] = {"reasoning": "", "content": "", "calls": {}, "usage": None, "finish": None}
    for event in events(body):
        if not event.startswith(b"data: {"):
            continue
        chunk = json.loads(event[6:])
        delta = chunk["choices"][0]["delta"]
        out["reasoning"] += delta.get("reasoning") or ""
        out["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            entry = out["calls"].setdefault(
                call["index"], {"id": call.get("id"), "name": call["function"].get("name"), "arguments": ""}
            )
            entry["arguments"] += call["function"]["arguments"]
        out["usage"] = chunk.get("usage") or out["usage"]
        out["finish"] = chunk["choices"][0]["finish_reason"] or out["finish"]
    return out


@pytest.mark.parametrize("tag", ["verbatim", "injector", "stripper"])
@pytest.mark.parametrize("index", range(6))
def test_a_stream_adds_up_to_the_body_of_the_same_request(
    tag: str, index: int, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...], tmp_path: Path
) -> None:
    more: dict[str, Any] = {} if answers[index].thinking else {"reasoning": {"enabled": False}}
    request = chat(**only(tag), **more, **(TOOLS if answers[index].tool_names else {}))

    async def fetch(stream: bool) -> bytes:
        async with connected(make_standin(bank=answers[index : index + 1], folder=tmp_path / str(stream))) as client:
            return (await client.post({**request, "stream": stream}))[2]

    body = json.loads(asyncio.run(fetch(False)))
    joined = join_stream(asyncio.run(fetch(True)))
    message = body["choices"][0]["message"]
    assert joined["reasoning"] == (message["reasoning"] or "")
    assert joined["content"] == (message["content"] or "")
    calls = [
        {"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
        for c in message.get("tool_calls", [])
    ]
    assert list(joined["calls"].values()) == calls
    assert joined["usage"] == body["usage"]
    assert joined["finish"] == body["choices"][0]["finish_reason"]


def test_the_engine_returns_the_true_ids_only_when_asked(make_standin: MakeStandin) -> None:
    async def run() -> None:
        standin = make_standin()
        async with connected(standin) as client:
            path = "/engine/v1/chat/completions"
            _, _, plain = await client.post(chat(), path=path, key=None)
            _, headers, asked = await client.post(chat(return_token_ids=True), path=path, key=None)
        assert json.loads(plain)["prompt_token_ids"] is None and json.loads(plain)["choices"][0]["token_ids"] is None
        body = json.loads(asked)
        truth = standin.ledger.truth_of(body["id"])
        assert truth is not None and headers["x-generation-id"] == body["id"]
        assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == (truth["prompt_ids"], truth["completion_ids"])
        assert body["usage"]["completion_tokens"] == len(truth["completion_ids"])
        assert standin.ledger.spent_pico == 0

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ answers
def test_tool_indices_continue_the_conversation(make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    history = [
        {"role": "user", "content": "Q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": f"functions.get_weather:{k}", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
                for k in range(9)
            ],
        },
        {"role": "tool", "tool_call_id": "functions.get_weather:8", "content": "x"},
    ]

    async def run() -> None:
        standin = make_standin(bank=answers[4:5])
        async with connected(standin) as client:
            _, _, body = await client.post({**chat(**only("verbatim"), **TOOLS), "messages": history})
        message = json.loads(body)["choices"][0]["message"]
        assert [c["id"] for c in message["tool_calls"]] == ["functions.get_weather:9", "functions.get_weather:10"]
        truth = standin.ledger.truth_of(json.loads(body)["id"])
        assert truth and "functions.get_weather:10" in standin.generator.vocabulary.text(truth["completion_ids"])

    asyncio.run(run())


def test_tools_are_called_only_when_declared_and_thinking_follows_the_request(make_standin: MakeStandin) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            for k in range(30):
                _, _, body = await client.post(chat(f"plain {k}"))
                assert json.loads(body)["choices"][0]["finish_reason"] == "stop"
                _, _, body = await client.post(chat(f"instant {k}", reasoning={"enabled": False}, **only("verbatim")))
                message = json.loads(body)["choices"][0]["message"]
                assert (message["content"], message["reasoning"]) == ("Instant answer.", None)
            called = 0
            for k in range(60):
                _, _, body = await client.post(chat(f"tools {k}", tools=[TOOL]))
                called += json.loads(body)["choices"][0]["finish_reason"] == "tool_calls"
            assert 36 <= called < 60  # tool_share_after_user = 0.8
            _, _, body = await client.post(chat(tools=[TOOL], tool_choice="none"))
            assert "tool_calls" not in json.loads(body)["choices"][0]["message"]

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_max_tokens_cuts_the_ids_and_invents_no_end(
    limit: int, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    async def run() -> None:
        standin = make_standin(bank=answers[:1])
        async with connected(standin) as client:
            _, _, raw = await client.post({**chat(**only("verbatim")), "max_tokens": limit})
        body = json.loads(raw)
        truth = standin.ledger.truth_of(body["id"])
        assert truth and truth["completion_ids"] == list(answers[0].ids[:limit])
        assert standin.generator.vocabulary.im_end not in truth["completion_ids"]
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == limit

    asyncio.run(run())


def test_two_servers_with_one_seed_give_the_same_answers_whatever_the_order(make_standin: MakeStandin, tmp_path: Path) -> None:
    requests = [chat(f"question {k}", provider={"sort": "price", "ignore": ["baseten"]}) for k in range(40)]

    def told(body: bytes) -> Any:
        value = json.loads(body)
        return value["provider"], value["choices"], value["usage"]

    async def run(folder: str, order: list[int], seed: str) -> dict[int, Any]:
        async with connected(make_standin(folder=tmp_path / folder, seed=seed)) as client:
            answers = await asyncio.gather(*(client.post(requests[k]) for k in order))
        return {k: told(body) for k, (_, _, body) in zip(order, answers, strict=True)}

    one = asyncio.run(run("one", list(range(40)), "5"))
    two = asyncio.run(run("two", list(reversed(range(40))), "5"))
    other = asyncio.run(run("three", list(range(40)), "6"))
    assert one == two
    assert one != other
    assert {provider for provider, *_ in one.values()} == {"Verbatim", "Injector", "Stripper"}


def test_a_second_attempt_at_a_request_may_get_another_answer_and_another_id(make_standin: MakeStandin) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            bodies = [json.loads((await client.post(chat("again")))[2]) for _ in range(12)]
        assert len({b["id"] for b in bodies}) == 12
        assert len({json.dumps(b["choices"]) for b in bodies}) > 1

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ refusals
async def refused(standin: Standin, body: Any, **more: Any) -> tuple[int, dict[str, Any]]:
    async with connected(standin) as client:
        status, _, raw = await client.post(body, **more)
    return status, json.loads(raw)


@pytest.mark.parametrize(("key", "message"), [(None, "No auth credentials found"), ("sk-wrong", "User not found.")])
def test_a_missing_or_wrong_key_is_a_401(key: str | None, message: str, make_standin: MakeStandin) -> None:
    assert asyncio.run(refused(make_standin(), chat(), key=key)) == (401, {"error": {"message": message, "code": 401}})


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "Invalid JSON"),
        ([], "JSON object"),
        ({**chat(), "model": "other/model"}, "other/model is not a valid model ID"),
        ({**chat(), "messages": []}, "messages"),
        ({**chat(), "messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({**chat(), "max_tokens": 0, "max_completion_tokens": -1}, "max_tokens"),
        ({**chat(), "tools": {"a": 1}}, "tools"),
        ({**chat(), "tools": [{"type": "function", "function": None}]}, "tools[0].function"),
        ({**chat(), "tools": [{"type": "function", "function": "x"}]}, "tools[0].function"),
        ({**chat(), "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": "arguments"}]}]}, "tool_calls"),
        ({**chat(), "messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "tool_calls"),
    ],
)
def test_a_bad_request_is_a_400_that_names_the_field(body: Any, word: str, make_standin: MakeStandin) -> None:
    status, answer = asyncio.run(refused(make_standin(), body))
    assert (status, answer["error"]["code"]) == (400, 400)
    assert word in answer["error"]["message"]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"only": ["nobody"]}, "provider.only"),
        ({"only": ["baseten"], "ignore": ["BaseTen"]}, "provider.ignore"),
        ({"quantizations": ["mxfp4"]}, "provider.quantizations"),
        ({"max_price": {"completion": 0.5}}, "provider.max_price.completion"),
        ({"max_price": {"prompt": "0.01", "completion": "9"}}, "provider.max_price.prompt"),
    ],
)
def test_filters_that_leave_no_endpoint_are_a_404_with_the_availability_object(
    wanted: dict[str, Any], field: str, make_standin: MakeStandin
) -> None:
    status, answer = asyncio.run(refused(make_standin(), chat(provider=wanted)))
    error = answer["error"]
    assert (status, error["code"]) == (404, 404)
    assert error["availability"]["excluded_by"] == field
    assert error["availability"]["retryable"] is False
    assert error["availability"]["requested_models"] == [SLUG]
    assert error["availability"]["code"] in ("no_endpoints", "constraint_filtered")


def test_require_parameters_refuses_what_no_endpoint_supports(make_standin: MakeStandin) -> None:
    status, answer = asyncio.run(refused(make_standin(), chat(logprobs=True, provider={"require_parameters": True})))
    assert (status, answer["error"]["availability"]["excluded_by"]) == (404, "provider.require_parameters")


def test_more_max_tokens_than_any_endpoint_can_give_is_a_404(make_standin: MakeStandin) -> None:
    status, answer = asyncio.run(refused(make_standin(), {**chat(), "max_tokens": 10**6}))
    assert (status, answer["error"]["availability"]["excluded_by"]) == (404, "max_tokens")


def test_credit_that_is_gone_is_a_402(make_standin: MakeStandin) -> None:
    async def run() -> None:
        standin = make_standin(settings(credit_usd=0.0001))
        async with connected(standin) as client:
            statuses = []
            for k in range(20):
                status, _, raw = await client.post({**chat(f"{k}"), "max_tokens": 1})
                statuses.append(status)
            assert statuses[0] == 200 and statuses[-1] == 402
            assert json.loads(raw)["error"]["metadata"]["limit_source"] == "openrouter_credits"
            assert (
                "nsufficient credits" in json.loads(raw)["error"]["message"]
                or "can only afford" in json.loads(raw)["error"]["message"]
            )

    asyncio.run(run())


def test_max_tokens_that_the_credit_cannot_cover_is_a_402_that_says_what_it_can(make_standin: MakeStandin) -> None:
    status, answer = asyncio.run(refused(make_standin(settings(credit_usd=0.001)), chat(**only("verbatim"))))
    assert (status, answer["error"]["code"]) == (402, 402)
    match = re.search(r"You requested up to 4000 tokens, but can only afford (\d+)", answer["error"]["message"])
    assert match and 540 <= int(match[1]) <= 555  # 0.001 USD at 1.80 USD per million, less the prompt


# ------------------------------------------------------------------------------------------------ routing
def test_sorting_by_price_tries_the_cheapest_first_and_passes_on_invisibly(make_standin: MakeStandin) -> None:
    async def run() -> dict[str, int]:
        seen: dict[str, int] = {}
        async with connected(make_standin()) as client:
            for k in range(200):
                wanted = {"sort": "price", "ignore": ["baseten"], "max_price": {"completion": 2.2}}
                status, _, raw = await client.post(chat(f"{k}", provider=wanted))
                assert status == 200
                name = json.loads(raw)["provider"]
                seen[name] = seen.get(name, 0) + 1
                if k == 0:
                    _, record = await client.get("/api/v1/generation", id=json.loads(raw)["id"])
                    last = record["data"]["provider_responses"][-1]
                    assert (last["provider_name"], last["status"]) == (name, 200)
        return seen

    seen = asyncio.run(run())
    assert set(seen) == {"Verbatim", "Injector"}  # the Stripper costs 2.40
    assert 70 <= seen["Verbatim"] <= 130  # shed_rate 0.5


def test_the_endpoint_to_be_refused_serves_only_whoever_does_not_refuse_it(make_standin: MakeStandin) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            status, catalogue = await client.get(f"/api/v1/models/{SLUG}/endpoints")
            assert status == 200
            (bad,) = [e for e in catalogue["data"]["endpoints"] if e["provider_name"] == "BaseTen"]
            assert (bad["status"], bad["quantization"]) == (-5, "fp4")
            for wanted in ({"ignore": ["baseten"]}, {"quantizations": ["int4", "fp8", "bf16"]}):
                for k in range(20):
                    _, _, raw = await client.post(chat(f"{k}", provider={"sort": "price", **wanted}))
                    assert json.loads(raw)["provider"] != "BaseTen"
            _, _, raw = await client.post(chat(provider={"only": ["baseten/fp4"]}))
            assert json.loads(raw)["provider"] == "BaseTen"

    asyncio.run(run())


def test_prices_are_decimal_strings_per_token(make_standin: MakeStandin) -> None:
    async def run() -> None:
        async with connected(make_standin()) as client:
            _, catalogue = await client.get(f"/api/v1/models/{SLUG}/endpoints")
            prices = {e["tag"]: (e["pricing"]["prompt"], e["pricing"]["completion"]) for e in catalogue["data"]["endpoints"]}
            assert prices["injector/fp8"] == ("0.00000044", "0.000002")
            _, models = await client.get("/api/v1/models")
            assert [m["id"] for m in models["data"]] == [SLUG]

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ money and faults
def billed_by_hand(folder: Path, vocabulary: Vocabulary) -> int:
    """Picodollars from the truth file alone, by each provider's convention."""
    providers = {p.tag: p for p in load_profiles().provider}
    total = 0
    for line in (folder / "truth.jsonl").read_text().splitlines():
        truth = json.loads(line)
        provider = providers[truth["profile"]]
        counted = [i for i in truth["completion_ids"] if provider.billing.counts_end or i != vocabulary.im_end]
        total += len(truth["prompt_ids"]) * int(provider.price_prompt * 10**6)
        total += len(counted) * int(provider.price_completion * 10**6)
    return total


@pytest.mark.slow
def test_after_400_requests_with_faults_the_ledger_equals_the_sum_over_truth(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    faults = Faults(rates={"429": 0.05, "500": 0.03, "502": 0.03, "reset": 0.03, "truncated": 0.03, "error_in_200": 0.03})
    standin = make_standin(settings(faults=faults))
    seen: dict[str, int] = {}

    async def one(client: Any, k: int) -> float:
        try:
            status, headers, raw = await client.post(chat(f"{k}", stream=k % 4 == 0, provider={"ignore": ["baseten"]}))
        except aiohttp.ClientError as error:
            seen[type(error).__name__] = seen.get(type(error).__name__, 0) + 1
            return 0.0
        if status == 429:
            assert headers["retry-after"] == "1"
        if status != 200:
            assert json.loads(raw)["error"]["code"] == status
            seen[str(status)] = seen.get(str(status), 0) + 1
            return 0.0
        if b'"error":{' in raw:
            seen["error in 200"] = seen.get("error in 200", 0) + 1
            return 0.0
        usage = join_stream(raw)["usage"] if k % 4 == 0 else json.loads(raw)["usage"]
        assert usage["cost"] == usage["cost_details"]["upstream_inference_cost"]
        return float(usage["cost"])

    async def run() -> tuple[float, float]:
        async with connected(standin) as client:
            delivered = sum(await asyncio.gather(*(one(client, k) for k in range(400))))
            _, credit = await client.get("/api/v1/credits")
            _, key = await client.get("/api/v1/key")
        assert key["data"]["usage"] == credit["data"]["total_usage"]
        return delivered, credit["data"]["total_usage"]

    delivered, total = asyncio.run(run())
    by_hand = billed_by_hand(standin.ledger.folder, vocabulary)
    assert standin.ledger.spent_pico == by_hand
    assert total == pytest.approx(by_hand / 1e12, abs=1e-6)
    assert 0 < delivered < total  # resets and truncated bodies are billed and never delivered
    assert {"429", "500", "502", "error in 200", "ClientPayloadError"} <= set(seen)
    standin.ledger.close()
    assert Ledger(standin.ledger.folder).spent_pico == by_hand


def test_an_answer_lost_on_the_way_is_found_by_its_generation_id(make_standin: MakeStandin) -> None:
    async def run() -> None:
        standin = make_standin(settings(faults=Faults(rates={"truncated": 1.0})))
        async with connected(standin) as client:
            request = client.session.post(
                client.origin + "/api/v1/chat/completions", json=chat(), headers={"Authorization": "Bearer sk-standin-test"}
            )
            async with request as response:
                generation_id = response.headers["X-Generation-Id"]
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            status, record = await client.get("/api/v1/generation", id=generation_id)
            missing, _ = await client.get("/api/v1/generation", id="gen-0-none")
        account = standin.ledger.generations[generation_id]
        assert (status, missing) == (200, 404)
        assert record["data"]["total_cost"] == account["cost_pico"] / 1e12 > 0
        assert record["data"]["native_tokens_completion"] == account["completion_tokens"]

    asyncio.run(run())


def test_a_dropped_request_is_billed_in_full(make_standin: MakeStandin) -> None:
    async def run() -> None:
        standin = make_standin(settings(time_scale=0.1))
        async with connected(standin) as client:
            headers = {"Authorization": "Bearer sk-standin-test"}
            url = client.origin + "/api/v1/chat/completions"
            async with client.session.post(url, json=chat(), headers=headers) as response:
                assert standin.in_flight == 1 and standin.ledger.spent_pico == 0
                response.close()  # headers came, the answer is not waited for
            # leaving the server waits for its handlers
        assert standin.ledger.spent_pico > 0

    asyncio.run(run())


def test_a_ledger_survives_a_torn_line_and_charges_what_truth_knows(make_standin: MakeStandin, tmp_path: Path) -> None:
    async def run(standin: Standin) -> None:
        async with connected(standin) as client:
            for k in range(3):
                await client.post(chat(f"{k}"))

    standin = make_standin()
    asyncio.run(run(standin))
    spent, attempts = standin.ledger.spent_pico, dict(standin.ledger.attempts)
    standin.ledger.close()
    path = standin.ledger.folder / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'"cost_pico"')])  # killed while writing the last account
    again = Ledger(standin.ledger.folder)
    assert (again.spent_pico, dict(again.attempts)) == (spent, attempts)
    assert len(path.read_bytes().splitlines()) == 3


# ------------------------------------------------------------------------------------------------ the oracle stays hidden
def id_lists(value: Any) -> Iterator[list[int]]:
    if isinstance(value, dict):
        for v in value.values():
            yield from id_lists(v)
    elif isinstance(value, list):
        if value and all(isinstance(v, int) for v in value):
            yield value
        for v in value:
            yield from id_lists(v)


def test_truth_is_in_no_normal_response_and_behind_its_token(make_standin: MakeStandin) -> None:
    async def run() -> None:
        standin = make_standin()
        async with connected(standin) as client:
            told: list[Any] = []
            for k in range(6):
                body = chat(f"{k}", stream=k % 2 == 0, tools=[TOOL], return_token_ids=True)
                status, headers, raw = await client.post(body)
                assert status == 200
                told.append(headers)
                chunks = events(raw) if body["stream"] else [b"data: " + raw.strip()]
                told += [json.loads(c.removeprefix(b"data: ")) for c in chunks if c.startswith(b"data: {")]
            last = list(standin.ledger.generations)[-1]
            for path in ("/api/v1/key", "/api/v1/credits", "/api/v1/models", f"/api/v1/models/{SLUG}/endpoints", "/health"):
                told.append((await client.get(path))[1])
            told.append((await client.get("/api/v1/generation", id=last))[1])
            for value in told:
                text = json.dumps(value)
                assert TRUTH_TOKEN not in text
                hidden = ("completion_ids", "prompt_ids", "token_ids", '"edits"', "inject_", "request_hash", "cost_pico")
                assert [word for word in hidden if word in text] == []
                assert list(id_lists(value)) == []
            assert (await client.get("/truth", generation_id=last))[0] == 403
            assert (await client.get("/truth", key=None, generation_id=last))[0] == 403
            status, truth = await client.get("/truth", key=TRUTH_TOKEN, generation_id=last)
        assert status == 200
        assert truth == standin.ledger.truth_of(last)
        assert {"prompt_ids", "completion_ids", "provider", "profile", "edits", "request_hash"} <= set(truth)

    asyncio.run(run())


def test_keep_alives_are_written_while_a_long_answer_is_awaited(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    long = FakeAnswer(spell(vocabulary, " a" * 2000, "b"))

    async def run() -> int:
        async with connected(make_standin(settings(time_scale=0.001), bank=(long,))) as client:
            _, _, raw = await client.post(chat(**only("verbatim")))
        match = PREFIX.match(raw)
        assert match
        return len(match[0]) // 11

    assert asyncio.run(run()) == 64  # 2000 tokens at 60 a second: 33 s, a mark every 0.5 s
