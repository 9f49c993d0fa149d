"""The stand-in with a model behind it: nothing of the contract changes while an answer takes its time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eagle3_assets_tests.standin.conftest import KEY, TOOL, TRUTH_TOKEN, Client, chat, connected, only, settings
from openrouter_standin.answers.live import Live
from openrouter_standin.errors import StandinError
from openrouter_standin.profiles import DEFAULT_PROFILES, Profiles, load_profiles
from openrouter_standin.schema.faults import Faults
from openrouter_standin.service.launcher import Address, ensure_running, stop
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Vocabulary

CHAT, ENGINE = "/api/v1/chat/completions", "/engine/v1/chat/completions"
POSITIONS, SLOTS = 400, 8


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights whose answers end now and then: what it says is noise, which no part of the server may stumble over."""
    import torch

    from eagle3_assets_tests.kimi_mini.random_weights import random_model
    from kimi_mini.tokenizer import special_tokens

    torch.set_num_threads(1)
    model = random_model(1)
    with torch.no_grad():
        model.lm_head.weight *= 4.0
        model.lm_head.weight[special_tokens()["<|im_end|>"]] *= 1.5
        model.lm_head.weight[special_tokens()["</think>"]] *= 1.5
    return model


MakeLive = Callable[..., Standin]


@pytest.fixture
def make_live(model: Any, vocabulary: Vocabulary, tmp_path: Path) -> Iterator[MakeLive]:
    from kimi_mini.sampler import Sampler

    made: list[Standin] = []

    def make(profiles: Profiles | None = None, *, folder: str = "standin", seed: str = "0") -> Standin:
        source = Live(Sampler(model, SLOTS, POSITIONS))
        generator = Generator(profiles or settings(), vocabulary, source, seed)
        made.append(Standin(generator, Ledger(tmp_path / folder), KEY, TRUTH_TOKEN))
        return made[-1]

    yield make
    for standin in made:
        standin.generator.source.close()


class Hold:
    """A decoder that stands still until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from kimi_mini.decoder import Decoder

        self.at_work, self.go_on = threading.Event(), threading.Event()
        decode = Decoder.decode

        def held(decoder: Decoder, *more: Any) -> Any:
            self.at_work.set()
            assert self.go_on.wait(60)
            return decode(decoder, *more)

        monkeypatch.setattr(Decoder, "decode", held)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.at_work.wait, 60)


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    held = Hold(monkeypatch)
    yield held
    held.go_on.set()


def ask(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {**chat(text, **only("verbatim")), "max_tokens": 60, **more}


def truths(standin: Standin) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (standin.ledger.folder / "truth.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_chat_stream_and_engine_answer_with_what_the_model_sampled_and_bill_just_that(
    make_live: MakeLive, model: Any, vocabulary: Vocabulary
) -> None:
    from kimi_mini.sampler import Ask, sample_all
    from openrouter_standin import chance

    standin = make_live(seed="7")

    async def run() -> list[bytes]:
        async with connected(standin) as client:
            _, _, body = await client.post(ask("one", temperature=1.2, top_p=0.8))
            _, _, stream = await client.post(ask("two", stream=True, tools=[TOOL]))
            _, _, engine = await client.post(ask("three", return_token_ids=True, temperature=0), path=ENGINE, key=None)
        return [body, stream, engine]

    body, stream, engine = asyncio.run(run())
    one, two, three = truths(standin)
    for truth, temperature, top_p in ((one, 1.2, 0.8), (two, 1.0, 0.95), (three, 0.0, 0.95)):
        key = truth["request_hash"].removeprefix("engine:")
        seed = int(chance.hexadecimal(32, "7", key, truth["attempt"], "sample"), 16)
        (sample,) = sample_all(model, [Ask(truth["prompt_ids"], temperature, top_p, seed, 60)], positions=POSITIONS)
        assert tuple(truth["completion_ids"]) == sample.ids
    told = json.loads(body)
    assert told["id"] == one["generation_id"]
    assert told["usage"]["completion_tokens"] == len(one["completion_ids"])
    last = json.loads(stream.split(b"\n\n")[-3].removeprefix(b"data: "))
    assert last["usage"]["completion_tokens"] == len(two["completion_ids"])
    assert json.loads(engine)["choices"][0]["token_ids"] == three["completion_ids"]
    (price,) = [p for p in standin.generator.profiles.provider if p.name == "Verbatim"]
    billed = [len(t["prompt_ids"]) * price.prompt_pico + len(t["completion_ids"]) * price.completion_pico for t in (one, two)]
    assert standin.ledger.spent_pico == sum(billed)


@pytest.mark.slow
def test_ten_at_once_come_back_and_each_is_what_it_is_alone(make_live: MakeLive) -> None:
    def told(body: bytes) -> Any:
        value = json.loads(body)
        return value["choices"], value["usage"]

    async def run(standin: Standin, order: list[int], *, together: bool) -> dict[int, Any]:
        async with connected(standin) as client:
            if together:
                answers = await asyncio.gather(*(client.post(ask(f"question {k}")) for k in order))
            else:
                answers = [await client.post(ask(f"question {k}")) for k in order]
        assert {status for status, _, _ in answers} == {200}
        return {k: told(body) for k, (_, _, body) in zip(order, answers, strict=True)}

    crowd = asyncio.run(run(make_live(folder="a"), list(range(10)), together=True))
    turned = asyncio.run(run(make_live(folder="b"), list(reversed(range(10))), together=True))
    alone = asyncio.run(run(make_live(folder="c"), [0, 4, 9], together=False))
    other = asyncio.run(run(make_live(folder="d", seed="1"), [0, 4, 9], together=False))
    assert crowd == turned
    assert alone == {k: crowd[k] for k in alone}
    assert all(other[k] != crowd[k] for k in other)


def opened(client: Client, body: Any) -> Any:
    """A request whose headers have come (it was admitted) and whose body has not."""
    return client.session.post(client.origin + CHAT, json=body, headers={"Authorization": f"Bearer {KEY}"})


@pytest.mark.slow
def test_two_identical_requests_at_once_are_two_attempts_with_two_answers(make_live: MakeLive, hold: Hold) -> None:
    standin = make_live()

    async def run() -> None:
        async with connected(standin) as client:
            async with opened(client, ask(temperature=2.0)) as one, opened(client, ask(temperature=2.0)) as two:
                assert one.headers["X-Generation-Id"] != two.headers["X-Generation-Id"]
                assert standin.ledger.spent_pico == 0
                hold.go_on.set()
                await one.read(), await two.read()

    asyncio.run(run())
    one, two = truths(standin)
    assert {one["attempt"], two["attempt"]} == {0, 1}
    assert one["generation_id"] != two["generation_id"]
    assert one["completion_ids"] != two["completion_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_while_the_model_samples_the_server_serves_and_keeps_the_connection_alive(
    stream: bool, make_live: MakeLive, hold: Hold
) -> None:
    standin = make_live()

    async def run() -> None:
        async with connected(standin) as client:
            async with opened(client, ask(stream=stream)) as response:
                await hold.reached()
                assert response.headers["X-Generation-Id"].startswith("gen-")
                mark = b": OPENROUTER PROCESSING\n\n" if stream else b"\n         \n"
                assert (await response.content.readexactly(4 * len(mark))) == 4 * mark
                status, told = await client.get("/api/v1/key")
                assert (status, told["data"]["usage"]) == (200, 0)
                assert standin.idle_s == 0
                hold.go_on.set()
                rest = await response.read()
        assert rest.endswith(b"data: [DONE]\n\n" if stream else b"}")
        assert len(truths(standin)) == 1

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_the_model_samples_is_billed_in_full_once(
    stream: bool, make_live: MakeLive, hold: Hold
) -> None:
    profiles = settings()
    stubborn = tuple(provider.model_copy(update={"cancels_streams": False}) for provider in profiles.provider)
    standin = make_live(profiles.model_copy(update={"provider": stubborn}))
    settle = standin.ledger.settle

    async def run() -> None:
        settled = asyncio.Event()
        standin.ledger.settle = lambda generation: (settle(generation), settled.set())  # type: ignore[method-assign, assignment]
        async with connected(standin) as client:
            async with opened(client, ask(stream=stream)) as response:
                await hold.reached()
                response.close()
            hold.go_on.set()
            await asyncio.wait_for(settled.wait(), 60)

    asyncio.run(run())
    (truth,) = truths(standin)
    assert standin.ledger.spent_pico == truth["cost_pico"] > 0
    assert len(truth["completion_ids"]) == 60 or truth["completion_ids"][-1] == standin.generator.vocabulary.im_end


def test_a_prompt_that_does_not_fit_is_a_400_before_anything_is_sampled(make_live: MakeLive) -> None:
    standin = make_live()
    long = "word " * (2 * POSITIONS)

    async def run() -> None:
        async with connected(standin) as client:
            status, _, body = await client.post(ask(long))
            error = json.loads(body)["error"]
            assert (status, error["metadata"]["error_type"]) == (400, "context_length_exceeded")
            assert f"maximum context length is {POSITIONS - 1} tokens" in error["message"]
            status, _, body = await client.post(ask(long), path=ENGINE, key=None)
            assert status == 400 and "maximum context length" in body.decode()
            status, _, body = await client.post(ask(max_tokens=50_000))  # what fits is sampled up to the end of the context
            assert status == 200

    asyncio.run(run())
    (truth,) = truths(standin)
    end = standin.generator.vocabulary.im_end
    assert truth["completion_ids"][-1] == end or len(truth["prompt_ids"]) + len(truth["completion_ids"]) == POSITIONS


@pytest.mark.parametrize(("field", "value"), [("temperature", -1), ("temperature", 2.5), ("top_p", "1"), ("top_p", 1.01)])
def test_a_setting_that_cannot_be_is_a_400_that_names_it(field: str, value: Any, make_live: MakeLive) -> None:
    async def run() -> None:
        async with connected(make_live()) as client:
            status, _, body = await client.post(ask(**{field: value}))
            assert status == 400 and field in json.loads(body)["error"]["message"]

    asyncio.run(run())


def test_a_model_that_ends_before_its_answer_is_an_error_in_the_200_and_not_billed(make_live: MakeLive, hold: Hold) -> None:
    standin = make_live()

    async def run() -> None:
        async with connected(standin) as client:
            async with opened(client, ask("a")) as one, opened(client, ask("b", stream=True)) as two:
                await hold.reached()
                closing = asyncio.create_task(asyncio.to_thread(standin.generator.source.close))
                hold.go_on.set()
                body, stream = await one.read(), await two.read()
                await closing
            status, _, engine = await client.post(ask("c"), path=ENGINE, key=None)
        assert json.loads(body)["error"]["code"] == 502
        assert b'"code":502' in stream and b"[DONE]" not in stream
        assert status == 500 and "closed" in engine.decode()

    asyncio.run(run())
    assert truths(standin) == [] and standin.ledger.spent_pico == 0


@pytest.mark.slow
def test_faults_and_bending_go_with_a_live_model_too(make_live: MakeLive, vocabulary: Vocabulary) -> None:
    faults = Faults(rates={"429": 0.1, "reset": 0.1, "truncated": 0.1, "error_in_200": 0.1})
    standin = make_live(settings(faults=faults))

    async def one(client: Any, k: int) -> float:
        request = {**chat(f"{k}", stream=k % 3 == 0, temperature=1.5, provider={"ignore": ["baseten"]}), "max_tokens": 30}
        with contextlib.suppress(aiohttp.ClientError):
            status, _, body = await client.post(request)
            return float(json.loads(body).get("usage", {}).get("cost", 0.0)) if status == 200 and k % 3 else 0.0
        return 0.0

    async def run() -> float:
        async with connected(standin) as client:
            return sum(await asyncio.gather(*(one(client, k) for k in range(60))))

    delivered = asyncio.run(run())
    lines = truths(standin)
    assert 0 < delivered < standin.ledger.spent_pico / 1e12
    assert standin.ledger.spent_pico == sum(line["cost_pico"] for line in lines)
    assert {line["profile"] for line in lines} == {"verbatim/int4", "injector/fp8", "stripper"}
    assert len({line["generation_id"] for line in lines}) == len(lines) > 30


def test_a_special_token_that_a_model_samples_astray_has_no_text(vocabulary: Vocabulary) -> None:
    one = vocabulary.encoding.encode_single_token
    ids = [*vocabulary.encode_text("a"), one("[PAD]"), one("<|im_user|>"), one("<think>"), *vocabulary.encode_text("b")]
    assert vocabulary.pieces(ids) == ("a", "", "", "<think>", "b")


# ------------------------------------------------------------------------------------------------ the process
@pytest.fixture
def live_profiles(tmp_path: Path) -> Path:
    path = tmp_path / "live.toml"
    text = DEFAULT_PROFILES.read_text().replace('kind = "bank"', 'kind = "live"\nslots = 1')
    path.write_text(text.replace("rates = { 429 = 0.02, 502 = 0.01 }", ""))
    assert load_profiles(path).source.kind == "live" and load_profiles().source.kind == "bank"
    return path


def post(address: Address, body: Any) -> Any:
    headers = {"Authorization": f"Bearer {address.api_key}"}
    request = urllib.request.Request(address.base_url + "/chat/completions", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=60)


@pytest.mark.slow
def test_stopped_while_it_samples_it_ends_and_the_next_one_gives_the_answer_that_was_lost(
    live_profiles: Path, tmp_path: Path
) -> None:
    def ids(folder: Path) -> list[Any]:
        return [json.loads(line)["completion_ids"] for line in (folder / "truth.jsonl").read_text().splitlines()]

    # the first answer of a random or a trained model may be short; a crowd of long ones, one at a time, keeps it busy
    crowd = [ask(f"Tell a very long story about Leo and a cat. {k}", temperature=2.0, max_tokens=900) for k in range(48)]
    lost, kept = tmp_path / "lost", tmp_path / "kept"
    try:
        first = ensure_running(lost, profiles=live_profiles)
        threads = [threading.Thread(target=drop, args=(first, body)) for body in crowd]
        for thread in threads:
            thread.start()
        with post(first, ask("Hello", stream=True, max_tokens=900, temperature=2.0)) as response:
            assert response.read(10) == b": OPENROUT"  # admitted, and not answered yet
            assert stop(lost)
        for thread in threads:
            thread.join()
        settled = ids(lost)
        assert len(settled) < 49
        assert "Traceback" not in (lost / "server.log").read_text()
        for folder in (lost, kept):
            address = ensure_running(folder, profiles=live_profiles)
            with post(address, ask("Once more", max_tokens=40)) as response:
                assert json.loads(response.read())["usage"]["cost"] > 0
        assert ids(lost)[-1] == ids(kept)[-1]
        assert len(ids(lost)) == len(settled) + 1
    finally:
        for folder in (lost, kept):
            with contextlib.suppress(StandinError):
                stop(folder)


def drop(address: Address, body: Any) -> None:
    with contextlib.suppress(OSError, HTTPException), post(address, body) as response:
        response.read()


@pytest.mark.slow
def test_only_a_live_source_loads_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from openrouter_standin.service.process import build; "
        "from openrouter_standin.profiles import load_profiles; "
        "build(Path(sys.argv[1]), load_profiles()); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
