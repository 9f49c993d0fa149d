"""One partition `hidden_states/<shard>/`: planned, extracted part by part, resumed part by part, committed by its manifest.

Belongs here: cutting a corpus part into state parts, resume, the disk guard, the order of commits, what makes states current.
Does not belong here: the part's bytes (`part.py`), the engine (`extractors/`), the lock on the device (the caller holds it).

A part that is committed (record renamed last, same fingerprint, file of the stated size) is kept; anything else is done again.
So a `kill -9` or a full disk costs the open part and never a wrong row.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.states.extractors.interface import Extractor
from eagle3_assets.states.final_norm import FILE_NAME as FINAL_NORM_FILE
from eagle3_assets.states.final_norm import save_final_norm
from eagle3_assets.states.layers import CONVENTION, FINAL, check_layers
from eagle3_assets.states.manifest import FILE_NAME as MANIFEST_FILE
from eagle3_assets.states.manifest import read_partition, write_manifest
from eagle3_assets.states.part import SCHEMA_VERSION, PartSpec, file_bytes, part_name, read_record, record_path, write_part
from eagle3_assets.states.self_test import require_sound, run_self_test
from eagle3_assets.states.state_part import StatePart
from eagle3_assets.store import Store, commit, digest_json, is_current, manifest_path

if TYPE_CHECKING:
    import torch

WINDOW_BATCHES = 4  # rows are handed to the engine in windows of this many batches, so that it can sort them by length
DISK_RESERVE_BYTES = 32 * 2**20  # records, manifests, and what else the file system needs


def state_inputs(campaign: Campaign, corpus_part_digest: str, model_fingerprint: str) -> dict[str, Any]:
    """What decides a partition's content, for `store.is_current` and `store.commit`. Fingerprint: `weights.model_fingerprint`."""
    return {
        "schema": SCHEMA_VERSION,
        "corpus_part": corpus_part_digest,
        "model": model_fingerprint,
        "engine": campaign.extraction.engine,
        "model_dtype": campaign.target.dtype,
        "convention": CONVENTION,
        "final": FINAL,
        "layers": list(campaign.layers),
        "dtype": campaign.extraction.dtype,
        "part_bytes": campaign.extraction.part_bytes,
    }


def packs_digest(packs: Sequence[Pack]) -> str:
    """xxh3-128 over rows, ids and masks in order: the identity of a corpus part's content, whatever file it came from."""
    hasher = xxhash.xxh3_128()
    for pack in packs:
        hasher.update(f"{pack.sample_id} {pack.turn} {len(pack.input_ids)}\n".encode())
        hasher.update(np.asarray(pack.input_ids).astype("<u4").tobytes())
        hasher.update(np.asarray(pack.loss_mask).astype("u1").tobytes())
    return hasher.hexdigest()


def plan_parts(lengths: Sequence[int], bytes_per_token: int, part_bytes: int) -> list[range]:
    """Cut rows, in order, into parts of about `part_bytes`: never above it, except for a single row that is longer."""
    cuts, start, size = [], 0, 0
    for i, length in enumerate(lengths):
        if i > start and size + length * bytes_per_token > part_bytes:
            cuts.append(range(start, i))
            start, size = i, 0
        size += length * bytes_per_token
    return [*cuts, range(start, len(lengths))] if len(lengths) else []


def write_partition(
    campaign: Campaign,
    store: Store,
    shard: str,
    packs: Sequence[Pack],
    extractor: Extractor,
    *,
    corpus_part_digest: str | None = None,
    on_tokens: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Extract one corpus part into `hidden_states/<shard>/` and commit it. Returns its figures (plain JSON).

    `corpus_part_digest`: the digest that the caller also gives to `state_inputs` (default: `packs_digest(packs)`). `on_tokens` is
    called with the number of tokens written since the last call, kept parts included. Raises StateError: failed self-test,
    unsound states, no room on the disk; parts committed by then stay and are kept by the next run.
    """
    facts = extractor.describe()
    spec = _spec(campaign, shard, facts)
    digest = corpus_part_digest or packs_digest(packs)
    inputs = state_inputs(campaign, digest, facts["fingerprint"])
    folder = store.states(shard)
    plan = _plan(folder, spec, packs, campaign.extraction.part_bytes, inputs)
    kept = {number: part for number, (_, _, part) in enumerate(plan) if part is not None}
    report = on_tokens or (lambda tokens: None)
    report(sum(part.tokens for part in kept.values()))
    if len(kept) == len(plan) and is_current(folder, inputs) and _manifest_stands(folder):
        return _figures(spec, list(kept.values()), len(plan))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder, {part_name(number) for number in kept})
        _guard_disk(folder, sum(file_bytes(spec, [len(p.input_ids) for p in rows]) for rows, _, part in plan if part is None))
        self_test = run_self_test(extractor, spec.layers, spec.dtype)
        save_final_norm(folder / FINAL_NORM_FILE, extractor.final_norm())
        parts = []
        for number, (rows, fingerprint, part) in enumerate(plan):
            if part is None:
                states = _capture(extractor, spec, rows, WINDOW_BATCHES * campaign.extraction.batch_tokens, report)
                part = write_part(folder / f"{part_name(number)}.safetensors", spec, rows, states, fingerprint)
            parts.append(part)
        manifest = write_manifest(folder, spec, parts, corpus_part_digest=digest, model=facts, self_test=self_test)
        figures = _figures(spec, parts, len(kept))
        numbers = {k: figures[k] for k in ("rows", "tokens", "bytes", "parts")}
        commit(
            folder,
            files=[manifest, folder / FINAL_NORM_FILE],
            inputs=inputs,
            numbers=numbers,
            known={part.path: part.xxh3 for part in parts},
        )
    except (StoreError, OSError) as error:
        raise StateError(f"hidden_states {shard}: {error}; committed parts are kept") from None
    return figures


def _spec(campaign: Campaign, shard: str, facts: dict[str, Any]) -> PartSpec:
    check_layers(campaign.layers, facts["num_hidden_layers"])
    for key in ("num_hidden_layers", "hidden_size"):
        if facts[key] != getattr(campaign.target, key):
            raise StateError(
                f"{campaign.path}: target.{key} = {getattr(campaign.target, key)}, but the engine's model has {facts[key]}"
            )
    return PartSpec(
        shard=shard,
        convention=CONVENTION,
        final=FINAL,
        layers=campaign.layers,
        num_hidden_layers=facts["num_hidden_layers"],
        hidden_size=facts["hidden_size"],
        dtype=campaign.extraction.dtype,
        model_fingerprint=facts["fingerprint"],
    )


def _plan(
    folder: Path, spec: PartSpec, packs: Sequence[Pack], part_bytes: int, inputs: dict[str, Any]
) -> list[tuple[Sequence[Pack], str, StatePart | None]]:
    """(rows, fingerprint, committed part or None) for each part."""
    if not packs:
        raise StateError(f"hidden_states {spec.shard}: its corpus part holds no rows; materialize corpus again")
    for pack in packs:
        if not len(pack.input_ids) or len(pack.input_ids) != len(pack.loss_mask):
            raise StateError(
                f"hidden_states {spec.shard}: corpus row {pack.sample_id} turn {pack.turn} has {len(pack.input_ids)} ids and "
                f"{len(pack.loss_mask)} mask entries, expected as many, and at least one; materialize corpus again"
            )
    plan = []
    for number, cut in enumerate(plan_parts([len(p.input_ids) for p in packs], spec.bytes_per_token, part_bytes)):
        rows = packs[cut.start : cut.stop]
        # part_bytes decides the cut and nothing else, and the cut is in the digest of the rows
        decides = {k: v for k, v in inputs.items() if k != "part_bytes"}
        fingerprint = digest_json({**decides, "shard": spec.shard, "part": number, "rows": packs_digest(rows)})
        plan.append((rows, fingerprint, _committed(folder / f"{part_name(number)}.safetensors", fingerprint)))
    return plan


def _committed(path: Path, fingerprint: str) -> StatePart | None:
    """The part when it may be kept: a record with this fingerprint and a file of the stated size; else None, damage included."""
    try:
        part = read_record(record_path(path))
    except StateError:
        return None
    there = path.exists() and path.stat().st_size == part.bytes
    return part if there and part.fingerprint == fingerprint else None


def _manifest_stands(folder: Path) -> bool:
    with contextlib.suppress(StateError):
        return (read_partition(folder).folder / FINAL_NORM_FILE).exists()
    return False


def _clear(folder: Path, keep: set[str]) -> None:
    """Take back the commit, then remove what this run will not keep: outdated parts and unfinished files of a killed run."""
    manifest_path(folder).unlink(missing_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    for leftover in folder.glob("*.tmp"):
        leftover.unlink()
    for record in folder.glob("part-*.json"):  # the record first: a file without record is not believed
        if record.stem not in keep:
            record.unlink()
    for file in folder.glob("part-*.safetensors"):
        if file.stem not in keep:
            file.unlink()


def _guard_disk(folder: Path, planned_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < planned_bytes + DISK_RESERVE_BYTES:
        raise StateError(
            f"{folder}: extraction needs {planned_bytes / 1e9:.3f} GB and {free / 1e9:.3f} GB are free; nothing was started: "
            "free space, or point EAGLE3_DATA at a larger disk"
        )


def _capture(
    extractor: Extractor, spec: PartSpec, packs: Sequence[Pack], window_tokens: int, report: Callable[[int], None]
) -> Iterator[torch.Tensor]:
    """States of `packs` in order, a window of rows at a time; every row is checked before it is handed on."""
    for window in _windows(packs, window_tokens):
        token_lists = [tuple(int(i) for i in pack.input_ids) for pack in window]
        first = f"hidden_states {spec.shard}: rows {window[0].sample_id} to {window[-1].sample_id}"
        try:
            captured = extractor.capture(token_lists, spec.layers)
        except StateError as error:
            raise StateError(f"{first}: {error}") from None
        except (RuntimeError, MemoryError, OSError) as error:  # out of memory, a lost device
            reason = (str(error) or type(error).__name__).splitlines()[0][:300]
            raise StateError(f"{first}: the engine failed ({reason}); lower extraction.batch_tokens if it is memory") from error
        if len(captured) != len(window):
            raise StateError(f"{first}: the engine returned {len(captured)} rows, expected {len(window)}")
        for pack, ids, row in zip(window, token_lists, captured, strict=True):
            require_sound(
                row, ids, spec.slots, spec.hidden_size, f"hidden_states {spec.shard}: row {pack.sample_id} turn {pack.turn}"
            )
            yield row.states
            report(len(ids))


def _windows(packs: Sequence[Pack], window_tokens: int) -> Iterator[list[Pack]]:
    window: list[Pack] = []
    for pack in packs:
        if window and sum(len(p.input_ids) for p in window) + len(pack.input_ids) > window_tokens:
            yield window
            window = []
        window.append(pack)
    if window:
        yield window


def _figures(spec: PartSpec, parts: Sequence[StatePart], kept: int) -> dict[str, Any]:
    return {
        "shard": spec.shard,
        "rows": sum(len(p.rows) for p in parts),
        "tokens": sum(p.tokens for p in parts),
        "bytes": sum(p.bytes for p in parts),
        "parts": len(parts),
        "parts_kept": kept,
        "layers": list(spec.layers),
        "dtype": spec.dtype,
        "model_fingerprint": spec.model_fingerprint,
    }
