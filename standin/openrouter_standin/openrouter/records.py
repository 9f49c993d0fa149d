"""What OpenRouter tells beside answers: the account, a generation, models and endpoints (docs/research/openrouter-contract.md#1.4
to #1.7).

Belongs here: `data` of those routes. Does not belong here: chat bodies (`wire`), the values (`account`, `ledger`).
Field names and nulls follow the models of the official `openrouter` package (1.3.84), which is generated from OpenRouter's OpenAPI
document; what the stand-in has no notion of (media, presets, apps, regions, moderation) is there and empty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from openrouter_standin import chance
from openrouter_standin.openrouter import wire
from openrouter_standin.profiles import PICO, Profiles
from openrouter_standin.schema.provider import Provider
from openrouter_standin.truth.generation import usd

PAGE = 500  # models on a page, unless the query says otherwise
# a day, by purchased credits (docs/research/openrouter-contract.md#2.3)
_FREE_REQUESTS, _FREE_REQUESTS_POOR, _POOR_USD = 1_000, 50, 10.0
_QUANTILES = {"p50": 0.0, "p75": 0.674490, "p90": 1.281552, "p99": 2.326348}  # of the standard normal law
_NO_MEDIA = (
    "num_media_prompt", "num_media_completion", "num_input_audio_prompt", "num_search_results", "num_fetches",
    "native_tokens_completion_images",
)  # fmt: skip


def _uuid(*parts: object) -> str:
    digits = chance.hexadecimal(32, *parts)
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_WORKSPACE = _uuid("stand-in workspace")


# ------------------------------------------------------------------------------------------------ a generation
def generation_record(account: Mapping[str, Any], profiles: Profiles) -> dict[str, Any]:
    """`data` of GET /generation (docs/research/openrouter-contract.md#1.6). An account that was mended after a kill knows no
    times, no texts' ends."""
    get = account.get
    cost = usd(account["cost_pico"])
    generation_id = account["generation_id"]
    created = get("created") or int(generation_id.split("-")[1])
    source = get("cache_source")
    return {
        "id": generation_id,
        "upstream_id": None if source else f"chatcmpl-{chance.hexadecimal(32, 'upstream', generation_id)}",
        "request_id": f"req-{created}-{chance.alnum(20, 'request', generation_id)}",
        "session_id": get("session_id"),
        "model": get("model") or profiles.model.dated_slug,
        "provider_name": get("provider"),
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(created)),
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
        **dict.fromkeys(_NO_MEDIA),
        "total_cost": cost,
        "usage": cost,
        "upstream_inference_cost": 0,
        "cache_discount": None,
        "latency": round(1000 * get("ttft_s", 0.0)),
        "generation_time": round(1000 * (get("duration_s", 0.0) - get("ttft_s", 0.0))),
        "moderation_latency": None,
        "is_byok": False,
        "router": None,
        "service_tier": None,
        "data_region": "global",
        "origin": "",
        "http_referer": None,
        "user_agent": None,
        "app_id": None,
        "external_user": None,
        "preset_id": None,
        "web_search_engine": None,
        "workspace_id": _WORKSPACE,
        "response_cache_source_id": source,
        "provider_responses": [] if source else _attempts(account, profiles.model.dated_slug),
    }


def _attempts(account: Mapping[str, Any], model: str) -> list[dict[str, Any]]:
    """The endpoints that refused, then the one that answered. A refusal has no upstream id, and took no time here."""
    get = account.get
    answered = {
        "id": f"chatcmpl-{chance.hexadecimal(32, 'upstream', account['generation_id'])}",
        "latency": round(1000 * get("ttft_s", 0.0)),
    }
    statuses = [(name, status, {"latency": 0}) for name, status in get("tried", ())] + [(get("provider"), 200, answered)]
    return [
        {
            **more,
            "endpoint_id": _uuid("endpoint", name),
            "is_byok": False,
            "model_permaslug": model,
            "provider_name": name,
            "status": status,
        }
        for name, status, more in statuses
    ]


# ------------------------------------------------------------------------------------------------ the key
def key_record(spent_pico: int, label: str, limit_usd: float | None, credit_usd: float) -> dict[str, Any]:
    """`data` of GET /key; a limit is for good (`limit_reset` null), and then the only budget there is."""
    spent = usd(spent_pico)
    left = None if limit_usd is None else usd(round(limit_usd * PICO) - spent_pico)
    budgets = [] if limit_usd is None else [_budget(limit_usd, spent_pico)]
    free = _FREE_REQUESTS_POOR if credit_usd < _POOR_USD else _FREE_REQUESTS
    return {
        "label": label,
        "limit": limit_usd,
        "limit_remaining": None if left is None else max(0.0, left),
        "limit_reset": None,
        "usage": spent,
        "usage_daily": spent,
        "usage_weekly": spent,
        "usage_monthly": spent,
        **dict.fromkeys(("byok_usage", "byok_usage_daily", "byok_usage_weekly", "byok_usage_monthly"), 0),
        "include_byok_in_limit": False,
        "is_free_tier": False,
        "is_management_key": False,
        "is_provisioning_key": False,
        "expires_at": None,
        "creator_user_id": wire.USER_ID,
        "workspace_id": _WORKSPACE,
        "organization_id": None,
        "allowed_data_regions": ["global"],
        "budgets": budgets,
        "effective_budget": budgets[0] if budgets else None,
        "free_model_daily_requests": {"used": 0, "limit": free, "remaining": free},
        "rate_limit": {"requests": -1, "interval": "10s", "note": "This field is deprecated and safe to ignore."},
    }


def _budget(limit_usd: float, spent_pico: int) -> dict[str, Any]:
    """The key's own limit as a budget; what remains may be negative here, unlike `limit_remaining`."""
    return {
        "scope": "key_limit",
        "guardrail_id": None,
        "budget_id": None,
        "limit_usd": limit_usd,
        "spend_usd": usd(spent_pico),
        "remaining_usd": usd(round(limit_usd * PICO) - spent_pico),
        "reset_interval": None,
        "resets_at": None,
        "include_byok": False,
    }


# ------------------------------------------------------------------------------------------------ endpoints and models
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


def _performance(provider: Provider) -> dict[str, Any]:
    """Percentiles of the endpoint's own laws: time to the first token in ms, tokens per second (the same for every answer)."""
    law = provider.latency
    return {
        "latency_last_30m": {p: round(1000 * law.ttft_median_s * math.exp(law.ttft_sigma * z)) for p, z in _QUANTILES.items()},
        "throughput_last_30m": dict.fromkeys(_QUANTILES, law.tokens_per_s),
    }


def _endpoint(provider: Provider, profiles: Profiles, *, known_caller: bool) -> dict[str, Any]:
    takes_tools = "tool_choice" in provider.declared_parameters
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
        "supports_tool_choice": dict.fromkeys(("none", "auto", "required", "function"), takes_tools),
        "supports_implicit_caching": False,
        "supports_diarization": False,
        "native_tools": {},
        "service_tier": None,
        "uptime_last_5m": provider.uptime,
        "uptime_last_30m": provider.uptime,
        "uptime_last_1d": provider.uptime,
        **(_performance(provider) if known_caller else {"latency_last_30m": None, "throughput_last_30m": None}),
    }


def endpoints_record(profiles: Profiles, providers: Sequence[Provider], *, known_caller: bool) -> dict[str, Any]:
    """`data` of GET /models/{author}/{slug}/endpoints: the providers as they are now; their speed only for a caller with a key."""
    return {
        "id": profiles.model.slug,
        "name": profiles.model.name,
        "created": profiles.model.created,
        "description": "Served by the embedded stand-in.",
        "architecture": _architecture(),
        "endpoints": [_endpoint(p, profiles, known_caller=known_caller) for p in providers],
    }


def model_record(profiles: Profiles) -> dict[str, Any]:
    """One entry of GET /models; the headline price is the cheapest endpoint's."""
    cheapest = min(profiles.provider, key=lambda p: p.price_completion)
    return {
        "id": profiles.model.slug,
        "canonical_slug": profiles.model.dated_slug,
        "hugging_face_id": None,
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
        "default_parameters": dict.fromkeys(
            ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "repetition_penalty")
        ),
        "supported_voices": None,
        "knowledge_cutoff": None,
        "expiration_date": None,
        # on unless told not to be, at any effort (the model knows no efforts); a limit of its own for reasoning is unknown to it
        "reasoning": {"mandatory": False, "default_enabled": True, "default_effort": None, "supported_efforts": None},
        "links": {"details": f"/api/v1/models/{profiles.model.dated_slug}/endpoints"},
    }


def models_page(profiles: Profiles, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The body of GET /models: a page of the catalogue (of one), `links.next` as long as another one follows.

    `offset` and `limit` that are no numbers count as not given; all other filters are tolerated.
    """
    entries = [model_record(profiles)]
    offset = _whole(query.get("offset"), 0, least=0)
    limit = _whole(query.get("limit"), PAGE, least=1)
    follows = offset + limit
    next_page = f"{path}?offset={follows}&limit={limit}" if follows < len(entries) else None
    return {"data": entries[offset:follows], "links": {"next": next_page}, "total_count": len(entries)}


_DIGITS = 9  # of a number in a query that is read at all


def _whole(given: str | None, otherwise: int, *, least: int) -> int:
    if given is None or not given.isascii() or not given.isdigit() or len(given) > _DIGITS:
        return otherwise
    return max(least, int(given))
