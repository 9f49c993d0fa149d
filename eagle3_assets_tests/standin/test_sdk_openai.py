"""The stand-in behind the official `openai` package, unmodified: its typed models validate every response.

The client builds its models without looking unless it is told to; here it validates (`_strict_response_validation`), and what does not
fit ends in `APIResponseValidationError`. It does not know OpenRouter's own fields; they come along as extra ones. Where its models and
recorded traffic differ the traffic wins: /models has its own shape (no `object`, no `owned_by`), and `finish_reason` may be `error`.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import KEY, SLUG, TOOL, FakeAnswer, MakeStandin, served, settings
from openrouter_standin.profiles import DEFAULT_PROFILES, PICO, load_profiles
from openrouter_standin.schema.faults import Faults, FaultScript

openai = pytest.importorskip("openai")
from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: E402

HI: list[Any] = [{"role": "user", "content": "Hi"}]
VERBATIM = {"provider": {"only": ["verbatim"], "allow_fallbacks": False}}
DATED = "eagle3/kimi-mini-0101"


def client(origin: str, *, key: str = KEY, retries: int = 0, strict: bool = True) -> Any:
    return openai.OpenAI(base_url=f"{origin}/api/v1", api_key=key, max_retries=retries, _strict_response_validation=strict)


def with_faults(**faults: Any) -> Any:
    return settings(faults=Faults(**faults))


# ------------------------------------------------------------------------------------------------ answers
def test_a_chat_is_a_valid_completion_and_openrouters_own_fields_come_along(make_standin: MakeStandin) -> None:
    standin = make_standin()
    with served(standin) as origin, client(origin) as api:
        raw = api.chat.completions.with_raw_response.create(model=SLUG, messages=HI, extra_body=VERBATIM, max_tokens=4000)
        told = raw.parse()
    assert isinstance(told, ChatCompletion) and raw.headers["x-generation-id"] == told.id
    truth = standin.ledger.truth_of(told.id)
    assert truth is not None
    message = told.choices[0].message
    text = f"{message.reasoning}</think>{message.content}"
    assert text == standin.generator.vocabulary.text(truth["completion_ids"])
    assert message.reasoning_details[0]["text"] == message.reasoning
    assert (told.model, told.provider, told.choices[0].native_finish_reason) == (DATED, "Verbatim", "stop")
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (len(truth["prompt_ids"]), len(truth["completion_ids"]))
    assert told.usage.cost == standin.ledger.spent_pico / PICO
    assert told.usage.completion_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("index", [0, 1, 3, 4, 5])
def test_a_stream_is_valid_chunks_that_add_up_to_the_whole(
    index: int, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "extra_body": VERBATIM}
    if answers[index].tool_names:
        asked |= {"tools": [TOOL], "tool_choice": "required"}
    with served(make_standin(bank=answers[index : index + 1])) as origin, client(origin) as api:
        whole = api.chat.completions.create(**asked).choices[0]
        with api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == (whole.message.content or "")
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == whole.message.reasoning
    told: dict[int, dict[str, Any]] = {}
    for call in (call for delta in deltas for call in delta.tool_calls or ()):
        entry = told.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
        entry["arguments"] += call.function.arguments
    calls = whole.message.tool_calls or []
    assert list(told.values()) == [
        {"id": call.id, "name": call.function.name, "arguments": call.function.arguments} for call in calls
    ]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage.cost > 0


def test_the_packages_own_stream_helper_rebuilds_the_answer(make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    """Its accumulator joins deltas by index, as the recorded ones want to be joined."""
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "tools": [TOOL], "tool_choice": "required", "extra_body": VERBATIM}
    with served(make_standin(bank=answers[4:5])) as origin, client(origin) as api:
        with api.chat.completions.stream(**asked) as stream:
            kinds = {event.type for event in stream}
            told = stream.get_final_completion()
    (choice,) = told.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see. ")
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [
        ("functions.get_weather:0", "get_weather", '{"city": "Florence"}'),
        ("functions.get_weather:1", "get_weather", "{}"),
    ]
    assert {"chunk", "content.delta", "tool_calls.function.arguments.delta"} <= kinds


def test_a_tool_conversation_goes_back_and_forth_in_the_packages_own_messages(
    make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    with served(make_standin(bank=(answers[3], answers[1]))) as origin, client(origin) as api:
        asked: dict[str, Any] = {"model": SLUG, "tools": [TOOL], "extra_body": VERBATIM}
        first = api.chat.completions.create(messages=HI, tool_choice="required", **asked)
        message = first.choices[0].message
        (call,) = message.tool_calls
        assert (call.type, json.loads(call.function.arguments)) == ("function", {"city": "Florence"})
        history = [*HI, message, {"role": "tool", "tool_call_id": call.id, "content": "40 C"}]
        second = api.chat.completions.create(messages=history, tool_choice="none", **asked)
    assert second.choices[0].message.content == "The answer is 42." and second.choices[0].finish_reason == "stop"
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_valid_and_their_bytes_are_the_text(
    stream: bool, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    profiles = settings()
    provider = profiles.provider[0].model_copy(update={"logprobs": True})
    source = profiles.source.model_copy(update={"synthetic_logprobs": True})
    standin = make_standin(profiles.model_copy(update={"provider": (provider,), "source": source}), bank=answers[:1])
    with served(standin) as origin, client(origin) as api:
        told = api.chat.completions.create(model=SLUG, messages=HI, logprobs=True, top_logprobs=2, stream=stream)
        parts = list(told) if stream else [told]
    entries = [entry for part in parts for choice in part.choices if choice.logprobs for entry in choice.logprobs.content]
    truth = standin.ledger.truth_of(parts[0].id)
    assert truth is not None and len(entries) == len(truth["completion_ids"])
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text == standin.generator.vocabulary.text(truth["completion_ids"]) + "<|im_end|>"
    assert all(0 < len(entry.top_logprobs) <= 2 and entry.logprob <= 0 for entry in entries)


@pytest.mark.parametrize("answer", [0, 4])
def test_every_provider_of_the_catalogue_gives_valid_answers(
    answer: int, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    """However it bends text, calls, log-probabilities and counts; whole and streamed."""
    catalogue = load_profiles(DEFAULT_PROFILES.with_name("catalogue.toml"))
    profiles = catalogue.model_copy(update={"server": settings().server, "model": settings().model})
    standin = make_standin(profiles, bank=answers[answer : answer + 1])
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "logprobs": True, "top_logprobs": 1, "tools": [TOOL]}
    with served(standin) as origin, client(origin) as api:
        for provider in catalogue.provider:
            alone = {"provider": {"only": [provider.tag], "allow_fallbacks": False}}
            whole = api.chat.completions.create(**asked, extra_body=alone)
            *_, last = api.chat.completions.create(**asked, extra_body=alone, stream=True)
            assert whole.provider == last.provider == provider.name and last.usage.cost >= 0


def test_a_provider_without_logprobs_answers_without_them(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin, client(origin) as api:
        told = api.chat.completions.create(model=SLUG, messages=HI, logprobs=True)
    assert told.choices[0].logprobs is None


def test_the_async_client_gets_the_same(make_standin: MakeStandin) -> None:
    async def run(origin: str) -> None:
        url = f"{origin}/api/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, _strict_response_validation=True) as api:
            asked: dict[str, Any] = {"model": SLUG, "extra_body": VERBATIM}
            many = [[{"role": "user", "content": f"question {k}"}] for k in range(50)]
            told = await asyncio.gather(*(api.chat.completions.create(messages=one, **asked) for one in many))
            assert len({one.id for one in told}) == 50 and {one.provider for one in told} == {"Verbatim"}
            stream = await api.chat.completions.create(messages=HI, stream=True, **asked)
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage.completion_tokens > 0 and chunks[-1].choices[0].finish_reason == "stop"
            with pytest.raises(openai.AuthenticationError):
                await api.with_options(api_key="sk-wrong").chat.completions.create(messages=HI, **asked)

    with served(make_standin()) as origin:
        asyncio.run(run(origin))


def test_models_are_listed_in_openrouters_shape_which_is_not_openais(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin:
        with client(origin, strict=False) as api:
            (model,) = api.models.list()
        with client(origin) as strict, pytest.raises(openai.APIResponseValidationError):
            strict.models.list()
    assert (model.id, model.created, model.context_length) == (SLUG, 1767225600, 131072)
    assert not hasattr(model, "owned_by") or model.owned_by is None


# ------------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("400", openai.BadRequestError),
        ("401", openai.AuthenticationError),
        ("402_afford", openai.APIStatusError),
        ("402_in_flight", openai.APIStatusError),
        ("403", openai.PermissionDeniedError),
        ("404", openai.NotFoundError),
        ("422", openai.UnprocessableEntityError),
        ("429", openai.RateLimitError),
        ("500", openai.InternalServerError),
        ("502", openai.InternalServerError),
        ("503", openai.InternalServerError),
        ("524", openai.InternalServerError),
        ("529", openai.InternalServerError),
        ("html_502", openai.InternalServerError),
    ],
)
def test_every_refusal_is_the_error_of_its_code(fault: str, kind: Any, stream: bool, make_standin: MakeStandin) -> None:
    standin = make_standin(with_faults(rates={fault: 1.0}))
    with served(standin) as origin, client(origin) as api, pytest.raises(openai.APIStatusError) as caught:
        api.chat.completions.create(model=SLUG, messages=HI, stream=stream)
    error, code = caught.value, int(fault.removeprefix("html_")[:3])
    assert type(error) is kind and error.status_code == code and standin.ledger.spent_pico == 0
    if not fault.startswith("html"):
        assert error.code == str(code) and error.body["message"] in str(error)  # `body` is the error object


def test_what_the_request_got_wrong_is_told(make_standin: MakeStandin) -> None:
    with served(make_standin(settings(credit_usd=0.001))) as origin, client(origin) as api:
        with pytest.raises(openai.BadRequestError, match="nobody/nothing is not a valid model ID"):
            api.chat.completions.create(model="nobody/nothing", messages=HI)
        with pytest.raises(openai.NotFoundError, match=r"provider\.only"):
            api.chat.completions.create(model=SLUG, messages=HI, extra_body={"provider": {"only": ["nobody"]}})
        with pytest.raises(openai.APIStatusError, match="can only afford") as caught:
            api.chat.completions.create(model=SLUG, messages=HI, max_tokens=4000)
        assert caught.value.status_code == 402
    with served(make_standin()) as origin, client(origin, key="sk-wrong") as api:
        with pytest.raises(openai.AuthenticationError, match="User not found"):
            api.chat.completions.create(model=SLUG, messages=HI)


def test_its_own_retry_waits_as_long_as_a_429_says(make_standin: MakeStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (FaultScript(fault="429", nth=0, times=2), FaultScript(fault="502", nth=1, times=1))
    standin = make_standin(settings(faults=Faults(script=script), retry_after_s=7))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with served(standin) as origin, client(origin, retries=2) as api:
        assert api.chat.completions.create(model=SLUG, messages=HI).choices
        assert slept == [7.0, 7.0]
        assert api.chat.completions.create(model=SLUG, messages=[{"role": "user", "content": "Another"}]).choices
    assert len(slept) == 3 and slept[2] <= 0.5  # a 502 gives no hint: its own pause
    assert len(standin.ledger.generations) == 2  # refused attempts are billed to nobody


@pytest.mark.parametrize(("fault", "asked"), [("429_absurd", 1), ("402_in_flight", 1), ("429_bare", 3)])
def test_it_does_not_retry_what_it_need_not_wait_for(
    fault: str, asked: int, make_standin: MakeStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause of a year is not taken, a 402 is not retried by this kind of client (docs/research/openrouter-contract.md#2.4)."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    standin = make_standin(with_faults(rates={fault: 1.0}))
    with served(standin) as origin, client(origin, retries=2) as api, pytest.raises(openai.APIStatusError):
        api.chat.completions.create(model=SLUG, messages=HI)
    assert sum(standin.ledger.attempts.values()) == asked


@pytest.mark.parametrize("fault", ["error_in_200", "error_choices_null", "error_string_code"])
def test_an_error_inside_a_200_has_no_choices(fault: str, make_standin: MakeStandin) -> None:
    """An old snare: a client that does not validate finds `choices` None, and the error beside it."""
    with served(make_standin(with_faults(rates={fault: 1.0}))) as origin:
        with client(origin) as strict, pytest.raises(openai.APIResponseValidationError):
            strict.chat.completions.create(model=SLUG, messages=HI)
        with client(origin, strict=False) as api:
            told = api.chat.completions.create(model=SLUG, messages=HI)
            with pytest.raises(openai.APIError, match="Provider returned error"):
                list(api.chat.completions.create(model=SLUG, messages=HI, stream=True))
    assert told.choices is None and told.error["message"] == "Provider returned error"


def test_an_answer_that_broke_off_says_error_which_openai_has_no_word_for(make_standin: MakeStandin) -> None:
    with served(make_standin(with_faults(rates={"finish_error": 1.0}))) as origin:
        with client(origin) as strict, pytest.raises(openai.APIResponseValidationError):
            strict.chat.completions.create(model=SLUG, messages=HI)
        with client(origin, strict=False) as api:
            (choice,) = api.chat.completions.create(model=SLUG, messages=HI).choices
    assert choice.finish_reason == "error" and choice.error["code"] == 502


@pytest.mark.parametrize("fault", ["reset_before_headers", "truncated"])
def test_a_lost_connection_is_a_connection_error(fault: str, make_standin: MakeStandin) -> None:
    standin = make_standin(with_faults(rates={fault: 1.0}))
    with served(standin) as origin, client(origin) as api, pytest.raises(openai.APIConnectionError):
        api.chat.completions.create(model=SLUG, messages=HI)
    assert standin.ledger.spent_pico > 0  # paid all the same


# ------------------------------------------------------------------------------------------------ recorded traffic
def test_the_recorded_rows_pass_the_same_validation(recorded: dict[str, Any]) -> None:
    """So what this file asks of the stand-in is what the real one gave."""
    for row in recorded.values():
        body = row["response_body"]
        if row["content_type"].startswith("text/event-stream"):
            for event in body.split("\n\n"):
                if event.startswith("data: {"):
                    ChatCompletionChunk.model_validate_json(event[6:])
        else:
            ChatCompletion.model_validate_json(body.strip())
