"""What a person names on the command line: stages, shards and parts that exist, or an error that lists them.

Belongs here: looking names up. Does not belong here: what is done with them.
"""

from __future__ import annotations

import difflib

from eagle3_assets import stages
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.errors import UsageError
from eagle3_assets.stage import Stage
from eagle3_assets.store import Store


def stage_named(name: str) -> Stage:
    """Raises UsageError that lists the stages."""
    for stage in stages.STAGES:
        if stage.name == name:
            return stage
    near = difflib.get_close_matches(name, stages.names(), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no stage named {name!r}; {hint}Stages are {', '.join(stages.names())}")


def partition_named(campaign: Campaign, store: Store, name: str) -> str:
    """A shard of a dataset, or a part of the corpus. Raises UsageError that lists them."""
    parts = [k for stage in stages.STAGES if stage.per.partitioned and stage.wanted(campaign) for k in stage.partitions(store)]
    if name in parts:
        return name
    near = [k for k in (name.zfill(2), name.zfill(5)) if k in parts]
    hint = f"did you mean {near[0]}? " if near else ""
    more = [k for k in dict.fromkeys(parts) if k not in SHARDS]
    of_corpus = f", parts of the corpus {more[0]} to {more[-1]}" if more else ""
    raise UsageError(f"no shard named {name!r}; {hint}Shards are {SHARDS[0]} to {SHARDS[-1]}{of_corpus}")
