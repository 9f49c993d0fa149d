"""One partition `hidden_states/<shard>/`: planned, extracted part by part, resumed part by part, committed by its manifest.

Belongs here: cutting a corpus part into state parts, resume, the order of commits, what makes states current.
Does not belong here: the part's bytes (`part.py`), how rows are captured (`part_job.py`, `capture.py`), engines (`extractors/`), the
lock on the device (the caller holds it).

A part that is committed (record renamed last, same fingerprint, file of the stated size) is kept; anything else is done again.
So a `kill -9` or a full disk costs the open part and never a wrong row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.review.verdicts.table import check_named
from eagle3_assets.states.extractors.interface import Extractor
from eagle3_assets.states.extractors.part_job import InProcess, PartJob, PartWriter, job_tokens
from eagle3_assets.states.format.disk import require_room
from eagle3_assets.states.format.final_norm import FILE_NAME as FINAL_NORM_FILE
from eagle3_assets.states.format.final_norm import save_final_norm
from eagle3_assets.states.format.layers import CONVENTION, FINAL, check_layers
from eagle3_assets.states.format.manifest import FILE_NAME as MANIFEST_FILE
from eagle3_assets.states.format.manifest import read_partition, write_manifest
from eagle3_assets.states.format.part import SCHEMA_VERSION, PartSpec, file_bytes, part_name, read_record, record_path
from eagle3_assets.states.format.state_part import StatePart
from eagle3_assets.store import Store, commit, digest_json, is_current, manifest_path
from eagle3_assets.tier.place import is_elsewhere


def state_inputs(campaign: Campaign, corpus_part_digest: str, model_fingerprint: str) -> dict[str, Any]:
    """What decides a partition's content, for `store.is_current` and `store.commit`. Fingerprint: `weights.model_fingerprint`."""
    facts = {"corpus_part": corpus_part_digest, "model": model_fingerprint}
    return {"schema": SCHEMA_VERSION, **facts, **state_settings(campaign)}


def state_settings(campaign: Campaign) -> dict[str, Any]:
    """What of the campaign file decides a partition's content."""
    return {
        "engine": campaign.extraction.capture_engine,
        "model_dtype": campaign.target.dtype,
        "convention": CONVENTION,
        "final": FINAL,
        "layers": list(campaign.layers),
        "dtype": campaign.extraction.dtype,
        "compress": campaign.extraction.compress,
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
    extractor: Extractor | PartWriter,
    *,
    corpus_part_digest: str | None = None,
    on_tokens: Callable[[int], None] | None = None,
    other_ids: int = 0,
) -> dict[str, Any]:
    """Extract one corpus part into `hidden_states/<shard>/` and commit it. Returns its figures (plain JSON).

    `corpus_part_digest`: the digest that the caller also gives to `state_inputs` (default: `packs_digest(packs)`). `on_tokens` is
    called with the number of tokens done since the last call, kept parts included. `other_ids`: rows of `packs` that do not have the corpus
    row's own ids, for the commit. Raises StateError: failed self-test, unsound
    states, too many rows that are not finite, no room on the disk; parts committed by then stay and are kept by the next run.
    """
    writer: PartWriter = InProcess(extractor) if isinstance(extractor, Extractor) else extractor
    facts = writer.describe()
    spec = spec_of(campaign, shard, facts)
    digest = corpus_part_digest or packs_digest(packs)
    inputs = state_inputs(campaign, digest, facts["fingerprint"])
    folder = store.states(shard)
    jobs = _plan(campaign, folder, spec, packs, inputs)
    parts = {job.number: part for job in jobs if (part := _committed(job.path, job.fingerprint)) is not None}
    kept = len(parts)
    report = on_tokens or (lambda tokens: None)
    report(sum(job_tokens(job) for job in jobs if job.number in parts))
    if kept == len(jobs) and is_current(folder, inputs) and _manifest_stands(folder):
        return _figures(spec, list(parts.values()), kept)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder, {part_name(number) for number in parts})
        to_do = [job for job in jobs if job.number not in parts]
        planned = sum(file_bytes(spec, [len(p.input_ids) for p in job.packs]) for job in to_do)
        require_room(folder, planned, _low_water_bytes(campaign))
        self_test = writer.prove(spec.layers, spec.dtype)
        save_final_norm(folder / FINAL_NORM_FILE, writer.final_norm())
        allowed = allowed_missing(len(packs))
        for number, part in writer.write_parts(to_do, report):
            parts[number] = part
            _require_few_missing(spec, parts, allowed)
        _require_few_missing(spec, parts, allowed)
        figures = _commit(folder, spec, [parts[job.number] for job in jobs], digest, facts, self_test, inputs, kept, other_ids)
    except (StoreError, OSError) as error:
        raise StateError(f"hidden_states {shard}: {error}; committed parts are kept") from None
    return figures


def allowed_missing(rows: int) -> int:
    """Rows of a partition of `rows` that may be left out because they are not finite: the check's share, and at least one."""
    return max(1, int(check_named("hidden_states", "finite").max_share * rows))


def _low_water_bytes(campaign: Campaign) -> int:
    return int(campaign.extraction.low_water_gb * 1e9)


def _require_few_missing(spec: PartSpec, parts: dict[int, StatePart], allowed: int) -> None:
    missing = [row for _, part in sorted(parts.items()) for row in part.missing]
    if len(missing) > allowed:
        first = missing[0]
        raise StateError(
            f"hidden_states {spec.shard}: {len(missing)} rows are not finite, {allowed} may be left out; the first is {first.sample_id} "
            f"turn {first.turn}: {first.reason}; look at the model's dtype and at these rows"
        )


def _commit(
    folder: Path,
    spec: PartSpec,
    parts: Sequence[StatePart],
    digest: str,
    facts: dict[str, Any],
    self_test: dict[str, Any],
    inputs: dict[str, Any],
    kept: int,
    other_ids: int,
) -> dict[str, Any]:
    """The partition's manifest, then the commit beside the folder: from here on it is believed."""
    for leftover in folder.glob("*.tmp"):  # of a worker that was killed while its part was done by another
        leftover.unlink(missing_ok=True)
    manifest = write_manifest(folder, spec, parts, corpus_part_digest=digest, model=facts, self_test=self_test)
    figures = _figures(spec, parts, kept)
    commit(
        folder,
        files=[manifest, folder / FINAL_NORM_FILE],
        inputs=inputs,
        numbers={**{k: figures[k] for k in ("rows", "tokens", "bytes", "parts", "rows_missing")}, "other_ids": other_ids},
        known={part.path: part.xxh3 for part in parts},
    )
    return figures


def spec_of(campaign: Campaign, shard: str, facts: dict[str, Any]) -> PartSpec:
    """What the parts of a partition share; `facts` are the engine's. Raises StateError for a model of other sizes than the campaign's."""
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
        compress=campaign.extraction.compress,
    )


def _plan(campaign: Campaign, folder: Path, spec: PartSpec, packs: Sequence[Pack], inputs: dict[str, Any]) -> list[PartJob]:
    """The parts of a partition, each with the fingerprint of all that decides it."""
    if not packs:
        raise StateError(f"hidden_states {spec.shard}: its corpus part holds no rows; materialize corpus again")
    for pack in packs:
        if not len(pack.input_ids) or len(pack.input_ids) != len(pack.loss_mask):
            raise StateError(
                f"hidden_states {spec.shard}: corpus row {pack.sample_id} turn {pack.turn} has {len(pack.input_ids)} ids and "
                f"{len(pack.loss_mask)} mask entries, expected as many, and at least one; materialize corpus again"
            )
    jobs = []
    for number, cut in enumerate(
        plan_parts([len(p.input_ids) for p in packs], spec.bytes_per_token, campaign.extraction.part_bytes)
    ):
        rows = packs[cut.start : cut.stop]
        # part_bytes decides the cut and nothing else, and the cut is in the digest of the rows
        decides = {k: v for k, v in inputs.items() if k != "part_bytes"}
        fingerprint = digest_json({**decides, "shard": spec.shard, "part": number, "rows": packs_digest(rows)})
        path = folder / f"{part_name(number)}.safetensors"
        jobs.append(
            PartJob(
                number,
                path,
                spec,
                rows,
                fingerprint,
                campaign.extraction.batch_tokens,
                _low_water_bytes(campaign),
                allowed_missing(len(packs)),
            )
        )
    return jobs


def _committed(path: Path, fingerprint: str) -> StatePart | None:
    """The part when it may be kept: a record with this fingerprint and a file of the stated size; else None, damage included."""
    try:
        part = read_record(record_path(path))
    except StateError:
        return None
    there = path.stat().st_size == part.bytes if path.exists() else is_elsewhere(path, {"bytes": part.bytes, "xxh3": part.xxh3})
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


def _figures(spec: PartSpec, parts: Sequence[StatePart], kept: int) -> dict[str, Any]:
    return {
        "shard": spec.shard,
        "rows": sum(len(p.rows) for p in parts),
        "tokens": sum(p.tokens for p in parts),
        "bytes": sum(p.bytes for p in parts),
        "parts": len(parts),
        "parts_kept": kept,
        "rows_missing": sum(len(p.missing) for p in parts),
        "layers": list(spec.layers),
        "dtype": spec.dtype,
        "model_fingerprint": spec.model_fingerprint,
    }
