"""Which rows enter the corpus, and in which order: decided on a table of one light line per row, in SQL.

Belongs here: superseded attempts, admission, exact duplicates, the seeded shuffle, the cut into partitions.
Does not belong here: reading token files and writing forms (`merge.py`), the policy itself (`review/admission.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3_assets.campaign import Campaign
from eagle3_assets.review.admission import REASONS as ADMISSION_REASONS
from eagle3_assets.review.admission import drop_reason_sql

DROP_REASONS = {
    "superseded": "another attempt at the same sample and turn counts (the highest)",
    **ADMISSION_REASONS,
    "duplicate": "the same ids as another row that was kept (exact, across datasets)",
}

# Of equal rows the one with the strongest evidence is kept (grades as design section 5 lists them); ties by name, never by
# file order.
_GRADE_ORDER = "['A0', 'A1', 'A2', 'B1', 'B2', 'R', 'I', 'C1']"

_SQL = """
WITH attempts AS (
    SELECT *, row_number() OVER (
        PARTITION BY sample_id, turn ORDER BY attempt DESC, id_hash, dataset, shard, wire_sha256, grade, p_exact
    ) AS nth
    FROM lines
), admitted AS (
    SELECT *, CASE WHEN nth > 1 THEN 'superseded' ELSE ({admission}) END AS reason FROM attempts
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY id_hash, reason IS NULL
        ORDER BY list_position({grades}, grade), p_exact DESC, dataset, sample_id, turn
    ) AS copy
    FROM admitted
)
SELECT line, CASE WHEN reason IS NULL AND copy > 1 THEN 'duplicate' ELSE reason END AS reason
FROM ranked ORDER BY shuffle_key, sample_id, turn, line
"""


@dataclass(frozen=True, slots=True)
class Order:
    """`kept` int64 [rows]: line numbers in corpus order; `reasons` one entry a line, None where it is kept."""

    kept: npt.NDArray[np.int64]
    reasons: list[str | None]


def shuffle_key(seed: int, sample_id: str, turn: int) -> str:
    """A keyed hash: sorting by it is the shuffle. It depends on nothing but seed and sample, so a row keeps its place among
    others."""
    return hashlib.blake2b(f"{sample_id}\0{turn}".encode(), key=str(seed).encode(), digest_size=16).hexdigest()


def order_rows(campaign: Campaign, lines: pa.Table) -> Order:
    """Decide every line.

    `lines` has sample_id, turn, attempt, dataset, shard, grade, p_exact, wire_sha256, length, supervised, id_hash, shuffle_key.
    """
    import duckdb

    numbered = lines.append_column("line", pa.array(np.arange(lines.num_rows)))
    with duckdb.connect(":memory:") as db:
        db.register("lines", numbered)
        decided = db.execute(_SQL.format(admission=drop_reason_sql(campaign), grades=_GRADE_ORDER)).fetchall()
    line = np.array([i for i, _ in decided], dtype=np.int64)
    reason = [why for _, why in decided]
    reasons: list[str | None] = [None] * lines.num_rows
    for i, why in zip(line.tolist(), reason, strict=True):
        reasons[i] = why
    keep = np.array([why is None for why in reason], dtype=bool)
    return Order(line[keep], reasons)


def cut_by_tokens(lengths: npt.NDArray[np.int64], parts: int) -> list[tuple[int, int]]:
    """Contiguous half-open row ranges with nearly equal tokens: at most `parts`, none empty. `lengths` in corpus order, all > 0.

    hidden-states.md section 6: within 1 % of the mean at 80 partitions, and contiguous, which longest-first packing is not.
    """
    n = len(lengths)
    parts = min(parts, n)
    if parts == 0:
        return []
    total = np.cumsum(lengths)
    goals = total[-1] * np.arange(1, parts + 1) / parts
    middles = total - lengths / 2  # a row belongs to the side of the cut where its middle lies
    ends = np.searchsorted(middles, goals, side="left")
    ends[-1] = n
    for k in range(parts):  # at least one row each, from the left ...
        ends[k] = max(ends[k], (ends[k - 1] if k else 0) + 1)
    ends = np.minimum(ends, n - (parts - 1 - np.arange(parts)))  # ... and from the right
    starts = np.concatenate([[0], ends[:-1]])
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
