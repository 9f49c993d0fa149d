"""Bodies as OpenRouter writes them: keys, order, nulls, whitespace, SSE framing.

Belongs here: shapes, after recorded traffic and openrouter-contract sections 1 and 2. Does not belong here: sockets, decisions, engines
(`engine_wire`), the events of a stream (`wire_stream`).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from eagle3_assets.standin import chance
from eagle3_assets.standin.generation import Generation, usd
from eagle3_assets.standin.logprobs import content_of
from eagle3_assets.standin.profiles import Profiles
from eagle3_assets.standin.schema.provider import Provider

KEEP_ALIVE = b"\n         \n"  # recorded: LF, nine spaces, LF, repeated before the JSON
SSE_COMMENT = b": OPENROUTER PROCESSING\n\n"
SSE_DONE = b"data: [DONE]\n\n"


def to_bytes(value: Any) -> bytes:
    """Compact JSON, non-ASCII as it is (recorded)."""
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
    finish = generation.bent.finish_reason
    choice = {
        "index": 0,
        "logprobs": content_of(generation.logprobs) if generation.logprobs else None,
        "finish_reason": finish,
        "native_finish_reason": finish,
        "message": _message(generation),
    }
    return to_bytes(
        {
            "id": generation.id,
            "object": "chat.completion",
            "created": generation.created,
            "model": generation.model,
            "provider": generation.provider,
            "system_fingerprint": None,
            "choices": [choice],
            "usage": usage_of(generation),
        }
    )


# ------------------------------------------------------------------------------------------------ account and catalogue
def generation_record(account: dict[str, Any]) -> dict[str, Any]:
    """`data` of GET /generation (openrouter-contract 1.6)."""
    get = account.get
    cost = usd(account["cost_pico"])
    return {
        "id": account["generation_id"],
        "upstream_id": None,
        "model": get("model"),
        "provider_name": get("provider"),
        "created_at": get("created"),
        "api_type": "completions",
        "streamed": get("streamed"),
        "cancelled": False,
        "finish_reason": get("finish_reason"),
        "native_finish_reason": get("finish_reason"),
        "tokens_prompt": get("prompt_tokens"),
        "tokens_completion": get("completion_tokens"),
        "native_tokens_prompt": get("prompt_tokens"),
        "native_tokens_completion": get("completion_tokens"),
        "native_tokens_reasoning": get("reasoning_tokens"),
        "native_tokens_cached": 0,
        "total_cost": cost,
        "usage": cost,
        "upstream_inference_cost": 0,
        "cache_discount": None,
        "latency": round(1000 * get("ttft_s", 0.0)),
        "generation_time": round(1000 * (get("duration_s", 0.0) - get("ttft_s", 0.0))),
        "moderation_latency": None,
        "is_byok": False,
        "provider_responses": [
            *({"provider_name": name, "status": 429} for name in get("refused", ())),
            {"provider_name": get("provider"), "status": 200},
        ],
    }


def key_record(spent_pico: int, label: str) -> dict[str, Any]:
    """`data` of GET /key: a key without a limit of its own."""
    spent = usd(spent_pico)
    return {
        "label": label,
        "limit": None,
        "limit_remaining": None,
        "limit_reset": None,
        "usage": spent,
        "usage_daily": spent,
        "usage_weekly": spent,
        "usage_monthly": spent,
        "byok_usage": 0,
        "include_byok_in_limit": False,
        "is_free_tier": False,
        "is_management_key": False,
        "is_provisioning_key": False,
        "rate_limit": {"requests": -1, "interval": "10s", "note": "This field is deprecated and safe to ignore."},
    }


def _per_token(price_per_million: Decimal) -> str:
    """Decimal string in USD per token, as /endpoints writes it."""
    text = f"{price_per_million / 10**6:f}"
    return text.rstrip("0").rstrip(".") or "0" if "." in text else text


def _architecture() -> dict[str, Any]:
    return {
        "tokenizer": "Other",
        "instruct_type": None,
        "modality": "text->text",
        "input_modalities": ["text"],
        "output_modalities": ["text"],
    }


def _pricing(provider: Provider) -> dict[str, Any]:
    zero = dict.fromkeys(("request", "image", "input_cache_read", "input_cache_write", "internal_reasoning"), "0")
    return {
        "prompt": _per_token(provider.price_prompt),
        "completion": _per_token(provider.price_completion),
        **zero,
        "discount": 0,
    }


def _endpoint(provider: Provider, profiles: Profiles) -> dict[str, Any]:
    law = provider.latency
    return {
        "name": f"{provider.name} | {profiles.model.dated_slug}",
        "provider_name": provider.name,
        "tag": provider.tag,
        "model_id": profiles.model.slug,
        "model_name": profiles.model.name,
        "context_length": profiles.model.context_length,
        "max_completion_tokens": provider.max_completion_tokens,
        "max_prompt_tokens": None,
        "quantization": provider.quantization,
        "pricing": _pricing(provider),
        "status": provider.status,
        "supported_parameters": list(provider.declared_parameters),
        "supports_tool_choice": {"literal_none": True, "literal_auto": True, "literal_required": True, "type_function": True},
        "supports_implicit_caching": False,
        "uptime_last_5m": provider.uptime,
        "uptime_last_30m": provider.uptime,
        "uptime_last_1d": provider.uptime,
        "latency_last_30m": dict.fromkeys(("p50", "p75", "p90", "p99"), law.ttft_median_s),
        "throughput_last_30m": dict.fromkeys(("p50", "p75", "p90", "p99"), law.tokens_per_s),
    }


def endpoints_record(profiles: Profiles) -> dict[str, Any]:
    """`data` of GET /models/{author}/{slug}/endpoints."""
    return {
        "id": profiles.model.slug,
        "name": profiles.model.name,
        "created": profiles.model.created,
        "description": "Served by the embedded stand-in.",
        "architecture": _architecture(),
        "endpoints": [_endpoint(p, profiles) for p in profiles.provider],
    }


def model_record(profiles: Profiles) -> dict[str, Any]:
    """One entry of GET /models; the headline price is the cheapest endpoint's."""
    cheapest = min(profiles.provider, key=lambda p: p.price_completion)
    return {
        "id": profiles.model.slug,
        "canonical_slug": profiles.model.dated_slug,
        "name": profiles.model.name,
        "created": profiles.model.created,
        "description": "Served by the embedded stand-in.",
        "context_length": profiles.model.context_length,
        "architecture": _architecture(),
        "pricing": _pricing(cheapest),
        "top_provider": {
            "context_length": profiles.model.context_length,
            "max_completion_tokens": cheapest.max_completion_tokens,
            "is_moderated": False,
        },
        "per_request_limits": None,
        "supported_parameters": sorted({name for p in profiles.provider for name in p.declared_parameters}),
        "default_parameters": {},
    }


# ------------------------------------------------------------------------------------------------ errors
def error_body(code: int, message: str, *, metadata: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The classic error shape (openrouter-contract 2.1); `more` joins the error object (availability)."""
    error: dict[str, Any] = {"message": message, "code": code}
    if metadata is not None:
        error["metadata"] = metadata
    return {"error": {**error, **more}, "user_id": f"user_{chance.alnum(27, 'stand-in account')}"}


def unknown_caller(message: str) -> dict[str, Any]:
    """A 401: there is no user to name."""
    return {"error": {"message": message, "code": 401}}
