"""Engines that run the target model's prefill and return chosen hidden states: `interface.py` says what one must do.

Belongs here: one module an engine, and the table that maps `extraction.engine` to it.
Does not belong here: files (`part.py`, `partition.py`), judging an engine (`self_test.py`).
"""

from __future__ import annotations

import os

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.interface import Captured, Extractor

__all__ = ["Captured", "Extractor", "open_extractor"]


def open_extractor(campaign: Campaign) -> Extractor:
    """Load the campaign's target model in its extraction engine: seconds to minutes, so once for many partitions; then `close()`.

    Raises StateError (missing weights, another model than `[target]` states, unknown device).
    """
    # Before torch loads its OpenMP: threads that spin while they wait made 31 K tokens take 125-147 s (88-97 s of CPU) on two busy
    # cores, and 18-22 s (12-13 s of CPU) with this. Whoever sets the variable keeps what he set.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if campaign.extraction.engine == "transformers":
        from eagle3_assets.states.extractors.transformers import TransformersExtractor

        return TransformersExtractor.of(campaign)
    raise StateError(f"extraction.engine = {campaign.extraction.engine!r}: unknown engine; use 'transformers'")
