"""Which endpoints may answer, the `provider` object that says so, and how they are asked.

Belongs here: the endpoints snapshot, the routing policy applied to it, what the pilot and wire profiles say for or against an
endpoint, names of providers and models compared.
Does not belong here: reading one listed endpoint (`endpoint.py`), sending prompts, learning how a provider bends text (`exact`),
writing `endpoints.json` (the asset).

Facts: docs/research/openrouter-contract.md#1.2 (provider preferences), #1.7 (endpoint fields, price strings in USD per token),
#3.2 (quantisation).
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal

import aiohttp

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.servers.endpoint import Endpoint, read_endpoint, shorten, told_apart
from eagle3_assets.collect.servers.exchange import read_at_most
from eagle3_assets.errors import WireError
from eagle3_assets.store import Store, manifest_path, read_committed
from eagle3_assets.wire.completion import as_dict

PER_MILLION = 10**6
LISTING_BYTES = 16 << 20
NOBODY_ASKED: dict[str, Any] = {"data": {"endpoints": []}}  # the listing of a campaign that rents no answer
# What a quantization of the allow-list also covers (docs/research/openrouter-contract.md#1.2).
_COVERS = {"fp4": {"fp4", "mxfp4", "nvfp4"}, "fp8": {"fp8", "mxfp8"}}
# Sent with every request; with require_parameters an endpoint that lists parameters must list these
# (docs/research/openrouter-contract.md#1.1, #1.7). Each row: any one of these names will do.
_ALWAYS_SENT = (("temperature",), ("top_p",), ("max_tokens", "max_completion_tokens"))
_REASONING_SENT = ("reasoning", "include_reasoning", "reasoning_effort")
# A variant of the slug (which endpoints are asked, and how); the answer mostly comes back without it (hermes-agent#94103, opencode#48016).
_VARIANT = re.compile(r":(nitro|floor|exacto|online|free)$")
# A dated release of the same model: moonshotai/kimi-k2.5 comes back as moonshotai/kimi-k2.5-0127
# (docs/research/openrouter-contract.md#1.3).
_DATE_SUFFIX = re.compile(r"-(\d{4}|\d{6}|\d{8}|\d{4}-\d{2}-\d{2})$")


# How the reasoning of an assistant message in the history goes back (docs/research/prompt-side.md#history).
Replay = Literal["both", "reasoning", "reasoning_content", "reasoning_details", "none"]


@dataclass(frozen=True, slots=True)
class RequestForm:
    """How these endpoints are asked: what a request says besides its prompt. `replay` "both" sends `reasoning` and
    `reasoning_details`.
    """

    stream: bool = False
    logprobs: bool = False
    replay: Replay = "both"


@dataclass(frozen=True, slots=True)
class Routing:
    """The policy resolved. `max_*_price` (USD per token) are what `provider_object["max_price"]` allows: the bound for
    reservations. `remarks` (by tag) say what is known against an eligible endpoint.
    """

    eligible: tuple[Endpoint, ...]
    refused: tuple[tuple[Endpoint, str], ...]
    provider_object: dict[str, Any]
    max_prompt_price: float
    max_completion_price: float
    max_request_price: float = 0.0
    form: RequestForm = RequestForm()
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_be_free(self) -> bool:
        """Whether an answer may cost nothing: some eligible endpoint has no price for what it writes."""
        return any(endpoint.completion_price == 0 for endpoint in self.eligible)

    def names_provider(self, name: str | None) -> bool:
        """Whether `name` (as in `response.provider`) is an eligible provider."""
        if name is None:
            return False
        folded = name.casefold()
        return any(e.provider_name == name or e.provider_name.casefold() == folded for e in self.eligible)

    def only(self, endpoint: Endpoint, form: RequestForm | None = None) -> Routing:
        """This routing pinned to one endpoint without fallbacks (the pilot's), asked in `form`."""
        pinned = {**self.provider_object, "only": [endpoint.tag], "allow_fallbacks": False}
        return replace(self, eligible=(endpoint,), provider_object=pinned, form=form or self.form)


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
        found = f"HTTP {status}" if status != 200 else f"data.endpoints = {shorten(listed)}"
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


def resolve(
    campaign: Campaign,
    snapshot: dict[str, Any],
    *,
    pilot: Mapping[str, Any] | None = None,
    wire_profiles: Mapping[str, Any] | None = None,
) -> Routing:
    """Apply `[routing]` to a snapshot of `fetch_endpoints`. An endpoint that cannot be read is refused with the name of the
    field, the others go on. Never raises for lack of endpoints: see `require_eligible`. Raises WireError when there is no list.

    `wire_profiles` (wire_profiles.json) names providers that cannot be exact: refused with `routing.leave_out_inexact`, else a
    remark. `pilot` (pilot.json) decides `collect.stream` = "auto".
    """
    policy = campaign.routing
    remarks: dict[str, str] = {}
    eligible: list[Endpoint] = []
    refused: list[tuple[Endpoint, str]] = []
    listed = as_dict(as_dict(snapshot).get("data")).get("endpoints")
    if not isinstance(listed, list):
        raise WireError(f"data.endpoints of the endpoints snapshot: expected a list, found {shorten(listed)}; fetch it again")
    for endpoint, broken in told_apart([read_endpoint(raw) for raw in listed]):
        reasons = [broken] if broken else _objections(campaign, endpoint)
        inexact = None if broken else _inexact(wire_profiles, endpoint)
        if inexact and policy.leave_out_inexact:
            reasons.append(f"{inexact} (routing.leave_out_inexact)")
        elif inexact:
            remarks[endpoint.tag] = inexact
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
        RequestForm(stream=_streams(campaign, eligible, pilot)),
        remarks,
    )


def stored_routing(campaign: Campaign, store: Store) -> Routing:
    """The policy applied to the committed endpoints snapshot, with what pilot and wire profiles say so far. Raises StoreError."""
    snapshot = read_committed(store.endpoints, made_by="endpoints")["snapshot"]
    pilot = _committed(store, "pilot")
    profiles = _committed(store, "wire_profiles") or (pilot or {}).get("wire_profiles")
    return resolve(campaign, snapshot, pilot=pilot, wire_profiles=profiles)


def _committed(store: Store, stage: Literal["pilot", "wire_profiles"]) -> dict[str, Any] | None:
    path = getattr(store, stage)
    return as_dict(read_committed(path, made_by=stage)) if manifest_path(path).exists() else None


def routing_table(routing: Routing, pilot: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One row an endpoint, for people and for JSON: what it is, what it costs (USD per million tokens), whether it is taken and
    why not, and what the pilot saw of it (None: not asked).
    """
    taken = [(e, "taken", routing.remarks.get(e.tag, "")) for e in routing.eligible]
    return [
        {
            "provider": e.provider_name,
            "tag": e.tag,
            "quantization": e.quantization,
            "prompt_usd_per_million": round(e.prompt_price * PER_MILLION, 6),
            "completion_usd_per_million": round(e.completion_price * PER_MILLION, 6),
            "status": e.status,
            "uptime": e.uptime,
            "context_length": e.context_length,
            "lists_tools": "tools" in e.supported_parameters,
            "lists_logprobs": "logprobs" in e.supported_parameters,
            "streams_by_token": seen_by_pilot(pilot, e.tag, "stream", "token_by_token"),
            "gives_logprobs": seen_by_pilot(pilot, e.tag, "logprobs", "given"),
            "verdict": verdict,
            "why": why,
        }
        for e, verdict, why in [*taken, *((e, "refused", why) for e, why in routing.refused)]
    ]


def seen_by_pilot(pilot: Mapping[str, Any] | None, tag: str, *path: str) -> Any:
    """One finding of pilot.json's `probes` about an endpoint, None where nothing was found."""
    found: Any = as_dict((pilot or {}).get("probes")).get(tag)
    for name in path:
        found = as_dict(found).get(name)
    return found


def require_eligible(routing: Routing) -> None:
    """Raises WireError when nobody may answer; the line says why for each endpoint."""
    if not routing.eligible:
        why = ", ".join(f"{e.tag} ({reason})" for e, reason in routing.refused) or "the model has no endpoints"
        raise WireError(f"no endpoint is eligible under [routing]: {why}; loosen [routing] or wait, then run again")


@functools.lru_cache(maxsize=256)
def is_same_model(asked: str, answered: str | None) -> bool:
    """Whether `answered` is `asked` or a dated release of it; a variant of the slug is the same model."""
    if answered is None:
        return False
    asked, answered = _VARIANT.sub("", asked), _VARIANT.sub("", answered)
    return answered == asked or _DATE_SUFFIX.sub("", answered) == asked


# ---------------------------------------------------------------------------------------------------- the policy
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
    checks.append((bool(missing), lambda: f"does not take {', '.join(missing)} ({_asking_for(campaign, missing)})"))
    return [text() for objects, text in checks if objects]


def _inexact(wire_profiles: Mapping[str, Any] | None, e: Endpoint) -> str | None:
    """Why no row of this endpoint's provider can be exact, as its wire profile says: too few of its bills fit the best reading of
    its text (estimated counts, another tokenizer). The thresholds are those of the profiles themselves.
    """
    profiles = as_dict(wire_profiles)
    rule, known = as_dict(profiles.get("rule")), as_dict(profiles.get("providers"))
    entry = next((as_dict(v) for name, v in known.items() if name.casefold() == e.provider_name.casefold()), {})
    rows, explained = entry.get("rows", 0), entry.get("explained", 0)
    if rows < rule.get("deciding_rows", 0) or explained >= rule.get("explains", 0.0) * rows:
        return None
    return f"cannot be exact: {explained} of {rows} bills fit the best reading of its text"


def _streams(campaign: Campaign, eligible: list[Endpoint], pilot: Mapping[str, Any] | None) -> bool:
    """`auto`: the server chooses among the eligible endpoints, so a stream is asked for when each of them gives token by token:
    streams of others witness no boundary, and a stream is fifty times the bytes.
    """
    if campaign.collect.stream != "auto":
        return campaign.collect.stream == "always"
    return bool(eligible) and all(seen_by_pilot(pilot, e.tag, "stream", "token_by_token") is True for e in eligible)


def _asking_for(campaign: Campaign, missing: list[str]) -> str:
    named, always = (any((m in campaign.routing.parameters) is is_named for m in missing) for is_named in (True, False))
    return ", ".join(["routing.parameters"] * named + ["routing.require_parameters"] * always)


def _missing_parameters(campaign: Campaign, e: Endpoint) -> list[str]:
    """What `routing.parameters` and (with require_parameters) every request need and the endpoint does not list. One that lists
    nothing is taken at its silence, but not for what the campaign names itself.
    """
    named = [name for name in campaign.routing.parameters if name not in e.supported_parameters]
    if not campaign.routing.require_parameters or not e.supported_parameters:
        return named
    needed = _ALWAYS_SENT + ((_REASONING_SENT,) if campaign.target.thinking else ())
    return named + [names[0] for names in needed if not set(names) & set(e.supported_parameters)]
