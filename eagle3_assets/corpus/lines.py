"""Token files → one light line a row, and a spool of what is too big to hold: the first of two passes.

Belongs here: reading, refusing broken files, cutting long rows, hashing, sketching, the spool.
Does not belong here: who enters (`order.py`), writing the corpus (`forms.py`).

Memory: one token file, and about 1.5 KB a row: its line, its sketch and its spans. The ids wait in `ids.spool` (4 bytes an id), lineage
and survivors in `lineage.spool` (Arrow); both are mapped, so the system may take their pages back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.cut import cut_long_rows
from eagle3_assets.corpus.joined_turns import join_turns
from eagle3_assets.corpus.keys import sample_keys, shuffle_key
from eagle3_assets.corpus.near import Sketches, sketch_rows
from eagle3_assets.errors import CorpusError
from eagle3_assets.exact.sample_row import read_table
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.rows.admission import drop_reasons
from eagle3_assets.review.rows.columns import Columns, Ragged, list_column
from eagle3_assets.review.rows.structure import structure_faults

LINEAGE = (
    "sample_id", "turn", "attempt", "dataset", "shard", "source", "provider", "grade", "p_exact", "p_basis", "finish_reason",
    "wire_sha256", "prompt_len", "loss_spans", "survivors",
)  # fmt: skip
JOINED = pa.list_(pa.struct([("turn", pa.int32()), ("attempt", pa.int32()), ("wire_sha256", pa.string())]))
IDS_SPOOL, LINEAGE_SPOOL = "ids.spool", "lineage.spool"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One tokens/<dataset>/<shard>.parquet; `digest` is that of its manifest, kept in the corpus manifest."""

    dataset: str
    shard: str
    path: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Every input row, in the order read.

    `table`, a line a row: sample_id, turn, attempt, dataset, shard, grade, p_exact, wire_sha256; `supervised` ids in all, `length` and
    `supervised_kept` after the cut, `truncated`, `absorbed` (a span of another row now); `wave` (place of the dataset in
    corpus.additions, 0 for the first); hashes `id_hash` (ids), `prompt_hash`, `later_prompts` (of
    every turn of a row of joined ones), `row_hash` (identity, ids, spans, survivors); `draw`, `group_key`, `shuffle_key` of the seeded draws.
    """

    table: pa.Table
    starts: Ragged
    ends: Ragged
    sketches: Sketches | None
    file_starts: Ints  # int64 [files + 1]: the line at which each file begins
    ids: npt.NDArray[np.uint32]  # mapped
    lineage: list[pa.RecordBatch]  # mapped, one a file

    @property
    def id_starts(self) -> Ints:
        """int64 [rows + 1]: where each row begins in `ids`."""
        return np.concatenate([[0], np.cumsum(self.table.column("length").to_numpy())])

    def ids_of(self, line: int, id_starts: Ints) -> npt.NDArray[np.uint32]:
        return self.ids[id_starts[line] : id_starts[line + 1]]

    def lineage_of(self, lines: Ints) -> pa.Table:
        """The lineage of these lines, in this order."""
        of_file = np.searchsorted(self.file_starts, lines, side="right") - 1
        order = np.argsort(of_file, kind="stable")
        files, first = np.unique(of_file[order], return_index=True)
        found = [
            self.lineage[f].take(pa.array(lines[some] - self.file_starts[f]))
            for f, some in zip(files.tolist(), np.split(order, first[1:]), strict=True)
        ]
        return pa.Table.from_batches(found).combine_chunks().take(pa.array(np.argsort(order)))


def read_lines(campaign: Campaign, inputs: Sequence[TokenFile], folder: Path) -> Lines:
    """First pass over `inputs`; the spool goes to `folder`. Raises CorpusError for no input or a file that breaks its own rules."""
    if not inputs:
        raise CorpusError("corpus: there is no token file to merge; materialize the tokens assets first")
    tables: list[pa.Table] = []
    starts, ends, sketches = [], [], []
    lineage: pa.ipc.RecordBatchFileWriter | None = None
    with (folder / IDS_SPOOL).open("wb") as spool, pa.OSFile(str(folder / LINEAGE_SPOOL), "wb") as sink:
        for n, file in enumerate(inputs):
            table = read_table(file.path)
            _refuse_broken(campaign, file, table)
            table, absorbed = join_conversations(campaign, table)
            table, before = cut_long_rows(campaign, table)
            columns = Columns(table)
            start, end = columns.spans
            ids = Ragged(np.ascontiguousarray(columns.input_ids.values, dtype="<u4"), columns.input_ids.offsets)
            spool.write(ids.values.data)
            kept = table.select([*LINEAGE, "joined", "truncated"]).combine_chunks()
            lineage = lineage or pa.ipc.new_file(sink, kept.schema)
            lineage.write_batch(_one_batch(kept))
            tables.append(_light(campaign, table, columns, ids, before).append_column("absorbed", pa.array(absorbed)))
            starts.append(start)
            ends.append(end)
            if campaign.corpus.near_duplicates:
                sketches.append(sketch_rows(ids, start, end))
            publish(Step("corpus", n + 1, 2 * len(inputs), f"read {file.dataset}/{file.shard}"))
        assert lineage is not None
        lineage.close()
    batches = pa.ipc.open_file(pa.memory_map(str(folder / LINEAGE_SPOOL)))
    mapped = folder / IDS_SPOOL
    return Lines(
        table=pa.concat_tables(tables).combine_chunks(),
        starts=_joined(starts),
        ends=_joined(ends),
        sketches=Sketches(np.concatenate([s.bands for s in sketches]), np.concatenate([s.sizes for s in sketches]))
        if sketches
        else None,
        file_starts=np.cumsum([0, *(t.num_rows for t in tables)]),
        ids=np.memmap(mapped, dtype="<u4", mode="r").view(np.ndarray) if mapped.stat().st_size else np.empty(0, dtype=np.uint32),
        lineage=[batches.get_batch(i) for i in range(batches.num_record_batches)],
    )


def join_conversations(campaign: Campaign, table: pa.Table) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """`corpus.join_turns`: (the table with a column `joined`, bool [rows]: rows that are spans of another one now).

    `joined` list<struct<turn, attempt, wire_sha256>>: the earlier turns whose answers a row supervises besides its own.
    """
    policy, columns = campaign.corpus, Columns(table)
    if not policy.join_turns or not table.num_rows:
        return table.append_column("joined", pa.array([[]] * table.num_rows, JOINED)), np.zeros(table.num_rows, dtype=bool)
    figures = {"length": pa.array(columns.lengths), "supervised": pa.array(columns.supervised)}
    refused = drop_reasons(campaign, pa.table({**{c: table.column(c) for c in ("grade", "p_exact")}, **figures}))
    admitted = np.array([why is None for why in refused])
    found = join_turns(table, admitted, max_length=policy.max_length, min_p_exact=policy.min_p_exact)
    return found.table.drop_columns(["turns"]).append_column("joined", _joined_turns(found.table)), found.absorbed


def _joined_turns(table: pa.Table) -> pa.Array:
    names = ("sample_id", "turn", "attempt", "wire_sha256", "turns")
    rows = list(zip(*(table.column(c).to_pylist() for c in names), strict=True))
    answer = {(s, t): {"turn": t, "attempt": a, "wire_sha256": w} for s, t, a, w, _ in rows}
    return pa.array([[answer[s, t] for t in turns if t != own] for s, own, _, _, turns in rows], JOINED)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _joined(parts: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([p.lengths for p in parts])
    return Ragged(np.concatenate([p.values for p in parts]), np.concatenate([[0], np.cumsum(lengths)]))


def _refuse_broken(campaign: Campaign, file: TokenFile, table: pa.Table) -> None:
    columns = Columns(table)
    for fault, bad in structure_faults(columns, campaign.target.vocab_size).items():
        if bad.any():
            first = columns.sample_ids[int(np.flatnonzero(bad)[0])]
            raise CorpusError(
                f"{file.path}: {fault} in {int(bad.sum())} rows, first {first}; "
                f"materialize tokens/{file.dataset} partition {file.shard} again and look at its check `structure`"
            )


def _light(campaign: Campaign, table: pa.Table, columns: Columns, ids: Ragged, before: Ints) -> pa.Table:
    seed, names = campaign.campaign.seed, columns.sample_ids
    turns, prompt_len = columns.integers("turn").tolist(), columns.integers("prompt_len").tolist()
    start, end = columns.spans
    sizes, others = _survivors(table)
    waves = {name: n for n, joined in enumerate(campaign.corpus.additions, start=1) for name in joined}
    others_in = pc.list_value_length(table.column("joined")).to_pylist()
    hashes, later = [], []
    for i, (name, turn) in enumerate(zip(names, turns, strict=True)):
        row = ids.row(i)
        shape = (len(row), start.row(i).tolist(), end.row(i).tolist(), sizes.row(i).tolist())
        whole = xxhash.xxh3_128(f"{name}\0{turn}\0{shape}".encode())
        whole.update(row.data)
        whole.update(others.row(i).data)
        hashes.append(
            (xxhash.xxh3_128_hexdigest(row.data), xxhash.xxh3_128_hexdigest(row[: prompt_len[i]].data), whole.hexdigest())
        )
        later.append(_prompt_hashes(row, start.row(i).tolist()) if others_in[i] else [])
    draws = [sample_keys(seed, name) for name in names]
    light = table.select(["sample_id", "turn", "attempt", "dataset", "shard", "grade", "p_exact", "wire_sha256", "truncated"])
    added: dict[str, Any] = {
        "length": pa.array(columns.lengths, pa.int64()),
        "supervised": pa.array(before, pa.int64()),
        "supervised_kept": pa.array(columns.supervised, pa.int64()),
        "wave": pa.array([waves.get(str(d), 0) for d in columns.strings("dataset")], pa.int64()),
        **{name: pa.array([h[k] for h in hashes], pa.string()) for k, name in enumerate(("id_hash", "prompt_hash", "row_hash"))},
        "later_prompts": pa.array(later, pa.list_(pa.string())),
        "shuffle_key": pa.array([shuffle_key(seed, s, t) for s, t in zip(names, turns, strict=True)], pa.string()),
        **{
            name: pa.array([d[k] for d in draws], t)
            for k, (name, t) in enumerate((("draw", pa.float64()), ("group_key", pa.string())))
        },
    }
    for name, values in added.items():
        light = light.append_column(name, values)
    return light


def _prompt_hashes(row: npt.NDArray[np.uint32], ends: Sequence[int]) -> list[str]:
    """Of the ids before each of `ends` (ascending): what `prompt_hash` of a turn is that begins to answer there."""
    hasher, found = xxhash.xxh3_128(), []
    for begin, end in pairwise((0, *ends)):
        hasher.update(row[begin:end].data)
        found.append(hasher.hexdigest())
    return found


def _survivors(table: pa.Table) -> tuple[Ragged, Ragged]:
    """(length of each survivor, all their ids) of each row."""
    inner, offsets = list_column(table, "survivors")
    lengths = np.asarray(inner.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    ids = np.ascontiguousarray(inner.flatten().to_numpy(zero_copy_only=False), dtype="<i4")
    return Ragged(lengths, offsets), Ragged(ids, np.concatenate([[0], np.cumsum(lengths)])[offsets])
