"""Who is told how far a long stage is: one publisher, any number of listeners in the same process.

Belongs here: the channel. Does not belong here: what is shown (`cli/run.py` draws a line, the assets log one now and then).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """`done` of `total` units of a stage; `note` is short text, `figures` what a stage wants to show beside it."""

    stage: str
    done: float
    total: float
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Step], None]
_listeners: list[Listener] = []


def publish(step: Step) -> None:
    for listener in _listeners:
        listener(step)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` for every step published inside the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Every:
    """True at most once in `seconds`: for lines and observations that would otherwise flood the run's log."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._last = seconds, time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True
