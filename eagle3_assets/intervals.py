"""Exact binomial tails and (Clopper-Pearson) bounds, from the incomplete beta function alone.

Belongs here: the mathematics of counts and of confidence bounds. Does not belong here: what is counted.
"""

from __future__ import annotations

import math

_TINY = 1e-300


def regularized_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), a and b > 0, 0 <= x <= 1. Relative error below 1e-12 for a + b up to some millions.

    Lentz's evaluation of the continued fraction (Numerical Recipes, 3rd edition, section 6.4).
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1.0) / (a + b + 2.0):  # the fraction converges fast on this side; the other side by symmetry
        return math.exp(log_front) * _beta_fraction(x, a, b) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(1.0 - x, b, a) / b


def at_least(k: int, n: int, p: float) -> float:
    """P(X >= k), X binomial (n, p)."""
    if k <= 0:
        return 1.0
    return 0.0 if k > n else regularized_beta(p, k, n - k + 1)


def at_most(k: int, n: int, p: float) -> float:
    """P(X <= k), X binomial (n, p)."""
    return 1.0 - at_least(k + 1, n, p)


def _beta_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, _inverse(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        d, c = _inverse(1.0 + even * d), _away_from_zero(1.0 + even / c)
        result *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d, c = _inverse(1.0 + odd * d), _away_from_zero(1.0 + odd / c)
        step = d * c
        result *= step
        if abs(step - 1.0) < 1e-15:
            return result
    raise ArithmeticError(f"the incomplete beta function did not converge at x={x}, a={a}, b={b}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _inverse(value: float) -> float:
    return 1.0 / _away_from_zero(value)


def beta_quantile(p: float, a: float, b: float) -> float:
    """x with I_x(a, b) = p, by bisection to the last bit that a float holds."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if regularized_beta(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def lower_bound(successes: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson lower bound of a share, `successes` seen in `n`; 0.0 when n is 0."""
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, found {successes} of {n}")
    if successes == 0:
        return 0.0
    return beta_quantile(1.0 - confidence, successes, n - successes + 1)


def upper_bound(events: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound of a rate, `events` seen in `n`; 1.0 when n is 0."""
    return 1.0 - lower_bound(n - events, n, confidence)


def interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of a share; (0, 1) of nothing."""
    if n == 0:
        return 0.0, 1.0
    tail = (1.0 + confidence) / 2
    return lower_bound(successes, n, tail), upper_bound(successes, n, tail)
