"""The engines behind a client that nobody here wrote: the `openai` package, its typed models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import SLUG, TOOL, FakeAnswer, MakeStandin, connected
from eagle3_assets_tests.standin.test_engines import failing, truth_of, with_logprobs
from openrouter_standin.service.server import Standin

openai = pytest.importorskip("openai")
V1 = pytest.mark.parametrize("v1", ["/engine/v1", "/sglang/v1"])
HI: list[Any] = [{"role": "user", "content": "Hi"}]
Talk = Callable[[Any], Awaitable[Any]]


def talk(standin: Standin, v1: str, say: Talk) -> Any:
    async def run() -> Any:
        async with connected(standin) as client:
            async with openai.AsyncOpenAI(base_url=client.origin + v1, api_key="none", max_retries=0) as engine:
                return await say(engine)

    return asyncio.run(run())


def checked(model: Any) -> Any:
    """`model` validated as strictly as its types say: the client itself builds its models without looking."""
    return type(model).model_validate(json.loads(model.model_dump_json(exclude_unset=True)))


def reasoning_of(part: Any) -> str:
    """Both servers name it their own way; the client keeps what it does not know."""
    return getattr(part, "reasoning", None) or getattr(part, "reasoning_content", None) or ""


@V1
def test_a_chat_is_a_valid_completion_with_reasoning_and_ids(v1: str, make_standin: MakeStandin) -> None:
    standin = make_standin()

    async def say(engine: Any) -> Any:
        return await engine.chat.completions.create(model=SLUG, messages=HI, extra_body={"return_token_ids": True})

    told = checked(talk(standin, v1, say))
    choice, truth = told.choices[0], truth_of(standin)
    assert (told.id, choice.finish_reason) == (truth["generation_id"], "stop")
    assert reasoning_of(choice.message) and choice.message.content
    assert getattr(choice, "token_ids", None) or choice.response_token_ids == truth["completion_ids"]
    assert told.usage.completion_tokens == len(truth["completion_ids"])


@V1
def test_a_stream_is_valid_chunks_that_add_up(v1: str, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    standin = make_standin(with_logprobs(), bank=answers[:1])

    async def say(engine: Any) -> Any:
        stream = await engine.chat.completions.create(
            model=SLUG, messages=HI, stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=1
        )
        return [chunk async for chunk in stream]

    chunks = [checked(chunk) for chunk in talk(standin, v1, say)]
    truth, vocabulary = truth_of(standin), standin.generator.vocabulary
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    text = "".join(reasoning_of(delta) for delta in deltas) + "</think>" + "".join(delta.content or "" for delta in deltas)
    assert text == vocabulary.text(truth["completion_ids"])
    entries = [e for chunk in chunks for choice in chunk.choices if choice.logprobs for e in choice.logprobs.content]
    assert len(entries) == len(truth["completion_ids"]) == chunks[-1].usage.completion_tokens


@V1
def test_a_tool_call_is_valid_whole_and_streamed(v1: str, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    standin = make_standin(bank=answers[4:5])
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "tools": [TOOL], "tool_choice": "required"}

    async def say(engine: Any) -> Any:
        whole = await engine.chat.completions.create(**asked)
        async with engine.chat.completions.stream(**asked) as stream:
            async for _ in stream:
                pass
            return whole, await stream.get_final_completion()

    whole, streamed = talk(standin, v1, say)
    calls, again = (told.choices[0].message.tool_calls for told in (checked(whole), streamed))
    assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
        (c.id, c.function.name, c.function.arguments) for c in again
    ]
    assert len(calls) == 2 and json.loads(calls[0].function.arguments) == {"city": "Florence"}
    assert whole.choices[0].finish_reason == streamed.choices[0].finish_reason == "tool_calls"


@V1
def test_errors_are_the_exceptions_of_the_client(v1: str, make_standin: MakeStandin) -> None:
    async def bad(engine: Any) -> Any:
        return await engine.chat.completions.create(model=SLUG, messages=[])

    async def gone(engine: Any) -> Any:
        return await engine.chat.completions.create(model=SLUG, messages=HI)

    with pytest.raises(openai.BadRequestError, match="messages"):
        talk(make_standin(), v1, bad)
    with pytest.raises(openai.InternalServerError, match="the model is gone"):
        talk(failing(make_standin()), v1, gone)


@V1
def test_models_are_listed(v1: str, make_standin: MakeStandin) -> None:
    async def say(engine: Any) -> Any:
        return [model async for model in engine.models.list()]

    (model,) = talk(make_standin(), v1, say)
    assert (checked(model).id, model.max_model_len) == (SLUG, make_standin().generator.context_length)
