"""Billing statistics: how often, and how, the rebuilt ids differ in number from what was billed.

Belongs here: counting residuals per provider, tools and finish reason; bounds; the aggregate figure and what it does not prove.
Does not belong here: which rows pass (`invariants.py`), what a provider's convention is (`exact`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle3_assets.intervals import lower_bound
from eagle3_assets.review.rows.columns import Columns, Ints

# docs/research/exactness.md#3.2: a spike at one value is an offset or a stripped character, a spread is another tokenizer or an
# estimate
BUCKETS = ("<=-3", "-2", "-1", "0", "1", "2", ">=3")
NOT_PROVED = (
    "This bounds only the mean signed error: errors with opposite signs cancel, and one token lost in every answer of 2,500 "
    "tokens gives the same 0.04 %. It proves nothing about any single row."
)  # docs/research/exactness.md#3


@dataclass(slots=True)
class Stratum:
    """Residuals of one provider x tools x finish reason. `completion` and `prompt` are int64 arrays of rebuilt minus billed."""

    provider: str
    tools: bool
    finish_reason: str
    completion: list[Ints] = field(default_factory=list)
    prompt: list[Ints] = field(default_factory=list)
    billed: int = 0

    @property
    def key(self) -> tuple[str, bool, str]:
        return self.provider, self.tools, self.finish_reason


def strata_of(columns: Columns) -> list[Stratum]:
    """Strata of one table. Quarantined rows count: a statistic without its failures is none. Imports bill nothing and are left
    out."""
    completion, prompt = columns.residual("completion"), columns.residual("prompt")
    billed = columns.integers("billed_completion")
    providers, finishes = columns.strings("provider"), columns.strings("finish_reason")
    sources = columns.strings("source")
    found: dict[tuple[str, bool, str], list[int]] = {}
    for i in range(len(columns)):
        if not (completion.known[i] or prompt.known[i]):
            continue
        key = (providers[i] or str(sources[i]), has_tools(columns.evidence[i], finishes[i]), finishes[i] or "none")
        found.setdefault(key, []).append(i)
    strata = []
    for key, rows in found.items():
        mine = np.zeros(len(columns), dtype=bool)
        mine[rows] = True
        with_bill = mine & completion.known
        d = [completion.d[with_bill]], [prompt.d[mine & prompt.known]]
        strata.append(Stratum(*key, *d, billed=int(billed[with_bill].sum())))
    return strata


def has_tools(evidence: dict[str, Any], finish_reason: str | None) -> bool:
    """Whether the answer calls tools: said by the evidence where it knows, else by the finish reason."""
    tools = evidence.get("tools")
    return bool(tools) if tools is not None else finish_reason == "tool_calls"


def merge_strata(strata: Iterable[Stratum]) -> list[Stratum]:
    """Strata with equal keys joined, ordered by key."""
    merged: dict[tuple[str, bool, str], Stratum] = {}
    for stratum in strata:
        into = merged.setdefault(stratum.key, Stratum(*stratum.key))
        into.completion += stratum.completion
        into.prompt += stratum.prompt
        into.billed += stratum.billed
    return [merged[key] for key in sorted(merged)]


def describe_residuals(d: Ints) -> dict[str, Any]:
    """Figures of residuals `d`: n, equal, equal_share with its Clopper-Pearson 95 % lower bound, sums, cancellation, histogram.

    `cancellation` is sum|d| / |sum d|: 1 when all errors have one sign; None when there is no error or they cancel entirely
    (`cancels` tells which).
    """
    n, equal = len(d), int(np.count_nonzero(d == 0))
    absolute, signed = int(np.abs(d).sum()), abs(int(d.sum()))
    return {
        "n": n,
        "equal": equal,
        "equal_share": equal / n if n else None,
        "equal_share_lower": lower_bound(equal, n) if n else None,
        "sum_abs": absolute,
        "abs_sum": signed,
        "cancellation": absolute / signed if signed else None,
        "cancels": absolute > signed,
        "p99_abs": float(np.percentile(np.abs(d), 99)) if n else None,
        "histogram": histogram(d),
    }


def histogram(d: Ints) -> dict[str, int]:
    """Counts of d in `BUCKETS`."""
    counts = np.bincount(np.clip(d, -3, 3) + 3, minlength=len(BUCKETS))
    return {bucket: int(count) for bucket, count in zip(BUCKETS, counts, strict=True)}


def aggregate(d: Ints, billed: int) -> dict[str, Any]:
    """The historic figure |sum d| / billed, beside sum|d| / billed and the sentence on what it does not prove."""
    return {
        "relative_difference": abs(int(d.sum())) / billed if billed else 0.0,
        "absolute_difference": int(np.abs(d).sum()) / billed if billed else 0.0,
        "billed": billed,
        "not_proved": NOT_PROVED,
    }


def billing_statistics(strata: Iterable[Stratum]) -> dict[str, Any]:
    """{"strata": [...], "completion": {...}, "prompt": {...}, "aggregate": {...}} as plain JSON."""
    merged = merge_strata(strata)
    completion, prompt = (joined(getattr(s, part) for s in merged) for part in ("completion", "prompt"))
    return {
        "strata": [
            {
                "provider": s.provider,
                "tools": s.tools,
                "finish_reason": s.finish_reason,
                "billed": s.billed,
                "completion": describe_residuals(joined([s.completion])),
                "prompt": describe_residuals(joined([s.prompt])),
            }
            for s in merged
        ],
        "completion": describe_residuals(completion),
        "prompt": describe_residuals(prompt),
        "aggregate": aggregate(completion, sum(s.billed for s in merged)),
    }


def joined(arrays: Iterable[list[Ints]]) -> Ints:
    """One array of all."""
    flat = [a for group in arrays for a in group]
    return np.concatenate(flat).astype(np.int64) if flat else np.zeros(0, np.int64)
