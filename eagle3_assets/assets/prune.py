"""The job `prune_hidden_states`: what `eagle3 prune` does, in the UI.

No `from __future__ import annotations` in this file: Dagster inspects the annotations of an op at run time.
"""

from pathlib import Path

import dagster as dg

from eagle3_assets.assets.frame import frame
from eagle3_assets.campaign import Campaign


class PruneConfig(dg.Config):
    """`remove` false: only shown. `archive`: a folder to move to instead of deleting. `partitions`: these too, current or not."""

    remove: bool = False
    archive: str = ""
    partitions: list[str] = []  # noqa: RUF012 (pydantic copies it)
    unfinished: bool = False


def prune_job(campaign: Campaign) -> dg.JobDefinition:
    """The job `prune_hidden_states`: what `eagle3 prune` does, in the UI; a dry run unless `remove` is set in the launchpad."""

    @dg.op(description="Old hidden states: shown with their bytes; removed or archived only when `remove` is true.")
    def prune(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        from eagle3_assets.old_states import find_old_states
        from eagle3_assets.states.care.prune import remove

        with frame(context, campaign) as store:
            candidates = find_old_states(campaign, store, asked=config.partitions, unfinished=config.unfinished)
            for c in candidates:
                context.log.info(f"{c.bytes / 1e9:.3f} GB  {c.path}: {c.why}")
            if config.remove:
                remove(store, candidates, archive=Path(config.archive) if config.archive else None)
            done = (
                (f"moved to {config.archive}" if config.archive else "deleted")
                if config.remove
                else "may go; nothing was touched"
            )
            context.log.info(f"{sum(c.bytes for c in candidates) / 1e9:.3f} GB in {len(candidates)} places {done}")

    @dg.job(
        name="prune_hidden_states",
        description="Delete or archive hidden states that the corpus has no more or that are outdated. A dry run by default.",
    )
    def prune_hidden_states() -> None:
        prune()

    return prune_hidden_states
