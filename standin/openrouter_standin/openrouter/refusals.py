"""HTTP errors as OpenRouter writes them: status, headers, body. Nothing of a refused request is billed.

Belongs here: every refusal's words, documented ones and those of the fault catalogue (docs/research/openrouter-contract.md#2).
Does not belong here: when one happens (`gateway`, `schema.faults`).
"""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

from openrouter_standin.openrouter import wire
from openrouter_standin.schema.faults import FaultName
from openrouter_standin.schema.provider import Provider
from openrouter_standin.truth.generation import usd

ABSURD_RETRY_AFTER_S = 86_400 * 365
_CREDITS_URL = "https://openrouter.ai/settings/credits"
_DOCS_URL = "https://openrouter.ai/docs/guides/routing/provider-selection"
# code -> (message, error_type); the provider is named except where OpenRouter masks it (500)
_PLAIN: dict[FaultName, tuple[str, str]] = {
    "400": ("Provider returned error", "invalid_request"),
    "403": ("Input was flagged by moderation", "content_policy_violation"),
    "404": ("No allowed providers are available for the selected model.", "not_found"),
    "408": ("Request timed out", "timeout"),
    "413": ("Request payload is too large", "payload_too_large"),
    "422": ("Provider returned error", "unprocessable"),
    "502": ("Provider returned error", "provider_unavailable"),
    "503": ("Provider returned error", "provider_overloaded"),
    "504": ("Gateway timeout", "timeout"),
    "524": ("A timeout occurred", "timeout"),
    "529": ("Provider is overloaded", "provider_overloaded"),
}
_RAW: dict[FaultName, str] = {
    "400": "messages.2: reasoning_content is missing in assistant tool call message",
    "422": "unprocessable upstream request",
    "502": "upstream connect error",
    "503": "all replicas are busy",
}


class Refusal(Exception):
    """An HTTP error. `body` is a JSON object, or the bytes of an HTML page."""

    def __init__(self, status: int, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


# ------------------------------------------------------------------------------------------------ caller and request
def unauthorized(message: str) -> Refusal:
    """There is no user to name."""
    return Refusal(401, wire.unknown_caller(message))


def bad_request(message: str, error_type: str | None = "invalid_request") -> Refusal:
    metadata = {"error_type": error_type} if error_type else None
    return Refusal(400, wire.error_body(400, message, metadata=metadata))


def template_failed(provider: Provider, error: Exception) -> Refusal:
    """The provider's chat template cannot write what the request says, such as a schema of a tool that is none."""
    raw = f"chat template: {type(error).__name__}: {error}"
    metadata = {"error_type": "invalid_request", "provider_name": provider.name, "provider_code": 400, "raw": raw}
    return Refusal(400, wire.error_body(400, _PLAIN["400"][0], metadata=metadata))


def not_found(message: str) -> Refusal:
    return Refusal(404, wire.error_body(404, message))


def management_key_needed() -> Refusal:
    return Refusal(403, wire.error_body(403, "Only management keys can fetch credits for an account"))


def no_endpoint(message: str, *, model: str, constraint: str, detail: str, excluded: tuple[str, ...]) -> Refusal:
    """404 with the availability object (docs/research/openrouter-contract.md#2.1, second form, beside the classic one)."""
    availability = {
        "code": "no_endpoints" if constraint in ("provider.only", "provider.ignore") else "constraint_filtered",
        "retryable": False,
        "requested_models": [model],
        "affected_providers": list(excluded),
        "excluded_by": constraint,
        "constraint": {"field": constraint, "detail": detail},
        "docs_url": _DOCS_URL,
    }
    return Refusal(404, wire.error_body(404, message, metadata={"error_type": "not_found"}, availability=availability))


# ---------------------------------------------------------------------------- money (docs/research/openrouter-contract.md#2.4)
def no_credits() -> Refusal:
    message = f"Insufficient credits. Add more using {_CREDITS_URL}"
    return Refusal(402, wire.error_body(402, message, metadata={"limit_source": "openrouter_credits"}))


def key_spent(status: int, limit_usd: float) -> Refusal:
    message = "Key limit exceeded (total limit). Manage it using https://openrouter.ai/settings/keys"
    metadata = {"limit_source": "openrouter_key_limit", "limit_usd": limit_usd, "remedy_hint": "raise_key_limit"}
    return Refusal(status, wire.error_body(status, message, metadata=metadata))


def cannot_afford(wanted: int, affordable: int, balance_pico: int, source: str = "openrouter_credits") -> Refusal:
    """Pre-authorisation: prompt + max_tokens (or the endpoint's maximum) costs more than is left."""
    message = (
        f"This request requires more credits, or fewer max_tokens. You requested up to {wanted} tokens, but can only afford "
        f"{affordable}. To increase, visit {_CREDITS_URL} and add more credits"
    )
    return Refusal(402, wire.error_body(402, message, metadata={"limit_source": source, "remaining_usd": usd(balance_pico)}))


def in_flight(retry_after_s: int, limit_pico: int, held_pico: int) -> Refusal:
    """The transient one: running requests fill the budget."""
    metadata = {
        "limit_source": "openrouter_in_flight_budget",
        "reason": "in_flight_budget_exhausted",
        "limit_usd": usd(limit_pico),
        "spend_usd": usd(held_pico),
    }
    message = "In-flight budget exhausted: too many requests are running for this balance. Retry when some have finished."
    return Refusal(402, wire.error_body(402, message, metadata=metadata), {"Retry-After": str(retry_after_s)})


def too_heavy(limit_pico: int) -> Refusal:
    """This one request alone is more than the in-flight budget."""
    metadata = {"limit_source": "openrouter_credits", "reason": "weight_exceeds_budget", "limit_usd": usd(limit_pico)}
    return Refusal(402, wire.error_body(402, "This request's estimated cost exceeds the in-flight budget.", metadata=metadata))


# ------------------------------------------------------------------------------------------------ limits
def capacity_exhausted(status: int, model: str, tried: tuple[tuple[str, int], ...], retry_after_s: float | None) -> Refusal:
    """Every endpoint was busy; the hint is the smallest, and only there when each of them gave one
    (docs/research/openrouter-contract.md#2.3)."""
    hint = None if retry_after_s is None else max(1, round(retry_after_s))
    availability = {
        "code": "capacity_exhausted" if status == 429 else "temporarily_unavailable",
        "retryable": True,
        **({} if hint is None else {"retry_after": hint}),
        "requested_models": [model],
        "affected_providers": [name for name, _ in tried],
    }
    metadata = {
        "error_type": "rate_limit_exceeded" if status == 429 else "provider_overloaded",
        "provider_name": tried[-1][0],
        "previous_errors": [{"provider": name, "code": code, "status": code} for name, code in tried[:-1]],
    }
    body = wire.error_body(status, "Provider returned error", metadata=metadata, availability=availability)
    return Refusal(status, body, None if hint is None else {"Retry-After": str(hint)})


def platform_limit(limit: float, wait_s: float) -> Refusal:
    """Of OpenRouter itself: `X-RateLimit-*`, the reset in unix milliseconds."""
    headers = {
        "X-RateLimit-Limit": f"{limit:g}",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": str(round(1000 * (time.time() + wait_s))),
    }
    body = wire.error_body(429, "Rate limit exceeded", metadata={"error_type": "rate_limit_exceeded", "headers": headers})
    return Refusal(429, body, headers)


def passed_on(status: int, provider: str, raw: str) -> Refusal:
    """What a provider said of its own account or key, with its status (OpenRouterTeam/ai-sdk-provider#24)."""
    return Refusal(status, wire.error_body(status, "Provider returned error", metadata={"provider_name": provider, "raw": raw}))


# ------------------------------------------------------------------------------------------------ the fault catalogue
def of_fault(fault: FaultName, provider: Provider, *, model: str, retry_after_s: int) -> Refusal | None:
    """The refusal that this fault is; None where the fault is no refusal."""
    name = provider.name
    match fault:
        case "401":
            return unauthorized("User not found.")
        case "401_transient":  # a good key, now and then (RooCodeInc/Roo-Code#6459)
            return unauthorized("No auth credentials found")
        case "401_provider":
            return passed_on(401, name, "invalid api key")
        case "402_provider":
            return passed_on(402, name, "insufficient balance")
        case "403_provider":
            return passed_on(403, name, "account suspended")
        case "402_bare":
            return Refusal(402, wire.error_body(402, "Payment required"))
        case "402_in_flight":
            return in_flight(retry_after_s, 10**12, 10**12)
        case "402_weight":
            return too_heavy(10**10)
        case "402_afford":
            return cannot_afford(provider.max_completion_tokens, 17, 10**10)
        case "402_credits":
            return no_credits()
        case "429":
            return _upstream_429(name, {"Retry-After": str(retry_after_s)})
        case "429_bare":
            return _upstream_429(name, {})
        case "429_date":
            return _upstream_429(name, {"Retry-After": formatdate(time.time() + retry_after_s, usegmt=True)})
        case "429_absurd":
            return _upstream_429(name, {"Retry-After": str(ABSURD_RETRY_AFTER_S)})
        case "429_platform":
            return platform_limit(1.0, retry_after_s)
        case "429_availability":
            return _availability_429(model, name, retry_after_s)
        case "500":  # masked: generic message, no provider (docs/research/openrouter-contract.md#2.2)
            return Refusal(500, wire.error_body(500, "Internal Server Error"))
        case "400_html" | "401_html" | "403_html":
            return Refusal(int(fault[:3]), _page("Just a moment...", "cloudflare"))
        case "403_1010":  # Cloudflare's one line, text/plain
            return Refusal(403, b"error code: 1010")
        case "html_502":
            return Refusal(502, _page("502 Bad Gateway", "nginx"))
        case "html_524":
            return Refusal(524, _page("524: A timeout occurred", "cloudflare"))
    if fault not in _PLAIN:
        return None
    code, (message, kind) = int(fault), _PLAIN[fault]
    metadata: dict[str, Any] = {"error_type": kind, "provider_name": name, "provider_code": code}
    if fault in _RAW:
        metadata["raw"] = _RAW[fault]
    return Refusal(code, wire.error_body(code, message, metadata=metadata))


def _upstream_429(provider: str, headers: dict[str, str]) -> Refusal:
    raw = "rate limited upstream, please retry shortly"
    metadata = {"error_type": "rate_limit_exceeded", "provider_name": provider, "provider_code": 429, "raw": raw}
    return Refusal(429, wire.error_body(429, "Provider returned error", metadata=metadata), headers)


def _availability_429(model: str, provider: str, retry_after_s: int) -> Refusal:
    """The newer form as its examples show it: no `code`, the hint in the body only."""
    availability = {
        "code": "capacity_exhausted",
        "retryable": True,
        "retry_after": retry_after_s,
        "requested_models": [model],
        "affected_providers": [provider],
    }
    error = {
        "message": "All providers are at capacity",
        "error_type": "rate_limit_exceeded",
        "http_status": 429,
        "availability": availability,
    }
    return Refusal(429, {"error": error})


def _page(title: str, server: str) -> bytes:
    """An edge's page (docs/research/openrouter-contract.md#2.1, form 6)."""
    return (
        f"<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n"
        f"<hr><center>{server}</center>\r\n</body>\r\n</html>\r\n"
    ).encode()
