"""One `@multi_asset_check(can_subset=True)` for each asset. Names, severities and blocking are the stage's.

Belongs here: over which partitions a run of checks goes. Does not belong here: how a verdict becomes Dagster's event (`evaluations.py`),
judging (`gate.py`).

A check is separate from its asset on purpose: only separate checks can be executed again without re-buying anything. Executing one judges
the files anew, from the UI and by `eagle3 recheck`: a verdict that an earlier run filed is never believed here. Where the same run has just made
the artifact and judged it while it was in memory, that verdict (bound to the bytes that were then committed) is the check's.
A check speaks of its whole asset: of the partitions that this run goes over, judged by it, and of the others as they stand in their files.
Where an asset has partitions, one check more (`verdict`) has a result for each (partitioned checks are a preview in Dagster 1.13).
"""

import time
from collections.abc import Iterator

import dagster as dg

from eagle3_assets import gate, stages
from eagle3_assets.assets.build import partitions_of
from eagle3_assets.assets.frame import bind_dagster_state, canceled_by_signals, readable_errors
from eagle3_assets.campaign import Campaign
from eagle3_assets.checks.evaluations import VERDICT, Checked, failed_in, log_alone, log_partitions, nothing_made, summary
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.verdicts.over_all import over_all
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.review.verdicts.verdict import Verdict
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
            c.name, asset=checked.asset_key, description=c.description, blocking=c.blocking, metadata={"severity": c.severity}
        )
        for c in checked.stage.checks
    ]
    if checked.partitions is not None:
        words = "each partition: whether all of its checks pass, and which did not"
        specs.append(dg.AssetCheckSpec(VERDICT, asset=checked.asset_key, description=words, partitions_def=checked.partitions))

    @dg.multi_asset_check(specs=specs, name="check_" + "__".join(checked.asset_key.path), can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        run, store = context.op_execution_context, Store.of(campaign)
        with canceled_by_signals(run), readable_errors():
            bind_dagster_state(run.instance, campaign)
            wanted = {k.name for k in run.selected_asset_check_keys}
            judged = _judge(_artifacts(context, campaign, store, checked), _begun(run))
            if VERDICT in wanted:
                log_partitions(run, checked, judged)
            everything = dict(sorted({**_standing(campaign, store, checked, judged), **judged}.items()))
            whole = len(everything) == len(checked.stage.partitions(store))
            found = {v.check: v for v in over_all(checked.stage.name, checked.stage.checks, everything, whole=whole)}
            stopped = []
            for name in sorted(wanted - {VERDICT}):
                verdict = found.get(name)
                result = nothing_made(checked, name) if verdict is None else summary(checked, verdict)
                here = verdict is None or not verdict.stops or failed_in(name, judged)
                if here and not _without_partition(run, checked):
                    yield result
                else:
                    log_alone(run, checked, result)
                    stopped += [name] if here and verdict is not None and verdict.stops else []
            if stopped:
                raise dg.Failure(f"blocking checks failed: {', '.join(stopped)}", allow_retries=False)

    return checks


def _judge(artifacts: list[Artifact], begun: float) -> dict[str, list[Verdict]]:
    """Verdicts by partition; whoever listens is told how far this is."""
    judged = {}
    for done, a in enumerate(artifacts, 1):
        judged[a.partition] = gate.judge(a, anew=not gate.was_judged_since(a, begun))
        note = " ".join(n for n in a.place[1:] if n != ALL)
        publish(Step(f"checks of {a.stage.name}", done, len(artifacts), note))
    return judged


def _standing(campaign: Campaign, store: Store, checked: Checked, judged: dict[str, list[Verdict]]) -> dict[str, list[Verdict]]:
    """The verdicts of the other partitions as they are filed; those that carry none on their bytes are left out."""
    keys = [k for k in checked.stage.partitions(store) if k not in judged] if checked.partitions is not None else []
    found = {k: gate.standing(Artifact(checked.stage, campaign, store, checked.dataset, k)) for k in keys}
    return {k: verdicts for k, verdicts in found.items() if verdicts is not None}


def _begun(run: dg.OpExecutionContext) -> float:
    """When this run began (unix seconds): a verdict that was filed since then was given by this run, on what it had just made."""
    record = run.instance.get_run_record_by_id(run.run_id)
    return record.start_time if record is not None and record.start_time is not None else time.time()


def _without_partition(run: dg.OpExecutionContext, checked: Checked) -> bool:
    """Whether an asset with partitions is checked in a run that names none ("Execute all" of the UI): there a yielded result fails the step."""
    return checked.partitions is not None and not (run.has_partition_key_range or run.has_partition_key)


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
