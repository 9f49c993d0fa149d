"""`SampleRow`: one row of tokens/<ds>/<shard>.parquet (docs/design.md#columns), and the file's schema.

Belongs here: the type, the Arrow schema, reading and writing the file. Does not belong here: how a row comes about.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.errors import StoreError
from eagle3_assets.store import atomic_file


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One sample (a turn). Shapes and meaning of the columns: docs/design.md#columns; `input_ids` int32 [length]."""

    sample_id: str
    turn: int
    attempt: int
    dataset: str
    shard: str
    source: str
    provider: str | None
    model: str | None
    generation_id: str | None
    input_ids: tuple[int, ...]
    prompt_len: int
    loss_spans: tuple[tuple[int, int], ...]
    grade: str
    survivors: tuple[tuple[int, ...], ...]
    p_exact: float
    p_basis: str
    evidence: str
    reasons: tuple[str, ...]
    billed_prompt: int | None
    billed_completion: int | None
    billed_reasoning: int | None
    cost_usd: float | None
    finish_reason: str | None
    native_finish_reason: str | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    tokenizer_sha256: str
    template_sha256: str
    wire_sha256: str


SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        ("provider", pa.string()),
        ("model", pa.string()),
        ("generation_id", pa.string()),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("prompt_len", pa.int32(), nullable=False),
        pa.field("loss_spans", pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())])), nullable=False),
        pa.field("grade", pa.string(), nullable=False),
        pa.field("survivors", pa.list_(pa.list_(pa.int32())), nullable=False),
        pa.field("p_exact", pa.float64(), nullable=False),
        pa.field("p_basis", pa.string(), nullable=False),
        pa.field("evidence", pa.string(), nullable=False),
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
        ("billed_prompt", pa.int32()),
        ("billed_completion", pa.int32()),
        ("billed_reasoning", pa.int32()),
        ("cost_usd", pa.float64()),
        ("finish_reason", pa.string()),
        ("native_finish_reason", pa.string()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("max_tokens", pa.int32()),
        pa.field("tokenizer_sha256", pa.string(), nullable=False),
        pa.field("template_sha256", pa.string(), nullable=False),
        pa.field("wire_sha256", pa.string(), nullable=False),
    ]
)


# The columns that say the same in many rows; a dictionary of ids or of evidence costs time and saves nothing
_REPEATED = ["dataset", "shard", "source", "provider", "model", "grade", "p_basis", "finish_reason", "native_finish_reason"]
_REPEATED += ["tokenizer_sha256", "template_sha256"]


def to_table(rows: Iterable[SampleRow]) -> pa.Table:
    """Rows as an Arrow table with `SCHEMA`."""
    kept = list(rows)
    columns = []
    for column in SCHEMA:
        values = [getattr(row, column.name) for row in kept]
        if column.name == "input_ids":
            columns.append(_lists_of_ids(values))
        elif column.name == "loss_spans":
            columns.append(pa.array([[{"start": s, "end": e} for s, e in spans] for spans in values], column.type))
        else:
            columns.append(pa.array(values, column.type))
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _lists_of_ids(rows: Sequence[Sequence[int]]) -> pa.Array:
    """list<int32> of many long rows: by way of one array, not of one object an id."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(ids) for ids in rows], out=offsets[1:])
    ids = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))


def write_rows(path: Path, rows: Iterable[SampleRow]) -> None:
    """Atomically write one tokens file (zstd). The manifest is the caller's to commit."""
    write_table(path, to_table(rows))


def write_table(path: Path, table: pa.Table) -> None:
    """The same of rows that are a table already."""
    with atomic_file(path) as handle:
        pq.write_table(table, handle, compression="zstd", use_dictionary=_REPEATED)


def read_table(path: Path) -> pa.Table:
    """The file as a table; raises StoreError for a damaged one or one with other columns."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise StoreError(f"{path}: is missing; materialize its tokens asset") from None
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"{path}: is not readable Parquet ({str(error).splitlines()[0]}); remove it and materialize its tokens asset again"
        ) from None
    if table.schema.names != SCHEMA.names:
        odd = sorted(set(table.schema.names) ^ set(SCHEMA.names))
        raise StoreError(f"{path}: expected the columns of a tokens file, differs in {', '.join(odd)}")
    return table


def rows_of(table: pa.Table) -> Iterator[SampleRow]:
    """The table's rows as `SampleRow`s."""
    for record in table.to_pylist():
        record["input_ids"] = tuple(record["input_ids"])
        record["loss_spans"] = tuple((s["start"], s["end"]) for s in record["loss_spans"])
        record["survivors"] = tuple(tuple(s) for s in record["survivors"])
        record["reasons"] = tuple(record["reasons"])
        yield SampleRow(**record)
