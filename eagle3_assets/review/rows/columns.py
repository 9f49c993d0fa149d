"""A tokens table as numpy columns: what every judgement about many rows starts from.

Belongs here: lengths, residuals and evidence of a table of `SampleRow`s. Does not belong here: judging them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from eagle3_assets.grades import OUT

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list column: `values` flat, row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: npt.NDArray[Any]
    offsets: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def row(self, i: int) -> npt.NDArray[Any]:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def row_of_value(self) -> Ints:
        """For every flat value the row it belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.lengths)


def list_column(table: pa.Table, name: str) -> tuple[pa.Array, Ints]:
    """(flat values, offsets) of a list column, chunks joined. A null list counts as an empty one."""
    column = table.column(name)
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return array.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class Residual:
    """`d` int64 [rows] rebuilt minus billed; it means something only where `known`: billed, and something was rebuilt."""

    d: Ints
    known: Bools

    @property
    def wrong(self) -> Bools:
        """Where a bill is known and differs."""
        wrong: Bools = self.known & (self.d != 0)
        return wrong


class Columns:
    """Numpy views of a tokens table; everything is computed once, when asked for."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def with_column_values(self, values: Mapping[str, Sequence[Any]]) -> Columns:
        """The same rows with these columns replaced; what was computed of `input_ids`, `loss_spans` and `evidence` is kept."""
        table = self.table
        for name, column in values.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), pa.array(list(column), table.schema.field(at).type))
        out = Columns(table)
        out.__dict__.update({k: v for k, v in self.__dict__.items() if k in ("sample_ids", "input_ids", "spans", "evidence")})
        return out

    def strings(self, name: str) -> list[str | None]:
        values: list[str | None] = self.table.column(name).to_pylist()
        return values

    def integers(self, name: str) -> Ints:
        """An int column as int64; a null is 0 (see `present`)."""
        values: Ints = self.table.column(name).fill_null(0).to_numpy().astype(np.int64)
        return values

    def present(self, name: str) -> Bools:
        """Where a column is not null."""
        here: Bools = np.asarray(self.table.column(name).is_valid().to_numpy(), dtype=bool)
        return here

    @cached_property
    def sample_ids(self) -> list[str]:
        return [str(s) for s in self.strings("sample_id")]

    @cached_property
    def input_ids(self) -> Ragged:
        values, offsets = list_column(self.table, "input_ids")
        return Ragged(values.to_numpy(zero_copy_only=False), offsets)

    @cached_property
    def spans(self) -> tuple[Ragged, Ragged]:
        """Starts and ends of the loss spans; they share their offsets."""
        values, offsets = list_column(self.table, "loss_spans")
        start, end = (values.field(k).to_numpy(zero_copy_only=False).astype(np.int64) for k in (0, 1))
        return Ragged(start, offsets), Ragged(end, offsets)

    @cached_property
    def supervised(self) -> Ints:
        """Number of supervised ids of each row."""
        start, end = self.spans
        return sums_by_row(end.values - start.values, start)

    @cached_property
    def lengths(self) -> Ints:
        return self.input_ids.lengths

    @cached_property
    def grades(self) -> npt.NDArray[np.str_]:
        return np.array([str(g) for g in self.strings("grade")], dtype=np.str_)

    @cached_property
    def admitted(self) -> Bools:
        """False for the rows that no corpus takes: quarantined or unverified."""
        return ~np.isin(self.grades, OUT)

    @cached_property
    def evidence(self) -> list[dict[str, Any]]:
        return [_parsed(text) for text in self.strings("evidence")]

    @cached_property
    def reasons(self) -> list[list[str]]:
        return [list(r or ()) for r in self.table.column("reasons").to_pylist()]

    def with_reason(self, name: str) -> Bools:
        """Rows whose own reasons hold this check's name, alone or as `name: detail`."""
        return np.array([any(r.split(":", 1)[0] == name for r in row) for row in self.reasons], dtype=bool)

    def residual(self, part: str) -> Residual:
        """Rebuilt minus billed ids of each row. `part` is "completion" or "prompt".

        Recomputed from the ids, not believed. Only the provider's learned convention is taken from the evidence, as
        `evidence.convention.<part>`: billed = ids + convention for a right row (a provider that leaves out the end: -1).
        """
        prompt_len = self.integers("prompt_len")
        rebuilt = prompt_len if part == "prompt" else self.lengths - prompt_len
        convention = np.array([_convention(e, part) for e in self.evidence], dtype=np.int64)
        billed = f"billed_{part}"
        return Residual(rebuilt + convention - self.integers(billed), self.present(billed) & (rebuilt > 0))


def sums_by_row(values: Ints, ragged: Ragged) -> Ints:
    """Sum of flat `values` over each row of `ragged`."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    sums: Ints = total[ragged.offsets[1:]] - total[ragged.offsets[:-1]]
    return sums


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _convention(evidence: dict[str, Any], part: str) -> int:
    convention = evidence.get("convention")
    value = convention.get(part, 0) if isinstance(convention, dict) else 0
    return value if isinstance(value, int) else 0
