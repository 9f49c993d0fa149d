"""Whether a row of a tokens table is well formed: rules about ids and spans alone, needing no tokenizer and no journal.

Belongs here: vectorised tests of shape. Does not belong here: what the ids say (`invariants.py`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from eagle3_assets.review.rows.columns import Bools, Columns, list_column

Faults = dict[str, Bools]


def structure_faults(columns: Columns, n_vocab: int) -> Faults:
    """Fault name -> bool [rows], True where the row breaks the rule. Quarantined rows may be empty, no other may."""
    ids, (start, end) = columns.input_ids, columns.spans
    prompt_len = columns.integers("prompt_len")
    rows = len(columns)
    of_id, of_span = ids.row_of_value(), start.row_of_value()

    def any_id(bad: Bools) -> Bools:
        return _any_by_row(bad, of_id, rows)

    def any_span(bad: Bools) -> Bools:
        return _any_by_row(bad, of_span, rows)

    follows = np.zeros(len(of_span), dtype=bool)  # span k follows span k-1 of the same row
    follows[1:] = of_span[1:] == of_span[:-1]
    before = np.concatenate([[0], end.values[:-1]]) if len(of_span) else end.values
    counts = Counter(zip(columns.sample_ids, columns.integers("turn").tolist(), strict=True))
    return {
        "id outside the vocabulary": any_id((ids.values < 0) | (ids.values >= n_vocab)),
        "prompt_len outside the row": (prompt_len < 0) | (prompt_len > columns.lengths),
        "empty span": any_span(end.values <= start.values),
        "span outside the row": any_span((start.values < 0) | (end.values > columns.lengths[of_span])),
        "span inside the prompt": any_span(start.values < prompt_len[of_span]),
        "spans overlap or are out of order": any_span(follows & (start.values < before)),
        "no supervised id": columns.admitted & (columns.supervised <= 0),
        "two rows of one sample and turn": np.array(
            [counts[k] > 1 for k in zip(columns.sample_ids, columns.integers("turn").tolist(), strict=True)], dtype=bool
        ),
        "survivor id outside the vocabulary": _bad_survivors(columns, n_vocab),
    }


def _any_by_row(bad: Bools, row: np.ndarray[tuple[int], np.dtype[np.int64]], rows: int) -> Bools:
    out = np.zeros(rows, dtype=bool)
    out[row[bad]] = True
    return out


def _bad_survivors(columns: Columns, n_vocab: int) -> Bools:
    inner, offsets = list_column(columns.table, "survivors")
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(columns)), lengths)
    per_survivor = np.asarray(inner.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    ids = inner.flatten().to_numpy(zero_copy_only=False)
    return _any_by_row((ids < 0) | (ids >= n_vocab), np.repeat(rows, per_survivor), len(columns))
