"""How often a provider changes texts on the way, in which answers, from the bills that its readings miss.

Belongs here: the share of damaged rows by what may be damaged, and which plain fact of an answer (`search/wire_facts.py`) goes with missed
bills. Does not belong here: what damage does to a count (`search/deviations.py`), single rows (`search/selection.py`).

A server that rewrites something (numbers in arguments, JSON in texts) misses the bills of answers that have it, and meets some of them by
chance: those are wrong, and nothing in them shows it. So each fact is held against the misses: how much likelier are they where damage keeps
to the answers with this fact than where it is spread over all of a kind? What is left of that is a probability, never a verdict, and it only
adds doubt: a fact that goes with every missed bill may be what makes damage show in the count (a line break in front of the quotes that were
rewritten), and the damage that does not show is in the answers without it. Four worlds of benchmarks/foreign_worlds were wrong where
answers without the fact were taken to be sound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.exact.search.deviations import (
    KINDS,
    PRIOR_DAMAGE,
    PRIOR_DAMAGE_ROWS,
    SORTED_ROWS,
    Deviations,
    Kind,
    damage_of,
    same_count,
)
from eagle3_assets.exact.search.habits import Spelling
from eagle3_assets.exact.search.observations import Observation
from eagle3_assets.exact.search.wire_facts import AGAINST_SCHEMA
from eagle3_assets.intervals import at_least

# How likely damage keeps to answers with one fact, before the misses are looked at; each fact has to earn it against all others. Judged, not
# counted: rewriting worlds of benchmarks/foreign mostly do, no recorded provider rewrites texts
LOCAL = 0.2
SHARES = np.array([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 0.98])
LEAST_WEIGHT, MOST_PARTS = 0.01, 16
# Values against the tool's own schema are so many times as frequent as at all others: a server wrote them
STRANGE_FACTOR, STRANGE_ALPHA, FEWEST_STRANGE, STRANGE_WEIGHT = 3.0, 1e-3, 4, 0.9
FEWEST_INSIDE = 2
Logs = npt.NDArray[np.float64]
Evidence = tuple[float, float, float]


def damage_json(
    rows: Sequence[Observation], differences: Sequence[Mapping[int, float]], rates: Mapping[str, Any], *, sorts: bool
) -> dict[str, Any]:
    """`damage` {kind of row: share that was changed on the way}; `damage_parts` [{fact, weight: P(damage keeps to the answers with this
    fact), share: how many of them are then damaged}], the likeliest first. `differences`: per row, tokens that its bill has more than the
    readings say, with probabilities."""
    spelling = Spelling.of(rates)
    told = [_evidence(row, by, spelling, sorts=sorts) for row, by in zip(rows, differences, strict=True)]
    return {"damage": _by_kind(rows, told, rates["sorted_keys"], sorts=sorts), "damage_parts": _parts(rows, told)}


def strange_parts(rows: Sequence[Observation], others: Sequence[Observation]) -> list[dict[str, Any]]:
    """`damage_parts` of values against the tool's schema that this provider shows and the others do not (text for numbers): no bill has to
    be missed for them. Nothing without calls elsewhere."""
    calls, elsewhere = [row for row in rows if row.section], [row for row in others if row.section]
    out = []
    for fact, k in Counter(fact for row in calls for fact in row.facts if fact.startswith(AGAINST_SCHEMA)).items():
        usual = STRANGE_FACTOR * (sum(fact in row.facts for row in elsewhere) + 0.5) / (len(elsewhere) + 1)
        if elsewhere and k >= FEWEST_STRANGE and at_least(k, len(calls), min(usual, 1.0)) < STRANGE_ALPHA:
            out.append({"fact": fact, "weight": STRANGE_WEIGHT, "share": STRANGE_WEIGHT})
    return out


def _evidence(row: Observation, differences: Mapping[int, float], spelling: Spelling, *, sorts: bool) -> Evidence:
    """The probability of a row's bill where it is canonical and whole, where it is not canonical, where it is damaged."""
    given = Deviations(spelling.odd(row.drawn, row.billed), 0.0, same_count(row.kind, sorts=sorts), spelling.changes)
    odd = sum(share * given.met(by) for by, share in differences.items())
    damaged = sum(share * given.hits(by) for by, share in differences.items())
    contradicted = (1 - min(sum(differences.values()), 1.0)) * given.hits(1)
    return given.neither * differences.get(0, 0.0), odd, damaged + contradicted


def _by_kind(
    rows: Sequence[Observation], told: Sequence[Evidence], natural: Mapping[str, float], *, sorts: bool
) -> dict[str, float]:
    """What texts say is where each kind of calls starts from. Keys that a provider does not sort are calls like others."""
    seen: dict[Kind, list[Evidence]] = {kind: [] for kind in KINDS}
    for row, one in zip(rows, told, strict=True):
        seen["calls" if row.kind == "listed" and not sorts else row.kind].append(one)
    texts = damage_of(seen["text"])
    out = {kind: texts if kind == "text" else damage_of(seen[kind], max(texts, PRIOR_DAMAGE)) for kind in KINDS}
    if sorts:  # what was not sorted by itself was damaged; a row knows more of its own calls (`key_order.sorted_anew`)
        out |= {kind: damage_of(seen[kind], 1 - natural[kind], SORTED_ROWS) for kind in KINDS if kind in natural}
    else:
        out["listed"] = out["calls"]
    return {kind: round(share, 5) for kind, share in out.items()}


# ---------------------------------------------------------------------------------------------------- facts
def _parts(rows: Sequence[Observation], told: Sequence[Evidence]) -> list[dict[str, Any]]:
    where: dict[str, npt.NDArray[np.bool_]] = {}
    for k, row in enumerate(rows):
        for fact in row.facts:
            where.setdefault(fact, np.zeros(len(rows), dtype=bool))[k] = True
    where = {fact: inside for fact, inside in where.items() if FEWEST_INSIDE <= inside.sum() < len(rows)}
    if not where:
        return []
    logs = np.log(np.array([(1 - SHARES) * (a + b) + SHARES * c for a, b, c in told]).clip(1e-12))
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for k, row in enumerate(rows):
        groups[row.kind].append(k)
    spread = {kind: logs[part].sum(axis=0) for kind, part in groups.items()}
    whole = sum(_evidence_of(total, _SELDOM) for total in spread.values())
    alike = Counter(inside.tobytes() for inside in where.values())
    gains: dict[str, float] = {}
    shares: dict[str, float] = {}
    for fact, inside in where.items():
        here = logs[inside].sum(axis=0)
        rest = sum(_evidence_of(spread[kind] - logs[_of(part, inside)].sum(axis=0), _SELDOM) for kind, part in groups.items())
        gains[fact] = (
            float(np.exp(min(rest + _evidence_of(here, _HEAVY) - whole, 500.0))) * LOCAL / (len(alike) * alike[inside.tobytes()])
        )
        shares[fact] = _mean(here)
    total = (1 - LOCAL) + sum(gains.values())
    ranked = sorted(((gain / total, fact) for fact, gain in gains.items() if gain >= LEAST_WEIGHT * total), reverse=True)
    return [{"fact": fact, "weight": round(weight, 4), "share": round(shares[fact], 4)} for weight, fact in ranked[:MOST_PARTS]]


def _of(part: Sequence[int], inside: npt.NDArray[np.bool_]) -> list[int]:
    return [k for k in part if inside[k]]


def _seldom() -> Logs:
    """Log of a prior over SHARES (which are even in their logs): Beta, as `damage_of` has it."""
    a, b = PRIOR_DAMAGE * PRIOR_DAMAGE_ROWS, (1 - PRIOR_DAMAGE) * PRIOR_DAMAGE_ROWS
    weights = SHARES**a * (1 - SHARES) ** (b - 1)
    return np.asarray(np.log(weights / weights.sum()))


def _heavy() -> Logs:
    """The same where damage keeps to these answers: it is the rule there, not the exception."""
    weights = np.where(SHARES >= 0.05, 1.0, 1e-9)
    return np.asarray(np.log(weights / weights.sum()))


_SELDOM, _HEAVY = _seldom(), _heavy()


def _evidence_of(total: Logs, prior: Logs) -> float:
    """Log of the probability of the rows whose log-probabilities at each share sum to `total`."""
    summed = total + prior
    high = float(summed.max())
    return high + float(np.log(np.exp(summed - high).sum()))


def _mean(total: Logs) -> float:
    """The share of damaged rows that is expected where damage keeps to these."""
    weights = np.exp(total + _HEAVY - (total + _HEAVY).max())
    return float((weights * SHARES).sum() / weights.sum())
