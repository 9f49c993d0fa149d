"""`provider` of a chat request: the types of what a client may prefer (docs/research/openrouter-contract.md#1.2).

Belongs here: whether the object can be read. Does not belong here: what it means for a request (`routing`).
Unknown keys are tolerated, null is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any


class Malformed(ValueError):
    """str() is the message for the client."""


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _switch(value: Any) -> bool:
    return isinstance(value, bool)


def _prices(value: Any) -> bool:
    return isinstance(value, dict) and all(price is None or _price(price) for price in value.values())


def _price(value: Any) -> bool:
    """A number in the docs, a string in the SDK."""
    try:
        return not isinstance(value, bool) and isinstance(value, int | float | str) and Decimal(str(value)).is_finite()
    except (InvalidOperation, ValueError):  # no number; an integer of more digits than Python writes
        return False


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("order", "only", "ignore", "quantizations"), (_names, "an array of strings")),
    **dict.fromkeys(("allow_fallbacks", "require_parameters", "zdr"), (_switch, "a boolean")),
    "data_collection": (lambda value: value in ("allow", "deny"), "allow or deny"),
    "max_price": (_prices, "an object of prices in USD per million tokens"),
    "sort": (lambda value: isinstance(value, str | dict), "a string or an object"),
}


def read_preferences(value: Any) -> Mapping[str, Any]:
    """`provider` of a request body, without its nulls. Raises Malformed."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed("provider: expected an object")
    given = {key: preference for key, preference in value.items() if preference is not None}
    for key, (fits, expected) in _EXPECTED.items():
        if key in given and not fits(given[key]):
            raise Malformed(f"provider.{key}: expected {expected}")
    return given
