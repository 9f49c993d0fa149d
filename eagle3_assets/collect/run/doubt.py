"""Doubt about the key: one answer says that it is refused, and `/key` has the last word.

Belongs here: asking `/key` once for any number of doubtful answers, when the answer counts, when patience ends.
Does not belong here: which answers are doubtful (`outcomes.py`), closing and opening the admission (`collector.py`).

OpenRouter answers good keys with 401 at times (RooCodeInc/Roo-Code#6459), and edge servers answer with pages of their own. One such
answer stopped a run of thousands; a key that is really refused is refused at `/key`, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from eagle3_assets.collect.servers.openrouter import ApiKey, KeyFacts, KeyWord, ask_key
from eagle3_assets.collect.servers.servers import Pace
from eagle3_assets.errors import BudgetStop, Eagle3Error, WireError

REFUSED_TIMES = 2  # `/key` itself has such moments: it must say no twice
DOUBTS_WITHOUT_ANSWER = (
    6  # `/key` says yes and nothing is ever answered: then something else is wrong, and the server's words say what
)


@dataclass(slots=True)
class Doubt:
    """The doubts of one run. `error_of` makes the line that ends it, from the last doubtful answer."""

    pace: Pace
    _since_answer: int = 0
    _trusted_until: float = 0.0

    def answered(self) -> None:
        self._since_answer = 0

    @property
    def is_trusted(self) -> bool:
        """`/key` said yes a moment ago: what was sent before says nothing new."""
        return time.monotonic() < self._trusted_until

    async def settle(
        self, session: aiohttp.ClientSession, base_url: str, key: ApiKey, *, refused: Callable[[], Eagle3Error], what: str
    ) -> Eagle3Error | None:
        """None when the key is good: go on. Else the error that ends the run. `what`: the doubtful answer, in words."""
        self._since_answer += 1
        if self._since_answer > DOUBTS_WITHOUT_ANSWER:
            return refused()
        begun, nos, pause = time.monotonic(), 0, self.pace.backoff_first
        while True:
            word = await ask_key(session, base_url, key)
            if word.kind == "good":
                if (facts := KeyFacts.of(word.data)).left_usd is not None and facts.left_usd <= 0:
                    return _nothing_left(facts, what)
                self._trusted_until = time.monotonic() + self.pace.key_trust
                return None
            nos = nos + 1 if word.kind == "refused" else 0
            if nos >= REFUSED_TIMES:
                return refused()
            if time.monotonic() - begun > self.pace.outage_most:
                return _no_way_through(word, what, self.pace.outage_most)
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.pace.backoff_most)


def _nothing_left(facts: KeyFacts, what: str) -> BudgetStop:
    return BudgetStop(
        f"the server refuses further spending ({what}), and /key says that {facts.left_usd:.4f} USD are left; everything paid for is "
        "kept: add credit or raise the key's limit, then run again"
    )


def _no_way_through(word: KeyWord, what: str, seconds: float) -> WireError:
    return WireError(
        f"nothing gets through to OpenRouter for {seconds / 60:.0f} minutes ({what}; /key: {word.shown}); everything paid for is kept: "
        "check the network (proxy, VPN, country), then run again"
    )
