"""SpecForge's feature files, as references to our parts: `rows_*/data_*.ckpt` of one kilobyte each, and no copy of the states.

SpecForge's reader, its feature store and its vocabulary count all open a feature file by one call, `torch.load(path, weights_only=False,
mmap=True)`, and nothing in its command line takes another store. So a reference is a file that this call turns into the row: a pickled
`FeatureRow(folder, i, table)`. Runs inside the trainer's environment (numpy, torch; this repository on PYTHONPATH).

A reference names the hand-off's folder. A hand-off that was moved, or fetched from elsewhere, gets its references anew:

    python -m eagle3_assets.handoff.specforge_rows FOLDER

Belongs here: references, written and loaded. Does not belong here: reading parts (`mapped_rows.py`), the rest of the folder
(`specforge_export.py`).

SpecForge wants the last state AFTER the final norm (its head has no norm), the three others side by side, the mask unshifted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eagle3_assets.errors import StateError
from eagle3_assets.handoff.mapped_rows import STATES_VARIABLE, TABLE_FILE, MappedRows, read_table, table_digest

if TYPE_CHECKING:
    import torch

KEYS = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
ANEW = (
    "`python -m eagle3_assets.handoff.specforge_rows FOLDER`, with the folder where the hand-off lies, writes its references anew"
)


def _rows(folder: str) -> MappedRows:
    """The open table of a folder: one in a process, until it is written anew or $EAGLE3_STATES changes."""
    try:
        written = (Path(folder) / TABLE_FILE).stat().st_mtime_ns
    except OSError as error:
        raise StateError(
            f"{Path(folder) / TABLE_FILE}: a reference leads here, and it cannot be read ({error.strerror}); was the hand-off moved? {ANEW}"
        ) from None
    return _open(folder, written, os.environ.get(STATES_VARIABLE))


@lru_cache(maxsize=4)
def _open(folder: str, written: int, states: str | None) -> MappedRows:
    return MappedRows(folder)


class FeatureRow(Mapping[str, "torch.Tensor"]):
    """One row as SpecForge's dictionary: `input_ids` int64 [T], `loss_mask` int64 [T], `hidden_state` [1, T, H] post-norm,
    `aux_hidden_state` [1, T, 3H] low, mid, high (a view of the mapped part).

    A tensor is made when it is asked for, so counting tokens reads no states. `table` is the digest of the `rows.json` that the reference
    was written for (None: whichever is there). Raises StateError where that, or the part, is not the one that it was made from.
    """

    def __init__(self, folder: str, index: int, table: str | None = None) -> None:
        self.folder, self.index, self._table = folder, index, table
        self._rows = _rows(folder)
        if table not in (None, self._rows.digest):
            raise StateError(
                f"{Path(folder) / TABLE_FILE}: row {index} of another table was referred to: the hand-off was made again, or this is a copy of "
                f"it; {ANEW}"
            )
        self._row = self._rows[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureRow, (self.folder, self.index, self._table)

    def __getitem__(self, key: str) -> torch.Tensor:
        import torch

        if key in ("input_ids", "loss_mask"):
            return torch.from_numpy(getattr(self._row, key).astype(np.int64))
        if key == "aux_hidden_state":
            return self._row.hidden_states[:, :-1].flatten(1)[None]
        if key == "hidden_state":
            return self._rows.post_norm(self._row.hidden_states[:, -1])[None]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(KEYS)

    def __len__(self) -> int:
        return len(KEYS)


def reference_path(folder: Path, split: str, i: int, rows: int, *, per_folder: int = 2000) -> Path:
    """`<split>/rows_00000-02000/data_00017.ckpt`: numbers of equal width, because SpecForge sorts the paths as strings."""
    width = len(str(max(rows - 1, per_folder)))
    first = i // per_folder * per_folder
    return folder / split / f"rows_{first:0{width}d}-{first + per_folder:0{width}d}" / f"data_{i:0{width}d}.ckpt"


class _Reference:
    """Pickles as the call `FeatureRow(folder, index, table)`; nothing is opened to write it."""

    def __init__(self, folder: str, index: int, table: str) -> None:
        self.folder, self.index, self.table = folder, index, table

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureRow, (self.folder, self.index, self.table)


def references(folder: Path, table: Mapping[str, Any]) -> list[Path]:
    """The path of every row's reference, in the order of `rows.json` (and of SpecForge's sorting, split by split)."""
    train, rows = table["train_rows"], len(table["rows"])
    return [reference_path(folder, "train" if i < train else "validation", i, rows) for i in range(rows)]


def write_references(folder: Path, home: Path) -> int:
    """Write the reference of every row of `folder`'s table into `folder`, to be loaded once it lies at `home`; returns how many."""
    import torch

    paths, table = references(folder, read_table(folder)), table_digest(folder)
    for i, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_Reference(str(home.absolute()), i, table), path)
    return len(paths)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python -m eagle3_assets.handoff.specforge_rows FOLDER   (write the references of a hand-off that was moved)"
        )
    # imported by its name: what is pickled must not be called __main__
    from eagle3_assets.handoff.specforge_rows import write_references as write

    folder = Path(sys.argv[1])
    try:
        print(f"{write(folder, folder)} references in {folder}")
    except StateError as error:
        sys.exit(str(error))
    except (OSError, RuntimeError) as error:  # torch says a folder that cannot be written with the latter
        sys.exit(f"{folder}: references cannot be written ({str(error).splitlines()[0]}); check permissions and space")


if __name__ == "__main__":
    main()
