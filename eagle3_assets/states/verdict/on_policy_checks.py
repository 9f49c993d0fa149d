"""The model's verdicts pooled: which provider's answers look sampled from this model, with these settings, and which do not.

Belongs here: figures per provider and dataset, the checks `on_policy` and `edge_tokens`, the table for people.
Does not belong here: a single row's figures (`on_policy.py`) or grade (`choice.py`).

One row says little; a provider's rows together say a lot. Quantised servers differ from the reference by a little, and with enough ids
any difference is significant: so the check asks for a difference that is both certain (99.9 % interval) and large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eagle3_assets.intervals import lower_bound
from eagle3_assets.review.verdicts.table import check_named, verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.states.target.token_figures import temperature_of

STAGE = "hidden_states"
MAX_HEAT = 0.10  # ids that look sampled more than 10 % hotter or colder than stated, for certain
MAX_NUCLEUS = 0.005  # share of ids outside the nucleus (docs/research/exactness.md#5-24)
CONFIDENCE = 0.999
COLUMNS = (
    "dataset", "provider", "grade", "final_grade", "winner", "candidates", "judged", "tokens", "mean_logprob", "mean_entropy", "heat",
    "spread", "first_nll", "p_end", "nucleus_violations", "edges",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """One provider's judged rows of one dataset. `temperature` (estimate, low, high) in units of the stated one; `nll` and `entropy` nats
    an id; `outside` and `edge_rows` counts; `p_end` median; `chosen`, `out` rows that became B2, Q."""

    provider: str
    dataset: str
    rows: int
    tokens: int
    nll: float
    entropy: float
    temperature: tuple[float, float, float]
    outside: int
    edge_rows: int
    p_end: float | None
    first_nll: float
    chosen: int
    out: int

    @property
    def faults(self) -> list[str]:
        """What is certainly and largely wrong; empty for a sound source."""
        mid, low, high = self.temperature
        found = []
        if high < 1 - MAX_HEAT:
            found.append(f"ids look sampled at {mid:.2f} of the stated temperature (copied, greedy, or colder settings)")
        if low > 1 + MAX_HEAT:
            found.append(
                f"ids look sampled {mid:.2f} times as hot as stated (another model, template, or ids that were not sampled)"
            )
        if self.tokens and lower_bound(self.outside, self.tokens, CONFIDENCE) > MAX_NUCLEUS:
            found.append(f"{self.outside / self.tokens:.2%} of the ids lie outside the nucleus that they were drawn from")
        return found


def sources(tables: Sequence[pa.Table]) -> list[Source]:
    """Pooled figures of every (provider, dataset) in `tables` (on_policy.parquet of any number of partitions), by name."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for table in tables:
        for row in table.select(list(COLUMNS)).to_pylist():
            if row["judged"]:
                groups.setdefault((row["provider"], row["dataset"]), []).append(row)
    return [_source(provider, dataset, rows) for (provider, dataset), rows in sorted(groups.items())]


def _source(provider: str, dataset: str, rows: list[dict[str, Any]]) -> Source:
    tokens = sum(r["tokens"] for r in rows)
    ends = [r["p_end"] for r in rows if r["p_end"] is not None]

    def mean(name: str) -> float:
        return sum(r[name] * r["tokens"] for r in rows) / tokens if tokens else 0.0

    return Source(
        provider, dataset, len(rows), tokens, -mean("mean_logprob"), mean("mean_entropy"),
        temperature_of(sum(r["heat"] for r in rows), sum(r["spread"] for r in rows)),
        sum(r["nucleus_violations"] for r in rows), sum(bool(r["edges"]) for r in rows), float(np.median(ends)) if ends else None,
        sum(r["first_nll"] for r in rows) / len(rows),
        sum(r["grade"] == "C1" and r["final_grade"] == "B2" for r in rows), sum(r["final_grade"] == "Q" for r in rows),
    )  # fmt: skip


def judge_on_policy(table: pa.Table | None, *, asked: bool) -> list[Verdict]:
    """Verdicts `on_policy` and `edge_tokens` of one partition. `asked`: the campaign wants the model's verdict."""
    if table is None:
        message = "the model was not asked (extraction.verdict_share = 0)" if not asked else "on_policy.parquet is missing"
        return [verdict(STAGE, name, not asked, message) for name in ("on_policy", "edge_tokens")]
    found = sources([table])
    faults = [f"{s.provider} / {s.dataset}: {fault}" for s in found for fault in s.faults]
    rows, out = sum(s.rows for s in found), sum(s.out for s in found)
    edge_rows = sum(s.edge_rows for s in found)
    numbers: dict[str, Any] = {"rows": table.num_rows, "judged": rows, "out": out, "chosen": sum(s.chosen for s in found)}
    numbers |= {f"temperature {s.provider} {s.dataset}": round(s.temperature[0], 4) for s in found if isfinite(s.temperature[0])}
    limit = check_named(STAGE, "edge_tokens").max_share
    low = lower_bound(edge_rows, rows, CONFIDENCE)
    worst = table.filter(pc.greater(pc.list_value_length(table.column("edges")), 0))
    return [
        verdict(STAGE, "on_policy", not faults,
                "; ".join(faults) or f"{rows} rows of {len(found)} sources look sampled from the target model; {out} go out",
                numbers={**numbers, "faults": faults}),
        verdict(STAGE, "edge_tokens", low <= limit,
                f"{edge_rows} of {rows} rows hold an edge id that the model would not have written (at most {limit:.0%} tolerated)",
                numbers={"rows": rows, "edge_rows": edge_rows}, examples=tuple(worst.column("sample_id").to_pylist()[:10])),
    ]  # fmt: skip


def summary_markdown(found: Sequence[Source]) -> str:
    """The table for people: one line a provider and dataset, faults last."""
    lines = [
        "| provider | dataset | rows | ids | nll (entropy) nats | temperature (99.9 %) | outside nucleus | edge rows | P(end) | C1 to B2 | out | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for s in found:
        mid, low, high = s.temperature
        cells = (
            s.provider, s.dataset, f"{s.rows:,}", f"{s.tokens:,}", f"{s.nll:.3f} ({s.entropy:.3f})", f"{mid:.2f} ({low:.2f} to {high:.2f})",
            f"{s.outside / s.tokens:.2%}" if s.tokens else "-", f"{s.edge_rows:,}", "-" if s.p_end is None else f"{s.p_end:.3f}",
            f"{s.chosen:,}", f"{s.out:,}", "; ".join(s.faults) or "sound",
        )  # fmt: skip
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines)
