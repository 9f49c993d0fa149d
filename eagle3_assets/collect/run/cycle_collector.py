"""The cycle collector while thousands of requests are in flight.

Belongs here: its thresholds for the length of a run. Does not belong here: what is kept in memory (`shard_work.py`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects more than were freed before the youngest are looked at; generations of that until the next older ones are. With the
# defaults (700, 10, 10) a quarter of a run's CPU went into walking over 2,000 requests in flight and prompts that wait, all alive
# (benchmarks/collector.py). References free nearly everything at once here; what is left for the collector is small.
THRESHOLDS = (200_000, 20, 20)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for garbage rarely, and never among what exists already (prompts, journals' keys, imported modules)."""
    thresholds, was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not was_frozen:
            gc.unfreeze()
