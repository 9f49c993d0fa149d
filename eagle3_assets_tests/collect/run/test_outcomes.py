"""Claims about the reading of answers: every kind of body has its row in the table, and nothing a server sends breaks the
reader.
"""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.collect.run.outcomes import TABLE, classify
from eagle3_assets.collect.servers.exchange import Exchange
from eagle3_assets.wire import completion as reading
from eagle3_assets_tests.collect.fake_openrouter import _BODIES, _STATUSES, _sse, completion

STATUS_ROWS = {
    "400": "bad_request",
    "401": "key_refused",
    "402": "no_credit",
    "402_bare": "credit_doubted",
    "402_in_flight": "in_flight_budget",
    "402_too_big": "no_credit",
    "403": "forbidden",
    "403_moderated": "moderated",
    "403_budget": "no_credit",
    "404": "no_endpoint",
    "408": "gateway_timeout",
    "413": "too_large",
    "422": "unprocessable",
    "429": "rate_limited",
    "429_absurd": "rate_limited",
    "429_date": "rate_limited",
    "500": "server_error",
    "502": "provider_down",
    "503": "overloaded",
    "504": "gateway_timeout",
    "524": "gateway_timeout",
    "529": "overloaded",
}
BODY_ROWS = {
    "ok": "finished",
    "error_in_200": "provider_down",
    "error_in_200_with_empty_choices": "rate_limited",
    "error_in_200_as_text": "server_error",
    "401_in_200": "key_refused",
    "error_finish": "error_finish",
    "empty": "empty",
    "no_choices": "no_choices",
    "no_usage": "finished",
    "claims_free": "finished",
    "wrong_provider": "wrong_provider",
    "wrong_model": "wrong_model",
    "content_filter": "content_filter",
    "no_finish_reason": "no_finish_reason",
    "garbage_types": "empty",
}


def exchange(body: Any, status: int = 200, **headers: str) -> Exchange:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Exchange(status, {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}, raw)


def verdict(e: Exchange) -> Any:
    return classify(
        e, is_asked_model=lambda m: m is not None and m.startswith("moonshotai/kimi-k2.5"), is_eligible=lambda p: p == "Chutes"
    )


@pytest.mark.parametrize("name", _STATUSES)
def test_each_status_has_its_row(name: str) -> None:
    status, body, _ = _STATUSES[name]
    finding = verdict(exchange(body, status))
    assert finding.reason == STATUS_ROWS[name]
    assert finding.cost_usd == (0.0 if TABLE[finding.reason].money == "free" else None)


@pytest.mark.parametrize("name", _BODIES)
def test_each_body_of_a_200_has_its_row(name: str) -> None:
    assert verdict(exchange(_BODIES[name](1))).reason == BODY_ROWS[name]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b"\n         \n", "truncated"),
        (b'{"choices":[{"fini', "truncated"),
        (b"<html>", "html"),
        (b"[]", "unreadable"),
        (b"null", "unreadable"),
        (b"\n         \n" + json.dumps(completion(1)).encode(), "finished"),
        (json.dumps(completion(1)).replace(" Oi 1!", "\\ud83d").encode(), "finished"),
    ],
)
def test_whitespace_is_no_fault_and_half_a_body_is_no_answer(body: bytes, reason: str) -> None:
    assert verdict(exchange(body)).reason == reason


def test_html_of_the_edge_is_not_taken_for_the_server() -> None:
    assert verdict(exchange(b"<html>Bad gateway", 502, content_type="text/html")).reason == "html"
    assert verdict(exchange(b"<html>slow down", 429, content_type="text/html")).reason == "rate_limited"
    assert TABLE["html"].money == "unknown"


def test_a_cost_that_the_body_states_is_the_cost_whatever_the_outcome() -> None:
    assert verdict(exchange(_BODIES["empty"](1))).cost_usd == 0.0001
    assert verdict(exchange(_BODIES["wrong_provider"](1))).cost_usd == 0.0005
    assert verdict(exchange(_BODIES["no_usage"](1))).cost_usd is None
    assert verdict(exchange(_BODIES["error_finish"](1))).cost_usd == 0.0
    assert verdict(exchange(completion(1, usage={"cost": -1}))).cost_usd is None
    assert verdict(exchange(completion(1, usage={"cost": True}))).cost_usd is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("soon", None),
        ("nan", None),
        ("a date in 30 s", 30.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(value: str, seconds: float | None) -> None:
    value = formatdate(time.time() + 30, usegmt=True) if value == "a date in 30 s" else value
    found = classify(exchange(_STATUSES["429"][1], 429, retry_after=value)).retry_after_s
    assert found == (seconds if seconds is None else pytest.approx(seconds, abs=2))


@pytest.mark.parametrize("code", ["\u00b2", "9" * 5000, "\u0664\u0662\u0669", None, [429], 1.5, 10**400])
def test_a_code_that_is_no_number_is_no_code(code: Any) -> None:
    assert classify(exchange({"error": {"code": code, "message": "x"}})).reason == "server_error"
    assert classify(exchange({"error": {"code": "429", "message": "x"}})).reason == "rate_limited"


def test_a_delay_beyond_all_numbers_is_none() -> None:
    assert classify(exchange({"error": {"availability": {"retry_after": 10**400}}}, 429)).retry_after_s is None


def test_retry_after_may_stand_in_the_body() -> None:
    body = {"error": {"message": "no", "availability": {"retry_after": 12}}}
    assert classify(exchange(body, 429)).retry_after_s == 12.0


def test_a_stream_is_one_completion_and_a_torn_one_is_none() -> None:
    whole = _sse(1)
    finding = verdict(exchange(whole, content_type="text/event-stream"))
    assert finding.reason == "finished" and finding.cost_usd == 0.0005
    assert reading.history_message(finding.completion) == {"role": "assistant", "content": "Oi", "reasoning_content": "Hm"}
    assert (
        verdict(exchange(whole[: whole.index(b'"finish_reason"') - 60], content_type="text/event-stream")).reason == "truncated"
    )
    broken = b'data: {"error":{"code":502,"message":"x"},"choices":[{"delta":{},"finish_reason":"error"}]}\n\n'
    assert verdict(exchange(broken, content_type="text/event-stream")).reason == "provider_down"


def test_tool_calls_of_a_stream_are_put_together_by_index() -> None:
    parts = [
        {"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": '{"a"'}},
        {"index": 1, "id": "functions.g:1", "function": {"name": "g"}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ]
    chunks = [{"choices": [{"delta": {"tool_calls": [p]}}]} for p in parts] + [
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    ]
    body = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks)
    message = reading.history_message(reading.parse_completion(body, "text/event-stream"))
    assert [(c["id"], c["function"]) for c in message["tool_calls"]] == [
        ("functions.f:0", {"name": "f", "arguments": '{"a": 1}'}),
        ("functions.g:1", {"name": "g", "arguments": ""}),
    ]


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "choices",
                    "message",
                    "usage",
                    "cost",
                    "code",
                    "metadata",
                    "delta",
                    "finish_reason",
                    "content",
                    "reasoning_details",
                    "tool_calls",
                    "provider",
                    "model",
                    "availability",
                    "reason",
                    "reasons",
                    "text",
                    "index",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    body=anything,
    status=st.sampled_from([200, 400, 402, 403, 404, 418, 429, 502, 599]),
    stream=st.booleans(),
    inside=st.booleans(),
)
def test_nothing_that_a_server_sends_breaks_the_reader(body: Any, status: int, stream: bool, inside: bool) -> None:
    if inside:
        body = {"choices": [body], "error": body if status != 200 else None}
    raw = json.dumps(body).encode()
    finding = verdict(exchange(b"data: " + raw + b"\n\n" if stream else raw, status))
    assert finding.reason in TABLE
    if finding.completion is not None:
        reading.history_message(finding.completion)
        reading.completion_tokens(finding.completion)


@pytest.mark.parametrize(
    "message",
    ["Key limit exceeded (total limit). Manage it using https://openrouter.ai/settings/keys", "Key limit exceeded (daily limit)"],
)
def test_a_key_whose_limit_is_reached_is_a_budget_stop_also_without_metadata(message: str) -> None:
    finding = verdict(exchange({"error": {"code": 403, "message": message}}, 403))
    assert (finding.reason, finding.handling.then) == ("no_credit", "stop_budget")
    assert verdict(exchange({"error": {"code": 403, "message": "Access to this model is limited"}}, 403)).reason == "forbidden"


@pytest.mark.parametrize("code", [401, 402, 403])
@pytest.mark.parametrize("inside", [True, False])
def test_an_error_that_names_a_provider_is_about_that_provider(code: int, inside: bool) -> None:
    error = {
        "code": code,
        "message": "Provider returned error",
        "metadata": {"provider_name": "Novita", "raw": "invalid api key"},
    }
    finding = verdict(exchange({"error": error}, 200 if inside else code))
    assert (finding.reason, finding.handling.then) == ("provider_refused", "elsewhere")
    assert finding.provider == "Novita"
    assert finding.message == "Novita: Provider returned error"


def test_a_wrong_model_is_named_beside_the_one_that_was_asked_for() -> None:
    body = {**completion("x"), "model": "anthropic/claude\n-x"}
    finding = classify(exchange(body), is_asked_model=lambda model: False, asked_model="moonshotai/kimi-k2.5")
    assert (finding.reason, finding.message) == ("wrong_model", "asked for moonshotai/kimi-k2.5, answered by anthropic/claude -x")


def test_a_stream_of_moonshot_is_billed_by_its_choice() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 7.0, "cost": 0.25}
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "Hi!"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage}]},
    ]
    body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    merged = reading.parse_completion(body, "text/event-stream")
    assert reading.completion_tokens(merged) == 7 and reading.usage_of(merged) == usage
    whole = {"choices": [{"message": {"content": "Hi!"}, "usage": usage, "finish_reason": "stop"}]}
    assert reading.completion_tokens(whole) == 7
