"""Bodies and streams with the faults of a 200: errors inside it, odd usage, half an answer
(docs/research/openrouter-contract.md#2.1, #4.3).

Belongs here: what such a body says. Does not belong here: sound bodies (`wire`, `wire_stream`), sockets (`delivery`), the choice (`faults`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from openrouter_standin.answers.sampled import Sampled
from openrouter_standin.openrouter import wire, wire_stream
from openrouter_standin.schema.faults import FaultName
from openrouter_standin.truth.generation import Generation

_MESSAGE = "Provider returned error"
_METADATA = {"error_type": "provider_unavailable"}
_ERROR = {"code": 502, "message": _MESSAGE, "metadata": _METADATA}
_PASSED_ON: dict[FaultName, tuple[int, str]] = {
    "error_400_in_200": (400, "this model does not support tools"),
    "error_401_in_200": (401, "invalid api key"),
    "error_402_in_200": (402, "insufficient balance"),
    "error_403_in_200": (403, "account suspended"),
}
_ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0}


def half(sampled: Sampled) -> Sampled:
    """What the model gave until it broke."""
    cut = len(sampled.ids) // 2
    return Sampled(sampled.ids[:cut], None if sampled.logprobs is None else sampled.logprobs[:cut], sampled.top[:cut])


def as_finished(generation: Generation, finish_reason: str, *, refunded: bool = False) -> Generation:
    """The same answer with another end."""
    bent = replace(generation.bent, finish_reason=finish_reason)
    return replace(generation, bent=bent, refunded=refunded)


def error_object(fault: FaultName, provider: str) -> dict[str, Any]:
    """A 200 that holds an error and no answer: `choices` missing, null or empty, or a code that is a word."""
    if fault in _PASSED_ON:  # a provider's own status inside a 200 (OpenRouterTeam/ai-sdk-provider#24)
        code, raw = _PASSED_ON[fault]
        return wire.error_body(code, _MESSAGE, metadata={"provider_name": provider, "raw": raw})
    metadata = {**_METADATA, "provider_name": provider, "raw": "upstream closed the stream"}
    body = wire.error_body(502, _MESSAGE, metadata=metadata)
    match fault:
        case "error_choices_null":
            return {**body, "choices": None}
        case "error_choices_empty":
            return {**body, "choices": []}
        case "error_string_code":
            return {**body, "error": {**body["error"], "code": "server_error"}}
    return body


def body(generation: Generation, fault: FaultName | None) -> bytes:
    """A whole body, with the fault that this one has."""
    if fault is None:
        return wire.completion_body(generation)
    value = wire.completion(generation)
    if fault == "finish_error":
        value["choices"][0]["error"] = _ERROR
    return wire.to_bytes(_with_usage(value, fault))


def _with_usage(value: dict[str, Any], fault: FaultName) -> dict[str, Any]:
    match fault:
        case "usage_missing":
            return {key: entry for key, entry in value.items() if key != "usage"}
        case "usage_null":
            return {**value, "usage": None}
        case "usage_zero":
            return {**value, "usage": {**value["usage"], **_ZERO}}
    return value


def chunks(generation: Generation, fault: FaultName | None) -> list[bytes]:
    """The events of a stream, `[DONE]` included where this one has it."""
    events = list(wire_stream.stream_chunks(generation))
    match fault:
        case "finish_error":  # form 5: the error stands on the last chunk, the stream ends there
            last = _parsed(events[-2])
            last["choices"][0] |= {"finish_reason": "error", "native_finish_reason": "error"}
            return [*events[:-2], wire.sse({**last, "error": _ERROR})]
        case "usage_missing" | "usage_null" | "usage_zero":
            events[-1] = wire.sse(_with_usage(_parsed(events[-1]), fault))
        case "usage_twice":
            events.append(events[-1])
        case "no_done":
            return events
    return [*events, wire.SSE_DONE]


def _parsed(event: bytes) -> dict[str, Any]:
    return dict(json.loads(event.removeprefix(b"data: ")))


def error_events(fault: FaultName, generation_id: str, model: str, provider: str) -> bytes:
    """A stream that is one error: on a chunk whose choice ends with `error`, or alone."""
    value = error_object(fault, provider)
    if fault == "error_in_200":
        choice = {
            "index": 0,
            "delta": {"content": "", "role": "assistant"},
            "finish_reason": "error",
            "native_finish_reason": "error",
        }
        value = {
            "id": generation_id,
            "object": "chat.completion.chunk",
            "created": int(generation_id.split("-")[1]),
            "model": model,
            "provider": provider,
            **value,
            "choices": [choice],
        }
    return wire.sse(value)
