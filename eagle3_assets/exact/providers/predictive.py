"""Does what was learned of a provider explain its answers everywhere? Posterior predictive checks, before anything counts as decided.

Belongs here: the parts of a window that are compared with the rest, the tests, their words. Does not belong here: readings and scores
(`learning.py`).

The world is wider than the readings: a reading that fits most answers is not yet the truth (Moonshot AI bills the end of texts and not
of calls; one rule for both was "decided" for line breaks that nobody ever saw). A right reading misses bills at the rate of answers that are
not canonical, wherever one looks; where some part of the answers misses more than that and more than the rest, something happens there
that no reading says.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from eagle3_assets.exact.search.habits import Habit
from eagle3_assets.exact.search.observations import Observation
from eagle3_assets.intervals import at_least, at_most

ALPHA = 1e-3  # of all looks at one window together
EXCESS_ALPHA = 0.01
TOLERATED = (
    0.02  # bills that are missed for no known reason, of every hundred 2, are believed to be damage that each row is weighed by
)
FEWEST = 4
# Bills a token that no encoder's ids meet, of a model of which no ids are known: 2.8e-5 to 1e-4 were measured of large ones
STEEPEST = 2e-4
# Where texts of one kind are changed on the way, those of the other kind are believed only if this share of missed bills can be ruled out
CLEARED, CLEARED_ALPHA = 0.05, 0.05
# A model's habits differ between prompts: a run may be so many times as frequent as elsewhere, and so much
HABIT_FACTOR, HABIT_SLACK = 3.0, 0.05


def clears(missed: Sequence[bool]) -> bool:
    """Whether so few bills are missed that little can be changed in these answers, though something is in others of their provider."""
    return at_most(sum(missed), len(missed), CLEARED) < CLEARED_ALPHA


def by_length(rows: Sequence[Observation], missed: Sequence[bool], expected: Sequence[float]) -> list[float]:
    """`expected` where no row with ids says how often the model leaves the encoder's path: as steep in the length as these misses are, no
    steeper than any large model measured. What a bill of long answers alone counts otherwise is steeper than that."""
    best, chosen = -math.inf, 0.0
    for rate in (0.0, *(10 ** (step / 4 - 5) for step in range(int(4 * (5 + math.log10(STEEPEST))) + 1))):
        total = 0.0
        for row, miss in zip(rows, missed, strict=True):
            p = TOLERATED + (1 - TOLERATED) * -math.expm1(-rate * row.billed)
            total += math.log(p if miss else 1 - p)
        if total > best:
            best, chosen = total, rate
    return [max(usual, -math.expm1(-chosen * row.billed)) for row, usual in zip(rows, expected, strict=True)]


def strange_run(edge: str, runs: Sequence[str], habit: Habit) -> str | None:
    """A run at an edge that a reading says the model wrote much more often than its habit is, in words; None without one."""
    n = len(runs)
    for run, count in Counter(runs).most_common():
        share = habit.share(run)
        if count >= FEWEST and at_least(count, n, min(HABIT_FACTOR * share + HABIT_SLACK, 1.0)) < ALPHA:
            return (
                f"{count} of {n} texts would have {run!r} at the {edge.replace('_', ' ')}, the model writes that in {share:.1%}"
            )
    return None


def contradiction(rows: Sequence[Observation], missed: Sequence[bool], expected: Sequence[float]) -> str | None:
    """Where the answers speak against a reading that misses the bills of `missed`, in words; None where nothing does. `expected`: how
    often a right reading misses each."""
    n, misses = len(rows), sum(missed)
    if n == 0:
        return None
    if at_least(misses, n, min(sum(expected) / n + TOLERATED, 1.0)) < EXCESS_ALPHA:
        return f"{misses} of {n} bills are met by nothing, {sum(expected):.1f} would be by answers that are not canonical"
    parts = [(name, inside) for name, inside in _parts(rows) if FEWEST <= sum(inside) <= n - FEWEST]
    for name, inside in parts:
        k, size = sum(m for m, here in zip(missed, inside, strict=True) if here), sum(inside)
        mean = sum(e for e, here in zip(expected, inside, strict=True) if here) / size
        rest = (misses - k + 0.5) / (n - size + 1)
        if at_least(k, size, max(mean, rest)) < ALPHA / len(parts):
            return f"{name}: {k} of {size} bills are met by nothing, of the others {misses - k} of {n - size}"
    return None


def _parts(rows: Sequence[Observation]) -> Iterator[tuple[str, list[bool]]]:
    """(name, who belongs to it) of each part that is looked at by itself."""
    yield "answers cut by length", [row.truncated for row in rows]
    yield "answers with reasoning", [bool(row.reasoning.text) for row in rows]
    yield "answers without reasoning", [not row.reasoning.text for row in rows]
    yield "requests with tools", [row.tools for row in rows]
    yield "requests without tools", [not row.tools for row in rows]
    lengths = sorted(row.billed for row in rows)
    low, high = lengths[len(lengths) // 3], lengths[2 * len(lengths) // 3]
    yield f"answers of at most {low} tokens", [row.billed <= low for row in rows]
    yield f"answers of more than {high} tokens", [row.billed > high for row in rows]
    months = [time.strftime("%Y-%m", time.gmtime(row.at)) if row.at > 0 else "" for row in rows]
    for month in sorted(set(months) - {""}):
        yield f"answers of {month}", [other == month for other in months]
