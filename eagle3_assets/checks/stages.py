"""One `@multi_asset_check(can_subset=True)` for each asset. Names, severities and blocking come from `review.table`.

Belongs here: which assets have checks, and over which partitions a run of them goes. Does not belong here: how a verdict becomes Dagster's
event (`evaluations.py`), judging (`gate.py`).

A check is separate from its asset on purpose: only separate checks can be executed again without re-buying anything. Executing one judges
the files anew, in a run and from the UI alike (`eagle3 recheck` does the same): a verdict that was filed is shown, never believed, here.
Partitioned checks (a preview in Dagster 1.13): in a run over one partition the result is recorded for it; in a run over a range, or
launched by "execute all" (which carries no partition at all), one evaluation a key is logged and a summary is yielded last.
"""

from collections.abc import Iterator

import dagster as dg

from eagle3_assets import gate
from eagle3_assets.assets.stage import bind_dagster_state, readable_errors
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.checks.evaluations import Checked, log_each, log_summaries, summary
from eagle3_assets.lineage import corpus_shards
from eagle3_assets.partitions import SHARD_PARTITIONS, corpus_partitions
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.store import Store, manifest_path


def build(campaign: Campaign) -> list[dg.AssetChecksDefinition]:
    names = [d.name for d in campaign.dataset]
    checked = [Checked(s, (s,), gate.ALL) for s in ("tokenizer_probe", "endpoints", "pilot", "plan", "wire_profiles")]
    checked += [Checked("prompts", ("prompts", n), n) for n in names]
    checked += [Checked("answers", ("answers", n), n, SHARD_PARTITIONS) for n in names]
    checked += [Checked("tokens", ("tokens", n), n, SHARD_PARTITIONS) for n in names]
    checked += [Checked("report", ("report", n), n) for n in names]
    checked += [Checked(s, (s,), gate.ALL) for s in ("corpus", "vocab_map")]
    checked += [Checked(f"handoff_{n}", ("handoff", n), gate.ALL) for n in ("tokens", "speculators", "specforge")]
    checked += [Checked("hidden_states", ("hidden_states",), gate.ALL, corpus_partitions(campaign))]
    checked += [Checked(s, (s,), gate.ALL) for s in ("drafter", "acceptance") if campaign.drafter is not None]
    return [_checks(campaign, c) for c in checked]


def _checks(campaign: Campaign, checked: Checked) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(
            c.name,
            asset=dg.AssetKey(checked.key),
            description=c.description,
            blocking=c.blocking,
            partitions_def=checked.partitions,
        )
        for c in CHECKS[checked.stage]
    ]

    @dg.multi_asset_check(specs=specs, name="check_" + "__".join(checked.key), can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with readable_errors():
            run, store = context.op_execution_context, Store.of(campaign)
            bind_dagster_state(run.instance, campaign)
            wanted = sorted(k.name for k in run.selected_asset_check_keys)
            shards = _shards(context, store, checked)
            judged = {s: gate.judge(campaign, store, checked.stage, checked.dataset, s, anew=True) for s in shards}
            if checked.partitions is not None and not run.has_partition_key:
                log_each(run, checked, judged, wanted)
            summaries = [summary(checked, name, judged) for name in wanted]
            if checked.partitions is None or run.has_partition_key or run.has_partition_key_range:
                yield from summaries
            else:
                log_summaries(run, checked, summaries)

    return checks


def _shards(context: dg.AssetCheckExecutionContext, store: Store, checked: Checked) -> list[str]:
    """The run's partition, its range, or everything that was made."""
    if checked.partitions is None:
        return [gate.ALL]
    run = context.op_execution_context
    if run.has_partition_key_range:
        return list(run.partition_keys)
    if run.has_partition_key:
        return [run.partition_key]
    paths = {
        "answers": lambda s: store.answers(checked.dataset, s),
        "tokens": lambda s: store.tokens(checked.dataset, s),
        "hidden_states": store.states,
    }
    keys = corpus_shards(store) if checked.stage == "hidden_states" else list(SHARDS)
    return [k for k in keys if manifest_path(paths[checked.stage](k)).exists()]
