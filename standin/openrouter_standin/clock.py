"""The simulated clock: a 33-minute campaign in seconds, with the same dynamics.

Belongs here: simulated <-> real seconds. Does not belong here: what waits for it.
Every latency, limit and delay is told in simulated seconds; `time_scale` real seconds make one. With a scale of 0 nothing waits, and
simulated seconds are real ones where a time has to be told (schedules, windows).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clock:
    """`now` is monotonic; a test passes its own."""

    scale: float
    now: Callable[[], float] = time.monotonic
    begun: float = field(init=False)

    def __post_init__(self) -> None:
        self.begun = self.now()

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return (self.now() - self.begun) / (self.scale or 1.0)

    def real(self, simulated_s: float) -> float:
        """Real seconds to wait."""
        return simulated_s * self.scale
