"""The Arrow dataset of `speculators`, as its `prepare-data` would have saved it: `input_ids`, `loss_mask`, `seq_len`, all int64.

Belongs here: the three kinds of file that `datasets.load_from_disk` reads, streamed. Does not belong here: which rows.
Written with pyarrow and not by `datasets`: one pass, a few rows in memory, and equal rows give equal bytes.

`_format_type` is "torch" in `state.json`: without it speculators' loader fails with a TypeError
(docs/research/eagle3-anchors.md#2.1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROWS_PER_BATCH = 64
BYTES_PER_TOKEN = 16  # an int64 id and an int64 mask
SHARD_TOKENS = 32_000_000  # about 500 MB a file, as `datasets` cuts them

_LIST = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
FEATURES = {"input_ids": _LIST, "loss_mask": _LIST, "seq_len": {"dtype": "int64", "_type": "Value"}}
SCHEMA = pa.schema(
    [("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int64())), ("seq_len", pa.int64())],
    metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})},
)

Row = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # ids, mask


def write_arrow_dataset(folder: Path, lengths: list[int], read: Callable[[int], Row], fingerprint: str) -> list[Path]:
    """Write rows 0 .. n-1, `read(i)` each, into `folder`; returns the paths. `fingerprint`: what `datasets` keys its caches by."""
    cuts = _cut(lengths)
    names = [f"data-{k:05d}-of-{len(cuts):05d}.arrow" for k in range(len(cuts))]
    for name, cut in zip(names, cuts, strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as stream:
            for first in range(cut.start, cut.stop, ROWS_PER_BATCH):
                stream.write_batch(_batch([read(i) for i in range(first, min(first + ROWS_PER_BATCH, cut.stop))]))
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": fingerprint[:16],
        "_format_columns": ["input_ids", "loss_mask", "seq_len"],
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "features": FEATURES, "homepage": "", "license": ""}
    for name, content in (("state.json", state), ("dataset_info.json", info)):
        (folder / name).write_text(json.dumps(content, indent=2))
    return [folder / name for name in (*names, "state.json", "dataset_info.json")]


def read_arrow_rows(folder: Path) -> Iterator[Row]:
    """ids and mask of every row, in order; for checks. Raises OSError, ValueError (pyarrow's own are both) for damaged files."""
    for file in json.loads((folder / "state.json").read_bytes())["_data_files"]:
        with pa.memory_map(str(folder / file["filename"])) as source:
            for batch in pa.ipc.open_stream(source):
                for i in range(batch.num_rows):
                    yield batch["input_ids"][i].values.to_numpy(), batch["loss_mask"][i].values.to_numpy()


def _cut(lengths: list[int]) -> list[range]:
    cuts, start, tokens = [], 0, 0
    for i, length in enumerate(lengths):
        if i > start and tokens + length > SHARD_TOKENS:
            cuts.append(range(start, i))
            start, tokens = i, 0
        tokens += length
    return [*cuts, range(start, len(lengths))]


def _batch(rows: list[Row]) -> pa.RecordBatch:
    lengths = np.array([len(ids) for ids, _ in rows], dtype=np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([row[k] for row in rows]).astype(np.int64))) for k in (0, 1)
    ]
    return pa.RecordBatch.from_arrays([*columns, pa.array(lengths)], schema=SCHEMA)
