"""Which endpoints may serve a request, in which order (docs/research/openrouter-contract.md#1.2).

Belongs here: the documented routing rules. Does not belong here: prices as money (`ledger`), error bodies (`wire`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from openrouter_standin import chance
from openrouter_standin.openrouter.faults import fault_of
from openrouter_standin.openrouter.traffic import STATUS, Traffic
from openrouter_standin.request import ChatRequest
from openrouter_standin.schema.provider import Provider

_FALLS_THROUGH = frozenset({"429", "500", "502", "503", "529"})  # of a provider: the next endpoint is tried (rule e)
# a name in provider.quantizations covers its micro-scaled kinds (docs/research/openrouter-contract.md#1.2)
_COVERS = {"fp4": {"fp4", "mxfp4", "nvfp4"}, "fp8": {"fp8", "mxfp8"}}


class NoEndpoint(Exception):
    """No endpoint is left: HTTP 404. `constraint` is the request field that removed the last one."""

    def __init__(self, constraint: str, detail: str, excluded: Sequence[str]) -> None:
        super().__init__(f"No endpoints found that satisfy {constraint}: {detail}")
        self.constraint, self.detail, self.excluded = constraint, detail, tuple(excluded)


@dataclass(frozen=True)
class Tried:
    """An endpoint that refused before the first byte. `hint_s`: simulated seconds it asks to wait, None without a hint."""

    name: str
    status: int
    hint_s: float | None = None


class AllBusy(Exception):
    """Every endpoint refused: HTTP 429, or 503 when that is what the last one said."""

    def __init__(self, tried: Sequence[Tried]) -> None:
        super().__init__("no endpoint has room")
        self.tried = tuple(tried)


def _named(provider: Provider, names: Any) -> bool:
    """A base slug matches all endpoints of a provider, a tag one of them; the display name is accepted, too."""
    wanted = {str(n).lower() for n in names}
    return bool(wanted & {provider.slug, provider.tag, provider.name.lower()})


def _position(provider: Provider, order: Sequence[Any]) -> int:
    return next((k for k, name in enumerate(order) if _named(provider, [name])), len(order))


def _price(value: Any) -> Decimal | None:
    """max_price parts are numbers in the docs and strings in the SDK."""
    try:
        return None if value is None else Decimal(str(value))
    except InvalidOperation:
        return None


def _filters(request: ChatRequest) -> list[tuple[str, Any, Callable[[Provider], bool]]]:
    """(request field, its value, predicate), in the order in which they are applied."""
    wanted: Mapping[str, Any] = request.provider
    allowed = {q for name in wanted.get("quantizations") or () for q in _COVERS.get(name, {name})}
    price = wanted.get("max_price") or {}
    top_prompt, top_completion = _price(price.get("prompt")), _price(price.get("completion"))
    out: list[tuple[str, Any, Callable[[Provider], bool]]] = []
    if wanted.get("only"):
        out.append(("provider.only", wanted["only"], lambda p: _named(p, wanted["only"])))
    if wanted.get("ignore"):
        out.append(("provider.ignore", wanted["ignore"], lambda p: not _named(p, wanted["ignore"])))
    if allowed:
        out.append(("provider.quantizations", wanted["quantizations"], lambda p: (p.quantization or "unknown") in allowed))
    if top_prompt is not None:
        out.append(("provider.max_price.prompt", str(top_prompt), lambda p: p.price_prompt <= top_prompt))
    if top_completion is not None:
        out.append(("provider.max_price.completion", str(top_completion), lambda p: p.price_completion <= top_completion))
    if wanted.get("data_collection") == "deny":
        out.append(("provider.data_collection", "deny", lambda p: not p.may_collect_data))
    if wanted.get("zdr"):
        out.append(("provider.zdr", True, lambda p: p.zdr))
    if wanted.get("require_parameters"):
        asked = sorted(request.parameters)
        out.append(("provider.require_parameters", asked, lambda p: request.parameters <= set(p.declared_parameters)))
    if request.max_tokens is not None:
        out.append(("max_tokens", request.max_tokens, lambda p: request.max_tokens <= p.max_completion_tokens))  # type: ignore[operator]
    if wanted.get("order") and wanted.get("allow_fallbacks") is False:
        out.append(("provider.order", wanted["order"], lambda p: _named(p, wanted["order"])))
    return out


def route(
    request: ChatRequest, providers: Sequence[Provider], *, seed: str, attempt: int, traffic: Traffic | None = None
) -> list[Provider]:
    """Endpoints to try, first to last (never empty). Raises NoEndpoint.

    `order` and `sort` switch load balancing off. Without them endpoints in good state and without a recent outage come first, for a
    request with tools the better callers of tools before the others, then by weight 1/price^2 (rules a to d).
    """
    left = list(providers)
    for field, value, fits in _filters(request):
        kept = [p for p in left if fits(p)]
        if not kept:
            raise NoEndpoint(field, str(value), [p.name for p in providers])
        left = kept
    if request.tools:  # a soft filter, whether parameters are required or not
        left = [p for p in left if "tools" in p.declared_parameters] or left
    # a conversation with a session id stays where it is
    key = (request.session_id, 0) if request.session_id else (request.hash, attempt)

    def balanced(p: Provider) -> tuple[bool, float, float]:
        bad = p.status < 0 or (traffic is not None and traffic.recent_outage(p))
        weight = 1.0 / max(float(p.price_prompt + p.price_completion), 1e-6) ** 2
        # exponential race: the smallest of Exp(weight) draws is a weighted choice, the rest an order of fallbacks
        return bad, -p.tool_quality if request.tools else 0.0, -math.log1p(-chance.unit(seed, *key, "route", p.tag)) / weight

    keys: dict[str, Callable[[Provider], Any]] = {
        "price": lambda p: (p.price_prompt + p.price_completion, p.tag),
        "throughput": lambda p: (-p.latency.tokens_per_s, p.tag),
        "latency": lambda p: (p.latency.ttft_median_s, p.tag),
        "exacto": lambda p: (-p.tool_quality, p.tag),
    }
    left.sort(key=keys.get(request.sort or "", balanced))
    order = request.provider.get("order")
    if order:
        left.sort(key=lambda p: _position(p, order))
    return left[:1] if request.provider.get("allow_fallbacks") is False and not order else left


def pass_on(
    endpoints: Sequence[Provider], *, seed: str, request_hash: str, attempt: int, traffic: Traffic | None = None
) -> tuple[Provider, tuple[Tried, ...]]:
    """The endpoint that serves and those that refused before it: refusals before the first byte, invisible to the client (rule e).
    Raises AllBusy.

    The last one never sheds and never fails by `[provider.faults]` here (what it fails with, the client sees); but it may be full.
    """
    tried: list[Tried] = []
    for k, provider in enumerate(endpoints):
        if k < len(endpoints) - 1 and (status := _turned_away(provider, seed, request_hash, attempt)):
            tried.append(Tried(provider.name, status))
        elif traffic is not None and (why := traffic.refuses(provider)):
            tried.append(Tried(provider.name, STATUS[why], traffic.hint_s(provider, why)))
        else:
            return provider, tuple(tried)
    raise AllBusy(tried)


def _turned_away(provider: Provider, seed: str, request_hash: str, attempt: int) -> int | None:
    """Status with which a busy or broken endpoint refuses."""
    if chance.unit(seed, request_hash, attempt, "shed", provider.tag) < provider.shed_rate:
        return 429
    fault = fault_of(provider, seed=seed, request_hash=request_hash, attempt=attempt)
    return int(fault) if fault in _FALLS_THROUGH else None
