"""Does a provider sort the keys of tool arguments, and how often does the model sort them by itself?

Belongs here: weighing the two against each other, over all providers. Does not belong here: what one call shows (`search/key_order.py`),
what it means for a row (`damage.py`).

The model is the same everywhere, so one habit is looked for beside which few providers have to sort: where all show sorted keys it is the
model that writes them so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from eagle3_assets.exact.search.observations import Observation

CLASSES = ("keys", "listed")  # by what the schema says of the order: another one, the alphabet's
SORTERS = 0.05  # of providers: none was recorded, the simulator's public sources name one of some forty
LEFT_UNSORTED = 0.03  # of the calls of a server that sorts keys: what it cannot parse (a call that was cut) it returns as it is
SORTING_NATS = 5.0
FEWEST_CALLS = 3
# Shares of the model's own sorted calls that are tried, and the Beta prior of each class. Against the schema's order: models follow it (0 of
# 1 recorded calls). With it: 175 of 309 recorded calls of Kimi, which weigh little for another model or other tools.
SHARES = (0.003, 0.01, 0.03, *(0.05 * k for k in range(1, 20)), 0.97, 0.99, 0.997)
PRIOR: Mapping[str, tuple[float, float]] = {"keys": (0.3, 2.7), "listed": (1.7, 1.3)}
# What the share of a class weighs beside the calls of one tool with the same keys; of how many such the model's own order is kept
CLASS_WEIGHT, MOST_CALLS = 2.0, 200

Counts = Mapping[str, tuple[int, int]]


def count_sorted(rows: Sequence[Observation]) -> dict[str, tuple[int, int]]:
    """{class: (calls that came with sorted keys, calls that have two keys and more)}"""
    out = {}
    for name in CLASSES:
        told = [order.is_sorted for row in rows for order in row.ordered if order.listed == (name == "listed")]
        out[name] = sum(told), len(told)
    return out


def natural_order(windows: Sequence[Sequence[Observation]]) -> dict[str, Any]:
    """{class: the share of its calls whose keys the model sorts by itself}, the likeliest, where any provider may sort; `by_call` {tool with
    its keys: the same of them alone}, of those that are seen most."""
    told = [count_sorted(rows) for rows in windows]
    best, chosen = -math.inf, dict.fromkeys(CLASSES, 0.5)
    for keys, listed in product(SHARES, repeat=2):
        natural = {"keys": keys, "listed": listed}
        total = sum(math.log(natural[n]) * (PRIOR[n][0] - 1) + math.log1p(-natural[n]) * (PRIOR[n][1] - 1) for n in CLASSES)
        for counts in told:
            total += _either(math.log(SORTERS) + _log_chance(counts, None), math.log1p(-SORTERS) + _log_chance(counts, natural))
        if total > best:
            best, chosen = total, natural
    return _refined(chosen, windows, told)


def _refined(natural: Mapping[str, float], windows: Sequence[Sequence[Observation]], told: Sequence[Counts]) -> dict[str, Any]:
    """The shares as the calls of those that do not sort have them, between the steps of the grid."""
    odds = math.log(SORTERS / (1 - SORTERS))
    stay = [1.0 / (1.0 + math.exp(min(nats_of_sorting(counts, natural) + odds, 500.0))) for counts in told]
    out: dict[str, Any] = {}
    for name in CLASSES:
        a, b = PRIOR[name]
        k = sum(share * counts[name][0] for share, counts in zip(stay, told, strict=True))
        n = sum(share * counts[name][1] for share, counts in zip(stay, told, strict=True))
        out[name] = round((k + a) / (n + a + b), 5)
    seen: dict[tuple[str, str], list[float]] = {}
    for share, rows in zip(stay, windows, strict=True):
        for order in (order for row in rows for order in row.ordered):
            k_n = seen.setdefault((order.kind, order.of), [0.0, 0.0])
            k_n[0] += share * order.is_sorted
            k_n[1] += share
    most = sorted((item for item in seen.items() if item[1][1] >= FEWEST_CALLS), key=lambda item: -item[1][1])[:MOST_CALLS]
    out["by_call"] = {of: round((k + CLASS_WEIGHT * out[name]) / (n + CLASS_WEIGHT), 5) for (name, of), (k, n) in sorted(most)}
    return out


def sorts_keys(rows: Sequence[Observation], natural: Mapping[str, Any]) -> bool:
    """Whether a server sorts the keys of arguments: hardly any are not, and by itself the model sorts them in `natural` of its calls
    only."""
    counts = count_sorted(rows)
    nats = nats_of_sorting(counts, natural) + math.log(SORTERS / (1 - SORTERS))
    return sum(n for _, n in counts.values()) >= FEWEST_CALLS and nats > SORTING_NATS


def nats_of_sorting(counts: Counts, natural: Mapping[str, Any]) -> float:
    """How much likelier these calls are at a server that sorts."""
    return _log_chance(counts, None) - _log_chance(counts, natural)


def _log_chance(counts: Counts, natural: Mapping[str, Any] | None) -> float:
    """`natural` None: the server sorts."""
    total = 0.0
    for name, (k, n) in counts.items():
        share = 1 - LEFT_UNSORTED if natural is None else natural[name]
        total += k * math.log(share) + (n - k) * math.log1p(-share)
    return total


def _either(a: float, b: float) -> float:
    high = max(a, b)
    return high + math.log(math.exp(a - high) + math.exp(b - high))
