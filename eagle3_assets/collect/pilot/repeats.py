"""The pilot's probes once more, for endpoints whose provider changed its form since they were asked.

Belongs here: which endpoints need their probes again, and asking them. Does not belong here: finding a change (`exact/providers/drift.py`),
the probes themselves (`probes.py`).

Each change asks anew: a probe's sample is named by the moment of the change, so that a run that is resumed buys nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.pilot import probes
from eagle3_assets.collect.pilot.pilot import probe_jobs
from eagle3_assets.collect.run.collector import DEFAULT_PACE, Pace, Servers, ShardResult, collect
from eagle3_assets.collect.servers.endpoint import Endpoint
from eagle3_assets.collect.servers.routing import Routing
from eagle3_assets.wire.wire_answer import WireAnswer

SCOPE = "probes again"


@dataclass(frozen=True, slots=True)
class Repeat:
    """An endpoint that is asked again, since its provider changed at `changed_at` (unix seconds)."""

    endpoint: Endpoint
    changed_at: float

    @property
    def scope(self) -> str:
        """Names the samples of this asking."""
        return f"{SCOPE}\0{self.changed_at:.0f}"


def due(changed_at: Mapping[str, float], endpoints: Sequence[Endpoint], asked: Iterable[WireAnswer]) -> list[Repeat]:
    """The endpoints whose provider's latest change (`changed_at`: {provider: unix seconds}) is behind their last answered probe, and so
    not looked at; those that never answered one are the pilot's matter. `asked`: records of the pilot and of earlier repeats."""
    last: dict[str, float] = {}
    for answer in asked:
        if probes.is_probe(answer) and answer.outcome == "finished" and answer.provider:
            last[answer.provider] = max(last.get(answer.provider, 0.0), answer.finished_at)
    return [
        Repeat(endpoint, changed_at[name])
        for endpoint in endpoints
        if (name := endpoint.provider_name) in changed_at and name in last and last[name] < changed_at[name]
    ]


async def ask_again(
    campaign: Campaign,
    repeats: Sequence[Repeat],
    *,
    servers: Servers,
    ledger: Ledger,
    routing: Routing,
    folder: Path,
    stop: asyncio.Event,
    count_tokens: Callable[[str], int],
    pace: Pace = DEFAULT_PACE,
) -> list[ShardResult]:
    """Ask the probes of each endpoint once more, pinned and without fallbacks, into the journal in `folder`. What cannot be had is left
    out. Raises LockedError, StoreError, BudgetStop."""
    words = probes.choose_words(count_tokens)
    jobs = [
        job
        for repeat in repeats
        for job in probe_jobs(
            campaign,
            repeat.endpoint,
            probes.probes_for(repeat.endpoint, words),
            routing,
            folder,
            scope=SCOPE,
            identity=repeat.scope,
        )
    ]
    results: list[ShardResult] = []
    if jobs:
        await collect(
            campaign, jobs, servers=servers, ledger=ledger, routing=routing, stop=stop, on_shard_done=results.append, tolerant=True,
            pace=pace,
        )  # fmt: skip
    return results
