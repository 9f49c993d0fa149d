"""Money in flight: how many requests a sum can hold at once, and how long a run takes on what is left.

Belongs here: pure arithmetic of holds and intervals. Does not belong here: the ledger (`collect/money/ledger.py`), approvals (`plan.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from eagle3_assets.estimate.lengths import sigma_of

GUESS = 2.0  # without a pilot an answer may be half or twice as long as the campaign file says


def token_interval(rows: int, output: float, lengths: Mapping[str, float] | None) -> tuple[float, float]:
    """95 % for the sum of output tokens of `rows` answers, from the pilot's length distribution (n, mean, p50, p90, perhaps sd).

    Two parts: the mean is known from n answers only, and the rows scatter themselves. Without `sd` the spread is that of a
    log-normal distribution through p50 and p90 (answer lengths are about log-normal).
    """
    n = int(lengths.get("n", 0)) if lengths else 0
    if lengths is None or n < 2:
        return output / GUESS, output * GUESS
    sd = lengths.get("sd")
    if sd is None:
        sigma = sigma_of(lengths["p50"], lengths["p90"])
        sd = lengths["mean"] * math.sqrt(math.expm1(sigma**2))
    t = 1.96 + 2.37 / (n - 1) + 2.82 / (n - 1) ** 2  # Student's t at 97.5 %, expanded in 1/(n - 1)
    half = t * sd * math.sqrt(rows + rows**2 / n)
    return max(float(min(rows, output)), output - half), output + half


def in_flight_possible(left_usd: float, hold_usd: float, asked: int, *, bounded: bool = True) -> int:
    """Requests that `left_usd` can hold at once (2,000 x 16,384 tokens x 3.25 USD/M = 106 USD), at most `asked` if `bounded`."""
    if hold_usd <= 0:
        return asked
    possible = int(max(0.0, left_usd) / hold_usd)
    return min(asked, possible) if bounded else possible


def answer_seconds(rows: int, cost_usd: float, left_usd: float, hold_usd: float, asked: int, seconds: float) -> float:
    """Time for `rows` answers of `seconds` each that cost `cost_usd` together, with `left_usd` at the start.

    While x USD are spent, min(asked, (left - x) / hold) are in flight: dt = seconds * rows / cost * dx / n(x). Never below one in
    flight; money that does not last is spent to its last hold.
    """
    full = rows * seconds / asked
    if rows == 0 or cost_usd <= 0 or hold_usd <= 0:
        return full
    per_usd = rows * seconds / cost_usd
    spendable = min(cost_usd, max(0.0, left_usd - hold_usd))
    free = min(spendable, max(0.0, left_usd - asked * hold_usd))  # spent before holds bind
    bent = hold_usd * math.log((left_usd - free) / (left_usd - spendable)) if spendable > free else 0.0
    return per_usd * (free / asked + bent)
