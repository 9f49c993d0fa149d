"""One part file: `part-000.safetensors` and its commit record `part-000.json`. One file, one format.

Belongs here: the layout, the header, streaming a part to disk, reading header and record back.
Does not belong here: which rows make a part, resume (`partition.py`), random access (`reader.py`), judging content (`verify.py`).

The header is written first from the known shapes, then tensors stream behind it: memory holds a few rows, not two gigabytes.
Any safetensors reader opens the file. Tensors, in file order (every offset keeps its tensor aligned):

    cu_seqlens     int64  [rows + 1]          row i is tokens cu_seqlens[i] .. cu_seqlens[i+1]
    input_ids      int32  [tokens]
    hidden_states  bf16 or fp32  [tokens, 4, H]   low, mid, high, final_prenorm
    loss_mask      uint8  [tokens]            1 on ids that the target generated (unshifted)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.states.layers import require_convention
from eagle3_assets.states.state_part import PartRow, StatePart
from eagle3_assets.store import atomic_file, read_json, write_json

if TYPE_CHECKING:
    import torch

SCHEMA_VERSION = 1
TENSORS = ("cu_seqlens", "input_ids", "hidden_states", "loss_mask")
STATE_DTYPES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
TOKEN_OVERHEAD_BYTES = 5  # int32 id and uint8 mask of one token
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit


@dataclass(frozen=True, slots=True)
class PartSpec:
    """What all parts of a partition share."""

    shard: str
    convention: str
    final: str
    layers: tuple[int, ...]
    num_hidden_layers: int
    hidden_size: int
    dtype: str
    model_fingerprint: str

    @property
    def slots(self) -> int:
        return len(self.layers) + 1

    @property
    def bytes_per_token(self) -> int:
        """57,349 for Kimi K2.5 in bf16, ids and mask included."""
        return self.slots * self.hidden_size * STATE_DTYPES[self.dtype][1] + TOKEN_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a header: safetensors dtype, shape, and first and last byte behind the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


# ---------------------------------------------------------------------------------------------------- layout
def part_name(number: int) -> str:
    return f"part-{number:03d}"


def layout(spec: PartSpec, tokens: int, rows: int) -> dict[str, Tensor]:
    """The tensors of a part in file order."""
    state_dtype, state_bytes = STATE_DTYPES[spec.dtype]
    wanted: list[tuple[str, str, tuple[int, ...], int]] = [
        ("cu_seqlens", "I64", (rows + 1,), 8 * (rows + 1)),
        ("input_ids", "I32", (tokens,), 4 * tokens),
        (
            "hidden_states",
            state_dtype,
            (tokens, spec.slots, spec.hidden_size),
            tokens * spec.slots * spec.hidden_size * state_bytes,
        ),
        ("loss_mask", "U8", (tokens,), tokens),
    ]
    ends = list(accumulate(size for *_, size in wanted))
    return {name: Tensor(dtype, shape, end - size, end) for (name, dtype, shape, size), end in zip(wanted, ends, strict=True)}


def encode_header(spec: PartSpec, tokens: int, rows: int) -> bytes:
    """The safetensors header: length (u64, little endian), JSON, spaces up to a multiple of eight."""
    metadata = {
        "schema_version": str(SCHEMA_VERSION),
        "convention": spec.convention,
        "final": spec.final,
        "layers": json.dumps(list(spec.layers)),
        "num_hidden_layers": str(spec.num_hidden_layers),
        "model_fingerprint": spec.model_fingerprint,
        "dtype": spec.dtype,
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    for name, tensor in layout(spec, tokens, rows).items():
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [tensor.start, tensor.end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def file_bytes(spec: PartSpec, lengths: Sequence[int]) -> int:
    """Exact size of the part that holds rows of these lengths."""
    tokens = sum(lengths)
    return len(encode_header(spec, tokens, len(lengths))) + layout(spec, tokens, len(lengths))["loss_mask"].end


def read_header(path: Path) -> tuple[dict[str, Tensor], dict[str, str], int]:
    """(tensors, metadata, offset of the first data byte). Raises StateError naming the file."""
    try:
        with path.open("rb") as handle:
            size = struct.unpack("<Q", handle.read(8))[0]
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"header of {size} bytes")
            entries = json.loads(handle.read(size))
        metadata = entries.pop("__metadata__")
        tensors = {n: Tensor(e["dtype"], tuple(e["shape"]), *e["data_offsets"]) for n, e in entries.items()}
    except FileNotFoundError:
        raise StateError(f"{path}: is missing; materialize hidden_states again") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise StateError(
            f"{path}: is no readable safetensors file ({error}); remove it and materialize hidden_states again"
        ) from None
    if metadata.get("schema_version") != str(SCHEMA_VERSION):
        raise StateError(
            f"{path}: schema version {metadata.get('schema_version')!r}, expected '{SCHEMA_VERSION}'; extract these states again"
        )
    if set(tensors) != set(TENSORS):
        raise StateError(
            f"{path}: tensors {', '.join(sorted(tensors))}, expected {', '.join(TENSORS)}; extract these states again"
        )
    require_convention(metadata.get("convention"), metadata.get("final"), str(path))
    return tensors, metadata, 8 + size


# ---------------------------------------------------------------------------------------------------- writing
class _HashingWriter:
    """Writes through to a file and hashes what went by (xxh3-128: free beside the write)."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle, self.hasher, self.bytes = handle, xxhash.xxh3_128(), 0

    def write(self, data: bytes | memoryview) -> None:
        self.hasher.update(data)
        self._handle.write(data)
        self.bytes += len(data)


def write_part(path: Path, spec: PartSpec, packs: Sequence[Pack], states: Iterable[torch.Tensor], fingerprint: str) -> StatePart:
    """Stream one part to `path` and commit it with its JSON record, which is renamed last.

    `states` yields one tensor [T_i, slots, H] in `spec.dtype` a pack, in order. Raises StoreError (full disk) and what `states`
    raises; either way no file of that name is touched.
    """
    lengths = [len(pack.input_ids) for pack in packs]
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype("<i8")
    with atomic_file(path) as handle:
        out = _HashingWriter(handle)
        out.write(encode_header(spec, int(cu[-1]), len(packs)))
        out.write(cu.tobytes())
        for pack in packs:
            out.write(np.asarray(pack.input_ids).astype("<i4").tobytes())
        for row, length in zip(states, lengths, strict=True):
            out.write(_row_bytes(row, (length, spec.slots, spec.hidden_size), spec.dtype))
        for pack in packs:
            out.write(np.asarray(pack.loss_mask).astype("u1").tobytes())
    rows = tuple(PartRow(pack.sample_id, pack.turn, pack.index, int(cu[i]), int(cu[i + 1])) for i, pack in enumerate(packs))
    part = StatePart(
        path=path,
        shard=spec.shard,
        bytes=out.bytes,
        xxh3=out.hasher.hexdigest(),
        fingerprint=fingerprint,
        convention=spec.convention,
        final=spec.final,
        layers=spec.layers,
        num_hidden_layers=spec.num_hidden_layers,
        hidden_size=spec.hidden_size,
        dtype=spec.dtype,
        tokens=int(cu[-1]),
        rows=rows,
    )
    write_json(record_path(path), _to_json(part))
    return part


def _row_bytes(row: torch.Tensor, shape: tuple[int, ...], dtype: str) -> memoryview:
    import torch

    if tuple(row.shape) != shape or row.dtype != getattr(torch, dtype):
        raise StateError(
            f"states of shape {tuple(row.shape)} {row.dtype}, expected {shape} torch.{dtype}; the engine broke its contract"
        )
    flat: npt.NDArray[np.uint8] = row.contiguous().view(torch.uint8).numpy().reshape(-1)
    return flat.data


# ---------------------------------------------------------------------------------------------------- the record
def record_path(part: Path) -> Path:
    return part.with_suffix(".json")


def _to_json(part: StatePart) -> dict[str, Any]:
    return {
        "version": SCHEMA_VERSION,
        "file": part.path.name,
        "shard": part.shard,
        "bytes": part.bytes,
        "xxh3": part.xxh3,
        "fingerprint": part.fingerprint,
        "convention": part.convention,
        "final": part.final,
        "layers": list(part.layers),
        "num_hidden_layers": part.num_hidden_layers,
        "hidden_size": part.hidden_size,
        "dtype": part.dtype,
        "tokens": part.tokens,
        "rows": [[r.sample_id, r.turn, r.index, r.start, r.end] for r in part.rows],
    }


def read_record(record: Path) -> StatePart:
    """The `StatePart` of a record file. Looks at the record only. Raises StateError naming it."""
    try:
        raw: Mapping[str, Any] = read_json(record)
        if raw["version"] != SCHEMA_VERSION:
            raise ValueError(f"version {raw['version']!r}, expected {SCHEMA_VERSION}")
        require_convention(raw["convention"], raw["final"], str(record))
        return StatePart(
            path=record.with_name(raw["file"]),
            shard=raw["shard"],
            bytes=raw["bytes"],
            xxh3=raw["xxh3"],
            fingerprint=raw["fingerprint"],
            convention=raw["convention"],
            final=raw["final"],
            layers=tuple(raw["layers"]),
            num_hidden_layers=raw["num_hidden_layers"],
            hidden_size=raw["hidden_size"],
            dtype=raw["dtype"],
            tokens=raw["tokens"],
            rows=tuple(PartRow(*row) for row in raw["rows"]),
        )
    except (StoreError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{record}: is no part record ({error}); materialize hidden_states again") from None
