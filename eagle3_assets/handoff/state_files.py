"""The trainers' own files of hidden states, copies of our parts: only where `[handoff] files` names the trainer.

    handoff/speculators_files/hs_{i}.safetensors             row i of handoff/speculators: [T, 4, H] before the norm, token_ids int64
    handoff/specforge_files/{train,validation}/rows_*/data_*.ckpt     as SpecForge writes them: after the norm, int64 ids and masks

Belongs here: the size that is asked first, writing, resume, comparing with the rows. Does not belong here: reading in place (cheaper,
and the default: `mapped_rows.py`).

Resume: `files.jsonl` names the table of rows that the files are of, and then every file that is whole, with size and checksum. A file
that it does not name is written again; another table clears the folder.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.handoff.file_sizes import export_bytes
from eagle3_assets.handoff.mapped_rows import TABLE_FILE, MappedRow, MappedRows
from eagle3_assets.handoff.specforge_rows import KEYS, FeatureRow, reference_path
from eagle3_assets.progress import Step, publish
from eagle3_assets.store import Store, atomic_file, digest_file

Trainer = Literal["speculators", "specforge"]
LOG = "files.jsonl"
RESERVE_BYTES = 256 * 2**20


def files_folder(store: Store, trainer: Trainer) -> Path:
    return store.handoff(f"{trainer}_files")


def guard_files(campaign: Campaign, store: Store, trainer: Trainer, numbers: Mapping[str, Any]) -> int:
    """Bytes that the trainer's own files take; 0 where none are asked for. Raises StoreError, before anything is written, when they
    exceed `[handoff] file_bytes` (the confirmation) or what is free."""
    if trainer not in campaign.handoff.files:
        return 0
    needed = export_bytes(campaign, rows=numbers["rows"], tokens=numbers["tokens"], trainer=trainer)
    confirmed = campaign.handoff.file_bytes
    what = f"handoff.files asks for {trainer}: {numbers['rows']:,} rows, {numbers['tokens']:,} tokens = {needed:,} bytes ({needed / 1e12:.3f} TB)"
    instead = "the trainer reads the states in place without them"
    if confirmed is None or confirmed < needed:
        allowed = "none are confirmed" if confirmed is None else f"handoff.file_bytes = {confirmed:,} are confirmed"
        raise StoreError(f"{campaign.path}: {what}, {allowed}; write handoff.file_bytes = {needed}, or leave them out: {instead}")
    folder = files_folder(store, trainer)
    there = sum(f["bytes"] for f in _logged(folder).values())
    free = shutil.disk_usage(store.root).free
    if free < needed - there + RESERVE_BYTES:
        raise StoreError(
            f"{folder}: {what}, {there:,} of them there, and {free:,} bytes are free; free space, or leave them out: {instead}"
        )
    return needed


def write_state_files(campaign: Campaign, store: Store, trainer: Trainer) -> dict[str, int]:
    """Write (or finish) the trainer's files of the hand-off in place; {"files", "bytes", "kept"}, all 0 where none are asked for."""
    if trainer not in campaign.handoff.files:
        return {"files": 0, "bytes": 0, "kept": 0}
    rows, folder = MappedRows(store.handoff(trainer)), files_folder(store, trainer)
    source = digest_file(rows.folder / TABLE_FILE)
    done = _resume(folder, source)
    kept, total = len(done), sum(f["bytes"] for f in done.values())
    with (folder / LOG).open("ab") as log:
        for i in range(len(rows)):
            path = file_path(folder, trainer, rows, i)
            name = path.relative_to(folder).as_posix()
            if name in done:
                continue
            with atomic_file(path) as handle:
                out = _Hashing(handle)
                WRITERS[trainer](out, rows, i)
            log.write(json.dumps({"file": name, "bytes": out.bytes, "xxh3": out.hasher.hexdigest()}).encode() + b"\n")
            log.flush()
            total += out.bytes
            publish(Step(f"handoff_{trainer}", i + 1, len(rows), "files"))
    return {"files": len(rows), "bytes": total, "kept": kept}


def file_path(folder: Path, trainer: Trainer, rows: MappedRows, i: int) -> Path:
    """Where row i lies."""
    if trainer == "speculators":
        return folder / f"hs_{i}.safetensors"
    return reference_path(folder, "train" if i < rows.train_rows else "validation", i, len(rows))


# ---------------------------------------------------------------------------------------------------- writing
class _Hashing:
    """Writes through and hashes what went by."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle, self.hasher, self.bytes = handle, xxhash.xxh3_128(), 0

    def write(self, data: Any) -> int:
        self.hasher.update(data)
        self._handle.write(data)
        self.bytes += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        self._handle.flush()


def _write_speculators(out: _Hashing, rows: MappedRows, i: int) -> None:
    """Header first, then the tensors straight from the mapped part: nothing is copied in memory."""
    row = rows[i]
    dtype = "BF16" if row.raw.dtype == np.int16 else "F32"
    ids = row.input_ids.astype("<i8")
    entries = {
        "hidden_states": {"dtype": dtype, "shape": list(row.raw.shape), "data_offsets": [0, row.raw.nbytes]},
        "token_ids": {"dtype": "I64", "shape": [len(ids)], "data_offsets": [row.raw.nbytes, row.raw.nbytes + ids.nbytes]},
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)
    out.write(row.raw.reshape(-1).view(np.uint8).data)
    out.write(ids.data)


def _write_specforge(out: _Hashing, rows: MappedRows, i: int) -> None:
    import torch

    # clones: torch saves the whole storage of a view, here the whole part
    torch.save({key: value.clone() for key, value in FeatureRow(str(rows.folder), i).items()}, out)  # type: ignore[arg-type]


WRITERS = {"speculators": _write_speculators, "specforge": _write_specforge}


# ---------------------------------------------------------------------------------------------------- resume
def _resume(folder: Path, source: str) -> dict[str, dict[str, Any]]:
    """The files that stand, of this table of rows; anything else is cleared away, and a torn last line of the log cut off."""
    done = _logged(folder)
    if _source(folder) != source:
        shutil.rmtree(folder, ignore_errors=True)
        done = {}
    done = {name: facts for name, facts in done.items() if _size(folder / name) == facts["bytes"]}
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / LOG) as log:
        for line in ({"source": source}, *done.values()):
            log.write(json.dumps(line).encode() + b"\n")
    return done


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        content = (folder / LOG).read_bytes()
    except OSError:
        return
    for line in content.split(b"\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _source(folder: Path) -> str | None:
    return next((line["source"] for line in _lines(folder) if "source" in line), None)


def _logged(folder: Path) -> dict[str, dict[str, Any]]:
    return {line["file"]: line for line in _lines(folder) if {"file", "bytes", "xxh3"} <= line.keys()}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


# ---------------------------------------------------------------------------------------------------- comparing
def file_faults(campaign: Campaign, store: Store, trainer: Trainer, *, read: int = 64) -> list[str]:
    """What is wrong with the files of a trainer, one line each: another table of rows, missing, of another size; of `read` files, drawn
    by the campaign's seed, the checksum and every value. Empty where all is well, or none are asked for."""
    if trainer not in campaign.handoff.files:
        return []
    folder = files_folder(store, trainer)
    rows = MappedRows(store.handoff(trainer))
    if _source(folder) != digest_file(rows.folder / TABLE_FILE):
        return [f"{folder / LOG}: the files are of another table of rows; materialize handoff/{trainer} again"]
    logged, faults = _logged(folder), []
    looked_at = set(random.Random(campaign.campaign.seed).sample(range(len(rows)), min(read, len(rows))))
    for i in range(len(rows)):
        path = file_path(folder, trainer, rows, i)
        facts = logged.get(path.relative_to(folder).as_posix())
        if facts is None or _size(path) != facts["bytes"]:
            faults.append(f"{path}: is missing or of another size")
        elif i in looked_at and (digest_file(path) != facts["xxh3"] or not _same(path, trainer, rows, i)):
            faults.append(f"{path}: differs from its row")
    return faults


def _same(path: Path, trainer: Trainer, rows: MappedRows, i: int) -> bool:
    import torch

    row: MappedRow = rows[i]
    if trainer == "speculators":
        from safetensors.torch import load_file

        found = load_file(path)
        return torch.equal(found["hidden_states"], row.hidden_states) and bool(
            np.array_equal(found["token_ids"].numpy(), row.input_ids)
        )
    loaded = torch.load(path, weights_only=True)
    wanted = FeatureRow(str(rows.folder), i)
    return set(loaded) == set(KEYS) and all(torch.equal(loaded[key], wanted[key]) for key in KEYS)
