"""Single values of a body: texts, counts and prices as servers write them.

Does not belong here: where they stand in a body (`answer.py`).
"""

from __future__ import annotations

from typing import Any

MAX_COUNT = 2**31 - 1  # counts are stored as int32
_MAX_USD = 1e6


def as_text(value: Any) -> str | None:
    """`value` if it is a text with something in it."""
    return value if isinstance(value, str) and value else None


def as_count(value: Any) -> int | None:
    """`value` as a count: a whole number that an int32 holds, also one that a server wrote as a float (12.0)."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def as_counts(values: Any) -> list[int] | None:
    """A list of counts (token ids: tens of thousands a trajectory), or None where one of them is none."""
    if not isinstance(values, list):
        return None
    if {*map(type, values)} <= {int}:
        return values if not values or (min(values) >= 0 and max(values) <= MAX_COUNT) else None
    counts = [as_count(value) for value in values]
    return None if None in counts else [count for count in counts if count is not None]


def usd(value: Any) -> float | None:
    """A price that can be one: a number from 0 to a million USD (the bounds of `collect`); anything else is unknown."""
    return float(value) if type(value) in (int, float) and 0 <= value < _MAX_USD else None
