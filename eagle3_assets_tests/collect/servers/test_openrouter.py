"""Claims about requests, the key, and where it may go."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import traceback
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.collect import given_answers
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers import engines, openrouter
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import RequestForm, resolve
from eagle3_assets.errors import WireError
from eagle3_assets.prompts.prompt import Given
from eagle3_assets_tests.collect.fake_openrouter import FakeOpenRouter
from eagle3_assets_tests.collect.samples import KEY, MODEL, a_campaign, a_dataset, a_prompt, a_snapshot, first_dataset

CAMPAIGN = a_campaign()
ROUTING = resolve(CAMPAIGN, a_snapshot())


def request_for(prompt: Any, campaign: Any = CAMPAIGN) -> dict[str, Any]:
    return openrouter.build_request(campaign, first_dataset(campaign), prompt, ROUTING)


def test_sampling_limits_and_provider_are_always_explicit_and_no_fallback_model_is_ever_sent() -> None:
    request = request_for(a_prompt())
    assert {k: request[k] for k in ("model", "temperature", "top_p", "max_tokens", "stream", "reasoning", "usage")} == {
        "model": MODEL,
        "temperature": 1.0,
        "top_p": 0.95,
        "max_tokens": 1000,
        "stream": False,
        "reasoning": {"enabled": True},
        "usage": {"include": True},
    }
    assert request["plugins"] == [{"id": "context-compression", "enabled": False}]
    assert request["provider"] == ROUTING.provider_object
    assert not {"models", "tools", "route", "transforms"} & set(request)


def test_tools_and_a_datasets_own_sampling_are_sent_and_thinking_can_be_off() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    campaign = a_campaign(a_dataset(sampling={"temperature": 0.6, "top_p": 0.9, "max_tokens": 64}), target={"thinking": False})
    request = request_for(a_prompt(tools=(tool,)), campaign)
    assert request["tools"] == [tool] and request["reasoning"] == {"enabled": False}
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.6, 0.9, 64)


def test_history_is_replayed_with_its_reasoning_and_without_names() -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{ "a":1}'}}
    history = (
        {"role": "user", "content": "q", "name": "bob"},
        {"role": "assistant", "content": None, "reasoning_content": " Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "42", "name": "f"},
    )
    before = copy.deepcopy(history)
    sent = request_for(a_prompt(messages=history))["messages"]
    assert sent[0] == {"role": "user", "content": "q"}
    assert sent[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        "reasoning": " Hm.",
        "reasoning_details": [{"type": "reasoning.text", "text": " Hm.", "format": "unknown", "index": 0}],
    }
    assert sent[2] == {"role": "tool", "tool_call_id": "functions.f:0", "content": "42"}
    assert history == before


@pytest.mark.parametrize(
    ("how", "fields"),
    [
        ("both", {"reasoning", "reasoning_details"}),
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
        ("reasoning_details", {"reasoning_details"}),
        ("none", set()),
    ],
)
def test_reasoning_of_the_history_goes_back_in_the_fields_that_the_form_names(how: Any, fields: set[str]) -> None:
    history = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": " Hm."})
    routing = dataclasses.replace(ROUTING, form=RequestForm(replay=how))
    sent = openrouter.build_request(CAMPAIGN, first_dataset(CAMPAIGN), a_prompt(messages=history), routing)["messages"]
    assert set(sent[1]) == {"role", "content"} | fields
    texts = {"reasoning": " Hm.", "reasoning_content": " Hm.", "reasoning_details": [{"text": " Hm.", "type": "reasoning.text"}]}
    for name in fields:
        said = sent[1][name]
        assert said == texts[name] or said[0].items() >= texts[name][0].items()
    assert sent[0] == {"role": "user", "content": "q"}


def test_streams_and_logprobs_are_asked_for_only_when_the_routing_says_so() -> None:
    def ask(form: RequestForm) -> dict[str, Any]:
        routing = dataclasses.replace(ROUTING, form=form)
        return openrouter.build_request(CAMPAIGN, first_dataset(CAMPAIGN), a_prompt(), routing)

    assert ask(RequestForm())["stream"] is False and "logprobs" not in ask(RequestForm())
    assert ask(RequestForm(stream=True))["stream"] is True
    assert ask(RequestForm(logprobs=True))["logprobs"] is True


def test_no_setting_of_a_campaign_leaves_out_what_must_always_be_sent() -> None:
    """docs/research/openrouter-contract.md#1.1, #1.2: an unset max_tokens is the model's maximum, an unset max_price any price,
    an unset cache a duplicate."""
    loose = a_campaign(
        routing={"ignore": (), "quantizations": (), "require_parameters": False, "allow_fallbacks": True, "sort": "throughput"},
        sampling={"temperature": 0.0, "top_p": 1.0, "max_tokens": 1},
        campaign={"data_collection": "allow"},
    )
    routing = resolve(loose, a_snapshot())
    request = openrouter.build_request(loose, first_dataset(loose), a_prompt(), routing)
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.0, 1.0, 1)
    assert request["plugins"] == [{"id": "context-compression", "enabled": False}] and "models" not in request
    provider = request["provider"]
    assert provider["max_price"]["prompt"] > 0 and provider["max_price"]["completion"] > 0
    assert provider["data_collection"] == "allow" and provider["only"] == ["chutes/int4"]
    assert ROUTING.provider_object["data_collection"] == "deny"  # the default
    assert openrouter.request_headers(ApiKey(KEY), loose)["X-OpenRouter-Cache"] == "false"


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_a_reservation_covers_one_token_for_every_byte_of_the_prompt_and_all_of_max_tokens(text: str) -> None:
    request = request_for(a_prompt(text))
    worst = (len(text.encode()) + 3) * 0.44e-6 + 1000 * 2e-6
    assert openrouter.most_it_can_cost(request, ROUTING) >= worst


# ---------------------------------------------------------------------------------------------------- the key
def test_a_key_shows_itself_nowhere() -> None:
    key = ApiKey(KEY)
    servers = Servers("https://openrouter.ai/api/v1", key)
    for shown in (repr(key), str(key), f"{key}", f"{key!r:>30}", repr(servers), repr([key]), str(vars(ApiKey))):
        assert KEY not in shown
    for writing in (pickle.dumps, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            writing(key)
    assert key.reveal() == KEY


@pytest.mark.parametrize("value", ["", "  ", f"{KEY}\r\nX-Evil: 1", f"{KEY} x", "schlüssel-ü"])
def test_a_malformed_key_is_refused_without_being_shown(value: str) -> None:
    with pytest.raises(WireError) as caught:
        ApiKey(value)
    assert not value.strip() or value not in str(caught.value)


def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(WireError, match="OPENROUTER_API_KEY is not set"):
        ApiKey.from_environment()
    monkeypatch.setenv("OPENROUTER_API_KEY", f" {KEY}\n")
    assert ApiKey.from_environment().reveal() == KEY


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://openrouter.ai/api/v1", True),
        ("https://gateway.example/api/v1/", True),
        ("http://127.0.0.1:8080/api/v1", True),
        ("http://localhost:1/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://openrouter.ai/api/v1", False),
        ("http://127.0.0.1.evil.example/", False),
        ("http://localhost.evil.example/", False),
        ("ftp://x/", False),
        ("openrouter.ai", False),
        ("https://user:pw@x/", False),
        ("https://x/?a=b", False),
    ],
)
def test_the_key_goes_over_https_or_to_loopback_only(url: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_BASE_URL", url)
    if allowed:
        assert openrouter.allowed_base_url(CAMPAIGN) == url.rstrip("/")
    else:
        with pytest.raises(WireError, match="OPENROUTER_BASE_URL"):
            openrouter.allowed_base_url(CAMPAIGN)


def test_without_the_variable_the_key_goes_to_openrouter_and_an_embedded_campaign_never_gets_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENROUTER_BASE_URL", raising=False)
    assert openrouter.allowed_base_url(CAMPAIGN) == "https://openrouter.ai/api/v1"
    monkeypatch.setenv("OPENROUTER_BASE_URL", "https://elsewhere.example/v1")
    with pytest.raises(WireError, match="embedded"):
        openrouter.allowed_base_url(a_campaign(server={"kind": "embedded"}))


def test_check_key_reports_limits_and_a_refusal_never_shows_the_key() -> None:
    async def run() -> None:
        async with FakeOpenRouter() as server, aiohttp.ClientSession() as session:
            assert (await openrouter.check_key(session, server.base_url, ApiKey(KEY)))["limit_remaining"] == 9.0
            server.default = "401"
            for url, words in (
                (server.base_url, "HTTP 401"),
                ("http://127.0.0.1:9/api/v1", "no answer"),
                ("http://x.example", "https"),
            ):
                with pytest.raises(WireError, match=words) as caught:
                    await openrouter.check_key(session, url, ApiKey(KEY))
                assert KEY not in "".join(traceback.format_exception(caught.value))

    asyncio.run(run())


# ---------------------------------------------------------------------------------------------------- engines and imports
def test_an_engine_is_asked_for_ids_and_history_keeps_reasoning_content() -> None:
    campaign = a_campaign(
        a_dataset("b1_glaive", "engine"),
        engine=({"kind": "vllm", "base_url": "http://h:1", "model": "kimi"}, {"kind": "sglang", "base_url": "http://h:2"}),
    )
    prompt = a_prompt(
        messages=({"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "r"})
    )
    vllm, sglang = (engines.build_engine_request(campaign, first_dataset(campaign), prompt, e) for e in campaign.engine)
    assert vllm["return_token_ids"] is True and vllm["chat_template_kwargs"] == {"thinking": True} and vllm["stream"] is False
    assert vllm["model"] == "kimi" and sglang["model"] == MODEL and sglang["separate_reasoning"] is True
    assert vllm["messages"][1]["reasoning_content"] == "r" and "provider" not in vllm and vllm["max_tokens"] == 1000


def test_the_least_loaded_engine_takes_the_next_request() -> None:
    campaign = a_campaign(engine=({"kind": "vllm", "base_url": "http://a"}, {"kind": "vllm", "base_url": "http://b/v1/"}))
    pool = engines.EnginePool(campaign.engine, tuple(e.base_url for e in campaign.engine))
    a, b = "http://a/v1/chat/completions", "http://b/v1/chat/completions"
    with pool.borrow() as (_, first):
        with pool.borrow() as (_, second):
            with pool.borrow() as (_, third):
                assert (first, second, third) == (a, b, a)
        with pool.borrow() as (_, fourth):
            assert fourth == b


def test_an_import_keeps_message_and_ids_without_a_bill() -> None:
    message = {"role": "assistant", "content": "x", "reasoning_content": "r"}
    prompt = a_prompt(given=Given(message, output_ids=(5, 6, 7), prompt_ids=(1, 2), finish_reason="stop"))
    answer = given_answers.import_answer(CAMPAIGN, prompt)
    body = json.loads(answer.body)
    assert body["choices"][0] == {"index": 0, "finish_reason": "stop", "message": message, "token_ids": [5, 6, 7]}
    assert body["prompt_token_ids"] == [1, 2] and "usage" not in body
    assert (answer.source, answer.outcome, answer.cost_usd) == ("import", "finished", 0.0)


def test_an_import_without_ids_says_nothing_about_ids_and_one_without_an_answer_fails_for_good() -> None:
    body = json.loads(given_answers.import_answer(CAMPAIGN, a_prompt(given=Given({"role": "assistant", "content": "x"}))).body)
    assert "token_ids" not in body["choices"][0] and "prompt_token_ids" not in body
    assert body["choices"][0]["finish_reason"] is None
    lost = given_answers.import_answer(CAMPAIGN, a_prompt())
    assert (lost.outcome, lost.reason, lost.retry_class) == ("failed", "no_given_answer", "permanent")
