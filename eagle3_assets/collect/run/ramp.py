"""How fast new connections are opened: 50 every hundredth of a second instead of 2,000 in one burst.

Belongs here: the pace of the first rise. Does not belong here: how many may be in flight (`admission.py`).

A burst of 2,000 handshakes keeps the loop from everything else for its whole length: the first answers wait behind it
(docs/research/perf-baselines.md#2b and #2d: it is the p99 of a run, and with TLS seconds of it).
"""

from __future__ import annotations

from dataclasses import dataclass

PER_S, AT_ONCE = 5_000.0, 200  # 2,000 in 0.4 s; a loop that is busy elsewhere catches up with at most so many together


@dataclass(slots=True)
class Ramp:
    """Requests that find no connection of an earlier one open a new one: those that lift the number in flight above its highest."""

    opened: int = 0
    _allowed: float = 50.0
    _then_s: float | None = None

    def wait_s(self, in_flight: int, now_s: float) -> float:
        """0 when one more request may start beside `in_flight` others, which it then does; else when to ask again."""
        if in_flight < self.opened:
            return 0.0
        if self._then_s is not None:
            self._allowed = min(float(AT_ONCE), self._allowed + (now_s - self._then_s) * PER_S)
        self._then_s = now_s
        if self._allowed < 1.0:
            return 50 / PER_S  # not one by one: every look costs a turn of the loop
        self._allowed -= 1.0
        self.opened = in_flight + 1
        return 0.0
