"""`GpuResource`: where and how hidden states are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from eagle3_assets.campaign import Campaign

if TYPE_CHECKING:
    from eagle3_assets.states.extractors.interface import Extractor


class GpuResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The extraction engine: weights, device, dtype, batch. Building it loads the model, once for any number of partitions."""

    engine: str
    weights: str
    device: str
    dtype: str
    batch_tokens: int

    @classmethod
    def of(cls, campaign: Campaign) -> GpuResource:
        x = campaign.extraction
        return cls(engine=x.engine, weights=campaign.target.weights, device=x.device, dtype=x.dtype, batch_tokens=x.batch_tokens)

    def extractor(self, campaign: Campaign) -> Extractor:
        """Load the model. Raises StateError (missing weights, sizes that differ from the campaign's target)."""
        from eagle3_assets.states.extractors import open_extractor

        return open_extractor(campaign)
