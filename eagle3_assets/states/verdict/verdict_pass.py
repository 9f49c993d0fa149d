"""One partition with the model's verdict: winners chosen, states of the winners written, the stored states judged.

Belongs here: the order of the three, and what happens where the engine or the campaign leaves one out.
Does not belong here: any of them (`on_policy_table.py`, `partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.states.extractors.interface import Extractor
from eagle3_assets.states.extractors.part_job import PartWriter
from eagle3_assets.states.partition import write_partition
from eagle3_assets.states.verdict.on_policy_table import ALONE, Judge, choose_winners, open_judge, write_on_policy
from eagle3_assets.store import Store


@dataclass(frozen=True, slots=True)
class VerdictPass:
    """An engine and, unless the campaign wants no verdict, the judge beside it. Loaded once for many partitions."""

    campaign: Campaign
    engine: Extractor | PartWriter
    judge: Judge | None

    @classmethod
    def of(cls, campaign: Campaign, engine: Extractor | PartWriter) -> VerdictPass:
        """Loads the head. Raises StateError where the checkpoint has none and `extraction.verdict_share` is not 0."""
        return cls(campaign, engine, open_judge(campaign, engine.final_norm()) if campaign.extraction.verdict_share else None)

    def write(
        self,
        store: Store,
        shard: str,
        packs: Sequence[Pack],
        archive: pa.Table,
        *,
        corpus_part_digest: str,
        on_tokens: Callable[[int], None],
    ) -> dict[str, Any]:
        """`hidden_states/<shard>/` and its on_policy.parquet, committed; their figures. Raises what `write_partition` raises.

        A pool of workers (ray) captures nothing in this process, so rows with survivors keep their own ids and stay C1 there.
        """
        winners, choices = list(packs), [ALONE] * len(packs)
        if self.judge is not None and isinstance(self.engine, Extractor):
            winners, choices = choose_winners(self.engine, self.judge, shard, packs, archive)
        numbers = write_partition(
            self.campaign, store, shard, winners, self.engine, corpus_part_digest=corpus_part_digest, on_tokens=on_tokens,
            other_ids=sum(choice.winner > 0 for choice in choices),
        )  # fmt: skip
        if self.judge is None:
            return numbers
        verdicts = write_on_policy(store, shard, self.judge, packs, archive, choices)
        return {**numbers, **{f"verdict_{name}": n for name, n in verdicts.numbers.items() if name != "rows"}}
