"""Is what lies on disk what the manifest, the corpus and the model say? Reads everything, believes nothing.

Belongs here: problems of a stored partition, each with the part it is in, and the verdicts made of them.
Does not belong here: extraction, thresholds of checks (`review/verdicts/table.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.states.extractors.self_test import judge_distances
from eagle3_assets.states.format.final_norm import FinalNorm, load_final_norm, normed_share
from eagle3_assets.states.format.manifest import PartitionManifest, read_partition
from eagle3_assets.states.format.state_part import StatePart
from eagle3_assets.states.partition import allowed_missing
from eagle3_assets.states.reader import StateRow, map_part, rows_of
from eagle3_assets.states.verdict.on_policy_table import read_on_policy, winning_packs
from eagle3_assets.store import Store, digest_file, read_manifest

STAGE = "hidden_states"
NORM_PROBE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `check` is a name of `review/verdicts/table.py`; `part` a file name, "" for the partition as a whole."""

    check: str
    part: str
    message: str
    sample_id: str | None = None


def verify_partition(
    campaign: Campaign, store: Store, shard: str, packs: Sequence[Pack] | None = None
) -> tuple[list[Problem], dict[str, int]]:
    """All problems of `hidden_states/<shard>/` (none: it is sound), and what was looked at (rows, tokens, bytes, parts).

    Checks checksums, headers against records, rows against each other and, when `packs` is given, against the corpus; that all
    values are finite; layers and convention; the stored self-test, and that the final states are not post-norm. Rows that were left
    out must be named by the manifest, be rows of the corpus, and be few.
    """
    seen = {"rows": 0, "tokens": 0, "bytes": 0, "parts": 0, "missing": 0}
    try:
        if packs is not None:  # where the model chose among survivors, the states are the winner's
            packs = winning_packs(packs, read_on_policy(store.states(shard)))
        manifest = read_partition(store.states(shard))
    except StateError as error:
        return [Problem("states_match_rows", "", str(error))], seen
    problems = _layer_problems(campaign, manifest) + _commit_problems(manifest)
    norm, norm_problems = _norm(manifest)
    problems += norm_problems + _missing_problems(manifest, packs)
    left_out = {(row.sample_id, row.turn) for row in manifest.missing}
    expected = None if packs is None else [p for p in packs if (p.sample_id, p.turn) not in left_out]
    rows: list[tuple[str, int]] = []
    for facts in manifest.files:
        seen["parts"] += 1
        try:
            part = manifest.read_part(facts)
            problems += _part_problems(part, norm, expected, offset=len(rows))
        except StateError as error:
            problems.append(Problem("states_match_rows", facts["file"], str(error)))
            rows += [("", -1)] * facts["rows"]
            continue
        rows += [(row.sample_id, row.turn) for row in part.rows]
        seen["tokens"] += part.tokens
        seen["bytes"] += part.bytes
    seen["rows"], seen["missing"] = len(rows), len(manifest.missing)
    return problems + _row_list_problems(manifest, rows, expected), seen


def judge_states(campaign: Campaign, store: Store, shard: str, packs: Sequence[Pack]) -> list[Verdict]:
    """The verdicts of stage hidden_states on one partition: states_match_rows, finite, layer_self_test."""
    problems, seen = verify_partition(campaign, store, shard, packs)
    sound = {
        "states_match_rows": f"{seen['rows']} rows, {seen['tokens']} tokens in {seen['parts']} parts: as in corpus and manifest",
        "finite": f"all values of {seen['tokens']} tokens are finite; {seen['missing']} rows that were not are left out",
        "layer_self_test": f"layers {list(campaign.layers)} are E_k and the final state is before the norm",
    }
    verdicts = []
    for check, message in sound.items():
        mine = [p for p in problems if p.check == check]
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        numbers: dict[str, Any] = {**seen, "problems": len(mine), "parts_with_problems": sorted({p.part for p in mine if p.part})}
        if check == "layer_self_test" and not mine and seen["parts"]:
            numbers["self_test"] = read_partition(store.states(shard)).raw["self_test"]
        verdicts.append(
            verdict(
                STAGE,
                check,
                not mine and seen["parts"] > 0,
                f"{mine[0].message}{more}"
                if mine
                else (message if seen["parts"] else "nothing to judge: the partition is not committed"),
                numbers=numbers,
                examples=tuple(dict.fromkeys(p.sample_id for p in mine if p.sample_id)),
            )
        )
    return verdicts


# ---------------------------------------------------------------------------------------------------- the partition as a whole
def _layer_problems(campaign: Campaign, manifest: PartitionManifest) -> list[Problem]:
    """Layers, model size and the stored self-test against the campaign."""
    problems = []
    for name, found, expected in (
        ("layers", list(manifest.layers), list(campaign.layers)),
        ("num_hidden_layers", manifest.num_hidden_layers, campaign.target.num_hidden_layers),
        ("hidden_size", manifest.hidden_size, campaign.target.hidden_size),
        ("dtype", manifest.dtype, campaign.extraction.dtype),
    ):
        if found != expected:
            problems.append(f"{name} is {found}, the campaign's is {expected}; materialize hidden_states again")
    expected = list(manifest.layers)
    try:
        measured = manifest.raw["self_test"]
        tested = [row["layer"] for row in measured["layers"]]
        if measured["reference"] == "partial":  # of a target too large to load only the lowest layers can be compared
            expected = expected[: max(1, len(tested))]
        failures = judge_distances(measured)
    except (KeyError, TypeError) as error:
        tested, failures = expected, [f"self-test is not readable ({error!r})"]
    if tested != expected:
        failures.append(f"self-test was of layers {tested}, stored are {list(manifest.layers)}")
    return [Problem("layer_self_test", "", f"{manifest.path}: {text}") for text in [*problems, *failures]]


def _commit_problems(manifest: PartitionManifest) -> list[Problem]:
    """`manifest.json` itself against the commit beside the folder, which holds its checksum."""
    try:
        committed = read_manifest(manifest.folder)
    except StoreError as error:  # a part's size: the part is looked at and named by itself
        return [Problem("states_match_rows", "", str(error))] if str(error).startswith(f"{manifest.path}:") else []
    if committed is None:
        text = f"{manifest.folder}: has no commit beside it, so no stage behind reads it; materialize hidden_states again"
    elif committed.files.get(f"{manifest.folder.name}/{manifest.path.name}", {}).get("xxh3") != digest_file(manifest.path):
        text = f"{manifest.path}: checksum differs from {committed.path.name}; materialize hidden_states again"
    else:
        return []
    return [Problem("states_match_rows", "", text)]


def _missing_problems(manifest: PartitionManifest, packs: Sequence[Pack] | None) -> list[Problem]:
    """Rows that were left out: few enough, and rows of the corpus."""
    problems = []
    limit = allowed_missing(len(manifest.samples) + len(manifest.missing))
    if len(manifest.missing) > limit:
        problems.append(f"{manifest.path}: {len(manifest.missing)} rows were left out as not finite, {limit} may be")
    if packs is not None:
        known = {(p.sample_id, p.turn) for p in packs}
        strange = [row for row in manifest.missing if (row.sample_id, row.turn) not in known]
        problems += [
            f"{manifest.path}: row {row.sample_id} turn {row.turn} was left out, and is not in the corpus" for row in strange
        ]
    return [Problem("finite", "", text) for text in problems]


def _norm(manifest: PartitionManifest) -> tuple[FinalNorm | None, list[Problem]]:
    path = manifest.folder / manifest.final_norm["file"]
    try:
        norm = load_final_norm(path)
    except StateError as error:
        return None, [Problem("layer_self_test", path.name, str(error))]
    if digest_file(path) != manifest.final_norm["xxh3"]:
        return None, [
            Problem(
                "layer_self_test", path.name, f"{path}: checksum differs from {manifest.path.name}; extract these states again"
            )
        ]
    if norm.weight.shape != (manifest.hidden_size,):
        return None, [
            Problem(
                "layer_self_test", path.name, f"{path}: weight of shape {norm.weight.shape}, expected ({manifest.hidden_size},)"
            )
        ]
    return norm, []


def _row_list_problems(manifest: PartitionManifest, rows: list[tuple[str, int]], packs: Sequence[Pack] | None) -> list[Problem]:
    """`packs`: the corpus rows that should be there (those left out are not among them)."""
    problems = []
    if len(rows) != len(manifest.samples):
        problems.append(
            f"{manifest.path}: {len(manifest.samples)} samples, its parts hold {len(rows)}; materialize hidden_states again"
        )
    elif ("", -1) not in rows and tuple(rows) != manifest.samples:
        problems.append(f"{manifest.path}: its samples are not those of its parts' records; materialize hidden_states again")
    if packs is not None and len(rows) != len(packs):
        missing = f" and {len(manifest.missing)} left out" if manifest.missing else ""
        in_corpus = len(packs) + len(manifest.missing)
        problems.append(
            f"{manifest.path}: {len(rows)} rows{missing}, its corpus part holds {in_corpus}; materialize hidden_states again"
        )
    return [Problem("states_match_rows", "", text) for text in problems]


# ---------------------------------------------------------------------------------------------------- one part
def _part_problems(part: StatePart, norm: FinalNorm | None, packs: Sequence[Pack] | None, offset: int) -> list[Problem]:
    """Problems of one part; its first row is row `offset` of the partition. Raises StateError where the file cannot be mapped."""
    arrays = map_part(part)
    problems = []

    def problem(check: str, text: str, sample_id: str | None = None) -> None:
        problems.append(Problem(check, part.path.name, f"{part.path}: {text}", sample_id))

    if digest_file(part.path) != part.xxh3:
        problem(
            "states_match_rows",
            "checksum differs from its record: the file is damaged; remove it and materialize hidden_states again",
        )
    if arrays["cu_seqlens"].tolist() != [0, *(row.end for row in part.rows)]:
        problem("states_match_rows", "cu_seqlens differs from its record; remove it and materialize hidden_states again")
    final: list[npt.NDArray[np.float32]] = []
    probed = 0
    for i, row in enumerate(rows_of(part, arrays)):
        bad = _nonfinite(row.raw)
        if bad:
            problem("finite", f"row {row.sample_id} turn {row.turn} holds {bad} NaN or infinite values", row.sample_id)
        if packs is not None and offset + i < len(packs):
            difference = _difference(row, packs[offset + i])
            if difference:
                problem("states_match_rows", f"row {offset + i}: {difference}", row.sample_id)
        if probed < NORM_PROBE_TOKENS:
            final.append(_as_float32(row.raw[: NORM_PROBE_TOKENS - probed, -1]))
            probed += len(final[-1])
    share = 0.0 if norm is None or not final else normed_share(np.concatenate(final), norm)
    if share > 0.99:
        problem(
            "layer_self_test",
            f"the final states are post-norm: {share:.1%} of the tokens have norm 1 after division by the norm's weight",
        )
    return problems


def _difference(row: StateRow, pack: Pack) -> str | None:
    """Where a stored row differs from its corpus row; None when it does not."""
    if (row.sample_id, row.turn) != (pack.sample_id, pack.turn):
        return f"is {row.sample_id} turn {row.turn}, the corpus has {pack.sample_id} turn {pack.turn}"
    if row.index != pack.index:
        return f"{row.sample_id} is row {row.index} of the corpus by its record, and row {pack.index} in the corpus"
    if len(row.input_ids) != len(pack.input_ids):
        return f"{row.sample_id} has states for {len(row.input_ids)} tokens, the corpus has {len(pack.input_ids)}"
    if not np.array_equal(row.input_ids.astype(np.int64), np.asarray(pack.input_ids).astype(np.int64)):
        at = int(np.argmax(row.input_ids.astype(np.int64) != np.asarray(pack.input_ids).astype(np.int64)))
        return f"{row.sample_id} has id {row.input_ids[at]} at position {at}, the corpus has {pack.input_ids[at]}"
    if not np.array_equal(row.loss_mask, np.asarray(pack.loss_mask)):
        return f"{row.sample_id} has another loss mask than the corpus"
    return None


def _nonfinite(raw: npt.NDArray[Any]) -> int:
    """How many values are NaN or infinite: for bf16 bits, those whose eight exponent bits are all set."""
    if raw.dtype == np.int16:
        return int(np.count_nonzero((raw & 0x7F80) == 0x7F80))
    return int(raw.size - np.count_nonzero(np.isfinite(raw)))


def _as_float32(raw: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """fp32 values of fp32 or bf16 bits (bf16 is the upper half of an fp32)."""
    if raw.dtype == np.int16:
        return (raw.astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)
