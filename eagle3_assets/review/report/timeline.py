"""Tokens, dollars and refusals over time, and when each answer came: what only the journal knows.

Belongs here: one pass over journal records. Does not belong here: rows of tokens (`figures.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle3_assets.wire.wire_answer import WireAnswer

BINS = 24


@dataclass(slots=True)
class Timeline:
    """`when` maps (sample_id, turn, attempt) to unix seconds; `events` are (time, tokens, usd, finished, was a 429)."""

    when: dict[tuple[str, int, int], float] = field(default_factory=dict)
    events: list[tuple[float, int, float, bool, bool]] = field(default_factory=list)

    def add(self, answers: Iterable[WireAnswer]) -> None:
        """Take records into account (their bodies are not parsed)."""
        for answer in answers:
            finished = answer.outcome == "finished"
            if finished:
                self.when[answer.sample_id, answer.turn, answer.attempt] = answer.finished_at
            if answer.finished_at > 0:
                refused = answer.status == 429 or "429" in (answer.reason or "") or "rate" in (answer.reason or "")
                usd = answer.cost_usd or 0.0
                self.events.append((answer.finished_at, answer.completion_tokens or 0, usd, finished, not finished and refused))

    def lines(self) -> list[dict[str, Any]]:
        """At most `BINS` stretches of equal length: seconds since the first (from, to), answers, failed, 429s, tokens, USD."""
        if not self.events:
            return []
        times = np.array([e[0] for e in self.events])
        first, last = float(times.min()), float(times.max())
        width = max((last - first) / BINS, 1e-9)
        place = np.minimum(((times - first) / width).astype(int), BINS - 1)
        columns = [np.array([e[k] for e in self.events], dtype=np.float64) for k in (1, 2, 3, 4)]
        tokens, usd, finished, refused = (np.bincount(place, weights=c, minlength=BINS) for c in columns)
        total = np.bincount(place, minlength=BINS)
        return [
            {"from_s": k * width, "to_s": (k + 1) * width, "answers": int(finished[k]), "failed": int(total[k] - finished[k]),
             "refused_429": int(refused[k]), "tokens": int(tokens[k]), "usd": float(usd[k])}
            for k in range(BINS) if total[k]
        ]  # fmt: skip
