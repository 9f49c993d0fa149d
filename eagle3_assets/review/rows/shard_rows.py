"""The rows of one shard in memory: put out, laid into one table, judged, from answers that were read once.

Belongs here: the one pass from rows to (table, verdicts). Does not belong here: the invariants, files, what is judged anew from files
(`token_rows.judge_tokens` on a table that was read).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import pyarrow as pa

from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.review.rows.quarantine import put_out
from eagle3_assets.review.rows.row_invariants import Rules, broken_rows
from eagle3_assets.review.rows.token_rows import RowChecker, judge_columns
from eagle3_assets.review.rows.wires import wires_of
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.wire.wire_answer import WireAnswer

CHANGED = ("grade", "p_exact", "reasons")  # what putting a row out changes


class ShardRows(NamedTuple):
    """`rows` and the same as a table, with every check's verdict on them."""

    rows: list[SampleRow]
    table: pa.Table
    verdicts: list[Verdict]


def judge_rows(
    rows: Sequence[SampleRow], answers: Collection[WireAnswer], rules: Rules, checker: RowChecker, n_vocab: int
) -> ShardRows:
    """Put out what a fatal invariant rejects, then judge the shard. `answers`: the finished ones that `rows` were made of."""
    columns = Columns(to_table(rows))
    broken = broken_rows(columns, wires_of(columns, answers), rules)
    kept = put_out(rows, broken)
    columns = columns.with_column_values({name: [getattr(row, name) for row in kept] for name in CHANGED})
    finished = {answer.key for answer in answers}
    verdicts = judge_columns(columns, n_vocab=n_vocab, finished_keys=finished, checker=checker, broken=broken, just_made=True)
    return ShardRows(kept, columns.table, verdicts)
