"""The response cache that a request may opt in to: the same answer again, for nothing (docs/research/openrouter-contract.md#1 and
#2.5).

Belongs here: what is kept for how long, and what a HIT says of itself. Does not belong here: sockets (`delivery`), who asks (`server`).

A HIT is answered before admission: no attempt is counted, no endpoint chosen, no money looked at, no fault drawn. It has a generation
id of its own and a usage of zeros; the ledger and the truth file do not know it. Its truth is that of the answer it repeats (`source_of`),
and /generation tells its cost of 0 and its source from memory, for as long as both stay there: nothing of it survives a restart.
As documented: requests are identical when key, model, streaming and the body are, byte for byte; only whole 200s are kept; requests
that run at the same time are not joined, so both are a MISS. The times are simulated seconds.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from openrouter_standin import chance
from openrouter_standin.bending.bill import Bill
from openrouter_standin.clock import Clock
from openrouter_standin.truth.generation import Generation

DEFAULT_TTL_S, LONGEST_TTL_S = 300, 86_400
_MOST = 256  # answers kept, and HITs remembered; the oldest goes first
_FREE = Bill(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Asked:
    """What a request wants of the cache. `clear`: what is kept of it must go first."""

    key: bytes
    ttl_s: int
    clear: bool

    @property
    def headers(self) -> dict[str, str]:
        """Of a MISS."""
        return {"X-OpenRouter-Cache-Status": "MISS", "X-OpenRouter-Cache-TTL": str(self.ttl_s)}


@dataclass(frozen=True)
class Hit:
    """A kept answer under a new id, free of charge."""

    generation: Generation
    source_id: str
    age_s: int
    ttl_s: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "X-OpenRouter-Cache-Status": "HIT",
            "X-OpenRouter-Cache-Age": str(self.age_s),
            "X-OpenRouter-Cache-TTL": str(self.ttl_s),
            "X-OpenRouter-Cache-Source-Id": self.source_id,
        }

    def account(self) -> dict[str, Any]:
        """What /generation tells."""
        return {**self.generation.account(), "cache_source": self.source_id, "tried": (), "ttft_s": 0.0, "duration_s": 0.0}


@dataclass
class _Kept:
    generation: Generation
    stored_s: float
    ttl_s: int


def read_asked(headers: Mapping[str, str], body: bytes) -> Asked | None:
    """None for a request that leaves the cache alone. A TTL beyond its limits is brought back into them; one that is no number is not
    there."""
    if headers.get("X-OpenRouter-Cache", "").strip().lower() != "true":
        return None
    given = headers.get("X-OpenRouter-Cache-TTL", "").strip()
    ttl_s = min(max(int(given), 1), LONGEST_TTL_S) if given.isascii() and given.isdigit() and len(given) < 10 else DEFAULT_TTL_S
    clear = headers.get("X-OpenRouter-Cache-Clear", "").strip().lower() == "true"
    key = hashlib.sha256(headers.get("Authorization", "").encode("utf-8", "replace") + b"\0" + body).digest()
    return Asked(key, ttl_s, clear)


class ResponseCache:
    """Bounded; one for each server."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._hits: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._count = 0

    def ask(self, asked: Asked) -> Hit | None:
        """The kept answer; None when there is none (any more)."""
        kept = self._kept.get(asked.key)
        if kept is None:
            return None
        age_s = self.clock.now_s - kept.stored_s
        if asked.clear or age_s >= kept.ttl_s:
            del self._kept[asked.key]
            return None
        source, created = kept.generation, int(time.time())
        self._count += 1
        repeated = replace(
            source, id=f"gen-{created}-{chance.alnum(20, 'hit', source.id, self._count)}", created=created, bill=_FREE
        )
        hit = Hit(repeated, source.id, int(age_s), kept.ttl_s)
        self._hits[repeated.id] = hit.account()
        _bound(self._hits)
        return hit

    def keep(self, asked: Asked, generation: Generation) -> None:
        """Keep the whole answer of a MISS."""
        self._kept[asked.key] = _Kept(generation, self.clock.now_s, asked.ttl_s)
        self._kept.move_to_end(asked.key)
        _bound(self._kept)

    def account_of(self, generation_id: str) -> dict[str, Any] | None:
        """Of a HIT."""
        return self._hits.get(generation_id)

    def source_of(self, generation_id: str) -> str:
        """The generation that a HIT repeats; any other one is its own source."""
        account = self._hits.get(generation_id)
        return generation_id if account is None else str(account["cache_source"])


def _bound(entries: OrderedDict[Any, Any]) -> None:
    while len(entries) > _MOST:
        entries.popitem(last=False)
