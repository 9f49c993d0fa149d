"""Which endpoints may answer, and the `provider` object that says so.

Belongs here: the endpoints snapshot, the routing policy applied to it, names of providers and models compared.
Does not belong here: sending prompts, learning how a provider bends text (`exact`), writing `endpoints.json` (the asset).

Facts: openrouter-contract.md 1.2 (provider preferences), 1.7 (endpoint fields, price strings in USD per token), 3.2
(quantisation).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import aiohttp

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.completion import as_dict
from eagle3_assets.collect.journal import load_json
from eagle3_assets.errors import WireError

PER_MILLION = 10**6
# What a quantization of the allow-list also covers (contract 1.2).
_COVERS = {"fp4": {"fp4", "mxfp4", "nvfp4"}, "fp8": {"fp8", "mxfp8"}}
# Sent with every request; with require_parameters an endpoint that lists parameters must list these (contract 1.1, 1.7).
# Each row: any one of these names will do.
_ALWAYS_SENT = (("temperature",), ("top_p",), ("max_tokens", "max_completion_tokens"))
_REASONING_SENT = ("reasoning", "include_reasoning", "reasoning_effort")
# A dated release of the same model: moonshotai/kimi-k2.5 comes back as moonshotai/kimi-k2.5-0127 (contract 1.3).
_DATE_SUFFIX = re.compile(r"-(\d{4}|\d{6}|\d{8}|\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of the model. Prices in USD per token (the dearest of base price and overrides, before any discount),
    `request_price` in USD per request, `uptime` in percent over 30 minutes or None."""

    provider_name: str
    tag: str
    quantization: str
    prompt_price: float
    completion_price: float
    request_price: float
    status: int
    uptime: float | None
    supported_parameters: tuple[str, ...]
    context_length: int | None
    max_completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Routing:
    """The policy resolved. `max_*_price` (USD per token) are what `provider_object["max_price"]` allows: the bound for
    reservations.
    """

    eligible: tuple[Endpoint, ...]
    refused: tuple[tuple[Endpoint, str], ...]
    provider_object: dict[str, Any]
    max_prompt_price: float
    max_completion_price: float
    max_request_price: float = 0.0

    def names_provider(self, name: str | None) -> bool:
        """Whether `name` (as in `response.provider`) is an eligible provider."""
        return name is not None and name.casefold() in {e.provider_name.casefold() for e in self.eligible}

    def only(self, endpoint: Endpoint) -> Routing:
        """This routing pinned to one endpoint without fallbacks (the pilot's)."""
        pinned = {**self.provider_object, "only": [endpoint.tag], "allow_fallbacks": False}
        return replace(self, eligible=(endpoint,), provider_object=pinned)


async def fetch_endpoints(
    session: aiohttp.ClientSession, base_url: str, model: str, *, timeout_s: float = 60.0
) -> dict[str, Any]:
    """GET /models/<model>/endpoints, verbatim. Sends no key (none is needed). Raises WireError with one line."""
    url = f"{base_url}/models/{model}/endpoints"
    try:
        async with session.get(url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise WireError(f"{url}: cannot be reached ({type(error).__name__}); check the network and run again") from None
    try:
        snapshot = load_json(body)
    except ValueError:
        snapshot = None
    if status != 200 or not isinstance(as_dict(as_dict(snapshot).get("data")).get("endpoints"), list):
        raise WireError(
            f"{url}: expected HTTP 200 with data.endpoints, found HTTP {status}; "
            f"is target.model = {model!r} the slug that OpenRouter uses?"
        )
    return as_dict(snapshot)


def resolve(campaign: Campaign, snapshot: dict[str, Any]) -> Routing:
    """Apply `[routing]` to a snapshot of `fetch_endpoints`. Never raises for lack of endpoints: see `require_eligible`."""
    policy = campaign.routing
    eligible: list[Endpoint] = []
    refused: list[tuple[Endpoint, str]] = []
    for raw in snapshot["data"]["endpoints"]:
        endpoint, broken = _read_endpoint(raw)
        reasons = [broken] if broken else _objections(campaign, endpoint)
        if reasons:
            refused.append((endpoint, "; ".join(reasons)))
        else:
            eligible.append(endpoint)
    prompt_bound = _price_bound(e.prompt_price for e in eligible)
    completion_bound = _price_bound(e.completion_price for e in eligible)
    provider: dict[str, Any] = {
        "only": [e.tag for e in eligible],
        "ignore": list(policy.ignore),
        "quantizations": list(policy.quantizations),
        "sort": policy.sort,
        "max_price": {"prompt": float(prompt_bound), "completion": float(completion_bound)},
        "allow_fallbacks": policy.allow_fallbacks,
        "require_parameters": policy.require_parameters,
        "data_collection": campaign.campaign.data_collection,
    }
    provider = {key: value for key, value in provider.items() if value != []}  # an empty list is not a filter
    return Routing(
        tuple(eligible),
        tuple(refused),
        provider,
        float(prompt_bound / PER_MILLION),
        float(completion_bound / PER_MILLION),
        max((e.request_price for e in eligible), default=0.0),
    )


def require_eligible(routing: Routing) -> None:
    """Raises WireError when nobody may answer; the line says why for each endpoint."""
    if not routing.eligible:
        why = ", ".join(f"{e.tag} ({reason})" for e, reason in routing.refused) or "the model has no endpoints"
        raise WireError(f"no endpoint is eligible under [routing]: {why}; loosen [routing] or wait, then run again")


def is_same_model(asked: str, answered: str | None) -> bool:
    """Whether `answered` is `asked` or a dated release of it."""
    return answered is not None and (answered == asked or _DATE_SUFFIX.sub("", answered) == asked)


# ---------------------------------------------------------------------------------------------------- one endpoint
def _read_endpoint(raw: dict[str, Any]) -> tuple[Endpoint, str | None]:
    """The endpoint, and what makes it unusable (a price that cannot be read) or None."""
    pricing = raw.get("pricing") or {}
    broken = None
    try:
        prompt, completion, request = (_dearest(pricing, names) for names in _PRICE_NAMES)
    except (InvalidOperation, TypeError, ValueError):
        prompt = completion = request = Decimal(0)
        broken = f"its price cannot be read ({str(pricing)[:60]})"
    return (
        Endpoint(
            provider_name=str(raw.get("provider_name") or raw.get("name") or "?"),
            tag=str(raw.get("tag") or raw.get("provider_name") or "?"),
            quantization=str(raw.get("quantization") or "unknown"),
            prompt_price=float(prompt),
            completion_price=float(completion),
            request_price=float(request),
            status=int(raw.get("status") or 0),
            uptime=raw.get("uptime_last_30m"),
            supported_parameters=tuple(raw.get("supported_parameters") or ()),
            context_length=raw.get("context_length"),
            max_completion_tokens=raw.get("max_completion_tokens"),
        ),
        broken,
    )


# Names of `pricing` that bound the price of a prompt token, a completion token, a request; the first of each must be there.
_PRICE_NAMES: tuple[tuple[str, ...], ...] = (("prompt", "input_cache_write"), ("completion", "internal_reasoning"), ("request",))


def _dearest(pricing: dict[str, Any], names: tuple[str, ...]) -> Decimal:
    tables = [pricing, *(o.get("pricing", o) for o in pricing.get("overrides") or () if isinstance(o, dict))]
    found = [Decimal(str(table[name])) for table in tables for name in names if table.get(name) is not None]
    if not found and names != ("request",):
        raise ValueError(names[0])
    price = max(found, default=Decimal(0))
    if not price.is_finite() or min(found, default=Decimal(0)) < 0:  # -1 marks a router, whose price is not known beforehand
        raise ValueError(names[0])
    return price


def _price_bound(prices: Iterable[float]) -> Decimal:
    """USD per million: the dearest price and a hair above, so that a server's float arithmetic does not exclude that endpoint."""
    dearest = max((Decimal(repr(price)) for price in prices), default=Decimal(0)) * PER_MILLION
    return dearest.quantize(Decimal("0.000001"), rounding="ROUND_CEILING") + Decimal("0.000001")


def _matches(names: Iterable[str], endpoint: Endpoint) -> str | None:
    """The one of `names` that means this endpoint: its provider's name, the base of its tag, or its whole tag."""
    tag = endpoint.tag.casefold()
    mine = {endpoint.provider_name.casefold(), tag, tag.split("/")[0]}
    return next((name for name in names if name.casefold() in mine), None)


def _objections(campaign: Campaign, e: Endpoint) -> list[str]:
    policy = campaign.routing
    quantizations = set[str]().union(*(_COVERS.get(q, {q}) for q in policy.quantizations))
    asked = [d for d in campaign.dataset if d.backend == "openrouter"]
    longest = max((campaign.sampling_of(d).max_tokens for d in asked), default=campaign.sampling.max_tokens)
    usd_prompt, usd_completion = (Decimal(repr(p)) * PER_MILLION for p in (e.prompt_price, e.completion_price))
    checks: list[tuple[bool, Callable[[], str]]] = [
        (_matches(policy.ignore, e) is not None, lambda: f"routing.ignore names {_matches(policy.ignore, e)}"),
        (bool(policy.only) and _matches(policy.only, e) is None, lambda: "not in routing.only"),
        (
            bool(quantizations) and e.quantization not in quantizations,
            lambda: f"quantization {e.quantization} is not in routing.quantizations",
        ),
        (e.status < policy.min_status, lambda: f"status {e.status} is below routing.min_status = {policy.min_status}"),
        (
            e.uptime is not None and e.uptime < policy.min_uptime,
            lambda: f"uptime {e.uptime:.1f} % is below routing.min_uptime = {policy.min_uptime}",
        ),
        (
            policy.max_price_prompt is not None and usd_prompt > Decimal(repr(policy.max_price_prompt)),
            lambda: f"prompt price {float(usd_prompt):g} USD/M is above routing.max_price_prompt = {policy.max_price_prompt}",
        ),
        (
            usd_completion > Decimal(repr(policy.max_price_completion)),
            lambda: (
                f"completion price {float(usd_completion):g} USD/M is above "
                f"routing.max_price_completion = {policy.max_price_completion}"
            ),
        ),
        (
            e.max_completion_tokens is not None and e.max_completion_tokens < longest,
            lambda: f"answers at most {e.max_completion_tokens} tokens, sampling.max_tokens is {longest}",
        ),
    ]
    missing = _missing_parameters(campaign, e)
    checks.append((bool(missing), lambda: f"does not take {', '.join(missing)} (routing.require_parameters)"))
    return [text() for objects, text in checks if objects]


def _missing_parameters(campaign: Campaign, e: Endpoint) -> list[str]:
    if not campaign.routing.require_parameters or not e.supported_parameters:
        return []
    needed = _ALWAYS_SENT + ((_REASONING_SENT,) if campaign.target.thinking else ())
    return [names[0] for names in needed if not set(names) & set(e.supported_parameters)]
