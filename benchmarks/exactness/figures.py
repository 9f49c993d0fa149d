"""The arithmetic of the benchmark: intervals, calibration, risk and coverage, alignment. Pure functions of numbers.

Belongs here: formulas with their names. Does not belong here: rows, tables. Checked by eagle3_assets_tests/benchmarks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from random import Random

from eagle3_assets.intervals import beta_quantile


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided exact interval of a share; (0, 1) of nothing."""
    tail = (1 - confidence) / 2
    low = beta_quantile(tail, successes, n - successes + 1) if successes else 0.0
    high = beta_quantile(1 - tail, successes + 1, n - successes) if successes < n else 1.0
    return low, high


def brier(predicted: Sequence[float], happened: Sequence[bool]) -> float:
    """Mean squared error of probabilities; 0 of nothing."""
    return sum((p - h) ** 2 for p, h in zip(predicted, happened, strict=True)) / len(predicted) if predicted else 0.0


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram: rows whose p lies in [low, high), their mean p and the share that was right."""

    low: float
    high: float
    n: int
    mean_p: float
    share: float


# p_exact crowds near 1: equal widths would put everything into one bar
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0 + 1e-12)


def reliability(predicted: Sequence[float], happened: Sequence[bool], edges: Sequence[float] = EDGES) -> list[Bin]:
    """The bars that have rows."""
    bins = []
    for low, high in itertools.pairwise(edges):
        inside = [(p, h) for p, h in zip(predicted, happened, strict=True) if low <= p < high]
        if inside:
            n = len(inside)
            bins.append(Bin(low, min(high, 1.0), n, sum(p for p, _ in inside) / n, sum(h for _, h in inside) / n))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """ECE: mean over rows of |mean p - share| of their bar."""
    total = sum(b.n for b in bins)
    return sum(b.n * abs(b.mean_p - b.share) for b in bins) / total if total else 0.0


def chance_error(predicted: Sequence[float], draws: int = 200, seed: int = 0) -> float:
    """The ECE that perfectly calibrated probabilities would show with so few rows (mean over draws): what chance alone explains."""
    if not predicted:
        return 0.0
    rng = Random(seed)
    return sum(calibration_error(reliability(predicted, [rng.random() < p for p in predicted])) for _ in range(draws)) / draws


def risk_at(predicted: Sequence[float], happened: Sequence[bool], coverages: Sequence[float]) -> list[tuple[float, int, float]]:
    """(coverage, rows, share of wrong ones) when the rows with the highest p are taken first. Rows of equal p come wrong ones
    first: their order says nothing, and the worse one is shown."""
    order = sorted(zip(predicted, happened, strict=True), key=lambda row: (-row[0], row[1]))
    out = []
    for coverage in coverages:
        taken = order[: max(1, round(coverage * len(order)))]
        out.append((coverage, len(taken), sum(not h for _, h in taken) / len(taken) if taken else 0.0))
    return out


def matching_tokens(rebuilt: Sequence[int], truth: Sequence[int]) -> int:
    """Tokens of `truth` that stand in `rebuilt` in order, by alignment (the common ends first, then longest blocks)."""
    shortest = min(len(rebuilt), len(truth))
    head = next((k for k in range(shortest) if rebuilt[k] != truth[k]), shortest)
    tail = next((k for k in range(shortest - head) if rebuilt[-1 - k] != truth[-1 - k]), shortest - head)
    ours, theirs = rebuilt[head : len(rebuilt) - tail], truth[head : len(truth) - tail]
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return head + tail + sum(block.size for block in blocks)
