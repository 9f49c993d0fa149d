"""Engines that run the target model's prefill and return chosen hidden states: `interface.py` says what one must do.

Belongs here: one module an engine, and the table that maps `extraction.engine` to it.
Does not belong here: files (`part.py`, `partition.py`), judging an engine (`self_test.py`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.interface import Captured, Extractor

if TYPE_CHECKING:
    from eagle3_assets.states.extractors.part_job import PartWriter

__all__ = ["Captured", "Extractor", "open_engine", "open_extractor"]


def open_extractor(campaign: Campaign) -> Extractor:
    """The target model in the engine that runs it, in or from this process: seconds to minutes, so once for many partitions; then
    `close()`. With engine "ray": the engine of one worker.

    Raises StateError (missing weights, another model than `[target]` states, unknown device, no server).
    """
    # Before torch loads its OpenMP: threads that spin while they wait made 31 K tokens take 125-147 s (88-97 s of CPU) on two busy
    # cores, and 18-22 s (12-13 s of CPU) with this. Whoever sets the variable keeps what he set.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    engine = campaign.extraction.capture_engine
    if engine == "transformers":
        from eagle3_assets.states.extractors.transformers import TransformersExtractor

        return TransformersExtractor.of(campaign)
    if engine == "vllm":
        from eagle3_assets.states.extractors.vllm import VllmExtractor

        return VllmExtractor.of(campaign)
    raise StateError(f"extraction.engine = {engine!r}: unknown engine; use 'transformers', 'vllm' or 'ray'")


def open_engine(campaign: Campaign) -> Extractor | PartWriter:
    """What `write_partition` takes: an engine here, or with `extraction.engine = "ray"` a pool of workers that hold one each."""
    if campaign.extraction.engine != "ray":
        return open_extractor(campaign)
    from eagle3_assets.states.extractors.ray_pool import RayPool

    return RayPool.of(campaign)
