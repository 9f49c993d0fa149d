"""Statistics over strata that single rows cannot show: where mismatches sit, when they began, whether chance explains them.

Belongs here: the mathematics (binomial test, Benjamini-Hochberg, CUSUM, slope, cost) over plain arrays. Does not belong here: reading
files (`figures.py`), wording (`page.py`). Sources: docs/research/exactness.md#3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.intervals import lower_bound, regularized_beta
from eagle3_assets.review.report.billing import describe_residuals
from eagle3_assets.review.rows.columns import Ints

TOLERATED = 0.01  # mismatch rate of a calibrated provider: equality share >= 0.99 (docs/research/exactness.md#3.1)
SHIFTED = 0.10  # the rate that a changed server shows at least
ALARM = math.log(1e5)  # luck alone raises it in fewer than one of 100,000 rows (Wald), a shift to 10 % after about 80
FALSE_DISCOVERIES = 0.05
WINDOWS = 4
# A mean is called drifted beyond so many standard errors (luck: one dataset of 370) and when it is off by more than a tenth.
DRIFT_Z, DRIFT_SHARE, Z_MOST = 3.0, 0.10, 99.0
COST_SLACK = 1e-9 + 5e-3  # USD figures are rounded by servers to six digits; half a percent of a small answer

Floats = npt.NDArray[np.float64]
Stratum = tuple[str, str, bool, str]  # provider, model, tools, finish reason


@dataclass(frozen=True, slots=True)
class Billed:
    """Rows with a bill. `d` rebuilt minus billed completion ids, `billed` those billed, `reasoning` residual (nan: not billed),
    `cost` as settled and `price` as the list says (USD; nan: unknown), `time` unix seconds (nan: unknown). All [rows]."""

    strata: list[Stratum]
    d: Ints
    billed: Ints
    reasoning: Floats
    cost: Floats
    price: Floats
    time: Floats


def mismatch_p(wrong: int, n: int, rate: float = TOLERATED) -> float:
    """P(at least `wrong` mismatches of `n`) at the tolerated rate: small when chance does not explain them."""
    return 1.0 if wrong == 0 else regularized_beta(rate, wrong, n - wrong + 1)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p (q) values: calling everything with q <= x a discovery makes at most a share x of them false."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    q, least = [1.0] * len(p), 1.0
    for rank in range(len(p), 0, -1):
        i = order[rank - 1]
        least = min(least, p[i] * len(p) / rank)
        q[i] = least
    return q


def cusum_alarm(wrong: npt.NDArray[np.bool_]) -> int | None:
    """Position of the row at which the log-likelihood ratio of `SHIFTED` against `TOLERATED` crosses `ALARM`, in order of time."""
    bad, good = math.log(SHIFTED / TOLERATED), math.log((1 - SHIFTED) / (1 - TOLERATED))
    total = 0.0
    for k, is_wrong in enumerate(wrong.tolist()):
        total = max(0.0, total + (bad if is_wrong else good))
        if total >= ALARM:
            return k
    return None


def length_slope(wrong: npt.NDArray[np.bool_], n: Ints) -> dict[str, float | None]:
    """Least squares of 1[d != 0] on ids: `intercept` is a quirk per response, `per_1000` what grows with length."""
    if len(n) < 3 or n.min() == n.max():
        return {"intercept": None, "per_1000": None}
    slope, intercept = np.polyfit(n.astype(np.float64), wrong.astype(np.float64), 1)
    return {"intercept": float(intercept), "per_1000": float(slope * 1000)}


def monitored(rows: Billed) -> dict[str, Any]:
    """{"strata": [...], "flagged": [...], "windows": [...]} as plain JSON, strata in order of their names."""
    lines = []
    for key in sorted(set(rows.strata)):
        mine = np.array([k == key for k in rows.strata], dtype=bool)
        lines.append(_line(key, rows, np.flatnonzero(mine)))
    for line, q in zip(lines, benjamini_hochberg([line["p"] for line in lines]), strict=True):
        line["q"], line["flagged"] = q, q <= FALSE_DISCOVERIES
    flagged = [
        f"{line['provider']}, {line['finish_reason']}" + (", tools" if line["tools"] else "") for line in lines if line["flagged"]
    ]
    return {"strata": lines, "flagged": flagged}


def _line(key: Stratum, rows: Billed, at: Ints) -> dict[str, Any]:
    at = at[np.argsort(np.nan_to_num(rows.time[at], nan=np.inf), kind="stable")]
    d, wrong = rows.d[at], rows.d[at] != 0
    reasoning, known = rows.reasoning[at], np.isfinite(rows.reasoning[at])
    asked = np.isfinite(rows.cost[at]) & np.isfinite(rows.price[at])
    off = np.abs(rows.cost[at] - rows.price[at])[asked]
    equal_cost = off <= COST_SLACK * np.maximum(rows.price[at][asked], 1e-6)
    alarm = cusum_alarm(wrong)
    first_time = None if alarm is None or not np.isfinite(rows.time[at][alarm]) else float(rows.time[at][alarm])
    return {
        "provider": key[0],
        "model": key[1],
        "tools": key[2],
        "finish_reason": key[3],
        **describe_residuals(d),
        "p": mismatch_p(int(wrong.sum()), len(d)),
        "slope": length_slope(wrong, rows.billed[at]),
        "reasoning": {"n": int(known.sum()), "equal_share": float((reasoning[known] == 0).mean()) if known.any() else None},
        "cost": {"n": int(asked.sum()), "equal_share": float(equal_cost.mean()) if asked.any() else None},
        "cusum_alarm": None if alarm is None else {"row": alarm, "time": first_time},
        "windows": [_window(part) for part in np.array_split(wrong, WINDOWS) if len(part)],
    }


def _window(wrong: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Equality share of one stretch of time (strata are cut into `WINDOWS` of equal size)."""
    n, equal = len(wrong), int((~wrong).sum())
    return {"n": n, "equal_share": equal / n, "equal_share_lower": lower_bound(equal, n)}


def length_drift(responses: Ints, pilot: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Mean response length beside the pilot's; None where the pilot asked nothing of the dataset. `z` takes the spread from the rows, and
    stops at `Z_MOST` (rows of one length have none)."""
    if not pilot or not pilot.get("n") or len(responses) < 2:
        return None
    mean, expected, spread = float(responses.mean()), float(pilot["mean"]), float(responses.std(ddof=1))
    error = spread * math.sqrt(1 / int(pilot["n"]) + 1 / len(responses))
    z = math.copysign(min(Z_MOST, abs(mean - expected) / max(error, 1e-9)), mean - expected)
    return {"mean": mean, "pilot_mean": expected, "ratio": mean / expected if expected else None, "z": z}
