"""What OpenRouter decides before the first byte: key, request, credit, route, fault. Ends in a `Refusal` or an `Admitted`.

Belongs here: the order of the checks and the refusals' codes and bodies. Does not belong here: sockets, waiting, bending.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.standin import chance, wire
from eagle3_assets.standin.generation import Generator, usd
from eagle3_assets.standin.ledger import Ledger
from eagle3_assets.standin.profiles import PICO
from eagle3_assets.standin.request import BadRequest, ChatRequest, read_request
from eagle3_assets.standin.routing import NoEndpoint, pass_on, route
from eagle3_assets.standin.schema.provider import Provider
from eagle3_assets.standin.vocabulary import Ids

# faults that end the request before any output; the others happen to an admitted one
_EARLY_FAULTS = {
    "429": (429, "Provider returned error", "rate_limit_exceeded"),
    "500": (500, "Internal Server Error", "server"),
    "502": (502, "Provider returned error", "provider_unavailable"),
}


class Refusal(Exception):
    """An HTTP error with OpenRouter's body."""

    def __init__(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


@dataclass(frozen=True)
class Admitted:
    """A request that will be answered. `fault` is None, reset, truncated or error_in_200."""

    request: ChatRequest
    attempt: int
    provider: Provider
    refused: tuple[str, ...]
    prompt_ids: Ids
    fault: str | None = field(default=None)


def check_key(authorization: str | None, api_key: str) -> None:
    """Raises Refusal 401."""
    if not authorization or not authorization.startswith("Bearer "):
        raise Refusal(401, wire.unknown_caller("No auth credentials found"))
    given = authorization.removeprefix("Bearer ").strip()
    if not hmac.compare_digest(given.encode("utf-8", "replace"), api_key.encode()):
        raise Refusal(401, wire.unknown_caller("User not found."))


def parse(body: bytes, slugs: tuple[str, ...]) -> ChatRequest:
    """The request; raises Refusal 400 for a bad body or an unknown model."""
    try:
        request = read_request(body)
    except BadRequest as error:
        raise Refusal(400, wire.error_body(400, str(error), metadata={"error_type": "invalid_request"})) from None
    if request.model not in slugs:
        raise Refusal(400, wire.error_body(400, f"{request.model or 'undefined'} is not a valid model ID"))
    return request


def admit(request: ChatRequest, generator: Generator, ledger: Ledger) -> Admitted:
    """Credit, route, pre-authorisation, fault: in this order. Counts the attempt. Raises Refusal."""
    profiles, seed = generator.profiles, generator.seed
    balance = round(profiles.server.credit_usd * PICO) - ledger.spent_pico
    if balance <= 0:
        message = "Insufficient credits. Add more using https://openrouter.ai/settings/credits"
        raise Refusal(402, wire.error_body(402, message, metadata={"limit_source": "openrouter_credits"}))
    attempt = ledger.next_attempt(request.hash)
    try:
        endpoints = route(request, profiles.provider, seed=seed, attempt=attempt)
    except NoEndpoint as error:
        raise Refusal(404, _no_endpoint(request, error)) from None
    provider, refused = pass_on(endpoints, seed=seed, request_hash=request.hash, attempt=attempt)
    prompt_ids = generator.prompt_ids(request, provider)
    limit = generator.context_length
    if len(prompt_ids) > limit:
        message = (
            f"This endpoint's maximum context length is {limit} tokens. However, you requested about {len(prompt_ids)} tokens."
        )
        raise Refusal(400, wire.error_body(400, message, metadata={"error_type": "context_length_exceeded"}))
    _preauthorise(request, provider, len(prompt_ids), balance)
    fault = profiles.server.faults.drawn(chance.unit(seed, request.hash, attempt, "fault"))
    if fault in _EARLY_FAULTS:
        raise _early_fault(fault, provider, profiles.server.retry_after_s)
    return Admitted(request, attempt, provider, tuple(p.name for p in refused), prompt_ids, fault)


def _no_endpoint(request: ChatRequest, error: NoEndpoint) -> dict[str, Any]:
    """404 with the availability object (openrouter-contract 2.1, second form, beside the classic one)."""
    return wire.error_body(
        404,
        str(error),
        metadata={"error_type": "not_found"},
        availability={
            "code": "no_endpoints" if error.constraint in ("provider.only", "provider.ignore") else "constraint_filtered",
            "retryable": False,
            "requested_models": [request.model],
            "affected_providers": list(error.excluded),
            "excluded_by": error.constraint,
            "constraint": {"field": error.constraint, "detail": error.detail},
            "docs_url": "https://openrouter.ai/docs/guides/routing/provider-selection",
        },
    )


def _preauthorise(request: ChatRequest, provider: Provider, prompt_tokens: int, balance: int) -> None:
    """402 when prompt + max_tokens (or the endpoint's maximum) costs more than is left (openrouter-contract 2.4)."""
    wanted = request.max_tokens or provider.max_completion_tokens
    left = balance - prompt_tokens * provider.prompt_pico
    if wanted * provider.completion_pico <= left:
        return
    affordable = max(0, left // provider.completion_pico)
    message = (
        f"This request requires more credits, or fewer max_tokens. You requested up to {wanted} tokens, but can only afford "
        f"{affordable}. To increase, visit https://openrouter.ai/settings/credits and add more credits"
    )
    raise Refusal(
        402, wire.error_body(402, message, metadata={"limit_source": "openrouter_credits", "remaining_usd": usd(balance)})
    )


def _early_fault(fault: str, provider: Provider, retry_after_s: int) -> Refusal:
    code, message, kind = _EARLY_FAULTS[fault]
    if fault == "500":  # masked: generic message, no provider (openrouter-contract 2.2)
        return Refusal(code, wire.error_body(code, message))
    raw = {"429": "rate limited upstream, please retry shortly", "502": "upstream connect error"}[fault]
    body = wire.error_body(
        code, message, metadata={"error_type": kind, "provider_name": provider.name, "provider_code": code, "raw": raw}
    )
    return Refusal(code, body, {"Retry-After": str(retry_after_s)} if fault == "429" else None)
