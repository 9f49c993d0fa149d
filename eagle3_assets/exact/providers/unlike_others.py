"""What a provider's answers never show though everybody else's do, or show alone: a server rewrites it, and no bill has to miss.

Belongs here: comparing the plain facts (`search/wire_facts.py`) of one provider's answers with those of all others. Does not belong here:
missed bills (`damage.py`), whitespace at the edges (`learning.py`), single rows (`search/selection.py`).

Every provider serves the same model. A server that halves blank lines keeps the count of two thirds of the answers that it changes, but no
answer of it has a blank line, and three quarters of all others have one. That is evidence only between like and like: answers are compared
with others of their length and kind, and where more than a few facts differ it is the prompts that differ, and nothing is said.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from eagle3_assets.exact.search.observations import Observation
from eagle3_assets.exact.search.wire_facts import AGAINST_SCHEMA, FIRST, LAST
from eagle3_assets.intervals import at_least, at_most

# A fact is missing (or added) where it is so many times as rare (or frequent) as among like answers elsewhere; a smaller factor asks for more
# certainty: prompts that differ a little move a fact by two
FACTOR, SMALL_FACTOR, SMALL_ALPHA = 10.0, 3.0, 1e-5
FEWEST_LIKE = 10  # answers elsewhere that say how frequent a fact is among like ones
# Facts that differ by chance alone: of hundreds, hardly one. More than this many, or this share, and the prompts differ.
DIFFERS_ALPHA, FEW_DIFFER, SHARE_DIFFERS = 1e-3, 4, 0.15
TESTABLE = 5.0  # expected answers
# How likely a server rewrites something that shows in one of the facts, before they are looked at. Judged: of 20 recorded endpoints none does
REWRITES, LEAST_WEIGHT, MOST_WEIGHT = 0.02, 0.3, 0.9
MOST_SHARE = 0.95
Group = tuple[bool, bool, int]


def unlike_parts(
    rows: Sequence[Observation], others: Sequence[Observation], *, rewrites_calls: bool
) -> list[dict[str, Any]] | None:
    """`damage_parts` for facts that only this provider lacks ({fact, absent: true, …}: answers without it are in doubt) or shows; None where
    its answers are not like the others', so that nothing can be said. `rewrites_calls`: its arguments are known to be written anew, and are
    put back."""
    elsewhere: defaultdict[Group, list[Observation]] = defaultdict(list)
    for row in others:
        elsewhere[group_of(row)].append(row)
    like = {group: _shares(found) for group, found in elsewhere.items() if len(found) >= FEWEST_LIKE}
    mine = [row for row in rows if group_of(row) in like]
    if not mine:
        return None
    sizes = Counter(map(group_of, mine))
    expected: Counter[str] = Counter()
    for group, n in sizes.items():
        for fact, share in like[group].items():
            expected[fact] += n * share  # type: ignore[assignment]
    seen = Counter(fact for row in mine for fact in row.facts if _counts(fact, rewrites_calls=rewrites_calls))
    facts = [fact for fact in {*expected, *seen} if _counts(fact, rewrites_calls=rewrites_calls)]
    testable = [f for f in facts if expected[f] >= TESTABLE or seen[f] >= TESTABLE]
    differing = {_family(f) for f in testable if chance_of(seen[f], expected[f], len(mine)) < DIFFERS_ALPHA}
    if len(differing) > max(FEW_DIFFER, SHARE_DIFFERS * len(testable)):
        return None
    out = []
    for fact in sorted(facts):
        k, mean = seen[fact], expected[fact]
        chance = chance_of(k, mean, len(mine))
        weight = _weight(chance, len(testable))
        factor = SMALL_FACTOR if chance < SMALL_ALPHA else FACTOR
        if weight < LEAST_WEIGHT:
            continue
        if k * factor <= mean:
            share = (mean - k) / (len(mine) - k)
            out.append({"fact": fact, "absent": True, "weight": weight, "share": round(min(share, MOST_SHARE), 4)})
        elif k >= factor * mean:
            out.append({"fact": fact, "weight": weight, "share": round(min(1 - mean / k, MOST_SHARE), 4)})
    return out


def _family(fact: str) -> str:
    """Facts of which one text has one: where one kind of ending goes, the others grow."""
    return next((fact[: fact.index(one)] + one for one in (FIRST, LAST) if one in fact), fact)


def _weight(chance: float, tests: int) -> float:
    """P(a server rewrites it, and not chance among so many tests)."""
    return round(min(REWRITES / (REWRITES + (1 - REWRITES) * chance * max(tests, 1)), MOST_WEIGHT), 4)


def group_of(row: Observation) -> Group:
    """Answers that are alike: of one kind, with or without tools, within a factor of two in length."""
    return row.section, row.tools, int(math.log2(max(row.billed, 1)))


def _shares(rows: Sequence[Observation]) -> dict[str, float]:
    told = Counter(fact for row in rows for fact in row.facts)
    return {fact: k / len(rows) for fact, k in told.items()}


def _counts(fact: str, *, rewrites_calls: bool) -> bool:
    """Whitespace at the edges has readings, values against the schema a check of their own, and what is asked is no server's doing."""
    if fact.startswith("calls: "):
        return not rewrites_calls and not fact.startswith(AGAINST_SCHEMA)
    return fact.startswith("text: ") or FIRST in fact or LAST in fact


def chance_of(k: int, mean: float, n: int) -> float:
    """P(a count at least as far from `mean` on its side), with half an answer for what nobody elsewhere shows."""
    share = min(max(mean, 0.5) / n, 1.0)
    return at_most(k, n, share) if k < mean else at_least(k, n, share)
