"""The mutation suite's cases for the checks of a whole dataset (stage `report`): rows by shard, when they came, what the pilot measured.

`table_of_reports()` runs all and gives the second table of docs/checks.md (`python -m eagle3_assets_tests.review.mutations` prints both).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.review.report.billing import billing_statistics, strata_of
from eagle3_assets.review.report.figures import billed_rows
from eagle3_assets.review.report.monitor import length_drift, monitored
from eagle3_assets.review.report.report_checks import judge_report
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.review.rows.token_rows import judge_tokens
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets_tests.review.made_rows import VOCAB, make_row, quarantined


@dataclass(frozen=True)
class Case:
    """`shards` are rows in order of time, `lacking` shards without tokens, `outdated` those made from older answers; `verdicts` replace those
    that the rows get."""

    shards: Mapping[str, Sequence[SampleRow]]
    pilot: Mapping[str, Any] | None = None
    lacking: Sequence[str] = ()
    outdated: Sequence[str] = ()
    verdicts: Sequence[Verdict] | None = None


def rows(n: int, wrong: Mapping[int, int] | None = None, start: int = 0, **changes: Any) -> list[SampleRow]:
    """`n` good rows; `wrong` {place: rebuilt minus billed}: those are out, as `exact` leaves them."""
    out = []
    for k in range(n):
        off = (wrong or {}).get(k, 0)
        facts = {**changes, "billed_completion": changes.get("response", 8) - off}
        make = make_row if not off else quarantined
        out.append(make(f"{start + k} {sorted(changes.items())}", *([] if not off else ["completion_equals_bill"]), **facts))
    return out


def every(step: int, n: int, off: int = 1, first: int = 0) -> dict[int, int]:
    return dict.fromkeys(range(first, n, step), off)


def lengths(n: int, mean: int) -> list[SampleRow]:
    """Rows whose lengths scatter by about a half around `mean`."""
    return [row for k in range(n) for row in rows(1, start=k, response=int(mean * (0.25 + 1.5 * ((k * 37) % n) / n)))]


def of(*parts: Sequence[SampleRow]) -> dict[str, list[SampleRow]]:
    return {f"{k:02d}": list(part) for k, part in enumerate(parts)}


PASS, STOP = (
    Verdict("structure", True, "ERROR", True, "fine"),
    Verdict("structure", False, "ERROR", True, "2 rows", {}, ("a" * 32,)),
)
CALM = of(rows(60), rows(60, start=60))
PILOT = {"n": 40, "mean": 100.0}
CASES: dict[str, dict[str, dict[str, Case]]] = {
    "all_shards_present": {
        "bad": {
            "no tokens of a shard": Case(CALM, lacking=("02",)),
            "tokens of older answers": Case(CALM, outdated=("01",)),
            "nothing at all": Case({}, lacking=("00", "01")),
        },
        "innocent": {
            "all there": Case(CALM),
            "an empty shard": Case(of(rows(60), [])),
            "one shard": Case(of(rows(60))),
        },
    },
    "tokens_pass": {
        "bad": {
            "one shard fails": Case(CALM, verdicts=(STOP,)),
            "a share that no shard is large enough for": Case(
                {f"{k:02d}": [*rows(9, start=20 * k), quarantined(f"q{k}", "wire_text")] for k in range(16)}
            ),
            "a bad row that is not out": Case(of(rows(60), [*rows(59), make_row("x", billed_completion=3)])),
        },
        "innocent": {
            "a warning fails": Case(of([*rows(40), *rows(20, start=40, finish_reason="length")])),
            "waived": Case(CALM, verdicts=(replace(STOP, severity="WARN", numbers={"waived": True}),)),
            "within what is tolerated": Case(of(rows(60, {3: 1, 9: -1}), rows(60, start=60))),
        },
    },
    "aggregate_billing": {
        "bad": {
            "one id too many in a tenth": Case(of(rows(60, every(10, 60)), rows(60, start=60))),
            "one too few in every row": Case(of(rows(60, every(1, 60, -1)))),
            "one row far off": Case(of(rows(60, {5: -900}), rows(60, start=60))),
        },
        "innocent": {
            "errors that cancel": Case(of(rows(60, {3: 4, 9: -4}), rows(60, start=60))),
            "nothing billed": Case(
                of([make_row(k, source="import", provider=None, grade="I", billed_completion=None, billed_prompt=None) for k in range(60)])
            ),
            "one id of ten thousand": Case(of(rows(60, {3: 1}), rows(10, start=60, response=2500))),
        },
    },
    "length_drift": {
        "bad": {
            "twice as long": Case(of(lengths(150, 200)), pilot=PILOT),
            "half as long": Case(of(lengths(150, 50)), pilot=PILOT),
            "every answer cut": Case(of(rows(150, response=30, finish_reason="length", max_tokens=30)), pilot=PILOT),
        },
        "innocent": {
            "6 % longer and many rows": Case(of(lengths(1500, 106)), pilot={"n": 5000, "mean": 100.0}),
            "a pilot of three answers": Case(of(lengths(150, 130)), pilot={"n": 3, "mean": 100.0}),
            "not asked by the pilot": Case(of(lengths(150, 200))),
            "rows without ids in quarantine": Case(
                of([*lengths(100, 100), *(quarantined(f"e{k}", "wire_text", input_ids=(), prompt_len=0, loss_spans=()) for k in range(90))]),
                pilot=PILOT,
            ),
        },
    },
    "mismatch_alarm": {
        "bad": {
            "a server changed": Case(of(rows(200), rows(120, every(5, 120), start=200))),
            "one provider of three": Case(
                of(rows(100), rows(100, start=100, provider="Beta"), rows(100, every(4, 100, -2), start=200, provider="Gamma"))
            ),
            "errors that cancel": Case(of(rows(200), rows(80, {**every(10, 80), **every(10, 80, -1, 5)}, start=200))),
        },
        "innocent": {
            "one of a hundred all along": Case(of(rows(600, every(100, 600)))),
            "two in a row": Case(of(rows(200, {90: 1, 91: 1}))),
            "one each of many": Case(of(*(rows(60, {7: 1}, start=60 * k, provider=f"P{k}") for k in range(12)))),
        },
    },
    "mismatch_strata": {
        "bad": {
            "one provider of ten": Case(
                of(*(rows(100, every(12 if k == 7 else 90, 100), start=100 * k, provider=f"P{k}") for k in range(10)))
            ),
            "errors that cancel": Case(of(rows(200, {**every(20, 200), **every(20, 200, -1, 10)}))),
            "cut answers alone": Case(of(rows(200), rows(50, every(8, 50), start=200, finish_reason="length", max_tokens=8))),
        },
        "innocent": {
            "one of a hundred": Case(of(rows(300, every(100, 300)))),
            "one of ten rows": Case(of(rows(300), rows(10, {4: 1}, start=300, provider="Beta"))),
            "the worst of twenty by luck": Case(
                of(*(rows(100, every(34 if k == 3 else 100, 100), start=100 * k, provider=f"P{k:02d}") for k in range(20)))
            ),
        },
    },
}  # fmt: skip


def judged(case: Case) -> dict[str, Verdict]:
    """Verdicts on the report of the case, counted by the functions that reports are counted with."""
    everything = [row for part in case.shards.values() for row in part]
    table = to_table(everything)
    when = {(row.sample_id, row.turn, row.attempt): float(k) for k, row in enumerate(everything)}
    columns = Columns(table)
    response = columns.lengths - columns.integers("prompt_len")
    report = {
        "billing": billing_statistics(strata_of(columns)),
        "monitor": monitored(billed_rows(table, when, {})),
        "drift": length_drift(np.asarray(response[response > 0]), case.pilot),
    }
    verdicts = {
        shard: case.verdicts
        or judge_tokens(to_table(part), n_vocab=VOCAB, finished_keys={(row.sample_id, row.turn) for row in part})
        for shard, part in case.shards.items()
    }
    found = judge_report(report, verdicts, {shard: shard not in case.outdated for shard in {*case.lacking, *case.shards}})
    return {v.check: v for v in found}


def failed_by(case: Case) -> set[str]:
    return {name for name, v in judged(case).items() if not v.passed}


def table_of_reports() -> str:
    lines = ["| check | severity | corruptions caught | innocents left alone |", "| --- | --- | --- | --- |"]
    for check in CHECKS["report"]:
        bad, innocent = CASES[check.name]["bad"], CASES[check.name]["innocent"]
        caught = sum(check.name in failed_by(case) for case in bad.values())
        alone = sum(check.name not in failed_by(case) for case in innocent.values())
        severity = f"{check.severity}{', blocks' if check.blocking else ''}"
        words = f"{caught} of {len(bad)}: {', '.join(bad)} | {alone} of {len(innocent)}: {', '.join(innocent)}"
        lines.append(f"| `{check.name}` | {severity} | {words} |")
    return "\n".join(lines) + "\n"
