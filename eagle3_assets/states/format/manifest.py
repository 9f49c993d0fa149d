"""The partition's `manifest.json`: which parts are believed, what they are of, and how the engine proved itself.

Belongs here: its schema, writing and reading it. Does not belong here: making parts (`partition.py`), judging them (`verify.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.states.format.final_norm import FILE_NAME as FINAL_NORM_FILE
from eagle3_assets.states.format.layers import SLOTS, require_convention
from eagle3_assets.states.format.part import SCHEMA_VERSION, PartSpec, read_record, record_path
from eagle3_assets.states.format.state_part import MissingRow, StatePart
from eagle3_assets.store import digest_file, read_json, write_json

FILE_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """`raw` is the whole JSON; the named fields are those that readers need."""

    path: Path
    shard: str
    layers: tuple[int, ...]
    num_hidden_layers: int
    hidden_size: int
    dtype: str
    tokens: int
    corpus_part_digest: str
    samples: tuple[tuple[str, int], ...]
    missing: tuple[MissingRow, ...]
    files: tuple[dict[str, Any], ...]
    final_norm: dict[str, Any]
    raw: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.path.parent

    def read_parts(self) -> tuple[StatePart, ...]:
        """The parts' records, checked against this manifest (not against the files). Raises StateError naming the part."""
        return tuple(self.read_part(facts) for facts in self.files)

    def read_part(self, facts: dict[str, Any]) -> StatePart:
        """The record of one of `files`."""
        part = read_record(record_path(self.folder / facts["file"]))
        for key in ("bytes", "xxh3", "fingerprint", "tokens"):
            if getattr(part, key) != facts[key]:
                raise StateError(
                    f"{record_path(part.path)}: {key} is {getattr(part, key)!r}, expected {facts[key]!r} as in {self.path.name}; "
                    "materialize hidden_states again"
                )
        return part


def write_manifest(
    folder: Path,
    spec: PartSpec,
    parts: Sequence[StatePart],
    *,
    corpus_part_digest: str,
    model: dict[str, Any],
    self_test: dict[str, Any],
) -> Path:
    """Write `manifest.json` over parts that are in place, atomically. Holds no clock: equal content gives equal bytes."""
    norm = folder / FINAL_NORM_FILE
    path = folder / FILE_NAME
    write_json(
        path,
        {
            "version": SCHEMA_VERSION,
            "shard": spec.shard,
            "model": model,
            "convention": spec.convention,
            "final": spec.final,
            "layers": list(spec.layers),
            "slots": list(SLOTS),
            "num_hidden_layers": spec.num_hidden_layers,
            "hidden_size": spec.hidden_size,
            "dtype": spec.dtype,
            "compress": spec.compress,
            "final_norm": {"file": norm.name, "bytes": norm.stat().st_size, "xxh3": digest_file(norm)},
            "corpus_part_digest": corpus_part_digest,
            "self_test": self_test,
            "tokens": sum(p.tokens for p in parts),
            "parts": [
                {
                    "file": p.path.name,
                    "bytes": p.bytes,
                    "xxh3": p.xxh3,
                    "fingerprint": p.fingerprint,
                    "tokens": p.tokens,
                    "rows": len(p.rows),
                }
                for p in parts
            ],
            "samples": [[row.sample_id, row.turn] for p in parts for row in p.rows],
            # rows of the corpus part that are in no part, and why
            "missing": [[row.sample_id, row.turn, row.index, row.reason] for p in parts for row in p.missing],
        },
    )
    return path


def read_partition(folder: Path) -> PartitionManifest:
    """The manifest of a partition folder. Raises StateError: missing, unreadable, another version, unknown layer convention."""
    path = folder / FILE_NAME
    if not path.exists():
        raise StateError(f"{path}: is missing, so nothing in {folder} is committed; materialize hidden_states for {folder.name}")
    try:
        raw = read_json(path)
        if raw["version"] != SCHEMA_VERSION:
            raise StateError(f"{path}: version {raw['version']!r}, expected {SCHEMA_VERSION}; extract these states again")
        require_convention(raw["convention"], raw["final"], str(path))
        return PartitionManifest(
            path=path,
            shard=raw["shard"],
            layers=tuple(raw["layers"]),
            num_hidden_layers=raw["num_hidden_layers"],
            hidden_size=raw["hidden_size"],
            dtype=raw["dtype"],
            tokens=raw["tokens"],
            corpus_part_digest=raw["corpus_part_digest"],
            samples=tuple((sample_id, turn) for sample_id, turn in raw["samples"]),
            missing=tuple(MissingRow(*row) for row in raw["missing"]),
            files=tuple(raw["parts"]),
            final_norm=raw["final_norm"],
            raw=raw,
        )
    except (StoreError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}: is no manifest of hidden states ({error!s}); remove it and materialize hidden_states again"
        ) from None
