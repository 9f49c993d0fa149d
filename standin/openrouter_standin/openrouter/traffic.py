"""How busy the endpoints are: token buckets, slots with a queue, outages, how many answers each has given.

Belongs here: state of endpoints between requests. Does not belong here: the order in which they are tried (`routing`), refusals (`gateway`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Literal

from openrouter_standin.clock import Clock
from openrouter_standin.schema.provider import Provider

Busy = Literal["rate_limited", "queue_full", "outage"]
STATUS: dict[Busy, int] = {"rate_limited": 429, "queue_full": 429, "outage": 503}
_OUTAGE_MEMORY_S = 30.0  # an endpoint with an outage in the last 30 s is skipped (docs/research/openrouter-contract.md#1.2 a)


@dataclass
class Bucket:
    """A token bucket in simulated time."""

    per_s: float
    burst: float
    tokens: float = field(init=False)
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def take(self, now_s: float) -> bool:
        self.tokens = min(self.burst, self.tokens + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def put_back(self) -> None:
        """What was taken was not needed."""
        self.tokens = min(self.burst, self.tokens + 1)

    def wait_s(self) -> float:
        """Simulated seconds until the next token."""
        return max(0.0, (1 - self.tokens) / self.per_s)


class Slots:
    """At most `count` holders; others wait in order of arrival."""

    def __init__(self, count: int) -> None:
        self.count = self.free = count
        self.waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, count: int) -> None:
        """An endpoint grows or shrinks in mid-run; who holds a slot keeps it."""
        self.free, self.count = self.free + count - self.count, count
        while self.free > 0 and self._wake():
            self.free -= 1

    def _wake(self) -> bool:
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return True
        return False

    @property
    def queued(self) -> int:
        return sum(not waiter.done() for waiter in self.waiting)

    def take(self) -> asyncio.Future[None]:
        """Done when the slot is held. Give it back with `give`, also when the future was cancelled while it waited."""
        future = asyncio.get_running_loop().create_future()
        if self.free > 0:
            self.free -= 1
            future.set_result(None)
        else:
            self.waiting.append(future)
        return future

    def give(self, slot: asyncio.Future[None]) -> None:
        if not slot.done():
            slot.cancel()
            return
        if not slot.cancelled() and not (self.free >= 0 and self._wake()):
            self.free += 1


@dataclass
class Traffic:
    """The state of all endpoints of one gateway."""

    clock: Clock
    answers: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # tag -> admitted so far
    _buckets: dict[str, Bucket] = field(default_factory=dict)
    _slots: dict[str, Slots] = field(default_factory=dict)

    def refuses(self, provider: Provider) -> Busy | None:
        """Why the endpoint does not take one more request now; None when it does (a token is taken then)."""
        now_s = self.clock.now_s
        if any(begin <= now_s < end for begin, end in provider.outages):
            return "outage"
        slots = self.slots(provider)
        if slots is not None and provider.max_queue is not None and slots.free <= 0 and slots.queued >= provider.max_queue:
            return "queue_full"
        bucket = self._bucket(provider)
        return "rate_limited" if bucket is not None and not bucket.take(now_s) else None

    def not_asked(self, provider: Provider) -> None:
        """It did not refuse, and the request did not come."""
        if (bucket := self._bucket(provider)) is not None:
            bucket.put_back()

    def recent_outage(self, provider: Provider) -> bool:
        now_s = self.clock.now_s
        return any(begin <= now_s < end + _OUTAGE_MEMORY_S for begin, end in provider.outages)

    def hint_s(self, provider: Provider, why: Busy) -> float | None:
        """Simulated seconds that the endpoint asks to wait; None where it gives no hint."""
        bucket = self._bucket(provider)
        return bucket.wait_s() if why == "rate_limited" and bucket is not None else None

    def slots(self, provider: Provider) -> Slots | None:
        if provider.capacity is None:
            return None
        slots = self._slots.setdefault(provider.tag, Slots(provider.capacity))
        if slots.count != provider.capacity:
            slots.resize(provider.capacity)
        return slots

    def give_back(self, provider: Provider, slot: asyncio.Future[None]) -> None:
        """Of a request that is over. The endpoint may have changed since it was admitted: its capacity is not looked at."""
        self._slots[provider.tag].give(slot)

    def _bucket(self, provider: Provider) -> Bucket | None:
        if provider.requests_per_s is None:
            return None
        return self._buckets.setdefault(provider.tag, Bucket(provider.requests_per_s, provider.burst))
