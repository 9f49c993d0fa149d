"""Bodies as OpenRouter writes them: keys, order, nulls, whitespace, SSE framing.

Belongs here: shapes, after recorded traffic and docs/research/openrouter-contract.md#1 and #2. Does not belong here: sockets,
decisions, engines (`vllm_wire`, `sglang_wire`), the events of a stream (`wire_stream`), account and catalogue (`records`).
Where the models of the official packages and recorded traffic differ, this follows the traffic: `provider`, `native_finish_reason`,
`tool_calls[].index` and `completion_tokens_details.image_tokens` stand on the wire and in no package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from openrouter_standin import chance
from openrouter_standin.answers.logprobs import content_of
from openrouter_standin.truth.generation import Generation, usd

KEEP_ALIVE = b"\n         \n"  # recorded: LF, nine spaces, LF, repeated before the JSON
SSE_COMMENT = b": OPENROUTER PROCESSING\n\n"
SSE_DONE = b"data: [DONE]\n\n"
USER_ID = f"user_{chance.alnum(27, 'stand-in account')}"


def to_bytes(value: Any) -> bytes:
    """Compact JSON, non-ASCII as it is (recorded)."""
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates, which a client may send and an error may quote
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def sse(value: Any) -> bytes:
    return b"data: " + to_bytes(value) + b"\n\n"


# ------------------------------------------------------------------------------------------------ chat completions
def usage_of(generation: Generation) -> dict[str, Any]:
    """`usage` as recorded; cost in USD is prompt tokens x price + completion tokens x price, exactly."""
    bill = generation.bill
    return {
        "prompt_tokens": bill.prompt_tokens,
        "completion_tokens": bill.completion_tokens,
        "total_tokens": bill.prompt_tokens + bill.completion_tokens,
        "cost": usd(bill.total_pico),
        "is_byok": False,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, "audio_tokens": 0, "video_tokens": 0},
        "cost_details": {
            "upstream_inference_cost": usd(bill.total_pico),
            "upstream_inference_prompt_cost": usd(bill.prompt_pico),
            "upstream_inference_completions_cost": usd(bill.completion_pico),
        },
        "completion_tokens_details": {"reasoning_tokens": bill.reasoning_tokens, "image_tokens": 0, "audio_tokens": 0},
    }


def details(text: str) -> list[dict[str, Any]]:
    return [{"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}]


def _message(generation: Generation) -> dict[str, Any]:
    bent = generation.bent
    reasoning = bent.reasoning_text if generation.request.show_reasoning else None
    message: dict[str, Any] = {"role": "assistant", "content": bent.content_text, "refusal": None, "reasoning": reasoning}
    if bent.calls:
        message["tool_calls"] = [
            {"type": "function", "index": k, "id": c.id, "function": {"name": c.name, "arguments": "".join(c.arguments)}}
            for k, c in enumerate(bent.calls)
        ]
    if reasoning is not None:
        message["reasoning_details"] = details(reasoning)
    return message


def completion_body(generation: Generation) -> bytes:
    """The JSON of a non-streamed answer (without the keep-alive whitespace in front)."""
    return to_bytes(completion(generation))


def completion(generation: Generation) -> dict[str, Any]:
    """A non-streamed answer."""
    finish = generation.bent.finish_reason
    choice = {
        "index": 0,
        "logprobs": content_of(generation.logprobs) if generation.logprobs else None,
        "finish_reason": finish,
        "native_finish_reason": finish,
        "message": _message(generation),
    }
    return {
        "id": generation.id,
        "object": "chat.completion",
        "created": generation.created,
        "model": generation.model,
        "provider": generation.provider,
        "system_fingerprint": None,
        "choices": [choice],
        "usage": usage_of(generation),
    }


# ------------------------------------------------------------------------------------------------ openrouter_metadata
def wants_metadata(headers: Mapping[str, str]) -> bool:
    """The opt-in, or its first name; every other value is `disabled` (docs/research/openrouter-contract.md#1)."""
    given = headers.get("X-OpenRouter-Metadata") or headers.get("X-OpenRouter-Experimental-Metadata")
    return given is not None and given.strip().lower() == "enabled"


def router_metadata(generation: Generation, endpoints: Sequence[str], total: int, *, cached: bool = False) -> dict[str, Any]:
    """`openrouter_metadata` of an answer. `endpoints`: names of those that could have served it, `total`: of the model.

    An answer out of the response cache (`cached`) was sent nowhere: no attempts, no time.
    """
    model = generation.model
    names = dict.fromkeys([*endpoints, generation.provider])
    metadata: dict[str, Any] = {
        "requested": generation.request.model,
        "strategy": "direct",
        "region": None,
        "summary": f"available={len(names)}, selected={generation.provider}",
        "attempt": 1 if cached else len(generation.tried) + 1,
        "is_byok": False,
        "endpoints": {
            "total": total,
            "available": [{"provider": name, "model": model, "selected": name == generation.provider} for name in names],
        },
    }
    if not cached:
        attempts = [*generation.tried, (generation.provider, 200)]
        metadata["attempts"] = [{"provider": name, "model": model, "status": status} for name, status in attempts]
        metadata["generation_time"] = round(1000 * generation.duration_s)
    return metadata


def with_metadata(wire: bytes, metadata: Mapping[str, Any]) -> bytes:
    """A body, or an SSE event, with the metadata as its last key."""
    end = wire.rindex(b"}")
    return wire[:end] + b',"openrouter_metadata":' + to_bytes(metadata) + wire[end:]


# ------------------------------------------------------------------------------------------------ errors
def error_body(code: int, message: str, *, metadata: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The classic error shape (docs/research/openrouter-contract.md#2.1); `more` joins the error object (availability)."""
    error: dict[str, Any] = {"message": message, "code": code}
    if metadata is not None:
        error["metadata"] = metadata
    return {"error": {**error, **more}, "user_id": USER_ID}


def unknown_caller(message: str) -> dict[str, Any]:
    """A 401: there is no user to name."""
    return {"error": {"message": message, "code": 401}}
