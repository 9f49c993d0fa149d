"""One `@multi_asset_check(can_subset=True)` for each asset. Names, severities and blocking are the stage's.

Belongs here: over which partitions a run of checks goes. Does not belong here: how a verdict becomes Dagster's event (`evaluations.py`),
judging (`gate.py`).

A check is separate from its asset on purpose: only separate checks can be executed again without re-buying anything. Executing one judges
the files anew, from the UI and by `eagle3 recheck`: a verdict that an earlier run filed is never believed here. Where the same run has just made
the artifact and judged it while it was in memory, that verdict (bound to the bytes that were then committed) is the check's.
Partitioned checks (a preview in Dagster 1.13): in a run over one partition the result is recorded for it; in a run over a range, or
launched by "execute all" (which carries no partition at all), one evaluation a key is logged and a summary is yielded last.
"""

import time
from collections.abc import Iterator

import dagster as dg

from eagle3_assets import gate, stages
from eagle3_assets.assets.build import partitions_of
from eagle3_assets.assets.frame import bind_dagster_state, readable_errors
from eagle3_assets.campaign import Campaign
from eagle3_assets.checks.evaluations import Checked, log_each, log_summaries, summary
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.stage import Artifact
from eagle3_assets.store import Store, manifest_path


def build(campaign: Campaign) -> list[dg.AssetChecksDefinition]:
    return [
        _checks(campaign, Checked(stage, name, partitions_of(campaign, stage)))
        for stage in stages.STAGES
        for name in stage.datasets(campaign)
        if stage.checks
    ]


def _checks(campaign: Campaign, checked: Checked) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(
            c.name,
            asset=checked.asset_key,
            description=c.description,
            blocking=c.blocking,
            partitions_def=checked.partitions,
        )
        for c in checked.stage.checks
    ]

    @dg.multi_asset_check(specs=specs, name="check_" + "__".join(checked.asset_key.path), can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with readable_errors():
            run, store = context.op_execution_context, Store.of(campaign)
            bind_dagster_state(run.instance, campaign)
            wanted = sorted(k.name for k in run.selected_asset_check_keys)
            artifacts = _artifacts(context, campaign, store, checked)
            begun = _begun(run)
            judged = {a.partition: gate.judge(a, anew=not gate.was_judged_since(a, begun)) for a in artifacts}
            if checked.partitions is not None and not run.has_partition_key:
                log_each(run, checked, judged, wanted)
            summaries = [summary(checked, name, judged) for name in wanted]
            if checked.partitions is None or run.has_partition_key or run.has_partition_key_range:
                yield from summaries
            else:
                log_summaries(run, checked, summaries)

    return checks


def _begun(run: dg.OpExecutionContext) -> float:
    """When this run began (unix seconds): a verdict that was filed since then was given by this run, on what it had just made."""
    record = run.instance.get_run_record_by_id(run.run_id)
    return record.start_time if record is not None and record.start_time is not None else time.time()


def _artifacts(context: dg.AssetCheckExecutionContext, campaign: Campaign, store: Store, checked: Checked) -> list[Artifact]:
    """Those of the run's partition, of its range, or everything that was made."""
    run = context.op_execution_context
    ranged = checked.partitions is not None and run.has_partition_key_range
    single = checked.partitions is not None and run.has_partition_key
    if ranged or single:
        keys = list(run.partition_keys) if ranged else [run.partition_key]
    else:
        keys = list(checked.stage.partitions(store))
    found = [Artifact(checked.stage, campaign, store, checked.dataset, key) for key in keys]
    if ranged or single or keys == [ALL]:
        return found
    return [a for a in found if manifest_path(a.path).exists()]
