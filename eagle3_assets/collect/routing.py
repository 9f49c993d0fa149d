"""Which endpoints may answer, and the `provider` object that says so.

Belongs here: the endpoints snapshot, the routing policy applied to it, names of providers and models compared.
Does not belong here: sending prompts, learning how a provider bends text (`exact`), writing `endpoints.json` (the asset).

Facts: openrouter-contract.md 1.2 (provider preferences), 1.7 (endpoint fields, price strings in USD per token), 3.2
(quantisation).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import aiohttp

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.completion import as_dict
from eagle3_assets.collect.exchange import read_at_most
from eagle3_assets.errors import WireError

PER_MILLION = 10**6
LISTING_BYTES = 16 << 20
DEAREST_USD = 1  # nothing costs a dollar a token, or a thousand dollars a request: such a price is a mistake
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
    """GET /models/<model>/endpoints, as it is (but what JSON has no word for: NaN and infinities become strings, lone surrogates
    question marks). Sends no key (none is needed). Raises WireError with one line.
    """
    url = f"{base_url}/models/{model}/endpoints"
    try:
        async with session.get(url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            status, body = response.status, await read_at_most(response, LISTING_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise WireError(f"{url}: cannot be reached ({type(error).__name__}); check the network and run again") from None
    try:
        snapshot = _writable(json.loads(body, parse_constant=str, parse_float=_finite))
    except (ValueError, RecursionError):
        snapshot = None
    listed = as_dict(as_dict(snapshot).get("data")).get("endpoints")
    if status != 200 or not isinstance(listed, list):
        found = f"HTTP {status}" if status != 200 else f"data.endpoints = {_shown(listed)}"
        raise WireError(
            f"{url}: expected HTTP 200 with a list in data.endpoints, found {found}; "
            f"is target.model = {model!r} the slug that OpenRouter uses?"
        )
    return as_dict(snapshot)


def _finite(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_writable(v) for v in value]
    return {_writable(k): _writable(v) for k, v in value.items()} if isinstance(value, dict) else value


def resolve(campaign: Campaign, snapshot: dict[str, Any]) -> Routing:
    """Apply `[routing]` to a snapshot of `fetch_endpoints`. An endpoint that cannot be read is refused with the name of the
    field, the others go on. Never raises for lack of endpoints: see `require_eligible`. Raises WireError when there is no list.
    """
    policy = campaign.routing
    eligible: list[Endpoint] = []
    refused: list[tuple[Endpoint, str]] = []
    listed = as_dict(as_dict(snapshot).get("data")).get("endpoints")
    if not isinstance(listed, list):
        raise WireError(f"data.endpoints of the endpoints snapshot: expected a list, found {_shown(listed)}; fetch it again")
    for endpoint, broken in _told_apart([_read_endpoint(raw) for raw in listed]):
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
    request_bound = max((e.request_price for e in eligible), default=0.0)
    if request_bound > 0:
        provider["max_price"]["request"] = request_bound
    provider = {key: value for key, value in provider.items() if value != []}  # an empty list is not a filter
    return Routing(
        tuple(eligible),
        tuple(refused),
        provider,
        float(prompt_bound / PER_MILLION),
        float(completion_bound / PER_MILLION),
        request_bound,
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
class _Malformed(ValueError):
    """One field of a listed endpoint; the text names it, says what was expected and what was found."""


def _read_endpoint(raw: Any) -> tuple[Endpoint, str | None]:
    """The endpoint, and what makes it unusable (a field that cannot be read) or None."""
    listed = as_dict(raw)
    names = [n for n in (listed.get("provider_name"), listed.get("name")) if isinstance(n, str) and n and n.isprintable()]
    provider = names[0] if names else "?"
    tag = listed.get("tag")
    shown = tag if isinstance(tag, str) and tag and tag.isprintable() else provider
    try:
        if not isinstance(raw, dict):
            raise _Malformed(f"expected an object, found {_shown(raw)}")
        return _endpoint(raw, provider, shown), None
    except _Malformed as error:
        nothing = Endpoint(provider, shown, "unknown", 0.0, 0.0, 0.0, 0, None, (), None, None)
        return nothing, f"it cannot be read: {error}"


def _endpoint(raw: dict[str, Any], provider: str, tag: str) -> Endpoint:
    """Raises _Malformed. What is not known may be null or left out, a name and the prices apart."""
    for name in ("provider_name", "tag"):
        value = raw.get(name)
        if value is not None and not (isinstance(value, str) and value and value.isprintable()):
            raise _Malformed(f"{name}: expected a name, found {_shown(value)}")
    if tag == "?":
        raise _Malformed("tag, provider_name: expected a name, found neither")
    quantization, parameters = raw.get("quantization"), raw.get("supported_parameters")
    if quantization is not None and not (isinstance(quantization, str) and quantization.isprintable()):
        raise _Malformed(f"quantization: expected a name or null, found {_shown(quantization)}")
    if parameters is not None and not (isinstance(parameters, list) and all(isinstance(p, str) for p in parameters)):
        raise _Malformed(f"supported_parameters: expected a list of names, found {_shown(parameters)}")
    prompt, completion, request = _prices(raw.get("pricing"))
    context, longest = (_number(raw, name, whole=True) for name in ("context_length", "max_completion_tokens"))
    return Endpoint(
        provider_name=provider,
        tag=tag,
        quantization=quantization or "unknown",
        prompt_price=prompt,
        completion_price=completion,
        request_price=request,
        status=int(_number(raw, "status", whole=True) or 0),
        uptime=_number(raw, "uptime_last_30m"),
        supported_parameters=tuple(parameters or ()),
        context_length=None if context is None else int(context),
        max_completion_tokens=None if longest is None else int(longest),
    )


def _number(raw: dict[str, Any], name: str, *, whole: bool = False) -> float | None:
    value = raw.get(name)
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53  # not so for NaN
    if not is_number or (whole and value != int(value)):
        raise _Malformed(f"{name}: expected {'a whole number' if whole else 'a number'} or null, found {_shown(value)}")
    return value  # type: ignore[no-any-return]


def _told_apart(read: Sequence[tuple[Endpoint, str | None]]) -> list[tuple[Endpoint, str | None]]:
    """A tag is what a request names: of equal twins the first is taken, and of different ones none, because the answer might come
    from either.
    """
    by_tag: dict[str, list[Endpoint]] = {}
    out: list[tuple[Endpoint, str | None]] = []
    for endpoint, broken in read:
        if broken is None:
            by_tag.setdefault(endpoint.tag.casefold(), []).append(endpoint)
    seen: set[str] = set()
    for endpoint, broken in read:
        tag = endpoint.tag.casefold()
        twins = by_tag.get(tag, [])
        if broken is None and any(twin != endpoint for twin in twins):
            broken = f"it cannot be told from another: tag {endpoint.tag} is listed {len(twins)} times, with different facts"
        elif broken is None and tag in seen:
            broken = f"tag {endpoint.tag} is listed {len(twins)} times; the first is taken"
        out.append((endpoint, broken))
        seen.add(tag)
    return out


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


# Names of `pricing` that bound the price of a prompt token, a completion token, a request; the first of each must be there.
_PRICE_NAMES: tuple[tuple[str, ...], ...] = (("prompt", "input_cache_write"), ("completion", "internal_reasoning"), ("request",))


def _prices(pricing: Any) -> tuple[float, float, float]:
    """(prompt, completion, request). Raises _Malformed."""
    if not isinstance(pricing, dict):
        raise _Malformed(f"its price cannot be read, pricing: expected an object, found {_shown(pricing)}")
    overrides = pricing.get("overrides") or []
    tables = [("pricing", pricing)]
    for index, override in enumerate(overrides if isinstance(overrides, list) else [overrides]):
        table = override.get("pricing", override) if isinstance(override, dict) else override
        if not isinstance(table, dict):
            raise _Malformed(
                f"its price cannot be read, pricing.overrides[{index}]: expected an object, found {_shown(override)}"
            )
        tables.append((f"pricing.overrides[{index}]", table))
    prompt, completion, request = (float(_dearest(tables, names)) for names in _PRICE_NAMES)
    return prompt, completion, request


def _dearest(tables: Sequence[tuple[str, dict[str, Any]]], names: tuple[str, ...]) -> Decimal:
    found = [_price(f"{where}.{name}", table[name]) for where, table in tables for name in names if table.get(name) is not None]
    if not found and names != ("request",):
        raise _Malformed(f"its price cannot be read, pricing.{names[0]}: is missing")
    return max(found, default=Decimal(0))


def _price(where: str, value: Any) -> Decimal:
    most = DEAREST_USD * (1000 if where.endswith(".request") else 1)
    try:
        price = Decimal(str(value)) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else Decimal("NaN")
    except (InvalidOperation, ValueError):
        price = Decimal("NaN")
    if not price.is_finite() or not 0 <= price < most:  # -1 marks a router, whose price is not known beforehand
        raise _Malformed(f"its price cannot be read, {where}: expected USD, at least 0 and below {most}, found {_shown(value)}")
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
