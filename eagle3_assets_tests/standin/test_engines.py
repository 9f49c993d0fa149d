"""What both engines have in common, and what tests of each need (`test_engine_*`)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import SLUG, TOOL, FakeAnswer, MakeStandin, chat, connected, settings, skeleton, spell
from kimi_mini.errors import KimiMiniError
from openrouter_standin.answers.sampled import Sampled
from openrouter_standin.answers.source import Bank
from openrouter_standin.profiles import Profiles
from openrouter_standin.service.server import Standin
from openrouter_standin.vocabulary import Vocabulary

VLLM, SGLANG, GENERATE = "/engine/v1/chat/completions", "/sglang/v1/chat/completions", "/sglang/generate"
TOOLS: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}
IDS = {"return_token_ids": True}


def ask(
    standin: Standin, path: str, request: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    async def run() -> tuple[int, dict[str, str], bytes]:
        async with connected(standin) as client:
            async with client.session.post(client.origin + path, json=request, headers=headers) as response:
                return response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read()

    return asyncio.run(run())


def get(standin: Standin, path: str) -> tuple[int, bytes]:
    async def run() -> tuple[int, bytes]:
        async with connected(standin) as client:
            async with client.session.get(client.origin + path) as response:
                return response.status, await response.read()

    return asyncio.run(run())


def truth_of(standin: Standin) -> dict[str, Any]:
    return dict(json.loads((standin.ledger.folder / "truth.jsonl").read_text().splitlines()[-1]))


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    events = body.removesuffix(b"\n\n").split(b"\n\n")
    assert events[-1] == b"data: [DONE]"
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


def with_logprobs() -> Profiles:
    """Settings with a bank that makes up numbers."""
    profiles = settings()
    return profiles.model_copy(update={"source": profiles.source.model_copy(update={"synthetic_logprobs": True})})


class Failing(Bank):
    """A model that is gone."""

    def answer(self, *_: Any, **__: Any) -> asyncio.Future[Sampled]:
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        future.set_exception(KimiMiniError("the model is gone"))
        return future


def failing(standin: Standin) -> Standin:
    source = Failing((), standin.generator.vocabulary, standin.generator.profiles.source)
    standin.generator = dataclasses.replace(standin.generator, source=source)
    return standin


def more_of(answer: FakeAnswer) -> dict[str, Any]:
    instant: dict[str, Any] = {} if answer.thinking else {"chat_template_kwargs": {"thinking": False}}
    return {**instant, **(TOOLS if answer.tool_names else {})}


# ------------------------------------------------------------------------------------------------ both
def test_vllm_knows_its_model_only_and_sglang_serves_any_name(make_standin: MakeStandin) -> None:
    status, _, body = ask(make_standin(), VLLM, {**chat(), "model": "other"})
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (404, 404, "NotFoundError") and "other" in error["message"]
    status, _, body = ask(make_standin(), SGLANG, {**chat(), "model": "other"})
    assert (status, json.loads(body)["model"]) == (200, "other")


def test_a_prompt_that_does_not_fit_is_a_400_in_the_words_of_each_engine(make_standin: MakeStandin) -> None:
    profiles = settings()
    small = profiles.model_copy(update={"model": profiles.model.model_copy(update={"context_length": 100})})
    long, greedy = chat("word " * 200, max_tokens=1), chat("Hi", max_tokens=99)
    for request, words in ((long, "longer than the model's context length (100 tokens)"), (greedy, "You requested a total of")):
        status, _, body = ask(make_standin(small), SGLANG, request)
        assert status == 400 and words in json.loads(body)["message"]
        status, _, body = ask(make_standin(small), VLLM, request)
        error = json.loads(body)["error"]
        assert (status, error["param"]) == (400, "input_tokens")
        assert "This model's maximum context length is 100 tokens." in error["message"]
        assert f"you requested {request['max_tokens']} output tokens" in error["message"]
    status, _, body = ask(make_standin(small), GENERATE, {"text": "word " * 200})
    assert status == 400 and "longer than the model's context length (100 tokens)" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_model_that_fails_is_an_error_in_the_shape_of_each_engine(stream: bool, make_standin: MakeStandin) -> None:
    standin = failing(make_standin())
    status, _, body = ask(standin, VLLM, chat(stream=stream))
    (told,) = chunks_of(body) if stream else [json.loads(body)]
    assert (status, told["error"]["code"]) == (200 if stream else 500, 500) and told["error"]["message"] == "the model is gone"
    status, _, body = ask(standin, SGLANG, chat(stream=stream))
    (told,) = chunks_of(body) if stream else [json.loads(body)]
    flat = told["error"] if stream else told
    assert (status, flat["object"], flat["code"]) == (200 if stream else 500, "error", 500)
    status, _, body = ask(standin, GENERATE, {"text": "x", "stream": stream})
    (told,) = chunks_of(body) if stream else [json.loads(body)]
    if stream:
        assert told["meta_info"]["finish_reason"]["type"] == "abort" and status == 200
    else:
        assert (status, told["code"], told["type"]) == (500, 500, "500")
    assert not standin.ledger.generations


def test_the_two_engines_and_openrouter_count_attempts_apart(make_standin: MakeStandin) -> None:
    standin = make_standin()
    for path in (VLLM, SGLANG, "/api/v1/chat/completions"):

        async def run(path: str = path) -> None:
            async with connected(standin) as client:
                assert (await client.post(chat(), path=path))[0] == 200

        asyncio.run(run())
    lines = [json.loads(line) for line in (standin.ledger.folder / "truth.jsonl").read_text().splitlines()]
    assert [line["attempt"] for line in lines] == [0, 0, 0]
    assert len({line["request_hash"] for line in lines}) == len({line["generation_id"] for line in lines}) == 3


def test_engines_are_listed_with_their_model_and_its_length(make_standin: MakeStandin) -> None:
    standin = make_standin()
    for path, owner in (("/engine/v1/models", "vllm"), ("/sglang/v1/models", "sglang")):
        (card,) = json.loads(get(standin, path)[1])["data"]
        assert (card["id"], card["root"], card["owned_by"]) == (SLUG, SLUG, owner)
        assert card["max_model_len"] == standin.generator.context_length


def test_engines_say_that_they_are_well_and_what_they_are(make_standin: MakeStandin) -> None:
    standin = make_standin()
    for path in ("/engine/health", "/sglang/health", "/sglang/health_generate"):
        assert get(standin, path) == (200, b"")
    assert set(json.loads(get(standin, "/engine/version")[1])) == {"version"}
    for path in ("/sglang/model_info", "/sglang/get_model_info"):
        told = json.loads(get(standin, path)[1])
        assert (told["model_path"], told["is_generation"]) == (SLUG, True)
    for path in ("/sglang/server_info", "/sglang/get_server_info"):
        told = json.loads(get(standin, path)[1])
        assert told["context_length"] == standin.generator.context_length and told["version"]


@pytest.mark.parametrize("path", [VLLM, SGLANG, GENERATE])
def test_a_client_that_leaves_a_stream_leaves_no_trace_in_the_log(
    path: str, make_standin: MakeStandin, vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream takes a real second; the client goes after the first byte, and the server answers the next one."""
    profiles = settings(time_scale=1.0)
    law = profiles.engine.latency.model_copy(update={"ttft_median_s": 0.001, "ttft_sigma": 0.0, "tokens_per_s": 2000.0})
    profiles = profiles.model_copy(update={"engine": profiles.engine.model_copy(update={"latency": law})})
    standin = make_standin(profiles, bank=(FakeAnswer(spell(vocabulary, " a" * 1000, "b")),))
    request: dict[str, Any] = (
        {"text": ["x<think>"] * 3, "sampling_params": {"max_new_tokens": 4000}} if path == GENERATE else chat()
    )

    async def run() -> None:
        async with connected(standin) as client:
            async with client.session.post(client.origin + path, json={**request, "stream": True}) as response:
                await response.content.readany()
                response.close()
            status, _, _ = await client.post(chat(max_tokens=1), path=VLLM, key=None)
            assert status == 200

    asyncio.run(run())
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


# ------------------------------------------------------------------------------------------------ recorded OpenAI-style bodies
@pytest.mark.parametrize("path", [VLLM, SGLANG])
def test_an_engine_says_what_recorded_openai_style_servers_say(
    path: str, foreign: dict[str, dict[str, Any]], make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    """No vLLM or SGLang server was recorded; Groq and Hugging Face were, of the same contract. What is in all of their bodies is in
    ours, of the same type. Explained: their model does not think and their content is never null, vLLM's may be."""
    for name, index in (("groq-kimi-k2/tool#1", 1), ("groq-kimi-k2/tool#0", 4), ("huggingface-kimi-k2/simple#0", 1)):
        real = json.loads(foreign[name]["response_body"])
        mine = json.loads(ask(make_standin(bank=answers[index : index + 1]), path, chat(**more_of(answers[index])))[2])
        assert mine["object"] == real["object"]
        for key in ("id", "object", "created", "model"):
            assert skeleton(mine[key]) == skeleton(real[key])
        ours, theirs = mine["choices"][0], real["choices"][0]
        assert set(theirs) <= set(ours)
        assert {k: skeleton(v) for k, v in ours.items() if k in theirs and k != "message"} == {
            k: skeleton(v) for k, v in theirs.items() if k != "message"
        }
        assert set(theirs["message"]) <= set(ours["message"])
        assert skeleton(ours["message"]["content"]) == skeleton(theirs["message"]["content"])
        for own, call in zip(ours["message"].get("tool_calls") or (), theirs["message"].get("tool_calls", ()), strict=False):
            assert skeleton({k: own[k] for k in call}) == skeleton(call)
            assert set(own) - set(call) == ({"index"} if path == SGLANG else set())  # SGLang's ToolCall has one
        assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(mine["usage"]) & set(real["usage"])


def test_a_vllm_stream_is_framed_like_a_recorded_openai_style_one(
    foreign: dict[str, dict[str, Any]], make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    """Explained differences: Groq adds system_fingerprint and x_groq; vLLM adds prompt_token_ids, token_ids and stop_reason."""
    row = foreign["groq-kimi-k2/simple_streaming#0"]
    real = [json.loads(e[6:]) for e in row["response_body"].strip().split("\n\n") if e.startswith("data: {")]
    assert row["response_body"].rstrip().endswith("data: [DONE]")
    standin = make_standin(bank=(FakeAnswer(spell(vocabulary, None, "Plain text."), thinking=False),))
    request = chat(stream=True, chat_template_kwargs={"thinking": False})
    mine = chunks_of(ask(standin, VLLM, request)[2])
    for k in (0, 1):
        ours, theirs = mine[k], real[k]
        assert [key for key in ours if key in theirs] == [key for key in theirs if key in ours]
        assert set(theirs) - set(ours) <= {"system_fingerprint", "x_groq"} and set(ours) - set(theirs) <= {"prompt_token_ids"}
        own = {key: value for key, value in ours["choices"][0].items() if key != "token_ids"}
        assert skeleton(own) == skeleton(theirs["choices"][0])
    last = next(chunk["choices"][0] for chunk in real if chunk["choices"] and chunk["choices"][0]["finish_reason"])
    ending = mine[-1]["choices"][0]
    assert (ending["finish_reason"], ending["delta"]) == (last["finish_reason"], last["delta"]) == ("stop", {})
