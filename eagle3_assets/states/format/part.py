"""One part file: `part-000.safetensors` and its commit record `part-000.json`. One file, one format.

Belongs here: the layout, the header, streaming a part to disk, reading header and record back.
Does not belong here: which rows make a part, resume (`partition.py`), random access (`reader.py`), judging content (`verify.py`).

The header is written first from the planned shapes, then rows stream behind it: memory holds a few rows, not two gigabytes. Any
safetensors reader opens the file. Tensors, in file order (every offset keeps its tensor aligned):

    hidden_states  bf16 or fp32  [tokens, 4, H]   low, mid, high, final_prenorm
    cu_seqlens     int64  [rows + 1]          row i is tokens cu_seqlens[i] .. cu_seqlens[i+1]
    input_ids      int32  [tokens]
    loss_mask      uint8  [tokens]            1 on ids that the target generated (unshifted)

With `compress = "lossless"` two tensors stand for `hidden_states`: `hidden_planes` uint8 [bytes], row behind row, each row its byte
planes from the highest (`planes.py`), and `plane_bytes` int64 [rows, planes], their lengths.

A row whose states are not finite is left out when it comes, and the header is put right at the end: the only case, with compression,
in which the file is read once more for its checksum.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.states.format.layers import require_convention
from eagle3_assets.states.format.planes import WIDTHS, pack_planes
from eagle3_assets.states.format.state_part import MissingRow, PartRow, StatePart
from eagle3_assets.states.format.writeback import start_writeback
from eagle3_assets.store import atomic_file, digest_file, read_json, write_json

if TYPE_CHECKING:
    import torch

SCHEMA_VERSION = 2
ROW_TENSORS = ("cu_seqlens", "input_ids", "loss_mask")
STATE_TENSORS = {"none": ("hidden_states",), "lossless": ("hidden_planes", "plane_bytes")}
STATE_DTYPES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
TOKEN_OVERHEAD_BYTES = 5  # int32 id and uint8 mask of one token
WRITEBACK_BYTES = 8 * 2**20
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
    compress: str = "none"

    @property
    def slots(self) -> int:
        return len(self.layers) + 1

    @property
    def bytes_per_token(self) -> int:
        """57,349 for Kimi K2.5 in bf16, ids and mask included; compressed parts are smaller and cut at the same rows."""
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


def layout(spec: PartSpec, tokens: int, rows: int, plane_bytes: int = 0) -> dict[str, Tensor]:
    """The tensors of a part in file order. `plane_bytes`: bytes of all compressed planes, padding to a multiple of 8 included."""
    state_dtype, state_bytes = STATE_DTYPES[spec.dtype]
    values = tokens * spec.slots * spec.hidden_size
    wanted: list[tuple[str, str, tuple[int, ...], int]]
    if spec.compress == "none":
        wanted = [("hidden_states", state_dtype, (tokens, spec.slots, spec.hidden_size), values * state_bytes)]
    else:
        planes = WIDTHS[spec.dtype]
        wanted = [("hidden_planes", "U8", (plane_bytes,), plane_bytes), ("plane_bytes", "I64", (rows, planes), 8 * rows * planes)]
    wanted += [
        ("cu_seqlens", "I64", (rows + 1,), 8 * (rows + 1)),
        ("input_ids", "I32", (tokens,), 4 * tokens),
        ("loss_mask", "U8", (tokens,), tokens),
    ]
    ends = list(accumulate(size for *_, size in wanted))
    return {name: Tensor(dtype, shape, end - size, end) for (name, dtype, shape, size), end in zip(wanted, ends, strict=True)}


def encode_header(spec: PartSpec, tensors: Mapping[str, Tensor], size: int = 0) -> bytes:
    """The safetensors header: length (u64, little endian), JSON, spaces up to a multiple of eight and at least up to `size`."""
    metadata = {
        "schema_version": str(SCHEMA_VERSION),
        "convention": spec.convention,
        "final": spec.final,
        "layers": json.dumps(list(spec.layers)),
        "num_hidden_layers": str(spec.num_hidden_layers),
        "hidden_size": str(spec.hidden_size),
        "model_fingerprint": spec.model_fingerprint,
        "dtype": spec.dtype,
        "compress": spec.compress,
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    for name, tensor in tensors.items():
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [tensor.start, tensor.end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text = text.ljust(max(len(text) + -len(text) % 8, size - 8))
    return struct.pack("<Q", len(text)) + text


def file_bytes(spec: PartSpec, lengths: Sequence[int]) -> int:
    """Size of the part that holds rows of these lengths: exact, or what it would be without compression."""
    plain = replace(spec, compress="none")
    tensors = layout(plain, sum(lengths), len(lengths))
    return len(encode_header(plain, tensors)) + tensors["loss_mask"].end


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
    expected = (*STATE_TENSORS.get(str(metadata.get("compress")), ("hidden_states",)), *ROW_TENSORS)
    if set(tensors) != set(expected):
        raise StateError(
            f"{path}: tensors {', '.join(sorted(tensors))}, expected {', '.join(expected)}; extract these states again"
        )
    require_convention(metadata.get("convention"), metadata.get("final"), str(path))
    return tensors, metadata, 8 + size


# ---------------------------------------------------------------------------------------------------- writing
class _HashingWriter:
    """Writes through to a file and hashes what went by (xxh3-128: free beside the write)."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle, self.hasher, self.bytes, self._started = handle, xxhash.xxh3_128(), 0, 0

    def write(self, data: bytes | memoryview) -> None:
        self.hasher.update(data)
        self._handle.write(data)
        self.bytes += len(data)
        if self.bytes - self._started >= WRITEBACK_BYTES:
            self._handle.flush()
            start_writeback(self._handle.fileno(), self._started, self.bytes - self._started)
            self._started = self.bytes


@dataclass(slots=True)
class _Written:
    """What has gone into the open file: the rows that are in, those that are not, and the lengths of their planes."""

    packs: list[Pack] = field(default_factory=list)
    missing: list[MissingRow] = field(default_factory=list)
    plane_bytes: list[list[int]] = field(default_factory=list)


def write_part(
    path: Path, spec: PartSpec, packs: Sequence[Pack], states: Iterable[torch.Tensor | str], fingerprint: str
) -> StatePart:
    """Stream one part to `path` and commit it with its JSON record, which is renamed last.

    `states` yields for each pack, in order, one tensor [T_i, slots, H] in `spec.dtype`, or the reason why there is none. Raises
    StoreError (full disk) and what `states` raises; either way no file of that name is touched.
    """
    tokens = _tokens(packs)
    first = encode_header(spec, layout(spec, tokens, len(packs), plane_bytes=tokens * spec.bytes_per_token))
    with atomic_file(path) as handle:
        out = _HashingWriter(handle)
        out.write(first)
        written = _stream_rows(out, spec, packs, states)
        plane_bytes = _close_planes(out, written) if spec.compress != "none" else 0
        for data in _row_tensors(written.packs):
            out.write(data)
        tensors = layout(spec, _tokens(written.packs), len(written.packs), plane_bytes)
        header, checksum = encode_header(spec, tensors, len(first)), out.hasher.hexdigest()
        if header != first:
            handle.seek(0)
            handle.write(header)
            handle.flush()
            checksum = digest_file(Path(handle.name))
    part = _part(path, spec, written, out.bytes, checksum, fingerprint)
    write_json(record_path(path), _to_json(part))
    return part


def _stream_rows(out: _HashingWriter, spec: PartSpec, packs: Sequence[Pack], states: Iterable[torch.Tensor | str]) -> _Written:
    written = _Written()
    for pack, row in zip(packs, states, strict=True):
        if isinstance(row, str):
            written.missing.append(MissingRow(pack.sample_id, pack.turn, pack.index, row))
            continue
        data = _row_bytes(row, (len(pack.input_ids), spec.slots, spec.hidden_size), spec.dtype)
        if spec.compress == "none":
            out.write(data)
        else:
            chunks = pack_planes(np.frombuffer(data, np.uint8), WIDTHS[spec.dtype])
            for chunk in chunks:
                out.write(chunk)
            written.plane_bytes.append([len(chunk) for chunk in chunks])
        written.packs.append(pack)
    return written


def _close_planes(out: _HashingWriter, written: _Written) -> int:
    """Pad the planes to a multiple of eight and write their lengths behind them; returns the padded length."""
    sizes = np.asarray([size for row in written.plane_bytes for size in row], dtype="<i8")
    padding = -int(sizes.sum()) % 8
    out.write(b"\0" * padding)
    out.write(sizes.tobytes())
    return int(sizes.sum()) + padding


def _row_tensors(packs: Sequence[Pack]) -> tuple[bytes, bytes, bytes]:
    """cu_seqlens, input_ids, loss_mask."""
    cu = np.cumsum([0, *(len(pack.input_ids) for pack in packs)]).astype("<i8")
    ids = b"".join(np.asarray(pack.input_ids).astype("<i4").tobytes() for pack in packs)
    return cu.tobytes(), ids, b"".join(np.asarray(pack.loss_mask).astype("u1").tobytes() for pack in packs)


def _tokens(packs: Sequence[Pack]) -> int:
    return sum(len(pack.input_ids) for pack in packs)


def _part(path: Path, spec: PartSpec, written: _Written, n_bytes: int, checksum: str, fingerprint: str) -> StatePart:
    ends = list(accumulate(len(pack.input_ids) for pack in written.packs))
    return StatePart(
        path=path,
        shard=spec.shard,
        bytes=n_bytes,
        xxh3=checksum,
        fingerprint=fingerprint,
        convention=spec.convention,
        final=spec.final,
        layers=spec.layers,
        num_hidden_layers=spec.num_hidden_layers,
        hidden_size=spec.hidden_size,
        dtype=spec.dtype,
        tokens=ends[-1] if ends else 0,
        rows=tuple(
            PartRow(pack.sample_id, pack.turn, pack.index, end - len(pack.input_ids), end)
            for pack, end in zip(written.packs, ends, strict=True)
        ),
        missing=tuple(written.missing),
        compress=spec.compress,
    )


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
        "compress": part.compress,
        "rows": [[r.sample_id, r.turn, r.index, r.start, r.end] for r in part.rows],
        "missing": [[r.sample_id, r.turn, r.index, r.reason] for r in part.missing],
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
            missing=tuple(MissingRow(*row) for row in raw["missing"]),
            compress=raw["compress"],
        )
    except (StoreError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{record}: is no part record ({error}); materialize hidden_states again") from None
