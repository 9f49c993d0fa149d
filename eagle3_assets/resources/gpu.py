"""`GpuResource`: where and how hidden states are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from eagle3_assets.campaign import Campaign

if TYPE_CHECKING:
    from eagle3_assets.states.extractors.interface import Extractor
    from eagle3_assets.states.extractors.part_job import PartWriter


class GpuResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The extraction engine: weights, devices, dtype, batch. Building it loads the model, once for any number of partitions.

    What is changed here (in the launchpad) counts for this run: where the model runs, never what it is.
    """

    engine: str = Field(description="transformers, vllm or ray; decides the states, so it must be the campaign's")
    weights: str = Field(description="folder or hub name of the target's weights; must be the campaign's")
    device: str = Field(description="where the model runs: cpu, cuda:0")
    devices: list[str] = Field(description="several devices, a worker each; empty: `device` alone")
    dtype: str = Field(description="number format of the states; must be the campaign's")
    batch_tokens: int = Field(description="tokens of one forward pass; less where memory is short")
    tensor_parallel: int = Field(description="vllm: devices that share one model")
    workers: int = Field(description="ray: workers that load the model")
    urls: list[str] = Field(description="vllm: servers that run already, instead of starting one")

    @classmethod
    def of(cls, campaign: Campaign) -> GpuResource:
        x = campaign.extraction
        return cls(
            engine=x.engine, weights=campaign.target.weights, device=x.device, devices=list(x.devices), dtype=x.dtype,
            batch_tokens=x.batch_tokens, tensor_parallel=x.tensor_parallel, workers=x.workers, urls=list(x.urls),
        )  # fmt: skip

    def extractor(self, campaign: Campaign) -> Extractor | PartWriter:
        """Load the model (or start the pool of workers that do). Raises StateError (missing weights, sizes that differ from the campaign's
        target, a setting of this resource that would make other states than the campaign's)."""
        from eagle3_assets.errors import StateError
        from eagle3_assets.states.extractors import open_engine

        x = campaign.extraction
        for name, mine, theirs in (
            ("weights", self.weights, campaign.target.weights),
            ("dtype", self.dtype, x.dtype),
            ("engine", self.engine, x.engine),
        ):
            if mine != theirs:
                raise StateError(
                    f"resource gpu: {name} = {mine!r}, the campaign says {theirs!r}: it decides the states, so change it there"
                )
        here = {
            "device": self.device, "devices": tuple(self.devices), "batch_tokens": self.batch_tokens,
            "tensor_parallel": self.tensor_parallel, "workers": self.workers, "urls": tuple(self.urls),
        }  # fmt: skip
        return open_engine(campaign.model_copy(update={"extraction": x.model_copy(update=here)}))
