"""Stored states against states computed anew: the last word on whether they are this model's states of these ids.

Belongs here: choosing rows, computing them, the distances, the judgement. Does not belong here: checksums and corpus (`verify.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.interface import Extractor
from eagle3_assets.states.extractors.self_test import OTHER_KERNELS, TOGETHER, require_sound, row_distance
from eagle3_assets.states.format.layers import SLOTS
from eagle3_assets.states.reader import States


@dataclass(frozen=True, slots=True)
class Recomputed:
    """One row: how far each stored slot (low, mid, high, final) is from what the model gives now."""

    sample_id: str
    turn: int
    tokens: int
    distances: tuple[float, ...]
    tolerance: float

    @property
    def agrees(self) -> bool:
        return all(d <= self.tolerance for d in self.distances)

    @property
    def message(self) -> str:
        shown = ", ".join(f"{name} {d:.3g}" for name, d in zip(SLOTS, self.distances, strict=True))
        return (
            f"row {self.sample_id} turn {self.turn}: stored states differ from what the model gives now ({shown}; tolerance "
            f"{self.tolerance:g}): they are of another model, other layers or other ids; materialize hidden_states again"
        )


def choose_rows(states: States, count: int, seed: int) -> list[int]:
    """`count` row numbers, the same for the same seed, the longest row among them (its last tokens have seen the most)."""
    longest = max(range(len(states)), key=lambda i: _length(states, i))
    others = [i for i in range(len(states)) if i != longest]
    return sorted([longest, *random.Random(seed).sample(others, min(count - 1, len(others)))])


def _length(states: States, number: int) -> int:
    rows = [row for part in states.parts for row in part.rows]
    return rows[number].end - rows[number].start


def recompute_rows(extractor: Extractor, states: States, numbers: Sequence[int]) -> list[Recomputed]:
    """The rows one by one through the engine. Raises StateError when the engine is of another model than the states."""
    facts, made_by = extractor.describe(), states.manifest.raw["model"]
    if facts["fingerprint"] != made_by["fingerprint"]:
        raise StateError(
            f"{states.manifest.path}: states of model {made_by['fingerprint']}, the engine holds {facts['fingerprint']}: another model; "
            "materialize hidden_states again"
        )
    exact = facts["dtype"] == states.manifest.dtype == "float32"
    limits = TOGETHER if facts["engine"] == "transformers" == made_by["engine"].split()[-1] else OTHER_KERNELS
    tolerance = limits["float32" if exact else "bfloat16"]
    found = []
    for number in numbers:
        row = states[number]
        ids = tuple(int(i) for i in row.input_ids)
        captured = extractor.capture([ids], states.layers)[0]
        require_sound(captured, ids, row.raw.shape[1], states.manifest.hidden_size, f"row {row.sample_id} turn {row.turn}")
        distances = tuple(
            row_distance(row.hidden_states[:, s], captured.states[:, s], exact=exact) for s in range(row.raw.shape[1])
        )
        found.append(Recomputed(row.sample_id, row.turn, len(ids), distances, tolerance))
    return found
