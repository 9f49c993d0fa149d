"""The shapes of one logged exchange: where each kind of log keeps request, response, time and provider.

Belongs here: one small reader a shape, and the table that chooses. Does not belong here: envelopes (`halves.py`), files of many exchanges
(`files.py`).

Sources of the shapes: LiteLLM's StandardLoggingPayload and its spend-log table; Langfuse's observations API; OpenAI's batch guide; VCR
(Ruby, Python, Go) cassettes; HAR 1.2; inspect_ai's ModelEvent with its raw `call`; OpenHands' completion logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.exact.logs import halves
from eagle3_assets.exact.logs.exchange import LoggedExchange
from eagle3_assets.exact.logs.halves import first, host_of, kind, loaded

# where the halves of an exchange stand: this project's recorded traffic; proxies and gateways; batch files (body, response.body); SDK hooks
REQUEST_KEYS = ("request", "request_body", "requestBody", "providerRequest", "body", "kwargs")
RESPONSE_KEYS = ("response_body", "response", "responseBody", "providerResponse", "completion", "completion_response")
ID_KEYS = ("custom_id", "id", "request_id", "call_id")
TIME_KEYS = (
    "created_at",
    "createdAt",
    "endTime",
    "end_time",
    "startTime",
    "start_time",
    "startedDateTime",
    "recorded_at",
    "timestamp",
    "time",
)
PROVIDER_KEYS = ("provider", "custom_llm_provider", "llm_provider", "provider_name")
URL_KEYS = ("url", "uri", "api_base")
# parameters of a call that stand beside its messages: LiteLLM's payload, its hooks, OpenHands, Langfuse
PARAMETER_KEYS = ("model_parameters", "modelParameters", "optional_params", "kwargs", "invocation_params")
_SHOWN_KEYS = 8
_ROUTERS = {"openrouter", "litellm", "openai", "custom_openai", "hosted_vllm"}  # how a request was sent, not who answered


@dataclass(frozen=True, slots=True)
class Halves:
    """Where a record keeps its exchange; `assumed` as in `LoggedExchange`."""

    request: Any
    response: Any
    assumed: str | None = None


Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of record. `fits` looks at keys only."""

    name: str
    fits: Callable[[Record], bool]
    read: Callable[[Record], Halves]


def read_record(record: Any, requests: Callable[[str], Any] | None = None) -> LoggedExchange:
    """Find request and response in a record; `requests` gives the request of a batch's `custom_id`. Raises ValueError with one line:
    which half is missing, or what was found instead."""
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object with a request and a response, found {kind(record)}")
    if requests is not None and isinstance(record.get("custom_id"), str) and first(record, REQUEST_KEYS) is None:
        asked = requests(record["custom_id"])
        if asked is None:
            raise ValueError(f"custom_id {record['custom_id']!r} is in no line of the request file")
        record = {**record, "request": asked}
    shape = next((shape for shape in SHAPES if shape.fits(record)), None)
    if shape is None:
        raise ValueError(_no_shape(record))
    found = shape.read(record)
    if found.request is None or found.response is None:
        raise ValueError(f"a record of {shape.name} without {'its request' if found.request is None else 'an answer'}")
    body = halves.read_body(found.response)
    return LoggedExchange(
        id=next((record[key] for key in ID_KEYS if isinstance(record.get(key), str)), None),
        request=halves.read_request(found.request),
        body=body,
        content_type=halves.content_type_of(record) or halves.content_type_of(found.response) or "application/json",
        status=halves.status_of(record) or halves.status_of(found.response),
        at=_moment(record, found, body),
        provider=_provider(record, found),
        assumed=found.assumed,
    )


def _moment(record: Record, found: Halves, body: bytes) -> float | None:
    """By the answer itself, else by the log, else by the response's `date` header."""
    told = (record.get(key) for key in TIME_KEYS)
    dated = next((at for value in told if (at := halves.seconds_of(value)) is not None), None)
    date = halves.headers_of(found.response).get("date") or halves.headers_of(record).get("date")
    return halves.created_of(body) or dated or halves.seconds_of(date)


def _provider(record: Record, found: Halves) -> str | None:
    named = first(record, PROVIDER_KEYS)
    if isinstance(named, str) and named.strip() and named.casefold() not in _ROUTERS:
        return named
    places = (record, found.request if isinstance(found.request, Mapping) else {})
    return next((host for place in places for key in URL_KEYS if (host := host_of(place.get(key)))), None)


def _no_shape(record: Record) -> str:
    found = ", ".join(map(str, list(record)[:_SHOWN_KEYS])) or "nothing"
    request, response = first(record, REQUEST_KEYS), first(record, RESPONSE_KEYS)
    if request is None and response is None:
        if "choices" in record:
            return "this is an answer without its request, and prompt ids come from the request: add it as the key request, or give --request"
        if any(str(key).startswith("gen_ai.") for key in (*record, *_keys(record.get("attributes")))):
            return "this is an OpenTelemetry span: its attributes hold neither the request as sent nor the answer as received"
        if "messages" in record:
            return f"these are messages without an answer of the API beside them (no bill, no finish reason): found {found}"
    half, names = ("request", REQUEST_KEYS) if request is None else ("response", RESPONSE_KEYS)
    return f"the {half} is missing: expected one of the keys {', '.join(names)}; found {found}"


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, Mapping) else []


# ---------------------------------------------------------------------------------------------------- pairs
def _is_pair(record: Record) -> bool:
    return first(record, REQUEST_KEYS) is not None and first(record, RESPONSE_KEYS) is not None


def _pair(record: Record) -> Halves:
    return Halves(first(record, REQUEST_KEYS), first(record, RESPONSE_KEYS))


def _is_messages_beside(record: Record) -> bool:
    """LiteLLM's payload and hooks, OpenHands: the messages stand in the record, the parameters in a dictionary beside them."""
    messages = isinstance(record.get("messages"), list | str) and bool(record["messages"])
    return messages and record.get("request") is None and first(record, RESPONSE_KEYS) is not None


def _messages_beside(record: Record) -> Halves:
    request: dict[str, Any] = {}
    for key in PARAMETER_KEYS:
        parameters = record.get(key)
        request |= loaded(parameters, key) if isinstance(parameters, str) else dict(parameters or {})
    request |= {key: record[key] for key in ("model", "tools", "tool_choice", "max_tokens") if record.get(key) is not None}
    request["messages"] = loaded(record["messages"], "list of messages")
    return Halves(request, first(record, RESPONSE_KEYS))


def _is_spend_log(record: Record) -> bool:
    """A row of LiteLLM's spend logs, whose whole request is kept as text."""
    return "proxy_server_request" in record and "response" in record


def _spend_log(record: Record) -> Halves:
    asked = record["proxy_server_request"]
    request = loaded(asked, "proxy_server_request") if isinstance(asked, str) and asked.strip() else asked
    if isinstance(request, Mapping) and "messages" not in request:
        request = request.get("body", request)
    messages = record.get("messages")
    if not (isinstance(request, Mapping) and request.get("messages")) and messages not in (None, "", "{}", {}, []):
        request = {**(request if isinstance(request, Mapping) else {}), "messages": loaded(messages, "list of messages")}
    if not isinstance(request, Mapping) or not request.get("messages"):
        raise ValueError(
            "a spend log of LiteLLM without messages: set general_settings.store_prompts_in_spend_logs, or log the payload"
        )
    return Halves(request, record["response"] or None)


# ---------------------------------------------------------------------------------------------------- Langfuse
def _is_observation(record: Record) -> bool:
    return "input" in record and "output" in record and ("traceId" in record or record.get("type") == "GENERATION")


def _observation(record: Record) -> Halves:
    """Langfuse keeps a message and counts, not a body: the body is put together again, and a finish reason that it does not keep is
    assumed where nothing shows it."""
    asked, output = (loaded(record[key], key) if _looks_like_json(record[key]) else record[key] for key in ("input", "output"))
    parameters = loaded(record.get("modelParameters"), "modelParameters") or {}
    request = dict(asked) if isinstance(asked, Mapping) else {"messages": asked}
    request = {**parameters, "model": record.get("model"), **request}
    if isinstance(output, Mapping) and "choices" in output:
        return Halves(request, output)
    message = output if isinstance(output, Mapping) else {"role": "assistant", "content": output}
    usage = _langfuse_usage(record)
    finish, assumed = _assumed_finish(message, usage.get("completion_tokens"), request)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    body = {"model": record.get("model"), "choices": [choice], **({"usage": usage} if usage else {})}
    return Halves(request, body, assumed)


def _looks_like_json(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith(("{", "["))


def _langfuse_usage(record: Record) -> dict[str, Any]:
    told = first(record, ("usageDetails", "usage_details", "usage"))
    told = loaded(told, "usage") if isinstance(told, str) else told
    if not isinstance(told, Mapping) or str(told.get("unit") or "TOKENS") != "TOKENS":
        return {}
    prompt = first(told, ("prompt_tokens", "input", "promptTokens"))
    completion = first(told, ("completion_tokens", "output", "completionTokens"))
    reasoning = first(told, ("output_reasoning_tokens", "output_reasoning", "reasoning_tokens"))
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def _assumed_finish(message: Mapping[str, Any], billed: Any, request: Mapping[str, Any]) -> tuple[str, str | None]:
    """(finish reason, what was assumed): an answer with fewer tokens than its limit ended by itself."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    limit = first(request, ("max_tokens", "max_completion_tokens"))
    try:
        if limit is not None and billed is not None:
            return ("length", None) if int(billed) >= int(limit) else (finish, None)
    except (TypeError, ValueError):
        pass
    return finish, f"the log keeps no finish reason and no max_tokens: {finish!r} was assumed"


# ---------------------------------------------------------------------------------------------------- inspect_ai
def _is_model_event(record: Record) -> bool:
    return record.get("event") == "model" and "output" in record


def _model_event(record: Record) -> Halves:
    call = record.get("call")
    if not isinstance(call, Mapping):
        raise ValueError(
            "a model event of inspect_ai without its raw call: run `inspect eval` with --log-model-api, then its request is kept"
        )
    return Halves(call.get("request"), call.get("response"))


# the first that fits reads; pairs last, their names are the commonest
SHAPES = (
    Shape("inspect_ai", _is_model_event, _model_event),
    Shape("LiteLLM's spend logs", _is_spend_log, _spend_log),
    Shape("Langfuse", _is_observation, _observation),
    Shape("messages with a response", _is_messages_beside, _messages_beside),
    Shape("pairs", _is_pair, _pair),
)


def dumped(record: Any) -> bytes:
    """A record as one line of JSON, bytes of a recording as text."""

    def text(value: Any) -> str:
        return halves.text_of(value, "body") if isinstance(value, bytes) else str(value)

    return json.dumps(record, default=text).encode()
