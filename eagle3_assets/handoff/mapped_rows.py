"""The rows of a hand-off, read in place out of `hidden_states/` inside a trainer's environment: needs numpy and torch (and pyarrow for
parts that were stored lossless), nothing else.

Belongs here: `rows.json` as a reader sees it, mapping the parts that it names, comparing every row's ids at every read, the final
norm. Does not belong here: writing (`row_table.py`), a trainer's own types (`speculators_transfer.py`, `specforge_rows.py`), anything that
imports the platform: a trainer's environment has none of it.

`rows.json` lies in the hand-off's folder; the parts lie where it says, relative to that folder, or in $EAGLE3_STATES when the states
were moved or mounted elsewhere (the folder that holds `00000/part-000.safetensors`).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.errors import StateError

if TYPE_CHECKING:
    import torch

VERSION = 1
TABLE_FILE, NORM_FILE = "rows.json", "final_norm.npy"
STATES_VARIABLE = "EAGLE3_STATES"
CONVENTION, FINAL = "E_k=input_of_decoder_layer_k", "prenorm"  # states/format/layers.py; any other is refused
# numpy has no bf16: its 16 bits are kept and reinterpreted by torch
DTYPES = {"bfloat16": "<i2", "float32": "<f4"}
_WHOLE = {2: "<i2", 4: "<i4"}  # integers of as many bytes


def digest_ids(ids: npt.NDArray[Any]) -> str:
    """Sixteen hex digits over a row's ids: what binds a line of `rows.json` to the tokens that it means."""
    return hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i4").tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class MappedRow:
    """`input_ids` int32 [T] and `loss_mask` uint8 [T] (unshifted) are views of the mapped part; so is `raw` [T, 4, H] (decoded where the
    part is lossless): fp32, or the bits of bf16 as int16 (low, mid, high, final before the norm)."""

    sample_id: str
    turn: int
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    raw: npt.NDArray[Any]

    @property
    def hidden_states(self) -> torch.Tensor:
        """[T, 4, H] bf16 or fp32, no copy."""
        import torch

        tensor = torch.from_numpy(self.raw)
        return tensor.view(torch.bfloat16) if self.raw.dtype == np.int16 else tensor


class MappedRows:
    """`len(rows)`, `rows[i]` in the order of the hand-off: training rows first, validation rows behind them.

    Cheap to pickle (a loader's worker opens it anew). Every read compares the row's ids with the digest in `rows.json`: a part that was
    extracted again, from another corpus or in another order, raises StateError and never reaches a trainer.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.table = read_table(self.folder)
        self.digest = table_digest(self.folder)
        where = os.environ.get(STATES_VARIABLE)
        self.states = Path(where) if where else self.folder / self.table["states"]
        self._maps: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self._weight: torch.Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedRows, (self.folder,)

    def __len__(self) -> int:
        return len(self.table["rows"])

    @property
    def train_rows(self) -> int:
        """How many rows, from the first, are for training; the rest is validation."""
        return int(self.table["train_rows"])

    def __getitem__(self, i: int) -> MappedRow:
        if not 0 <= i < len(self):
            raise StateError(f"{self.folder / TABLE_FILE}: has {len(self)} rows, no row {i}")
        sample_id, turn, number, place, start, end, digest = self.table["rows"][i]
        if number not in self._maps:
            self._maps[number] = self._map(self.table["parts"][number])
        arrays = self._maps[number]
        ids = arrays["input_ids"][start:end]
        if len(ids) != end - start or digest_ids(ids) != digest:
            raise StateError(
                f"{self.states / self.table['parts'][number]['file']}: tokens {start} to {end} are not those of row {i} ({sample_id} turn "
                f"{turn}) of {self.folder / TABLE_FILE}: the states were made again; materialize this hand-off again"
            )
        raw = arrays["hidden_states"][start:end] if "hidden_states" in arrays else self._decode(number, place, end - start)
        return MappedRow(sample_id, turn, ids, arrays["loss_mask"][start:end], raw)

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.table["layers"]) + 1, self.table["hidden_size"]

    def _decode(self, number: int, place: int, tokens: int) -> npt.NDArray[Any]:
        """Row `place` of a lossless part: its byte planes (states/format/planes.py), highest first, each as it is or by zstd."""
        import pyarrow as pa

        arrays, values = self._maps[number], tokens * self._shape[0] * self._shape[1]
        sizes = arrays["plane_bytes"][place].tolist()
        at, width = int(arrays["plane_bytes"][:place].sum()), len(sizes)
        out = np.empty((values, width), dtype=np.uint8)
        for k, size in enumerate(sizes):
            plane = arrays["hidden_planes"][at : at + size]
            if size != values:
                plane = np.frombuffer(pa.Codec("zstd").decompress(plane, decompressed_size=values), np.uint8)
            out[:, width - 1 - k] = plane
            at += size
        return out.reshape(-1).view(_WHOLE[width]).view(DTYPES[self.table["dtype"]]).reshape(tokens, *self._shape)

    def _map(self, part: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """One private mapping a part, kept: no swap is reserved, and what a trainer writes into a tensor never reaches the file."""
        path, tokens = self.states / part["file"], part["tokens"]
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StateError(
                f"{path}: cannot be read ({error.strerror}); set {STATES_VARIABLE} to the folder that holds {part['file']}"
            ) from None
        try:
            size = os.fstat(fd).st_size
            if size != part["bytes"]:
                raise StateError(f"{path}: {size} bytes, expected {part['bytes']}; materialize this hand-off again")
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            mapped = mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        shapes = {
            "input_ids": ("<i4", (tokens,)),
            "loss_mask": ("u1", (tokens,)),
            "hidden_states": (DTYPES[self.table["dtype"]], (tokens, *self._shape)),
            "plane_bytes": ("<i8", (part["rows"], np.dtype(DTYPES[self.table["dtype"]]).itemsize)),
            "hidden_planes": ("u1", (-1,)),
        }
        arrays = {}
        for name, (start, end) in part["at"].items():
            dtype, shape = shapes[name]
            arrays[name] = np.frombuffer(mapped, dtype, (end - start) // np.dtype(dtype).itemsize, start).reshape(shape)
        return arrays

    def post_norm(self, final: torch.Tensor) -> torch.Tensor:
        """The target's final norm over states [..., H]: fp32 inside, cast back (to the bit what `states.final_norm` computes)."""
        import torch

        if self._weight is None:
            self._weight = torch.from_numpy(np.load(self.folder / NORM_FILE, allow_pickle=False))
        x = final.to(torch.float32)
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.table["final_norm_eps"])
        return (self._weight.to(final.device) * normed.to(final.dtype)).to(final.dtype)


def table_digest(folder: Path) -> str:
    """Sixteen hex digits over `rows.json`: what binds a reference to the table whose row it means."""
    return hashlib.blake2b((folder / TABLE_FILE).read_bytes(), digest_size=8).hexdigest()


def read_table(folder: Path) -> dict[str, Any]:
    """`rows.json`. Raises StateError: missing, not ours, another version, unknown layer convention or dtype."""
    path = folder / TABLE_FILE
    try:
        table: dict[str, Any] = json.loads(path.read_bytes())
        found = table["version"], table["convention"], table["final"], table["dtype"]
    except FileNotFoundError:
        raise StateError(f"{path}: is missing; this is no hand-off of hidden states, or half of one") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path}: cannot be read ({error}); materialize this hand-off again") from None
    if found[:3] != (VERSION, CONVENTION, FINAL) or found[3] not in DTYPES:
        raise StateError(
            f"{path}: version, layer convention, final state and dtype are {found}, expected {(VERSION, CONVENTION, FINAL)} and one of "
            f"{', '.join(DTYPES)}; guessing would shift every layer by one, silently"
        )
    return table
