"""Which rows enter the corpus, where, and on which side of the split: decided on one light line a row, before anything is written.

Belongs here: superseded attempts, admission, weights, duplicates, the seeded shuffle, the deal into partitions.
Does not belong here: reading token files (`lines.py`), writing (`forms.py`), the policy itself (`review/rows/admission.py`), how near
duplicates and groups are found (`near.py`, `groups.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.groups import Groups, Members, group_rows
from eagle3_assets.corpus.lines import Lines
from eagle3_assets.corpus.near import find_near_duplicates, shingles_of
from eagle3_assets.grades import BY_STRENGTH, GRADES
from eagle3_assets.review.rows.admission import REASONS as ADMISSION_REASONS
from eagle3_assets.review.rows.admission import drop_reason_sql

DROP_REASONS = {
    "superseded": "another attempt at the same sample and turn counts (the highest)",
    "joined": "its answer is a loss span of the row of a later turn (corpus.join_turns)",
    **ADMISSION_REASONS,
    "cut_to_nothing": "cut at corpus.max_length, and nothing that the model generated lies before the cut",
    "weighted_out": "left out by corpus.weights: a seeded draw over conversations",
    "duplicate": "the same ids as another row that was kept (exact, across datasets)",
    "near_duplicate": "nearly the same response as another row that was kept (corpus.near_duplicates)",
    "between_splits": "joined later (corpus.additions) and belongs to rows of both sides of the split",
}

# Of equal rows the one that was there first (corpus.additions) with the strongest evidence is kept (grades as
# docs/design.md#files lists them); ties by name, never by file order.
_GRADE_ORDER = str([name for name in BY_STRENGTH if GRADES[name].admitted])
_STRENGTH = f"wave, list_position({_GRADE_ORDER}, grade), p_exact DESC, dataset, sample_id, turn, line"

# Rows longer than a hundredth of a part are dealt out one by one, the longest first: left where the shuffle puts them, one of 300 K
# tokens at a boundary would make a part of 1.7 M tokens 9 % too long.
LONG = 100

Ints = npt.NDArray[np.int64]

_SQL = """
WITH attempts AS (
    SELECT *, row_number() OVER (
        PARTITION BY sample_id, turn ORDER BY attempt DESC, row_hash, dataset, shard, wire_sha256, grade, p_exact
    ) AS nth
    FROM lines
), admitted AS (
    SELECT *, CASE
        WHEN nth > 1 THEN 'superseded'
        WHEN absorbed THEN 'joined'
        WHEN policy IS NOT NULL THEN policy
        WHEN supervised_kept <= 0 THEN 'cut_to_nothing'
        WHEN draw >= weight THEN 'weighted_out'
    END AS reason
    FROM (SELECT *, {admission} AS policy FROM attempts)
)
SELECT line, reason, first_value(line) OVER (PARTITION BY id_hash, reason IS NULL ORDER BY {strength}) AS first
FROM admitted ORDER BY {strength}
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A partition: rows [first, last) of the corpus; `wave` 0, or the place of its datasets in corpus.additions."""

    key: str
    first: int
    last: int
    wave: int


@dataclass(frozen=True, slots=True)
class Order:
    """`kept` int64 [rows]: line numbers in corpus order; `reasons` one entry a line, None where it is kept; `parts` in order;
    `group` and `split`, an entry a kept row, in corpus order."""

    kept: Ints
    reasons: list[str | None]
    parts: list[Part]
    group: list[str]
    split: list[str]


def order_rows(campaign: Campaign, lines: Lines) -> Order:
    """Decide every line: a reason, or a place."""
    reasons, ranked, repeats = _admit(campaign, lines)
    if campaign.corpus.near_duplicates and lines.sketches is not None:
        near = _near_duplicates(campaign, lines, [i for i in ranked if reasons[i] is None])
        reasons = [("near_duplicate" if i in near else why) for i, why in enumerate(reasons)]
        repeats = {**repeats, **near}
    groups = _groups(campaign, lines, sorted(ranked), repeats)
    reasons = [("between_splits" if why is None and i in groups.torn else why) for i, why in enumerate(reasons)]
    kept, parts = _place(campaign, lines, np.array([i for i, why in enumerate(reasons) if why is None], dtype=np.int64))
    at = kept.tolist()
    return Order(kept, reasons, parts, [groups.group[i] for i in at], [groups.split[i] for i in at])


# ---------------------------------------------------------------------------------------------------- who
def _admit(campaign: Campaign, lines: Lines) -> tuple[list[str | None], list[int], dict[int, int]]:
    """(reason of each line; the lines that policy admits, the strongest first; exact duplicate -> the line that it repeats)."""
    import duckdb

    table = lines.table.append_column("line", pa.array(np.arange(lines.table.num_rows)))
    weights = campaign.corpus.weights
    table = table.append_column(
        "weight", pa.array([weights.get(d, 1.0) for d in table.column("dataset").to_pylist()], pa.float64())
    )
    with duckdb.connect(":memory:") as db:
        db.register("lines", table)
        decided = db.execute(_SQL.format(admission=drop_reason_sql(campaign), strength=_STRENGTH)).fetchall()
    reasons: list[str | None] = [None] * table.num_rows
    ranked: list[int] = []
    repeats: dict[int, int] = {}
    for line, why, first in decided:
        if why is None:
            ranked.append(line)
            if first != line:
                repeats[line], why = first, "duplicate"
        reasons[line] = why
    return reasons, ranked, repeats


def _near_duplicates(campaign: Campaign, lines: Lines, ranked: list[int]) -> dict[int, int]:
    assert lines.sketches is not None
    id_starts = lines.id_starts
    conversation = lines.table.column("sample_id").combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)

    def shingles(line: int) -> npt.NDArray[np.uint64]:
        return shingles_of(lines.ids_of(line, id_starts), lines.starts.row(line), lines.ends.row(line))

    return find_near_duplicates(ranked, lines.sketches, conversation, shingles, campaign.corpus.near_duplicates)


def _groups(campaign: Campaign, lines: Lines, admitted: list[int], repeats: Mapping[int, int]) -> Groups:
    some = lines.table.take(pa.array(admitted, pa.int64()))
    wave, sample, prompt, key = (some.column(c).to_pylist() for c in ("wave", "sample_id", "prompt_hash", "group_key"))
    later = {line: found for line, found in zip(admitted, some.column("later_prompts").to_pylist(), strict=True) if found}
    return group_rows(Members(admitted, wave, sample, prompt, key, later), repeats, campaign.corpus.validation_share)


# ---------------------------------------------------------------------------------------------------- where
def _place(campaign: Campaign, lines: Lines, kept: Ints) -> tuple[Ints, list[Part]]:
    """(the kept lines in corpus order, the parts). Waves one after another, each shuffled and dealt by itself."""
    some = lines.table.take(pa.array(kept))
    wave, length = some.column("wave").to_numpy(), some.column("length").to_numpy()
    key = np.array(some.column("shuffle_key").to_pylist(), dtype="S32")
    placed: list[Ints] = []
    parts: list[Part] = []
    budget = 0.0
    for w in np.unique(wave).tolist():
        here = np.flatnonzero(wave == w)
        here = here[np.argsort(key[here], kind="stable")]
        tokens = int(length[here].sum())
        budget = budget or tokens / campaign.corpus.shards  # tokens of a part, by the first wave
        wanted = campaign.corpus.shards if not parts else max(1, round(tokens / budget))
        part = deal(length[here], wanted)
        # inside a part by the other half of the key: the first half has chosen the part
        inside = np.array([k[16:] + k[:16] for k in key[here].tolist()], dtype="S32")
        order = np.lexsort((inside, part))
        first = sum(len(p) for p in placed)
        ends = (first + np.cumsum(np.bincount(part))).tolist()
        for begin, end in zip([first, *ends[:-1]], ends, strict=True):
            parts.append(Part(f"{len(parts):05d}", begin, end, w))
        placed.append(kept[here[order]])
    return np.concatenate([np.empty(0, dtype=np.int64), *placed]), parts


def deal(lengths: Ints, parts: int) -> Ints:
    """int64 [rows]: the part of each row, such that parts hold nearly equal tokens and none is empty: at most `parts` of them.

    `lengths` in shuffled order, all > 0. Long rows go to the lightest part, the longest first; the others fill the parts up in the order
    given. So parts differ by little more than a hundredth, except where a single row is longer than a part. Integers throughout: a sum
    of floats may differ in its last bit between two processors.
    """
    parts = min(parts, len(lengths))
    if not parts:
        return np.empty(0, dtype=np.int64)
    total = int(lengths.sum())
    part, load = _deal_long(lengths, np.flatnonzero(lengths * (parts * LONG) > total), parts)
    short = np.flatnonzero(part < 0)
    if len(short):
        room = list(accumulate(max(total - tokens * parts, 0) for tokens in load))  # in units of tokens / parts
        filled = np.cumsum(lengths[short])
        goals = np.array([2 * int(filled[-1]) * r // room[-1] for r in room])  # twice the ids at which a part is full
        part[short] = np.searchsorted(goals[:-1], 2 * filled - lengths[short], side="right")  # by where a row's middle lies
    if len(np.unique(part)) < parts:  # few rows beside giants: all are long then
        part, _ = _deal_long(lengths, np.arange(len(lengths)), parts)
    return part


def _deal_long(lengths: Ints, rows: Ints, parts: int) -> tuple[Ints, list[int]]:
    """(the part of each of `rows`, -1 for the others; tokens of each part)."""
    part, load = np.full(len(lengths), -1, dtype=np.int64), [0] * parts
    lightest = [(0, k) for k in range(parts)]
    for row in rows[np.argsort(-lengths[rows], kind="stable")].tolist():
        tokens, k = heapq.heappop(lightest)
        part[row], load[k] = k, tokens + int(lengths[row])
        heapq.heappush(lightest, (load[k], k))
    return part, load
