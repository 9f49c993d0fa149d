"""The queue: prompts that wait, longest expected first, kept apart by dataset so that one without money does not hold up the
others.

Belongs here: lanes, their order, blocking by a budget. Does not belong here: sending (`collector.py`), limits (`ledger.py`,
`admission.py`).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from eagle3_assets.collect.run.concurrency import Admission
from eagle3_assets.collect.run.shard_work import ShardWork
from eagle3_assets.collect.servers.routing import Routing
from eagle3_assets.prompts.prompt import Prompt

# Requests that a blocked lane may try after money came back: one takes the place of the settled request, one lets the number in
# flight grow into what the settled request did not use of its reservation.
TRIES_AFTER_SETTLING = 2


@dataclass(slots=True)
class Item:
    """A prompt that waits or is in flight. `tries` count against `collect.attempts`, `refusals` (429 and its kin) do not."""

    prompt: Prompt
    work: ShardWork
    tries: int = 0
    refusals: int = 0
    hold_usd: float = 0.0  # the bound of its last request
    held_before_usd: float = 0.0  # what was in flight when it was sent
    waits_since: float | None = None  # for providers that are left out (monotonic): the others refused this row
    refused_by: set[str] = field(default_factory=set)  # providers (folded names) that take no such row
    avoids: set[str] = field(default_factory=set)  # providers that failed its last request
    probes: str | None = None  # the provider that its request tries alone
    is_reduced: bool = False  # its request named fewer providers than are eligible


@dataclass(slots=True)
class Lane:
    """Prompts of one dataset through one routing. `blocked_by` names the limit that refused the last reservation."""

    source: Literal["openrouter", "engine"]
    scope: str
    routing: Routing | None
    admission: Admission
    blocked_by: str | None = None
    tries_left: int = 0
    streak: int = 0  # systematic failures since the last finished answer
    given_up: str | None = None
    _heap: list[tuple[int, int, Item]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def push(self, item: Item) -> None:
        heapq.heappush(self._heap, (-item.prompt.expected_tokens, next(self._order), item))

    def pop(self) -> Item:
        if self.blocked_by is not None:
            self.tries_left -= 1
        return heapq.heappop(self._heap)[2]

    @property
    def longest(self) -> int:
        """Expected tokens of the item that is next."""
        return -self._heap[0][0]

    @property
    def is_ready(self) -> bool:
        return bool(self._heap) and (self.blocked_by is None or self.tries_left > 0) and self.admission.has_room

    def money_came_back(self, scope: str) -> None:
        if self.blocked_by is not None and (self.blocked_by == "campaign" or self.scope == scope):
            self.tries_left = TRIES_AFTER_SETTLING

    def clear(self) -> list[Item]:
        items, self._heap = [entry[2] for entry in self._heap], []
        return items

    def __len__(self) -> int:
        return len(self._heap)


def next_lane(lanes: Iterable[Lane]) -> Lane | None:
    """The lane whose head is expected to take longest, or None when nothing may start now."""
    return max((lane for lane in lanes if lane.is_ready), key=lambda lane: lane.longest, default=None)
