"""Acceptance length τ out of counts, and its interval: conversations are drawn again, not tokens.

Belongs here: the estimator, the bootstrap. Does not belong here: what is counted (`walk.py`), groups (`acceptance.py`).

τ = mean ids out of one verification = 1 + sum over k of (rate of draft 0) x ... x (rate of draft k), rate k = accepted / tested.
Where every test ended (nothing censored) this is the plain mean of accepted + 1; where some verifications are known only up to a draft it is
Kaplan and Meier's estimate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES, CONFIDENCE = 2000, 0.95

Counts = npt.NDArray[np.float64]


def acceptance_length(tested: Counts, accepted: Counts) -> Any:
    """τ of counts [..., K]; nan where there is no verification."""
    rates = np.divide(accepted, tested, out=np.zeros_like(accepted), where=tested > 0)
    return np.where(tested[..., 0] > 0, 1.0 + np.cumprod(rates, axis=-1).sum(-1), np.nan)


def summarise(tested: Counts, accepted: Counts, *, seed: int = 0) -> dict[str, Any] | None:
    """τ over conversations (counts [conversations, K]) with a percentile interval, rate of each draft; None without any verification. The
    interval is None for a single conversation: nothing says how others differ."""
    real = tested[:, 0] > 0
    tested, accepted = tested[real], accepted[real]
    if not len(tested):
        return None
    n, total = len(tested), tested.sum(0)
    low = high = None
    if n > 1:
        taken = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)
        drawn = acceptance_length(taken @ tested, taken @ accepted)
        tail = (1 - CONFIDENCE) / 2
        low, high = (float(x) for x in np.nanquantile(drawn, [tail, 1 - tail]))
    rates = np.divide(accepted.sum(0), total, out=np.zeros_like(total), where=total > 0)
    return {
        "tau": float(acceptance_length(total, accepted.sum(0))),
        "low": low,
        "high": high,
        "conversations": n,
        "verifications": float(total[0]),
        "rates": [float(r) for r in rates],
    }
