"""One `@multi_asset_check(can_subset=True)` for each asset. Names, severities and blocking come from `review.table`.

A check is separate from its asset on purpose: only separate checks can be executed again without re-buying anything.
Partitioned checks (a preview in Dagster 1.13): in a run over one partition the result is recorded for it; in a run over a range, or
launched by "execute all" (which carries no partition at all), one evaluation a key is logged and a summary is yielded last.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from eagle3_assets import gate
from eagle3_assets.assets.stage import bind_dagster_state, readable_errors
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.lineage import corpus_shards
from eagle3_assets.partitions import SHARD_PARTITIONS, corpus_partitions
from eagle3_assets.review.table import CHECKS
from eagle3_assets.review.verdict import Verdict
from eagle3_assets.store import Store, manifest_path

SEVERITY = {"ERROR": dg.AssetCheckSeverity.ERROR, "WARN": dg.AssetCheckSeverity.WARN}


@dataclass(frozen=True, slots=True)
class Checked:
    """An asset with checks: its stage, key, dataset (or "all"), partitions."""

    stage: str
    key: tuple[str, ...]
    dataset: str
    partitions: dg.PartitionsDefinition | None = None  # type: ignore[type-arg]


def build(campaign: Campaign) -> list[dg.AssetChecksDefinition]:
    names = [d.name for d in campaign.dataset]
    checked = [Checked(s, (s,), gate.ALL) for s in ("tokenizer_probe", "endpoints", "pilot", "plan", "wire_profiles")]
    checked += [Checked("prompts", ("prompts", n), n) for n in names]
    checked += [Checked("answers", ("answers", n), n, SHARD_PARTITIONS) for n in names]
    checked += [Checked("tokens", ("tokens", n), n, SHARD_PARTITIONS) for n in names]
    checked += [Checked("report", ("report", n), n) for n in names]
    checked += [Checked(s, (s,), gate.ALL) for s in ("corpus", "vocab_map")]
    checked += [Checked("handoff_tokens", ("handoff", "tokens"), gate.ALL)]
    checked += [Checked("hidden_states", ("hidden_states",), gate.ALL, corpus_partitions(campaign))]
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
            store = Store.of(campaign)
            bind_dagster_state(context.op_execution_context.instance, campaign)
            wanted = {k.name for k in context.op_execution_context.selected_asset_check_keys}
            shards = _shards(context, store, checked)
            judged = {s: gate.judge(campaign, store, checked.stage, checked.dataset, s) for s in shards}
            if len(shards) > 1:
                _log_each(context, checked, judged, wanted)
            for name in sorted(wanted):
                yield _summary(checked, name, judged)

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


def _log_each(
    context: dg.AssetCheckExecutionContext, checked: Checked, judged: dict[str, list[Verdict]], wanted: set[str]
) -> None:
    for shard, verdicts in judged.items():
        for v in verdicts:
            if v.check in wanted:
                context.op_execution_context.log_event(
                    dg.AssetCheckEvaluation(  # type: ignore[arg-type]  # works, and is the only way to record a check per key of a range
                        asset_key=dg.AssetKey(checked.key),
                        check_name=v.check,
                        passed=v.passed,
                        severity=SEVERITY[v.severity],
                        description=v.message,
                        metadata={**gate.numbers_of(v), "examples": list(v.examples)},
                        blocking=v.blocking,
                        partition=shard,
                    )
                )


def _numbers(verdicts: list[Verdict]) -> dict[str, Any]:
    """Figures of one verdict, or over shards: counts added up, the share made anew, and nothing that only holds for one shard."""
    if len(verdicts) == 1:
        return gate.numbers_of(verdicts[0])
    counts = {k for v in verdicts for k, n in v.numbers.items() if isinstance(n, int) and not isinstance(n, bool)}
    total = {k: sum(int(v.numbers.get(k, 0)) for v in verdicts) for k in sorted(counts)}
    return {**total, "share": total["bad"] / total["total"]} if total.get("total") and "bad" in total else total


def _summary(checked: Checked, name: str, judged: dict[str, list[Verdict]]) -> dg.AssetCheckResult:
    """Passed when every shard passed; the message and examples of the first that did not."""
    found = [(s, v) for s, verdicts in judged.items() for v in verdicts if v.check == name]
    failed = [(s, v) for s, v in found if not v.passed]
    first = failed[0][1] if failed else (found[0][1] if found else None)
    severity = SEVERITY[first.severity] if first else dg.AssetCheckSeverity.WARN
    if len(judged) == 1 and first is not None:
        description = first.message
    else:
        where = f"; shard {failed[0][0]}: {failed[0][1].message}" if failed else ""
        description = f"{len(found) - len(failed)} of {len(found)} partitions pass{where}"
    metadata: dict[str, Any] = {"failed_partitions": [s for s, _ in failed]} if len(judged) > 1 else {}
    if first is not None:
        metadata |= {**_numbers([v for _, v in found]), "examples": [e for _, v in failed or found for e in v.examples][:10]}
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey(checked.key),
        check_name=name,
        passed=bool(found) and not failed,
        severity=severity,
        description=description if found else "nothing was made yet",
        metadata=metadata,
    )
