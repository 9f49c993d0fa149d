"""`corpus.too_long = "cut"`: rows longer than `corpus.max_length` end there.

Belongs here: cutting a tokens table. Does not belong here: `too_long = "drop"`, and what becomes of a row that has nothing left
(`order.py`).

A cut row has no end token unless it lies before the cut, and none is invented. Spans and survivors end with the ids; a survivor that now
equals the row is gone, for its doubt lay behind the cut. What the row was proved by stays as it was: what holds for all ids holds for
the first ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3_assets.campaign import Campaign
from eagle3_assets.review.rows.columns import Columns, Ragged

Ints = npt.NDArray[np.int64]


def cut_long_rows(campaign: Campaign, table: pa.Table) -> tuple[pa.Table, Ints]:
    """(the table with a column `truncated`, int64 [rows]: supervised ids of each row before the cut)."""
    policy, columns = campaign.corpus, Columns(table)
    before = columns.supervised
    limit = policy.max_length if policy.too_long == "cut" else None
    long = columns.lengths > limit if limit is not None else np.zeros(len(columns), dtype=bool)
    if limit is None or not long.any():
        return table.append_column("truncated", pa.array(long)), before
    changed = {
        "input_ids": _lists(cut_ids(columns.input_ids, limit), pa.int32()),
        "prompt_len": pa.array(np.minimum(columns.integers("prompt_len"), limit), pa.int32()),
        "loss_spans": _spans(columns, limit),
        "survivors": _survivors(table, columns, limit),
    }
    for name, array in changed.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, pa.field(name, array.type, nullable=False), array)
    return table.append_column("truncated", pa.array(long)), before


def cut_ids(ids: Ragged, limit: int) -> Ragged:
    """Every row's first `limit` values."""
    lengths = np.minimum(ids.lengths, limit)
    place = np.arange(len(ids.values)) - np.repeat(ids.offsets[:-1], ids.lengths)
    return Ragged(ids.values[place < limit], np.concatenate([[0], np.cumsum(lengths)]))


def _lists(ragged: Ragged, kind: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(ragged.offsets, pa.int32()), pa.array(ragged.values, kind))


def _spans(columns: Columns, limit: int) -> pa.ListArray:
    start, end = columns.spans
    inside = start.values < limit
    kept = np.bincount(start.row_of_value()[inside], minlength=len(columns))
    spans = pa.StructArray.from_arrays(
        [pa.array(start.values[inside], pa.int32()), pa.array(np.minimum(end.values[inside], limit), pa.int32())],
        ["start", "end"],
    )
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(kept)]), pa.int32()), spans)


def _survivors(table: pa.Table, columns: Columns, limit: int) -> pa.Array:
    """Rows that are short enough may have survivors that are not: those are cut too, as their row would have been."""
    rows = table.column("survivors").to_pylist()
    for i, survivors in enumerate(rows):
        if any(len(s) > limit for s in survivors) or (survivors and columns.lengths[i] > limit):
            own = columns.input_ids.row(i)[:limit].tolist()
            short = [s[:limit] for s in survivors]
            rows[i] = [s for k, s in enumerate(short) if s != own and s not in short[:k]]
    return pa.array(rows, pa.list_(pa.list_(pa.int32())))
