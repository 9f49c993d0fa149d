"""Writing both forms of a corpus: archive parts (Parquet, lineage beside the ids) and training form (mapped ids, masks, index).

Belongs here: file formats, the second pass over the spool. Does not belong here: what goes where (`order.py`), the manifest (`merge.py`).

Memory: one part at a time (its ids twice, its masks, its lineage).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from eagle3_assets.corpus.lines import Lines
from eagle3_assets.corpus.order import Order
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.rows.columns import Columns

# small row groups: one row of the archive can be read without its neighbours (docs/research/perf-baselines.md#6)
ROWS_PER_GROUP = 64
# Real ids of code, 64 rows a group: 1.36 bytes an id at level 6, 1.44 at 3, 1.56 at 1; bytes of equal weight put together
# (BYTE_STREAM_SPLIT) take 1.52, for a repeated word is then cut into four (benchmarks/corpus.py makes such ids).
LEVEL = 6
_DICTIONARY = ["dataset", "shard", "source", "provider", "grade", "p_basis", "finish_reason", "split"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What the manifest says of a part. `content`: xxh3-128 over its rows (names, ids, spans, survivors) in order, which decides its
    hidden states; lineage columns and the split are not in it."""

    key: str
    rows: int
    first: int
    tokens: int
    supervised: int
    wave: int
    content: str


def part_contents(lines: Lines, order: Order) -> list[str]:
    """The `content` of each part, known before it is written."""
    hashes = lines.table.column("row_hash").take(pa.array(order.kept)).to_pylist()
    return [xxhash.xxh3_128_hexdigest("".join(hashes[p.first : p.last]).encode()) for p in order.parts]


def write_forms(folder: Path, lines: Lines, order: Order) -> list[PartFacts]:
    """Write part-*.parquet, tokens.bin, loss_mask.bin and index.parquet into `folder`."""
    lengths, id_starts, contents = lines.table.column("length").to_numpy(), lines.id_starts, part_contents(lines, order)
    facts: list[PartFacts] = []
    index: list[pa.Table] = []
    offset = 0
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "loss_mask.bin").open("wb") as masks:
        for n, part in enumerate(order.parts):
            chosen = order.kept[part.first : part.last]
            rows = lines.lineage_of(chosen)
            rows = rows.append_column("group", pa.array(order.group[part.first : part.last], pa.string()))
            rows = rows.append_column("split", pa.array(order.split[part.first : part.last], pa.string()))
            flat = np.concatenate([lines.ids_of(i, id_starts) for i in chosen.tolist()])
            mask = paint_mask(rows, lengths[chosen])
            tokens.write(flat.data)
            masks.write(mask.data)
            write_part(folder / f"part-{part.key}.parquet", rows, flat, lengths[chosen])
            starts = offset + np.concatenate([[0], np.cumsum(lengths[chosen])[:-1]])
            index.append(index_of(rows, part.key, part.first, starts, lengths[chosen]))
            offset += len(flat)
            supervised = int(mask.sum(dtype=np.int64))
            facts.append(PartFacts(part.key, len(chosen), part.first, len(flat), supervised, part.wave, contents[n]))
            publish(Step("corpus", len(order.parts) + n + 1, 2 * len(order.parts), f"write part {part.key}"))
    pq.write_table(pa.concat_tables(index), folder / "index.parquet", compression="zstd")
    return facts


def paint_mask(rows: pa.Table, lengths: Ints) -> npt.NDArray[np.uint8]:
    """uint8 [sum of lengths]: 1 on the ids inside `loss_spans` (unshifted), 0 elsewhere. Spans of a row must not overlap."""
    start, end = Columns(rows).spans
    first = np.concatenate([[0], np.cumsum(lengths)])
    of_span = start.row_of_value()
    edges = np.zeros(first[-1] + 1, dtype=np.int8)
    np.add.at(edges, first[of_span] + start.values, 1)
    np.add.at(edges, first[of_span] + end.values, -1)
    return np.cumsum(edges[:-1], dtype=np.int8).astype(np.uint8)


def write_part(path: Path, rows: pa.Table, flat: npt.NDArray[np.uint32], lengths: Ints) -> None:
    """One archive part."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    ids = pa.ListArray.from_arrays(offsets, pa.array(flat.view(np.int32)))
    pq.write_table(
        rows.append_column("input_ids", ids),
        path,
        compression="zstd",
        compression_level=LEVEL,
        row_group_size=ROWS_PER_GROUP,
        use_dictionary=_DICTIONARY,
    )


def index_of(rows: pa.Table, part: str, first: int, offsets: Ints, lengths: Ints) -> pa.Table:
    """The index of one part: a line a row, `offset` and `length` in ids."""
    n = rows.num_rows
    return pa.table(
        {
            "index": pa.array(np.arange(first, first + n), pa.int64()),
            **{name: rows.column(name) for name in ("sample_id", "turn", "dataset", "grade", "split", "truncated")},
            "part": pa.array([part] * n, pa.string()),
            "offset": pa.array(offsets, pa.int64()),
            "length": pa.array(lengths, pa.int64()),
        }
    )
