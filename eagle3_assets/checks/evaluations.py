"""Verdicts as Dagster shows them: each check once for its whole asset, and one result a partition that says which of its checks failed.

Belongs here: everything between a `Verdict` and an event of Dagster's. Does not belong here: judging, and what runs when (`stages.py`).

An event costs Dagster three commits of SQLite, and a result for every check of every partition was 2,040 of them in the demo: more than the
work they were about. So a check speaks of the asset, all partitions together; a partition speaks once, in `verdict`, with a line for each
check that failed.

Two things that Dagster 1.13 does not do by itself (partitioned checks are a preview in it): a result that is yielded in a run over a range
counts for no partition, and one yielded in a run without any partition ("execute all" of the UI) fails the step. So a partition's result is
logged, tied to the materialization that it judged: without that the UI calls the partition missing.
"""

from __future__ import annotations

import re
import time
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from eagle3_assets import gate
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Stage
from eagle3_assets.viewer_links import rows_url

SEVERITY = {"ERROR": dg.AssetCheckSeverity.ERROR, "WARN": dg.AssetCheckSeverity.WARN}
SAMPLE_STAGES = ("tokens", "report")  # whose examples are rows that `eagle3 show` opens
VERDICT = "verdict"  # the name of a partition's result, beside the checks of the table
SAMPLE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Checked:
    """An asset with checks: its stage and dataset (or "all"), and its partitions as Dagster has them."""

    stage: Stage
    dataset: str
    partitions: dg.PartitionsDefinition | None = None

    @property
    def asset_key(self) -> dg.AssetKey:
        return dg.AssetKey(self.stage.asset_key(self.dataset))


def log_partitions(run: dg.OpExecutionContext, checked: Checked, judged: Mapping[str, Sequence[Verdict]]) -> None:
    """The one result of each partition."""
    for partition, verdicts in judged.items():
        worst = sorted((v for v in verdicts if not v.passed), key=lambda v: v.severity)  # "ERROR" before "WARN"
        run.log_event(
            dg.AssetCheckEvaluation(  # type: ignore[arg-type]  # works, and is the only way to record a partition of a range
                asset_key=checked.asset_key,
                check_name=VERDICT,
                passed=not worst,
                severity=SEVERITY[worst[0].severity] if worst else dg.AssetCheckSeverity.WARN,
                description=_in_words(verdicts, worst),
                metadata=_of_partition(checked, verdicts, worst),
                blocking=False,  # the checks themselves block
                partition=partition,
                target_materialization_data=_target(run.instance, checked.asset_key, partition),
            )
        )


def log_alone(run: dg.OpExecutionContext, checked: Checked, result: dg.AssetCheckResult) -> None:
    """A result that Dagster is told of and does not act on: of a run without any partition; or a failure that no partition of this run has by
    itself, which stands in one that an earlier run made, or only in all together: the gate of the stage behind, and the report's
    `tokens_pass`, decide over that."""
    run.log_event(
        dg.AssetCheckEvaluation(  # type: ignore[arg-type]
            asset_key=checked.asset_key,
            check_name=str(result.check_name),
            passed=result.passed,
            severity=result.severity,
            description=result.description,
            metadata=result.metadata,
            blocking=False,
        )
    )


def failed_in(name: str, judged: Mapping[str, Sequence[Verdict]]) -> bool:
    """Whether a check failed in one of these partitions."""
    return any(v.check == name and not v.passed for verdicts in judged.values() for v in verdicts)


def _in_words(verdicts: Sequence[Verdict], worst: Sequence[Verdict]) -> str:
    if not worst:
        return f"all {len(verdicts)} checks pass"
    return f"{len(worst)} of {len(verdicts)} checks fail; {worst[0].check}: {worst[0].message}"


def _of_partition(checked: Checked, verdicts: Sequence[Verdict], worst: Sequence[Verdict]) -> dict[str, Any]:
    """What failed, a line a check; the share of bad rows of every check that counts rows (plotted over partitions)."""
    lines = [
        dg.TableRecord({"check": v.check, "stops": "yes" if v.stops else "", "severity": v.severity, "message": v.message})
        for v in worst
    ]
    shares = {f"share/{v.check}": float(v.numbers["share"]) for v in verdicts if isinstance(v.numbers.get("share"), int | float)}
    failed = {"failed": dg.MetadataValue.table(lines)} if lines else {}
    return {**failed, **_told(checked, list(dict.fromkeys(e for v in worst for e in v.examples))[:10]), **shares}


def summary(checked: Checked, verdict: Verdict) -> dg.AssetCheckResult:
    """A check's verdict over all partitions (`over_all`)."""
    return dg.AssetCheckResult(
        asset_key=checked.asset_key,
        check_name=verdict.check,
        passed=verdict.passed,
        severity=SEVERITY[verdict.severity],
        description=verdict.message,
        metadata={**gate.numbers_of(verdict), **_told(checked, verdict.examples)},
    )


def nothing_made(checked: Checked, check: str) -> dg.AssetCheckResult:
    """Of an asset that was never made there is nothing to say."""
    return dg.AssetCheckResult(
        asset_key=checked.asset_key,
        check_name=check,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description="nothing was made yet",
    )


def _told(checked: Checked, examples: Sequence[str]) -> dict[str, Any]:
    """For a person: when and from what it was judged, and the examples, where they are samples with the command that opens one."""
    told: dict[str, Any] = {
        "judged": dg.MetadataValue.timestamp(time.time()),
        "judged_from": "the files on disk, anew, or what this run had just made of them; nothing was bought",
    }
    samples = [e for e in examples if SAMPLE_ID.fullmatch(e)] if checked.stage.name in SAMPLE_STAGES else []
    if samples:
        lines = (
            f"- `eagle3 show {sample}` or [in the viewer]({rows_url(id=sample)}), while `eagle3 view` runs" for sample in samples
        )
        told["open_an_example"] = dg.MetadataValue.md("\n".join(lines))
    return told | {"examples": list(examples)}


def _target(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str) -> Any:
    """Dagster's pointer to the latest materialization of a partition; None where there is none. Its type has no public name: it is taken
    from the public field that wants it."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    hint = typing.get_type_hints(dg.AssetCheckEvaluation).get("target_materialization_data")
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if not records or not kinds:
        return None
    return kinds[0](storage_id=records[0].storage_id, run_id=records[0].run_id, timestamp=records[0].timestamp)
