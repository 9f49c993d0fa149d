"""Turns of one sample whose prompts continue each other → one row with several loss spans.

Belongs here: deciding on the ids which rows of a tokens table go together, and the row that they become. Does not belong here: building
the rows of the turns (`exact/rows.py`: one row an assistant turn, always), admission (`review/rows/admission.py`), cuts by length.

A row may join the next admitted row of its sample only where that row's prompt begins with all of its ids, prompt and answer: then the
next row holds it already, and joining moves loss spans and copies no id. Where it does not, the template has rewritten the history
(Kimi K2.5 drops the reasoning of a tool loop once an answer has closed it), or the answer was not spelled as its text is, and both
rows stay as they are. The rule of the template is never assumed; the ids decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagle3_assets.grades import BY_STRENGTH, GRADES

Bools = npt.NDArray[np.bool_]

# Why a row is not joined to the turn before it.
APART = {
    "history_rewritten": "the prompt of the turn does not begin with what the turn before it ends with",
    "needs_the_model": "grade C1, or with survivors: the model's forward pass decides such a row, so it stays alone",
    "too_long": "together they are longer than corpus.max_length",
    "too_doubtful": "together they are less likely right than corpus.min_p_exact",
}
# A joined row is as good as its weakest turn (docs/design.md#grades; C1 never joins).
JOINED = tuple(name for name in BY_STRENGTH if GRADES[name].handed_on)


@dataclass(frozen=True, slots=True)
class Joined:
    """`table`: the rows given, in their order; those that took others in have their spans, `prompt_len`, `grade` and `p_exact`, and
    every row has `turns` list<int32>, the turns whose answers it supervises. `absorbed` bool [rows]: rows that are spans of
    another row now. `apart`: for each row the key of `APART` that kept it from the turn before it, or None.
    """

    table: pa.Table
    absorbed: Bools
    apart: list[str | None]

    @property
    def kept(self) -> pa.Table:
        """The rows that remain."""
        return self.table.filter(pa.array(~self.absorbed))


def join_turns(table: pa.Table, admitted: Bools, *, max_length: int | None = None, min_p_exact: float = 0.0) -> Joined:
    """Join the rows of `table` (the columns of a tokens file; all turns of a sample lie in one) that are `admitted`.

    Rows that are not admitted, or need the model, stay as they are; such a turn does not part its neighbours: it stands in the later
    prompt anyway, unsupervised. Nothing longer than `max_length` ids is joined, nor what is together less likely right than `min_p_exact`: the
    next turn then begins a row. Linear in the number of ids.
    """
    rows = _Rows.of(table)
    apart: list[str | None] = ["needs_the_model" if a else None for a in rows.alone & admitted]
    runs: list[list[int]] = []
    for sample in rows.samples(admitted & ~rows.alone):
        runs.append(sample[:1])
        for before, i in pairwise(sample):
            apart[i] = rows.parted(before, i, max_length)
            if apart[i] is None and _p_exact([rows.doubt(k) for k in (*runs[-1], i)]) < min_p_exact:
                apart[i] = "too_doubtful"
            if apart[i] is None:
                runs[-1].append(i)
            else:
                runs.append([i])
    absorbed = np.zeros(table.num_rows, dtype=bool)
    for run in runs:
        absorbed[run[:-1]] = True
    return Joined(_with_runs(table, [run for run in runs if len(run) > 1]), absorbed, apart)


@dataclass(frozen=True, slots=True)
class _Rows:
    sample_ids: list[str]
    turns: list[int]
    prompt_len: list[int]
    grades: list[str]
    p_exact: list[float]
    alone: Bools
    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, table: pa.Table) -> _Rows:
        column = table.column("input_ids").combine_chunks()
        column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
        survivors = np.array([len(s or ()) > 0 for s in table.column("survivors").to_pylist()], dtype=bool)
        grades = table.column("grade").to_pylist()
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        return cls(
            table.column("sample_id").to_pylist(),
            table.column("turn").to_pylist(),
            table.column("prompt_len").to_pylist(),
            grades,
            table.column("p_exact").to_pylist(),
            survivors | np.array([g not in JOINED for g in grades], dtype=bool),
            column.flatten().to_numpy(zero_copy_only=False),
            np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        )

    def samples(self, which: Bools) -> Iterator[list[int]]:
        """The rows of each sample among `which`, in order of turn."""
        of_sample: dict[str, list[int]] = {}
        for i in np.flatnonzero(which).tolist():
            of_sample.setdefault(self.sample_ids[i], []).append(i)
        for rows in of_sample.values():
            yield sorted(rows, key=lambda i: self.turns[i])

    def doubt(self, i: int) -> tuple[str, float]:
        return self.grades[i], self.p_exact[i]

    def ids(self, i: int) -> npt.NDArray[Any]:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def parted(self, before: int, i: int, max_length: int | None) -> str | None:
        """What keeps row `i` from taking in row `before`."""
        first, second = self.ids(before), self.ids(i)
        if self.prompt_len[i] < len(first) or not np.array_equal(second[: len(first)], first):
            return "history_rewritten"
        return "too_long" if max_length is not None and len(second) > max_length else None


def _with_runs(table: pa.Table, runs: list[list[int]]) -> pa.Table:
    """`table` in which the last row of each run stands for all of it, and the column `turns`."""
    names = ("loss_spans", "prompt_len", "grade", "p_exact")
    columns: dict[str, list[Any]] = {name: table.column(name).to_pylist() for name in names}
    turns = [[turn] for turn in table.column("turn").to_pylist()]
    for run in runs:
        last, first = run[-1], run[0]
        columns["loss_spans"][last] = [span for i in run for span in columns["loss_spans"][i]]
        columns["prompt_len"][last] = columns["prompt_len"][first]
        columns["p_exact"][last] = _p_exact([(columns["grade"][i], columns["p_exact"][i]) for i in run])
        columns["grade"][last] = max((columns["grade"][i] for i in run), key=JOINED.index)
        turns[last] = [turn for i in run for turn in turns[i]]
    for name in names:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(name), pa.array(columns[name], table.schema.field(name).type))
    return table.append_column("turns", pa.array(turns, pa.list_(pa.int32())))


def _p_exact(turns: list[tuple[str, float]]) -> float:
    """Every id of every turn is right. Evidence of a turn is its own, so the probabilities multiply; the doubt about turns that were
    imported without a bill is one doubt about their source, however many they are: the lower of both counts."""
    imported = [p for grade, p in turns if grade == "I"]
    return min(math.prod(p for grade, p in turns if grade != "I"), *imported, 1.0)
