"""Seeded draws: keyed hashes of a row's own name, so that nothing depends on the order, the number or the place of other rows.

Belongs here: the hashes. Does not belong here: what is decided by them (`order.py`, `groups.py`).
"""

from __future__ import annotations

import hashlib

_DRAW_BYTES = 8


def shuffle_key(seed: int, sample_id: str, turn: int) -> str:
    """32 hex digits. Sorting by it is the shuffle."""
    return hashlib.blake2b(f"{sample_id}\0{turn}".encode(), key=str(seed).encode(), digest_size=16).hexdigest()


def sample_keys(seed: int, sample_id: str) -> tuple[float, str]:
    """(a number in [0, 1) that decides about corpus.weights, 16 hex digits that name and place its group), equal for all its turns."""
    digest = hashlib.blake2b(sample_id.encode(), key=str(seed).encode(), digest_size=2 * _DRAW_BYTES, person=b"sample").digest()
    return share_of(digest[:_DRAW_BYTES].hex()), digest[_DRAW_BYTES:].hex()


def share_of(key: str) -> float:
    """A hexadecimal key as a number in [0, 1)."""
    return int(key[:13], 16) / (1 << 52)


def group_draw(key: str) -> float:
    """A number in [0, 1) for the group that `key` names. A fresh hash: the key is the least of its members', and the least of many is
    small, so groups of many rows would nearly always be drawn."""
    return share_of(hashlib.blake2b(key.encode(), digest_size=_DRAW_BYTES, person=b"group").hexdigest())
