"""Words that a provider's answers never hold though like answers elsewhere do, or that they alone hold: a filter on the way.

Belongs here: counting words by kinds of answers, and comparing one provider with all others. Does not belong here: facts of form
(`unlike_others.py`), what follows for a row (`search/selection.py`).

A filter that puts one word for another keeps the count of nearly all that it changes. It is seen by the words themselves, if answers are
many: of tens of thousands of words a few come ten times as often as anywhere else. Where many do, the prompts differ, and nothing is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.exact.providers.unlike_others import (
    FACTOR,
    FEWEST_LIKE,
    TESTABLE,
    Group,
    chance_of,
    group_of,
)
from eagle3_assets.exact.search.observations import Observation
from eagle3_assets.exact.search.wire_facts import WORD, Marks

WORD_ALPHA, DIFFERS_ALPHA, WEIGHT, ADDED_SHARE = 1e-7, 1e-5, 0.9, 0.9
FEW_DIFFER, SHARE_DIFFERS = 40, 0.02
Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WordCounts:
    """Of each kind of answers: how many there are, and [words] in how many of them each word of `vocabulary` stands."""

    vocabulary: Marks
    rows: Mapping[Group, int]
    counts: Mapping[Group, Counts]

    @classmethod
    def of(cls, rows: Sequence[Observation], vocabulary: Marks | None = None) -> WordCounts:
        """`vocabulary` None: all words of these answers."""
        groups: defaultdict[Group, list[Marks]] = defaultdict(list)
        for row in rows:
            groups[group_of(row)].append(row.words)
        told = {group: np.unique(np.concatenate(found), return_counts=True) for group, found in groups.items()}
        if vocabulary is None:
            vocabulary = (
                np.unique(np.concatenate([marks for marks, _ in told.values()])) if told else np.empty(0, dtype=np.uint32)
            )
        counts = {}
        for group, (marks, times) in told.items():
            counts[group] = np.zeros(len(vocabulary))
            counts[group][np.searchsorted(vocabulary, marks)] = times
        return cls(vocabulary, {group: len(found) for group, found in groups.items()}, counts)


def unlike_words(rows: Sequence[Observation], everybody: WordCounts, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """`damage_parts` for words that only this provider shows, or lacks. `everybody`: the counts of all providers, this one too; `names`: the
    words behind the marks that are known."""
    mine = WordCounts.of(rows, everybody.vocabulary)
    expected, seen, compared = np.zeros(len(mine.vocabulary)), np.zeros(len(mine.vocabulary)), 0
    for group, n in mine.rows.items():
        others = everybody.rows[group] - n
        if others >= FEWEST_LIKE:
            expected += n * (everybody.counts[group] - mine.counts[group]) / others
            seen += mine.counts[group]
            compared += n
    far = (np.maximum(expected, seen) >= TESTABLE) & ((seen <= expected / 3) | (seen >= 3 * np.maximum(expected, 0.5)))
    chances = {int(k): chance_of(int(seen[k]), float(expected[k]), compared) for k in np.flatnonzero(far)}
    testable = int((np.maximum(expected, seen) >= TESTABLE).sum())
    if sum(chance < DIFFERS_ALPHA for chance in chances.values()) > max(FEW_DIFFER, SHARE_DIFFERS * testable):
        return []
    sure = [k for k, chance in chances.items() if chance < WORD_ALPHA and int(mine.vocabulary[k]) in names]
    added = [k for k in sure if seen[k] >= FACTOR * expected[k]]
    lacking = [k for k in sure if seen[k] * FACTOR <= expected[k]]
    out: list[dict[str, Any]] = [{"fact": _fact(mine, k, names), "weight": WEIGHT, "share": ADDED_SHARE} for k in added]
    if (
        seen[added].sum() < (expected[lacking] - seen[lacking]).sum() / 2
    ):  # else what is lacking was put in another word, and shows
        out += [
            {"fact": _fact(mine, k, names), "absent": True, "weight": WEIGHT, "share": round(float(expected[k]) / compared, 4)}
            for k in lacking
        ]
    return sorted(out, key=lambda part: part["fact"])


def _fact(counts: WordCounts, k: int, names: Mapping[int, str]) -> str:
    return WORD + names[int(counts.vocabulary[k])]
