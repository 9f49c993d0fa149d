"""Seeded chance: every random decision of the stand-in is a function of (seed, request, attempt, what for).

Belongs here: draws from a hash. Does not belong here: what is decided with them. No global random state anywhere in the stand-in,
so the order in which 2,000 requests arrive changes no answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_ALNUM = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TO_ALNUM = bytes(_ALNUM[k % 62] for k in range(256))


def _digest(parts: tuple[object, ...], size: int) -> bytes:
    return hashlib.blake2b("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def unit(*parts: object) -> float:
    """A number in [0, 1), the same for the same parts."""
    return int.from_bytes(_digest(parts, 8), "big") / 2**64


def pick(options: Sequence[T], *parts: object) -> T:
    """One of `options` (not empty), uniformly."""
    return options[int.from_bytes(_digest(parts, 8), "big") % len(options)]


def lognormal(median: float, sigma: float, *parts: object) -> float:
    """A log-normal draw (Box-Muller over two unit draws)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - unit("r", *parts)))
    return median * math.exp(sigma * radius * math.cos(2.0 * math.pi * unit("a", *parts)))


def alnum(length: int, *parts: object) -> str:
    """`length` (<= 64) characters of [0-9A-Za-z]."""
    return _digest(parts, length).translate(_TO_ALNUM).decode()


def hexadecimal(length: int, *parts: object) -> str:
    """`length` (<= 128) hex digits."""
    return _digest(parts, 64).hex()[:length]
