"""Random access to a partition's rows: memory-mapped, nothing copied, nothing parsed but headers. Public API.

    from eagle3_assets import states

    s = states.open("data/demo/hidden_states/00000")
    len(s), s.layers                     # rows; (low, mid, high) as E_k
    row = s[17]                          # by number, in corpus order
    row = s["4be1..."]                   # by sample id; s["4be1...", 2] where a sample has several turns
    row.hidden_states                    # torch [T, 4, H] bf16: low, mid, high, final before the norm; the mapped file itself
    row.input_ids, row.loss_mask         # numpy int32 [T], uint8 [T], unshifted
    s.final_norm.apply(row.hidden_states[:, 3])   # what the target's head reads
    s.missing                            # {(sample id, turn): why its states were left out}

Rows of lossless (compressed) parts are decoded when asked for, one row alone; all else is the same. Every process of a data loader
shares the page cache; `States` is cheap to pickle (it reopens).

Belongs here: `open`, `States`, `StateRow`. Does not belong here: checksums of parts (`verify.py`), trainers' formats (`handoff`).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.errors import StateError
from eagle3_assets.states.format.final_norm import FinalNorm, load_final_norm
from eagle3_assets.states.format.manifest import PartitionManifest, read_partition
from eagle3_assets.states.format.part import read_header
from eagle3_assets.states.format.planes import unpack_planes
from eagle3_assets.states.format.state_part import StatePart
from eagle3_assets.store import digest_file
from eagle3_assets.tier.moves import fetch, used
from eagle3_assets.tier.place import is_elsewhere

if TYPE_CHECKING:
    import torch

# numpy has no bf16: its 16 bits are kept as they are and given to torch by reinterpretation
_NUMPY_DTYPES = {"I64": "<i8", "I32": "<i4", "U8": "u1", "BF16": "<i2", "F32": "<f4"}


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row; all arrays are views of the mapped file (`raw` of a lossless part is decoded memory).

    `input_ids` int32 [T], `loss_mask` uint8 [T] (unshifted), `raw` [T, 4, H]: fp32, or the bits of bf16 as int16.
    """

    sample_id: str
    turn: int
    index: int
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    raw: npt.NDArray[Any]

    @property
    def hidden_states(self) -> torch.Tensor:
        """[T, 4, H] bf16 or fp32 (low, mid, high, final_prenorm), no copy: the tensor shares the mapping's memory.

        Writing into it changes this process's private pages, never the file.
        """
        import torch

        tensor = torch.from_numpy(self.raw)
        return tensor.view(torch.bfloat16) if self.raw.dtype == np.int16 else tensor


def map_part(part: StatePart) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a part as arrays over one private mapping. Raises StateError naming the file.

    Private and writable, because torch warns about read-only memory; no swap is reserved for it.
    """
    if not part.path.exists() and is_elsewhere(part.path, {"bytes": part.bytes, "xxh3": part.xxh3}):
        fetch(part.path)
    used(part.path)
    tensors, _, data_start = read_header(part.path)
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    fd = os.open(part.path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        expected = data_start + max(t.end for t in tensors.values())
        if size != expected or size != part.bytes:
            raise StateError(f"{part.path}: {size} bytes, expected {part.bytes}; remove it and materialize hidden_states again")
        mapped = mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    arrays = {}
    for name, tensor in tensors.items():
        dtype = np.dtype(_NUMPY_DTYPES[tensor.dtype])
        count = (tensor.end - tensor.start) // dtype.itemsize
        flat = np.frombuffer(mapped, dtype, count, data_start + tensor.start) if count else np.empty(0, dtype)
        arrays[name] = flat.reshape(tensor.shape)
    wanted: dict[str, tuple[int, ...]] = {
        "input_ids": (part.tokens,),
        "loss_mask": (part.tokens,),
        "cu_seqlens": (len(part.rows) + 1,),
    }
    if part.compress == "none":
        wanted["hidden_states"] = (part.tokens, len(part.layers) + 1, part.hidden_size)
    for name, shape in wanted.items():
        if name not in arrays or arrays[name].shape != shape:
            found = arrays[name].shape if name in arrays else "none"
            raise StateError(
                f"{part.path}: {name} of shape {found}, expected {shape}; remove it and materialize hidden_states again"
            )
    return arrays


def rows_of(part: StatePart, arrays: dict[str, npt.NDArray[Any]]) -> Iterator[StateRow]:
    """The part's rows in corpus order."""
    for i in range(len(part.rows)):
        yield row_of(part, arrays, i)


def row_of(part: StatePart, arrays: dict[str, npt.NDArray[Any]], i: int) -> StateRow:
    """Row `i` of a mapped part."""
    row = part.rows[i]
    cut = slice(row.start, row.end)
    raw = arrays["hidden_states"][cut] if part.compress == "none" else _decode(part, arrays, i)
    return StateRow(row.sample_id, row.turn, row.index, arrays["input_ids"][cut], arrays["loss_mask"][cut], raw)


def _decode(part: StatePart, arrays: dict[str, npt.NDArray[Any]], i: int) -> npt.NDArray[Any]:
    """Row `i` of a lossless part: [T, 4, H], fp32 or the bits of bf16. Only this row's bytes are read."""
    ends = arrays["plane_bytes"].sum(axis=1).cumsum()
    sizes, end = arrays["plane_bytes"][i].tolist(), int(ends[i])
    shape = (part.rows[i].end - part.rows[i].start, len(part.layers) + 1, part.hidden_size)
    data = arrays["hidden_planes"][end - sum(sizes) : end]
    values = unpack_planes(data, sizes, int(np.prod(shape)), f"{part.path}: row {part.rows[i].sample_id}")
    return (values if len(sizes) == 2 else values.view("<f4")).reshape(shape)


class States:
    """A committed partition: `len(states)` rows in corpus order; `states[3]`, `states["<sample id>"]`, `states["<id>", turn]`.

    `missing`: {(sample id, turn): reason} of corpus rows that are in no part.
    """

    def __init__(self, manifest: PartitionManifest) -> None:
        self.manifest = manifest
        self.parts = manifest.read_parts()
        for part in self.parts:
            size = part.path.stat().st_size if part.path.exists() else None
            if size is None and is_elsewhere(part.path, {"bytes": part.bytes, "xxh3": part.xxh3}):
                continue  # fetched when a row of it is asked for
            if size != part.bytes:
                found = "no file" if size is None else f"{size} bytes"
                raise StateError(f"{part.path}: found {found}, expected {part.bytes} bytes; materialize hidden_states again")
        self._where = [(p, i) for p, part in enumerate(self.parts) for i in range(len(part.rows))]
        self._numbers: dict[str, list[int]] = {}
        for number, (sample_id, _) in enumerate(manifest.samples):
            self._numbers.setdefault(sample_id, []).append(number)
        self._maps: dict[int, dict[str, npt.NDArray[Any]]] = {}
        if len(self._where) != len(manifest.samples):
            raise StateError(f"{manifest.path}: {len(manifest.samples)} samples, but its parts hold {len(self._where)} rows")
        self.missing = {(row.sample_id, row.turn): row.reason for row in manifest.missing}

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.manifest.folder,)

    @property
    def layers(self) -> tuple[int, ...]:
        """E_k numbers of slots 0..2."""
        return self.manifest.layers

    @cached_property
    def final_norm(self) -> FinalNorm:
        """Makes post-norm states of slot 3: `states.final_norm.apply(row.hidden_states[:, 3])`. Raises StateError for a damaged one."""
        path = self.manifest.folder / self.manifest.final_norm["file"]
        if not path.is_file() or digest_file(path) != self.manifest.final_norm["xxh3"]:
            raise StateError(f"{path}: is not the file that {self.manifest.path.name} describes; materialize hidden_states again")
        return load_final_norm(path)

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[StateRow]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: int | str | tuple[str, int]) -> StateRow:
        """Raises KeyError for a row that is not there (and says why, where it was left out), IndexError for a number beyond the end."""
        p, i = self._where[key if isinstance(key, int) else self._number(key)]
        if p not in self._maps:
            self._maps[p] = map_part(self.parts[p])
        return row_of(self.parts[p], self._maps[p], i)

    def _number(self, key: str | tuple[str, int]) -> int:
        sample_id, turn = (key, None) if isinstance(key, str) else key
        found = [n for n in self._numbers.get(sample_id, []) if turn is None or self.manifest.samples[n][1] == turn]
        if len(found) == 1:
            return found[0]
        if not found:
            left_out = [why for (name, at), why in self.missing.items() if name == sample_id and turn in (None, at)]
            why = f"its states were left out: {left_out[0]}" if left_out else "it is not in this corpus part"
            raise KeyError(f"{self.manifest.folder}: holds no row {key!r}; {why}")
        turns = ", ".join(str(self.manifest.samples[n][1]) for n in found)
        raise KeyError(f"{self.manifest.folder}: row {sample_id!r} has turns {turns}; ask for (sample_id, turn)")


def open(path: str | Path) -> States:
    """Open a partition folder, e.g. `data/demo/hidden_states/00000`.

    Raises StateError: not committed, damaged, unknown layer convention.
    """
    return States(read_partition(Path(path)))
