"""The stand-in behind the official `openrouter` package, unmodified: its typed models validate every response of every route.

The package is generated from OpenRouter's OpenAPI document; a response that lacks a required field, or has one of another type, ends in
`ResponseValidationError`. What stands on the recorded wire and in no model of the package is in `NOT_IN_THE_PACKAGE`: the recorded
traffic wins, so the stand-in sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from eagle3_assets.standin import response_cache
from eagle3_assets.standin.profiles import DEFAULT_PROFILES, PICO, load_profiles
from eagle3_assets.standin.schema.faults import Faults, FaultScript
from eagle3_assets.standin.schema.server import Money
from eagle3_assets.standin.server import Standin
from eagle3_assets.standin.vocabulary import Vocabulary
from eagle3_assets_tests.standin.conftest import KEY, SLUG, TOOL, TRUTH_TOKEN, FakeAnswer, MakeStandin, served, settings

openrouter = pytest.importorskip("openrouter")
import httpx  # noqa: E402
from openrouter import components, errors  # noqa: E402
from openrouter.utils import BackoffStrategy, RetryConfig  # noqa: E402

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
HI: list[Any] = [{"role": "user", "content": "Hi"}]
VERBATIM = components.ProviderPreferences(only=["verbatim"], allow_fallbacks=False)


def client(origin: str, key: str = KEY) -> Any:
    """As its readme says, with the stand-in's address; never a retry unless a test asks for it."""
    return openrouter.OpenRouter(api_key=key, server_url=f"{origin}/api/v1", retry_config=None)


@contextlib.contextmanager
def overheard(origin: str, key: str = KEY) -> Iterator[tuple[Any, list[httpx.Response]]]:
    """The same, and every response that it got."""
    seen: list[httpx.Response] = []

    def listen(response: httpx.Response) -> None:
        response.read()
        seen.append(response)

    with httpx.Client(event_hooks={"response": [listen]}) as http:
        with openrouter.OpenRouter(api_key=key, server_url=f"{origin}/api/v1", retry_config=None, client=http) as api:
            yield api, seen


def unknown_fields(raw: Any, model: Any, path: str = "") -> Iterator[str]:
    """Paths of what `raw` says and its validated `model` has no field for."""
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


def with_faults(**faults: Any) -> Any:
    return settings(faults=Faults(**faults))


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
    with served(standin) as origin, client(origin) as api:
        told = api.chat.send(model=SLUG, messages=HI, logprobs=True, top_logprobs=3, stream=stream)
        parts = list(told) if stream else [told]
    entries = [entry for part in parts for choice in part.choices if choice.logprobs for entry in choice.logprobs.content]
    truth = standin.ledger.truth_of(parts[0].id)
    assert truth is not None and len(entries) == len(truth["completion_ids"])
    text = b"".join(bytes(entry.bytes_) for entry in entries).decode()
    assert text == standin.generator.vocabulary.text(truth["completion_ids"]) + "<|im_end|>"
    assert {len(entry.top_logprobs) for entry in entries} <= {1, 2, 3}
    assert all(entry.logprob <= 0 for entry in entries)


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


# ------------------------------------------------------------------------------------------------ errors
TYPED = {
    "400": errors.BadRequestResponseError,
    "401": errors.UnauthorizedResponseError,
    "402_in_flight": errors.PaymentRequiredResponseError,
    "402_weight": errors.PaymentRequiredResponseError,
    "402_afford": errors.PaymentRequiredResponseError,
    "402_credits": errors.PaymentRequiredResponseError,
    "403": errors.ForbiddenResponseError,
    "404": errors.NotFoundResponseError,
    "408": errors.RequestTimeoutResponseError,
    "413": errors.PayloadTooLargeResponseError,
    "422": errors.UnprocessableEntityResponseError,
    "429": errors.TooManyRequestsResponseError,
    "429_bare": errors.TooManyRequestsResponseError,
    "429_date": errors.TooManyRequestsResponseError,
    "429_platform": errors.TooManyRequestsResponseError,
    "500": errors.InternalServerResponseError,
    "502": errors.BadGatewayResponseError,
    "503": errors.ServiceUnavailableResponseError,
    "524": errors.EdgeNetworkTimeoutResponseError,
    "529": errors.ProviderOverloadedResponseError,
    # no typed error for this route: the package's default one
    "504": errors.OpenRouterDefaultError,
    "html_502": errors.OpenRouterDefaultError,
    "html_524": errors.OpenRouterDefaultError,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", TYPED)
def test_every_refusal_is_the_typed_error_of_its_code(fault: str, stream: bool, make_standin: MakeStandin) -> None:
    standin = make_standin(with_faults(rates={fault: 1.0}))
    with served(standin) as origin, client(origin) as api:
        with pytest.raises(errors.OpenRouterError) as caught:
            api.chat.send(model=SLUG, messages=HI, stream=stream)
    error = caught.value
    assert type(error) is TYPED[fault]
    code = int(fault.removeprefix("html_")[:3])
    assert error.status_code == code and standin.ledger.spent_pico == 0
    if type(error) is not errors.OpenRouterDefaultError:
        assert error.data.error.code == code and error.data.error.message
        assert bool(error.data.user_id) == (code != 401)


def test_the_example_of_an_availability_error_is_no_error_of_the_package(make_standin: MakeStandin) -> None:
    """The documentation's example has no `code`, the package requires one (openrouter-contract 2.1, form 2): both are served."""
    with served(make_standin(with_faults(rates={"429_availability": 1.0}))) as origin, client(origin) as api:
        with pytest.raises(errors.ResponseValidationError) as caught:
            api.chat.send(model=SLUG, messages=HI)
    assert json.loads(caught.value.body)["error"]["availability"]["code"] == "capacity_exhausted"


def test_a_wrong_key_is_unauthorized_on_every_route_that_needs_one(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin, client(origin, "sk-wrong") as api:
        for ask in (
            lambda: api.chat.send(model=SLUG, messages=HI),
            lambda: api.credits.get_credits(),
            lambda: api.api_keys.get_current_key_metadata(),
            lambda: api.generations.get_generation(id="gen-0-none"),
        ):
            with pytest.raises(errors.UnauthorizedResponseError, match="User not found"):
                ask()


def test_credits_may_be_forbidden_for_an_inference_key(make_standin: MakeStandin) -> None:
    standin = make_standin(settings(money=Money(credits_need_management_key=True)))
    standin.management_key = "sk-standin-mgmt-test"
    with served(standin) as origin, client(origin) as api, client(origin, standin.management_key) as manager:
        with pytest.raises(errors.ForbiddenResponseError, match="management keys"):
            api.credits.get_credits()
        assert manager.credits.get_credits().data.total_credits == 25.0


def test_its_own_retry_waits_as_told_and_then_gets_the_answer(make_standin: MakeStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (FaultScript(fault="503", nth=0, times=2), FaultScript(fault="429", nth=1, times=1))
    profiles = settings(faults=Faults(script=script), retry_after_s=7)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    retry = RetryConfig("backoff", BackoffStrategy(10, 50, 1.0, 60_000, 0), False, ["429", "5XX"])
    with served(make_standin(profiles)) as origin, client(origin) as api:
        assert api.chat.send(model=SLUG, messages=HI, retries=retry).choices
        assert api.chat.send(model=SLUG, messages=[{"role": "user", "content": "Another"}], retries=retry).choices
    assert slept == [0.01, 0.01, 7.0]  # a 503 of one provider gives no hint, the 429 does


def test_an_error_inside_a_200_fails_validation_and_a_stream_tells_it_typed(make_standin: MakeStandin) -> None:
    with served(make_standin(with_faults(rates={"error_in_200": 1.0}))) as origin, client(origin) as api:
        with pytest.raises(errors.ResponseValidationError):
            api.chat.send(model=SLUG, messages=HI)
        (chunk,) = api.chat.send(model=SLUG, messages=HI, stream=True)
    assert (chunk.error.code, chunk.error.metadata.error_type) == (502, "provider_unavailable")
    assert chunk.choices[0].finish_reason == "error"


def test_an_answer_that_broke_off_is_a_valid_result_that_says_error(make_standin: MakeStandin) -> None:
    with served(make_standin(with_faults(rates={"finish_error": 1.0}))) as origin, client(origin) as api:
        assert api.chat.send(model=SLUG, messages=HI).choices[0].finish_reason == "error"
        *_, last = api.chat.send(model=SLUG, messages=HI, stream=True)
    assert last.choices[0].finish_reason == "error" and last.error.code == 502


# ------------------------------------------------------------------------------------------------ opt-in extras
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


def test_a_hit_needs_the_same_key_and_no_money_and_keeps_its_metadata(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    standin: Standin = make_standin()
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
