"""One endpoint of the model, read from the server's list; what cannot be read is named, and no price is guessed.

Belongs here: `Endpoint`, the reading of a listed one, prices, twins. Does not belong here: which endpoints we take
(`routing.py`).

Facts: docs/research/openrouter-contract.md#1.7 (fields; price strings in USD per token; `overrides`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from eagle3_assets.wire.completion import as_dict

DEAREST_USD = 1  # nothing costs a dollar a token, or a thousand dollars a request: such a price is a mistake


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


class _Malformed(ValueError):
    """One field of a listed endpoint; the text names it, says what was expected and what was found."""


def read_endpoint(raw: Any) -> tuple[Endpoint, str | None]:
    """The endpoint, and what makes it unusable (a field that cannot be read) or None."""
    listed = as_dict(raw)
    names = [n for n in (listed.get("provider_name"), listed.get("name")) if isinstance(n, str) and n and n.isprintable()]
    provider = names[0] if names else "?"
    tag = listed.get("tag")
    shown = tag if isinstance(tag, str) and tag and tag.isprintable() else provider
    try:
        if not isinstance(raw, dict):
            raise _Malformed(f"expected an object, found {shorten(raw)}")
        return _endpoint(raw, provider, shown), None
    except _Malformed as error:
        nothing = Endpoint(provider, shown, "unknown", 0.0, 0.0, 0.0, 0, None, (), None, None)
        return nothing, f"it cannot be read: {error}"


def _endpoint(raw: dict[str, Any], provider: str, tag: str) -> Endpoint:
    """Raises _Malformed. What is not known may be null or left out, a name and the prices apart."""
    for name in ("provider_name", "tag"):
        value = raw.get(name)
        if value is not None and not (isinstance(value, str) and value and value.isprintable()):
            raise _Malformed(f"{name}: expected a name, found {shorten(value)}")
    if tag == "?":
        raise _Malformed("tag, provider_name: expected a name, found neither")
    quantization, parameters = raw.get("quantization"), raw.get("supported_parameters")
    if quantization is not None and not (isinstance(quantization, str) and quantization.isprintable()):
        raise _Malformed(f"quantization: expected a name or null, found {shorten(quantization)}")
    if parameters is not None and not (isinstance(parameters, list) and all(isinstance(p, str) for p in parameters)):
        raise _Malformed(f"supported_parameters: expected a list of names, found {shorten(parameters)}")
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
        raise _Malformed(f"{name}: expected {'a whole number' if whole else 'a number'} or null, found {shorten(value)}")
    return value  # type: ignore[no-any-return]


def told_apart(read: Sequence[tuple[Endpoint, str | None]]) -> list[tuple[Endpoint, str | None]]:
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


def shorten(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


# Names of `pricing` that bound the price of a prompt token, a completion token, a request; the first of each must be there.
_PRICE_NAMES: tuple[tuple[str, ...], ...] = (("prompt", "input_cache_write"), ("completion", "internal_reasoning"), ("request",))


def _prices(pricing: Any) -> tuple[float, float, float]:
    """(prompt, completion, request). Raises _Malformed."""
    if not isinstance(pricing, dict):
        raise _Malformed(f"its price cannot be read, pricing: expected an object, found {shorten(pricing)}")
    overrides = pricing.get("overrides") or []
    tables = [("pricing", pricing)]
    for index, override in enumerate(overrides if isinstance(overrides, list) else [overrides]):
        table = override.get("pricing", override) if isinstance(override, dict) else override
        if not isinstance(table, dict):
            raise _Malformed(
                f"its price cannot be read, pricing.overrides[{index}]: expected an object, found {shorten(override)}"
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
        raise _Malformed(f"its price cannot be read, {where}: expected USD, at least 0 and below {most}, found {shorten(value)}")
    return price
