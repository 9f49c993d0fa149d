"""Named partition sets, in one place, with their why.

Belongs here: partition definitions, registering the dynamic ones, the backfill policy. Does not belong here: which keys a run selects.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from eagle3_assets.campaign import SHARDS, Campaign

# The same sixteen keys for all datasets: any selection of datasets x contiguous shards is one step with one event loop and one
# budget. A shard is a unit of review and resume, never a process, so sixteen are enough and 2,000 would only slow the UI.
SHARD_PARTITIONS = dg.StaticPartitionsDefinition(list(SHARDS))

# A range is one run: without this policy on EVERY selected asset, unpartitioned ones too, Dagster refuses a range.
SINGLE_RUN = dg.BackfillPolicy.single_run()


def corpus_partitions(campaign: Campaign) -> dg.DynamicPartitionsDefinition:
    """Parts of the corpus; how many there are is known only after the merge, which registers them.

    Named after the campaign, because dynamic partitions are global to a Dagster instance.
    """
    return dg.DynamicPartitionsDefinition(name=f"corpus_shards_{campaign.name}")


def register_partitions(instance: dg.DagsterInstance, campaign: Campaign, keys: Sequence[str]) -> None:
    """Make the parts of the corpus exactly `keys`: stale parts of an earlier corpus go."""
    name = corpus_partitions(campaign).name
    assert name is not None
    known = set(instance.get_dynamic_partitions(name))
    for stale in known - set(keys):
        instance.delete_dynamic_partition(name, stale)
    instance.add_dynamic_partitions(name, [k for k in keys if k not in known])
