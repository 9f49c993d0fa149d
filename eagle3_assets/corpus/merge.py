"""Token files → the corpus: archive parts, training form, index, manifest.

Belongs here: reading token files, writing both forms, the manifest. Does not belong here: who enters and in which order
(`order.py`),
replacing the old corpus (`swap.py`), reading it back (`reader.py`), Dagster partitions (the caller registers `partitions`).

Memory: one token file, one light line a row, one part. The ids wait in a spool file beside the new corpus (4 bytes an id).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.order import DROP_REASONS, Order, cut_by_tokens, order_rows, shuffle_key
from eagle3_assets.corpus.swap import replaced_folder
from eagle3_assets.errors import CorpusError
from eagle3_assets.exact.sample_row import read_table
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.columns import Columns
from eagle3_assets.review.structure import structure_faults
from eagle3_assets.store import Manifest, Store, commit, digest_file, digest_json, write_json

VERSION = 1
ROWS_PER_GROUP = 64  # small row groups: one row of the archive can be read without its neighbours (perf-baselines.md section 6)
LINEAGE = (
    "sample_id", "turn", "attempt", "dataset", "shard", "source", "provider", "grade", "p_exact", "p_basis", "finish_reason",
    "wire_sha256", "prompt_len", "loss_spans", "survivors",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One tokens/<dataset>/<shard>.parquet; `digest` is that of its manifest, kept in the corpus manifest."""

    dataset: str
    shard: str
    path: Path
    digest: str


def build_corpus(
    campaign: Campaign,
    store: Store,
    inputs: Sequence[TokenFile],
    waived: Sequence[Mapping[str, Any]] = (),
    *,
    commit_inputs: Mapping[str, Any] | None = None,
) -> Manifest:
    """Build `corpus/` anew from `inputs`, swap it in and commit it; `numbers["partitions"]` are the keys to register.

    Equal rows give equal bytes, whatever the order of `inputs` and the number of threads. `waived` (accepted failures of checks)
    is carried into `corpus/manifest.json`; `commit_inputs` says what the corpus was made from (default: the digests of `inputs`).
    Raises CorpusError when no row may enter or a file breaks its own rules; the old corpus stays then.
    """
    with replaced_folder(store.corpus) as folder:
        spool = folder / "spool.bin"
        lines, lineage, rows_of_file = _read_inputs(campaign, inputs, spool)
        order = order_rows(campaign, lines)
        dropped = Counter(why for why in order.reasons if why is not None)
        if not len(order.kept):
            raise CorpusError(_nothing_left(lines.num_rows, dropped))
        parts = _write_forms(campaign, folder, spool, lines, lineage, order)
        spool.unlink()
        manifest = _manifest(campaign, folder, inputs, rows_of_file, lines, order, parts, waived)
        write_json(folder / "manifest.json", manifest)
    return commit(
        store.corpus,
        files=store.corpus.iterdir(),
        inputs=commit_inputs if commit_inputs is not None else {"tokens": manifest["inputs"]},
        numbers={
            "rows": manifest["rows"]["kept"],
            "input_rows": manifest["rows"]["input"],
            "dropped": manifest["rows"]["dropped"],
            **{k: manifest[k] for k in ("tokens", "supervised_tokens", "datasets", "partitions", "waived")},
        },
    )


# ---------------------------------------------------------------------------------------------------- reading
def _read_inputs(campaign: Campaign, inputs: Sequence[TokenFile], spool: Path) -> tuple[pa.Table, pa.Table, list[int]]:
    """(one light line a row, lineage of each row, rows of each file); the ids of all rows go to `spool` in the same order."""
    lines, lineage, rows_of_file = [], [], []
    with spool.open("wb") as handle:
        for n, file in enumerate(inputs):
            table = read_table(file.path)
            _refuse_broken(campaign, file, table)
            lines.append(_lines(campaign, table, handle))
            lineage.append(table.select(LINEAGE))
            rows_of_file.append(table.num_rows)
            publish(Step("corpus", n + 1, 2 * len(inputs), f"read {file.dataset}/{file.shard}"))
    if not lines:
        raise CorpusError("corpus: there is no token file to merge; materialize the tokens assets first")
    return pa.concat_tables(lines), pa.concat_tables(lineage), rows_of_file


def _refuse_broken(campaign: Campaign, file: TokenFile, table: pa.Table) -> None:
    columns = Columns(table)
    for fault, bad in structure_faults(columns, campaign.target.vocab_size).items():
        if bad.any():
            first = columns.sample_ids[int(np.flatnonzero(bad)[0])]
            raise CorpusError(
                f"{file.path}: {fault} in {int(bad.sum())} rows, first {first}; "
                f"materialize tokens/{file.dataset} partition {file.shard} again and look at its check `structure`"
            )


def _lines(campaign: Campaign, table: pa.Table, spool: BinaryIO) -> pa.Table:
    columns = Columns(table)
    ids = columns.input_ids
    values = np.ascontiguousarray(ids.values, dtype="<u4")
    spool.write(values.data)
    hashes = [xxhash.xxh3_128_hexdigest(values[a:b].data) for a, b in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)]
    turns = table.column("turn").to_pylist()
    keys = [shuffle_key(campaign.campaign.seed, s, t) for s, t in zip(columns.sample_ids, turns, strict=True)]
    light = table.select(["sample_id", "turn", "attempt", "dataset", "shard", "grade", "p_exact", "wire_sha256"])
    for name, values_of in (("length", columns.lengths), ("supervised", columns.supervised)):
        light = light.append_column(name, pa.array(values_of, pa.int64()))
    return light.append_column("id_hash", pa.array(hashes, pa.string())).append_column("shuffle_key", pa.array(keys, pa.string()))


def _nothing_left(rows: int, dropped: Counter[str]) -> str:
    why = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items())) or "the token files are empty"
    return (
        f"corpus: none of {rows} rows may enter ({why}); look at reports/, or change [corpus] grades, min_p_exact or max_length"
    )


# ---------------------------------------------------------------------------------------------------- writing
def _write_forms(
    campaign: Campaign, folder: Path, spool: Path, lines: pa.Table, lineage: pa.Table, order: Order
) -> list[dict[str, Any]]:
    """Write parts, tokens.bin, loss_mask.bin and index.parquet; returns the manifest's entries of the parts."""
    lengths = lines.column("length").to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.memmap(spool, dtype="<u4", mode="r")
    ranges = cut_by_tokens(lengths[order.kept], campaign.corpus.shards)
    parts: list[dict[str, Any]] = []
    index: list[pa.Table] = []
    offset = 0
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "loss_mask.bin").open("wb") as masks:
        for k, (first, last) in enumerate(ranges):
            key, chosen = f"{k:05d}", order.kept[first:last]
            rows = lineage.take(pa.array(chosen))
            flat = np.concatenate([ids[starts[i] : starts[i + 1]] for i in chosen])
            row_lengths = lengths[chosen]
            mask = paint_mask(rows, row_lengths)
            tokens.write(flat.data)
            masks.write(mask.data)
            _write_part(folder / f"part-{key}.parquet", rows, flat, row_lengths)
            row_offsets = offset + np.concatenate([[0], np.cumsum(row_lengths)[:-1]])
            index.append(_index(rows, key, first, row_offsets, row_lengths))
            offset += len(flat)
            supervised = int(mask.sum())
            parts.append({"key": key, "rows": len(chosen), "first": first, "tokens": len(flat), "supervised": supervised})
            publish(Step("corpus", len(ranges) + k + 1, 2 * len(ranges), f"write part {key}"))
    pq.write_table(pa.concat_tables(index), folder / "index.parquet", compression="zstd")
    return parts


def paint_mask(rows: pa.Table, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """uint8 [sum of lengths]: 1 on the ids inside `loss_spans` (unshifted), 0 elsewhere. Spans of a row must not overlap."""
    start, end = Columns(rows).spans
    first = np.concatenate([[0], np.cumsum(lengths)])
    of_span = start.row_of_value()
    edges = np.zeros(first[-1] + 1, dtype=np.int8)
    np.add.at(edges, first[of_span] + start.values, 1)
    np.add.at(edges, first[of_span] + end.values, -1)
    return np.cumsum(edges[:-1], dtype=np.int8).astype(np.uint8)


def _write_part(path: Path, rows: pa.Table, flat: npt.NDArray[np.uint32], lengths: npt.NDArray[np.int64]) -> None:
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    ids = pa.ListArray.from_arrays(offsets, pa.array(flat.astype(np.int32)))
    pq.write_table(
        rows.append_column("input_ids", ids),
        path,
        compression="zstd",
        row_group_size=ROWS_PER_GROUP,
        use_dictionary=["dataset", "shard", "source", "provider", "grade", "p_basis", "finish_reason"],
        column_encoding={"input_ids.list.element": "BYTE_STREAM_SPLIT"},  # 3 % smaller than plain under zstd, as fast
    )


def _index(rows: pa.Table, part: str, first: int, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> pa.Table:
    n = rows.num_rows
    return pa.table(
        {
            "index": pa.array(np.arange(first, first + n), pa.int64()),
            **{name: rows.column(name) for name in ("sample_id", "turn", "dataset", "grade")},
            "part": pa.array([part] * n, pa.string()),
            "offset": pa.array(offsets, pa.int64()),
            "length": pa.array(lengths, pa.int64()),
        }
    )


# ---------------------------------------------------------------------------------------------------- the manifest
def _manifest(
    campaign: Campaign,
    folder: Path,
    inputs: Sequence[TokenFile],
    rows_of_file: Sequence[int],
    lines: pa.Table,
    order: Order,
    parts: list[dict[str, Any]],
    waived: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that the corpus says about itself. No times and no paths: equal input gives equal bytes."""
    files = {p.name: {"bytes": p.stat().st_size, "xxh3": digest_file(p)} for p in sorted(folder.iterdir())}
    dropped = Counter(why for why in order.reasons if why is not None)
    sources = [
        {"dataset": f.dataset, "shard": f.shard, "digest": f.digest, "rows": n} for f, n in zip(inputs, rows_of_file, strict=True)
    ]
    return {
        "version": VERSION,
        "campaign": campaign.name,
        "seed": campaign.campaign.seed,
        "policy": campaign.corpus.model_dump(mode="json"),
        "rows": {
            "input": lines.num_rows,
            "kept": len(order.kept),
            "dropped": {r: dropped[r] for r in DROP_REASONS if dropped[r]},
        },
        "tokens": sum(p["tokens"] for p in parts),
        "supervised_tokens": sum(p["supervised"] for p in parts),
        "datasets": _statistics({f.dataset for f in inputs}, lines, order),
        "partitions": [p["key"] for p in parts],
        "parts": parts,
        "waived": [dict(w) for w in waived],
        "inputs": sorted(sources, key=lambda s: (s["dataset"], s["shard"], s["digest"])),
        "files": files,
        "digest": digest_json({name: f["xxh3"] for name, f in files.items()}),
    }


def _statistics(names: set[str], lines: pa.Table, order: Order) -> dict[str, Any]:
    """Per dataset: rows in and out, tokens, supervised tokens, rows by grade, dropped rows by reason."""
    datasets, grades = lines.column("dataset").to_pylist(), lines.column("grade").to_pylist()
    lengths, supervised = lines.column("length").to_pylist(), lines.column("supervised").to_pylist()
    found: dict[str, dict[str, Any]] = {
        name: {"input": 0, "kept": 0, "tokens": 0, "supervised_tokens": 0, "longest": 0, "grades": {}, "dropped": {}}
        for name in sorted(names | set(datasets))
    }
    for i, why in enumerate(order.reasons):
        facts = found[datasets[i]]
        facts["input"] += 1
        if why is not None:
            facts["dropped"][why] = facts["dropped"].get(why, 0) + 1
            continue
        facts["kept"] += 1
        facts["tokens"] += lengths[i]
        facts["supervised_tokens"] += supervised[i]
        facts["longest"] = max(facts["longest"], lengths[i])
        facts["grades"][grades[i]] = facts["grades"].get(grades[i], 0) + 1
    for facts in found.values():
        facts["grades"], facts["dropped"] = (dict(sorted(facts[k].items())) for k in ("grades", "dropped"))
    return found
