"""How many rebuilt rows are right: tokens files against truth. The only reader of truth beside tests.

Belongs here: comparing. Does not belong here: anything that a stage of the platform could read; nothing here flows back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from openrouter_standin.errors import StandinError
from openrouter_standin.truth.ledger import TRUTH_FILE

_COLUMNS = ["dataset", "grade", "provider", "generation_id", "source", "prompt_len", "input_ids"]
_COUNTS = ("rows", "no_truth", "exact", "completion_exact")


@dataclass(frozen=True)
class _Row:
    dataset: str
    grade: str
    provider: str
    prompt_len: int
    ids: np.ndarray[Any, np.dtype[np.int32]]


def _rows(path: Path) -> Iterable[tuple[str | None, _Row]]:
    try:
        table = pq.read_table(path, columns=_COLUMNS)
    except (OSError, pa.ArrowException) as error:
        raise StandinError(f"{path}: is no readable tokens file ({str(error).splitlines()[0]})") from None
    lists = table["input_ids"].combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0) if lists.num_chunks else pa.array([], type=lists.type)
    offsets = lists.offsets.to_numpy()
    values = lists.values.to_numpy()
    rest = table.select([c for c in _COLUMNS if c != "input_ids"]).to_pylist()
    for k, row in enumerate(rest):
        ids = values[offsets[k] : offsets[k + 1]]
        provider = row["provider"] or f"({row['source']})"
        yield row["generation_id"], _Row(row["dataset"], row["grade"], provider, row["prompt_len"], ids)


def _verdict(row: _Row, truth: dict[str, Any]) -> tuple[bool, bool]:
    """(all ids right, completion ids right)."""
    prompt, completion = truth["prompt_ids"], truth["completion_ids"]
    whole = np.array_equal(row.ids, np.array(prompt + completion, dtype=np.int64))
    return whole, np.array_equal(row.ids[row.prompt_len :], np.array(completion, dtype=np.int64))


class _Tally:
    """Counts for one group of rows."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_COUNTS, 0)

    def add(self, verdict: tuple[bool, bool] | None) -> None:
        self.counts["rows"] += 1
        if verdict is None:
            self.counts["no_truth"] += 1
        else:
            self.counts["exact"] += verdict[0]
            self.counts["completion_exact"] += verdict[1]

    def shown(self) -> dict[str, Any]:
        """Counts, and `exact_share` = exact / rows with truth (None without any)."""
        judged = self.counts["rows"] - self.counts["no_truth"]
        return {**self.counts, "exact_share": self.counts["exact"] / judged if judged else None}


def score(folder: Path, tokens_files: list[Path]) -> dict[str, Any]:
    """Compare every row with the truth of the stand-in in `folder`.

    Returns {"total": counts, "datasets": {name: {**counts, "grades": {grade: counts}, "providers": {name: counts}}}} with
    counts = {rows, no_truth, exact, completion_exact, exact_share}. `exact`: input_ids equal the truth's prompt + completion;
    `no_truth`: imported rows, or rows that another server answered. Raises StandinError.
    """
    waiting: dict[str, list[_Row]] = defaultdict(list)
    judged: list[tuple[_Row, tuple[bool, bool] | None]] = []
    for path in tokens_files:
        for generation_id, row in _rows(path):
            if generation_id is None:
                judged.append((row, None))
            else:
                waiting[generation_id].append(row)
    for truth in _truths(folder / TRUTH_FILE, waiting):
        judged += [(row, _verdict(row, truth)) for row in waiting.pop(truth["generation_id"], [])]
    judged += [(row, None) for rows in waiting.values() for row in rows]
    return _summary(judged)


def _truths(path: Path, wanted: dict[str, list[_Row]]) -> Iterable[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as handle:
        for line in handle:
            if line.endswith(b"\n") and line.split(b'"', 4)[3].decode() in wanted:
                yield orjson.loads(line)


def _summary(judged: list[tuple[_Row, tuple[bool, bool] | None]]) -> dict[str, Any]:
    total = _Tally()
    per_dataset: dict[str, _Tally] = defaultdict(_Tally)
    groups: dict[tuple[str, str, str], _Tally] = defaultdict(_Tally)
    for row, verdict in judged:
        cells = (groups[row.dataset, "grades", row.grade], groups[row.dataset, "providers", row.provider])
        for tally in (total, per_dataset[row.dataset], *cells):
            tally.add(verdict)
    datasets: dict[str, Any] = {
        name: {**per_dataset[name].shown(), "grades": {}, "providers": {}} for name in sorted(per_dataset)
    }
    for name, kind, value in sorted(groups):
        datasets[name][kind][value] = groups[name, kind, value].shown()
    return {"total": total.shown(), "datasets": datasets}
