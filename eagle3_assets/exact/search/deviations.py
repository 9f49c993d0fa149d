"""What may stand behind a bill beside the readings: answers that are not canonical, and texts that were changed on the way.

Belongs here: how likely each is and how far it moves a count, so that "none of these" can be weighed against what fits. Does not belong
here: the readings (`readings.py`), posteriors of rows (`selection.py`), measuring the rates (`canonicality.py`, `habits.py`, `learning.py`).

An answer is not canonical the likelier the longer it is (docs/research/exactness.md#3.5, `canonicality.py`); its ids are then
more than the encoder's by some change (measured on rows with ids; before any speak: docs/research/exactness.md#4i, 16 of 22
places one more, 5 equal, 1 less). A damaged text (characters lost, arguments written anew in another order or spelling) may be
off by anything; how often its count stays what it was depends on what was damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

# Rows by what a server may damage in them: texts only, calls, calls whose keys came sorted (and may have had another order) against their
# schema's order or with it (`key_order.py`)
Kind = Literal["text", "calls", "keys", "listed"]
KINDS: tuple[Kind, ...] = ("text", "calls", "keys", "listed")

# What is believed before any row speaks, and the deviations that this belief weighs (docs/research/exactness.md#0.3, #4i; an
# answer often has several places)
PRIOR_CHANGES: Mapping[int, float] = {0: 0.25, 1: 0.5, 2: 0.12, 3: 0.04, -1: 0.07, -2: 0.02}
PRIOR_CHANGES_ROWS = 8
FAR = 0.005  # any other change
PRIOR_DAMAGE, PRIOR_DAMAGE_ROWS = 0.01, 10.0
# Of damaged rows, those whose count stays the same: of texts in general; of arguments spelled anew 7.8 % (with numbers as text, or
# values left out, up to 40 %: benchmarks/foreign_worlds); with sorted keys 46.5 % (docs/research/exactness.md#2b)
SAME_COUNT: Mapping[Kind, float] = {"text": 0.25, "calls": 0.15, "keys": 0.2, "listed": 0.15}
SAME_COUNT_SORTED = 0.465
SAME_COUNT_LOCAL = 0.4  # where one kind of value or character is rewritten in place
# Of answers that were cut inside a character, by how many ids the bill has more than the text: the first bytes of it, which servers leave out
CUT_CHANGES: Mapping[int, float] = {1: 0.6, 2: 0.3, 3: 0.1}
# Most damage moves a count by little, some (a block written anew, a sentence lost) by anything up to a few dozen
WIDE, WIDEST = 0.3, 40
CUT_INSIDE = 1e-3  # how often one is cut so whose text has had no character of several ids so far
SORTED_ROWS = 50.0  # what the model's own order of keys, seen at other providers, weighs at one that sorts them


@dataclass(frozen=True, slots=True)
class Deviations:
    """Rates for one row: `odd` P(not canonical), `damaged` P(changed on the way), `same` the share of damaged rows of equal count;
    `changes` the share of each change of count among answers that are not canonical; `cut` P(cut by length inside a character)."""

    odd: float
    damaged: float
    same: float
    changes: Mapping[int, float]
    cut: float = 0.0

    @property
    def neither(self) -> float:
        return max((1 - self.odd) * (1 - self.damaged) * (1 - self.cut), 0.05)

    @property
    def unseen(self) -> float:
        """P(changed on the way, and the bill does not show it)."""
        return self.damaged * self.same

    def met(self, difference: int) -> float:
        """P(deviates, and so meets a bill that is `difference` more than the reading's count)."""
        met = self.odd * self.changes.get(difference, FAR) + self.damaged * self.hits(difference)
        return met + self.cut * CUT_CHANGES.get(difference, 0.0)

    def hits(self, difference: int) -> float:
        """P(a damaged row's bill is `difference` more than the count of the text that came)."""
        if difference == 0:
            return self.same
        return (1 - self.same) * (
            (1 - WIDE) * 0.5 * 0.5 ** min(abs(difference), 30) + WIDE / (2 * WIDEST) * (abs(difference) <= WIDEST)
        )


def shares_of_changes(counted: Mapping[int, int]) -> dict[int, float]:
    """The share of each change of count, from the rows counted and the prior."""
    total = sum(counted.values()) + PRIOR_CHANGES_ROWS
    keys = {*PRIOR_CHANGES, *(change for change in counted if abs(change) <= 5)}
    return {
        change: (counted.get(change, 0) + PRIOR_CHANGES.get(change, FAR) * PRIOR_CHANGES_ROWS) / total for change in sorted(keys)
    }


def same_count(kind: Kind, *, sorts: bool) -> float:
    """`sorts`: the provider writes all arguments in one style, perhaps with sorted keys."""
    return SAME_COUNT_SORTED if sorts and kind in ("keys", "listed") else SAME_COUNT[kind]


def damage_of(
    rows: Iterable[tuple[float, float, float]], prior: float = PRIOR_DAMAGE, prior_rows: float = PRIOR_DAMAGE_ROWS
) -> float:
    """The share of damaged rows that makes these likeliest. Each row: the probability of its bill where it is canonical and whole, where
    it is not canonical (both with how often that is), and where it is damaged. `prior` is what as many as `prior_rows` rows said before."""
    seen, share = list(rows), prior
    for _ in range(12):
        blamed = sum(share * c / max((1 - share) * (a + b) + share * c, 1e-12) for a, b, c in seen)
        share = (blamed + prior * prior_rows) / (len(seen) + prior_rows)
    return share
