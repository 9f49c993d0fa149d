"""How long rows are, as a distribution: what a cap on the length leaves of them.

Belongs here: rows = a part that is known (prompts, imports) + an answer with log-normal length. Tokens kept under a cap come from the
distribution; from the mean alone they would be wrong (a mean of 2,513 under a cap of 8,192 loses nothing, the rows lose 4 %).
Does not belong here: where the figures come from (`facts.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

BUCKETS = 64
P90 = 1.2816  # standard deviations from the median to the 90th percentile


@dataclass(frozen=True, slots=True)
class Under:
    """What a cap leaves, for one row on average: `tokens` that stay, `rows` (share) that stay, `over` (share) longer than the cap."""

    tokens: float
    rows: float
    over: float


@dataclass(frozen=True, slots=True)
class RowLengths:
    """`fixed`: (share of rows, tokens of them that are known), shares adding up to 1; behind them an answer of log-normal length with
    `mean` tokens and `sigma` of ln(tokens); mean 0: nothing behind them, the whole row is known.
    """

    fixed: tuple[tuple[float, float], ...]
    mean: float = 0.0
    sigma: float = 0.0

    @property
    def tokens(self) -> float:
        """Tokens of a row on average, without a cap."""
        return math.fsum(share * known for share, known in self.fixed) + self.mean

    def under(self, cap: int | None, *, cut: bool = False) -> Under:
        """With `cut` longer rows are cut at the cap, else dropped. A row whose prompt alone fills the cap has nothing to learn from and
        is dropped either way (where the prompt is known apart from the answer)."""
        if cap is None:
            return Under(self.tokens, 1.0, 0.0)
        tokens, rows, over = [], [], []
        for share, known in self.fixed:
            room = cap - known
            if self.mean <= 0:
                is_over = room < 0
                tokens.append(share * (cap if is_over and cut else 0.0 if is_over else known))
                rows.append(share * float(cut or not is_over))
                over.append(share * float(is_over))
            elif room <= 0:
                over.append(share)
            else:
                below = share_below(room, self.mean, self.sigma)
                answers = mean_below(room, self.mean, self.sigma)
                kept = share if cut else share * below
                tokens.append(share * (answers + (room * (1 - below) if cut else 0.0)) + kept * known)
                rows.append(kept)
                over.append(share * (1 - below))
        return Under(math.fsum(tokens), math.fsum(rows), math.fsum(over))

    def as_json(self) -> dict[str, object]:
        return {"fixed": [list(pair) for pair in self.fixed], "mean": self.mean, "sigma": self.sigma}

    @classmethod
    def of_json(cls, raw: dict[str, object]) -> RowLengths:
        fixed = raw["fixed"]
        assert isinstance(fixed, list)
        return cls(tuple((float(a), float(b)) for a, b in fixed), float(str(raw["mean"])), float(str(raw["sigma"])))


def buckets(lengths: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """At most `BUCKETS` (share, mean of the bucket) of nearly equal counts, by length: the sum of tokens is exact."""
    ordered, n = sorted(lengths), len(lengths)
    if not n:
        return ((1.0, 0.0),)
    edges = [n * k // min(n, BUCKETS) for k in range(min(n, BUCKETS) + 1)]
    return tuple(((b - a) / n, math.fsum(ordered[a:b]) / (b - a)) for a, b in pairwise(edges) if b > a)


def sigma_of(p50: float, p90: float) -> float:
    """Sigma of the log-normal distribution through two quantiles; 0 where they say nothing."""
    return math.log(p90 / p50) / P90 if p90 > p50 > 0 else 0.0


def share_below(x: float, mean: float, sigma: float) -> float:
    """P(X <= x) of a log-normal X."""
    return _normal(_place(x, mean, sigma)) if sigma > 0 else float(mean <= x)


def mean_below(x: float, mean: float, sigma: float) -> float:
    """E[X; X <= x]: what rows up to x hold, for one row on average."""
    return mean * _normal(_place(x, mean, sigma) - sigma) if sigma > 0 else mean * float(mean <= x)


def _place(x: float, mean: float, sigma: float) -> float:
    mu = math.log(mean) - sigma**2 / 2
    return (math.log(x) - mu) / sigma if x > 0 else -math.inf


def _normal(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
