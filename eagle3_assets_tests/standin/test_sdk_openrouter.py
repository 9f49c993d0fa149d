"""The stand-in behind the official `openrouter` package, unmodified: its typed models validate every response of every route.

The package is generated from OpenRouter's OpenAPI document; a response that lacks a required field, or has one of another type, ends in
`ResponseValidationError`. What stands on the recorded wire and in no model of the package is in `NOT_IN_THE_PACKAGE`: the recorded
traffic wins, so the stand-in sends it.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import KEY, SLUG, TOOL, FakeAnswer, MakeStandin, served, settings
from eagle3_assets_tests.standin.sdk_openrouter import HI, client, overheard
from openrouter_standin.profiles import DEFAULT_PROFILES, PICO, load_profiles
from openrouter_standin.schema.server import Money

pytest.importorskip("openrouter")
from openrouter import components, errors

# field of the recorded wire (and of the stand-in) that no model of the package knows
NOT_IN_THE_PACKAGE = {
    "provider",
    "choices[].native_finish_reason",
    "choices[].message.tool_calls[].index",
    "usage.completion_tokens_details.image_tokens",
}
# the package itself marks `rate_limit` as one not to use
pytestmark = pytest.mark.filterwarnings("ignore:warning.*DEPRECATED:DeprecationWarning")
DATED = "eagle3/kimi-mini-0101"
VERBATIM = components.ProviderPreferences(only=["verbatim"], allow_fallbacks=False)


def unknown_fields(raw: Any, model: Any, path: str = "") -> Iterator[str]:
    """Paths of what `raw` says and its validated `model` has no field for, or had to turn into a number."""
    if isinstance(raw, list) and isinstance(model, list):
        for one, other in zip(raw, model, strict=True):
            yield from unknown_fields(one, other, f"{path}[]")
    elif isinstance(raw, dict) and hasattr(type(model), "model_fields"):
        names = {field.alias or name: name for name, field in type(model).model_fields.items()}
        for key, value in raw.items():
            here = f"{path}.{key}" if path else key
            if key not in names:
                yield here
            else:
                yield from unknown_fields(value, getattr(model, names[key]), here)
    elif isinstance(raw, str) and isinstance(model, int | float):
        yield f"{path} is text"


# ------------------------------------------------------------------------------------------------ chat
def test_a_chat_is_a_valid_result(make_standin: MakeStandin) -> None:
    standin = make_standin()
    with served(standin) as origin, client(origin) as api:
        told = api.chat.send(model=SLUG, messages=HI, provider=VERBATIM, max_tokens=4000)
    assert isinstance(told, components.ChatResult)
    truth = standin.ledger.truth_of(told.id)
    assert truth is not None and told.model == DATED
    (choice,) = told.choices
    (detail,) = choice.message.reasoning_details
    assert isinstance(detail, components.ReasoningDetailText) and detail.text == choice.message.reasoning
    told_text = f"{choice.message.reasoning}</think>{choice.message.content}"
    assert told_text == standin.generator.vocabulary.text(truth["completion_ids"])
    assert told.usage.completion_tokens == len(truth["completion_ids"])
    assert told.usage.cost == standin.ledger.spent_pico / PICO == told.usage.cost_details.upstream_inference_cost


@pytest.mark.parametrize("index", range(6))
def test_a_stream_is_valid_chunks_that_add_up_to_the_whole(
    index: int, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    standin = make_standin(bank=answers[index : index + 1])
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "provider": VERBATIM}
    if answers[index].tool_names:
        asked |= {"tools": [TOOL], "tool_choice": "required"}
    if not answers[index].thinking:
        asked["reasoning"] = components.ChatRequestReasoning(effort="none")
    with served(standin) as origin, client(origin) as api:
        whole = api.chat.send(**asked).choices[0]
        with api.chat.send(**asked, stream=True) as stream:
            chunks = list(stream)
    assert all(isinstance(chunk, components.ChatStreamChunk) for chunk in chunks)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == (whole.message.content or "")
    assert "".join(delta.reasoning or "" for delta in deltas) == (whole.message.reasoning or "")
    arguments: dict[int, str] = {}
    ids: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.tool_calls or ()):
        arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
        if call.id:
            ids[call.index] = call.id
    calls = whole.message.tool_calls or []
    assert list(arguments.values()) == [call.function.arguments for call in calls]
    assert list(ids.values()) == [call.id for call in calls]
    finishes = {choice.finish_reason for chunk in chunks for choice in chunk.choices}
    assert finishes == {None, whole.finish_reason}
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_tool_conversation_goes_back_and_forth_in_typed_messages(
    make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    tool = components.ChatFunctionToolFunction(
        type="function",
        function=components.ChatFunctionToolFunctionFunction(name="get_weather", parameters={"type": "object"}),
    )
    with served(make_standin(bank=(answers[3], answers[1]))) as origin, client(origin) as api:
        first = api.chat.send(model=SLUG, messages=HI, tools=[tool], tool_choice="required", provider=VERBATIM)
        message = first.choices[0].message
        (call,) = message.tool_calls
        assert (first.choices[0].finish_reason, call.id, call.type) == ("tool_calls", "functions.get_weather:0", "function")
        assert json.loads(call.function.arguments) == {"city": "Florence"}
        history = [*HI, message, components.ChatToolMessage(role="tool", tool_call_id=call.id, content="40 C")]
        second = api.chat.send(model=SLUG, messages=history, tools=[tool], tool_choice="none", provider=VERBATIM)
    assert second.choices[0].finish_reason == "stop" and second.choices[0].message.content == "The answer is 42."
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_valid_and_their_bytes_are_the_text(
    stream: bool, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    profiles = settings()
    provider = profiles.provider[0].model_copy(update={"logprobs": True})
    source = profiles.source.model_copy(update={"synthetic_logprobs": True})
    standin = make_standin(profiles.model_copy(update={"provider": (provider,), "source": source}), bank=answers[:1])
    with served(standin) as origin, overheard(origin) as (api, seen):
        told = api.chat.send(model=SLUG, messages=HI, logprobs=True, top_logprobs=3, stream=stream)
        parts = list(told) if stream else [told]
    entries = [entry for part in parts for choice in part.choices if choice.logprobs for entry in choice.logprobs.content]
    truth = standin.ledger.truth_of(parts[0].id)
    assert truth is not None and len(entries) == len(truth["completion_ids"])
    text = b"".join(bytes(entry.bytes_) for entry in entries).decode()
    assert text == standin.generator.vocabulary.text(truth["completion_ids"]) + "<|im_end|>"
    assert {len(entry.top_logprobs) for entry in entries} <= {1, 2, 3}
    assert all(entry.logprob <= 0 for entry in entries)
    if not stream:
        assert set(unknown_fields(json.loads(seen[0].content), told)) <= NOT_IN_THE_PACKAGE


def test_provider_preferences_are_obeyed_as_the_package_writes_them(make_standin: MakeStandin) -> None:
    """Its prices are strings, its sort may be an object; what it leaves unset is not sent."""
    wanted = {
        "Verbatim": components.ProviderPreferences(order=["verbatim/int4"], allow_fallbacks=False),
        "Injector": components.ProviderPreferences(quantizations=["fp8"], data_collection="deny"),
        "Stripper": components.ProviderPreferences(ignore=["verbatim", "injector", "baseten"], require_parameters=True),
        "BaseTen": components.ProviderPreferences(max_price=components.MaxPrice(completion="1.6"), sort="price"),
    }
    fast = components.ProviderPreferences(sort=components.ProviderSortConfig(by="throughput"), allow_fallbacks=False)
    standin = make_standin()
    with served(standin) as origin, client(origin) as api:
        for name, preferences in wanted.items():
            told = api.chat.send(model=SLUG, messages=HI, provider=preferences)
            assert standin.ledger.generations[told.id]["provider"] == name
        told = api.chat.send(model=SLUG, messages=HI, provider=fast)
        assert standin.ledger.generations[told.id]["provider"] == "Injector"
        with pytest.raises(errors.NotFoundResponseError) as caught:
            api.chat.send(model=SLUG, messages=HI, provider=components.ProviderPreferences(only=["nobody"]))
    assert caught.value.data.error.code == 404


def test_a_list_of_models_is_served_by_the_first_that_is_sold_here(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin, client(origin) as api:
        assert api.chat.send(messages=HI, models=["nobody/nothing", SLUG]).model == DATED
        assert api.chat.send(messages=HI, model=SLUG, models=["nobody/nothing"]).model == DATED
        with pytest.raises(errors.BadRequestResponseError, match="nobody/nothing is not a valid model ID"):
            api.chat.send(messages=HI, models=["nobody/nothing", "nobody/else"])


@pytest.mark.slow
@pytest.mark.parametrize("answer", [0, 4])
def test_every_provider_of_the_catalogue_gives_valid_answers(
    answer: int, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    """However it bends text, calls, log-probabilities and counts; whole and streamed."""
    catalogue = load_profiles(DEFAULT_PROFILES.with_name("catalogue.toml"))
    server = settings().server
    profiles = catalogue.model_copy(update={"server": server, "model": settings().model})
    standin = make_standin(profiles, bank=answers[answer : answer + 1])
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "logprobs": True, "top_logprobs": 1, "tools": [TOOL]}
    with served(standin) as origin, client(origin) as api:
        for provider in catalogue.provider:
            alone = components.ProviderPreferences(only=[provider.tag], allow_fallbacks=False)
            whole = api.chat.send(**asked, provider=alone)
            *_, last = api.chat.send(**asked, provider=alone, stream=True)
            for told in (whole, last):
                record = api.generations.get_generation(id=told.id).data
                assert (record.provider_name, record.total_cost) == (provider.name, told.usage.cost)
    assert len(standin.ledger.generations) == 2 * len(catalogue.provider) >= 22


def test_the_async_client_gets_the_same(make_standin: MakeStandin) -> None:
    async def run(origin: str) -> None:
        async with client(origin) as api:
            told = await api.chat.send_async(model=SLUG, messages=HI, provider=VERBATIM)
            stream = await api.chat.send_async(model=SLUG, messages=HI, provider=VERBATIM, stream=True)
            chunks = [chunk async for chunk in stream]
            record = await api.generations.get_generation_async(id=chunks[0].id)
        assert isinstance(told, components.ChatResult) and isinstance(chunks[0], components.ChatStreamChunk)
        assert record.data.total_cost == chunks[-1].usage.cost and record.data.streamed is True

    with served(make_standin()) as origin:
        asyncio.run(run(origin))


def test_the_wire_tells_what_the_package_does_not_know_and_nothing_else(
    make_standin: MakeStandin, answers: tuple[FakeAnswer, ...], recorded: dict[str, Any]
) -> None:
    """The recorded rows and the stand-in's answers go through the same models, and leave the same fields over."""
    standin = make_standin(bank=answers[3:4])
    asked: dict[str, Any] = {"model": SLUG, "messages": HI, "tools": [TOOL], "tool_choice": "required", "provider": VERBATIM}
    with served(standin) as origin, overheard(origin) as (api, seen):
        api.chat.send(**asked)
        list(api.chat.send(**asked, stream=True))
    real = [row["response_body"].encode() for row in recorded.values()]
    for bodies in (real, [response.content for response in seen]):
        left: set[str] = set()
        for body in bodies:
            if b"data: {" in body:
                for line in body.split(b"\n\n"):
                    if line.startswith(b"data: {"):
                        raw = json.loads(line[6:])
                        left |= set(unknown_fields(raw, components.ChatStreamChunk.model_validate(raw)))
            else:
                raw = json.loads(body)
                left |= set(unknown_fields(raw, components.ChatResult.model_validate(raw)))
        assert left == NOT_IN_THE_PACKAGE


# ------------------------------------------------------------------------------------------------ account and catalogue
def test_credits_and_key_are_valid_and_agree_with_the_bill(make_standin: MakeStandin) -> None:
    money = Money(key_limit_usd=0.5)
    standin = make_standin(settings(credit_usd=9.0, money=money))
    with served(standin) as origin, client(origin) as api:
        cost = api.chat.send(model=SLUG, messages=HI).usage.cost
        credit = api.credits.get_credits().data
        key = api.api_keys.get_current_key_metadata().data
    assert (credit.total_credits, credit.total_usage) == (9.0, cost)
    assert (key.usage, key.limit, key.limit_remaining) == (cost, 0.5, pytest.approx(0.5 - cost))
    assert key.budgets == [key.effective_budget]
    assert (key.effective_budget.scope, key.effective_budget.remaining_usd) == ("key_limit", pytest.approx(0.5 - cost))
    assert key.free_model_daily_requests.limit == 50  # below 10 purchased credits
    assert key.label not in ("", KEY) and KEY not in repr(key)


def test_a_key_without_a_limit_has_no_budget(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin, client(origin) as api:
        key = api.api_keys.get_current_key_metadata().data
    assert (key.limit, key.limit_remaining, key.budgets, key.effective_budget) == (None, None, [], None)
    assert (key.expires_at, key.rate_limit.requests, key.free_model_daily_requests.limit) == (None, -1, 1000)


def test_a_generation_tells_the_bill_the_times_and_who_was_tried(make_standin: MakeStandin) -> None:
    profiles = settings()
    broken = profiles.provider[0].model_copy(update={"faults": {"503": 1.0}, "shed_rate": 0.0})
    standin = make_standin(profiles.model_copy(update={"provider": (broken, *profiles.provider[1:])}))
    order = components.ProviderPreferences(order=["verbatim", "stripper"])
    with served(standin) as origin, client(origin) as api:
        told = api.chat.send(model=SLUG, messages=HI, provider=order, session_id="talk 7")
        data = api.generations.get_generation(id=told.id).data
        with pytest.raises(errors.NotFoundResponseError):
            api.generations.get_generation(id="gen-0-none")
        with pytest.raises(errors.NotFoundResponseError):
            api.generations.list_generation_content(id=told.id)
    assert (data.id, data.model, data.provider_name, data.session_id) == (told.id, DATED, "Stripper", "talk 7")
    counts = (data.native_tokens_prompt, data.native_tokens_completion, data.total_cost, data.usage)
    assert counts == (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.cost, told.usage.cost)
    assert data.native_tokens_reasoning == told.usage.completion_tokens_details.reasoning_tokens
    created = datetime.datetime.fromisoformat(data.created_at)
    assert created.timestamp() == told.created
    assert [(one.provider_name, one.status) for one in data.provider_responses] == [("Verbatim", 503), ("Stripper", 200)]
    assert data.provider_responses[1].id == data.upstream_id and data.provider_responses[1].latency == data.latency > 0
    assert data.generation_time > 0 and data.response_cache_source_id is None and data.cancelled is False


def test_a_generation_that_a_kill_left_half_written_is_still_valid(make_standin: MakeStandin) -> None:
    standin = make_standin()
    with served(standin) as origin, client(origin) as api:
        told = api.chat.send(model=SLUG, messages=HI)
    standin.ledger.close()
    path = standin.ledger.folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:40])  # truth was written, the account was not
    with served(make_standin(folder=standin.ledger.folder)) as origin, client(origin) as api:
        data = api.generations.get_generation(id=told.id).data
    assert (data.id, data.total_cost, data.model) == (told.id, told.usage.cost, DATED)
    assert datetime.datetime.fromisoformat(data.created_at).timestamp() == told.created


def test_models_are_valid_and_paged(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin, client(origin) as api:
        page = api.models.list()
        (model,) = page.result.data
        assert (page.result.total_count, page.result.links.next) == (1, None)
        assert api.models.list(offset=1, limit=1).result.data == []
        rest = api.models.list(limit=1).next()
    assert rest is not None and rest.result.data == []  # the package asks on as long as pages are full
    assert (model.id, model.canonical_slug, model.expiration_date, model.hugging_face_id) == (SLUG, DATED, None, None)
    assert (model.reasoning.mandatory, model.reasoning.default_enabled) == (False, True)
    assert float(model.pricing.completion) == pytest.approx(1.5e-6)
    assert "tools" in model.supported_parameters and model.top_provider.is_moderated is False


def test_endpoints_are_valid_and_tell_prices_state_and_speed(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin:
        with client(origin) as api:
            told = api.endpoints.list(author="eagle3", slug="kimi-mini").data
        with client(origin, "sk-nobody") as stranger:
            unseen = stranger.endpoints.list(author="eagle3", slug="kimi-mini").data
            with pytest.raises(errors.NotFoundResponseError):
                stranger.endpoints.list(author="nobody", slug="nothing")
    by_tag = {one.tag: one for one in told.endpoints}
    assert {tag: one.status for tag, one in by_tag.items()} == {
        "verbatim/int4": 0, "injector/fp8": 0, "stripper": 0, "baseten/fp4": -5,
    }  # fmt: skip
    verbatim = by_tag["verbatim/int4"]
    assert (verbatim.quantization, verbatim.pricing.prompt, verbatim.provider_name) == ("int4", "0.0000004", "Verbatim")
    latency, speed = verbatim.latency_last_30m, verbatim.throughput_last_30m
    assert latency.p50 == 1200 < latency.p75 < latency.p90 < latency.p99 and speed.p50 == 60
    assert verbatim.supports_tool_choice.required is True and verbatim.native_tools == {}
    assert all(one.latency_last_30m is None and one.throughput_last_30m is None for one in unseen.endpoints)


@pytest.mark.parametrize("route", ["key", "generation", "models", "endpoints"])
def test_no_field_of_the_account_and_the_catalogue_is_unknown_to_the_package(route: str, make_standin: MakeStandin) -> None:
    standin = make_standin(settings(money=Money(key_limit_usd=1.0)))
    with served(standin) as origin, overheard(origin) as (api, seen):
        generation_id = api.chat.send(model=SLUG, messages=HI).id
        told = {
            "key": lambda: api.api_keys.get_current_key_metadata(),
            "generation": lambda: api.generations.get_generation(id=generation_id),
            "models": lambda: api.models.list().result,
            "endpoints": lambda: api.endpoints.list(author="eagle3", slug="kimi-mini"),
        }[route]()
    assert list(unknown_fields(json.loads(seen[-1].content), told)) == []
