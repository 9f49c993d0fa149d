"""The seeded sample: which rows of a stream of unknown length are asked, in which order.

Belongs here: stable ids, the keyed order, bottom-k with bounded memory, the expected length of an answer.
Does not belong here: reading or screening rows, files.

Every prompt gets a key, blake2b(seed, dataset, messages + tools); the sample is the k smallest keys and `rank` is the place in
that order. So it depends on the set of prompts only: not on the order of the source, and a larger sample begins with the smaller.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

CHARS_PER_TOKEN = 3.88  # Kimi's vocabulary on prose and code (docs/research/tokenizers.md#2)


def canonical(value: Any) -> bytes:
    """Canonical JSON (sorted keys, no spaces, UTF-8) for hashing. The value must be free of lone surrogates and NaN."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def sample_id(dataset: str, messages: Sequence[Any], tools: Sequence[Any] | None) -> str:
    """32 hex digits: blake2b-128 of the dataset's name and the canonical JSON of messages and tools."""
    hasher = blake2b(dataset.encode(), digest_size=16)
    hasher.update(b"\0")
    hasher.update(canonical([list(messages), list(tools) if tools else None]))
    return hasher.hexdigest()


def order_key(seed: int, dataset: str, id_: str) -> bytes:
    """16 bytes that order the sample; the id stands for the content, since it is a hash of it."""
    return blake2b(f"{dataset}\0{id_}".encode(), key=str(seed).encode(), digest_size=16).digest()


def expected_tokens(own_chars: Sequence[int], *, mean_tokens: int, max_tokens: int) -> list[int]:
    """Output tokens to expect of each prompt, from the lengths of the source's own answers (characters; 0 = it has none).

    A prior until the pilot knows: a hard question has a long answer, whoever answers. `mean_tokens` x the square root of the own
    answer's share of the mean own answer, within a factor of two, scaled so that the mean stays `mean_tokens`.
    """
    known = [c for c in own_chars if c]
    mean = sum(known) / len(known) if known else 1.0
    weights = [min(max(math.sqrt(c / mean), 0.5), 2.0) if c else 1.0 for c in own_chars]
    scale = mean_tokens * len(weights) / sum(weights) if weights else 0.0
    return [max(1, min(max_tokens, round(w * scale))) for w in weights]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt that passed the screen. `payload` is what the file stores; `tie` chooses among rows with the same prompt.

    `own_chars` is the length of the source's own answer, `known_tokens` that of an import's answer.
    """

    sample_id: str
    payload: dict[str, Any]
    source_row: str
    tie: bytes = b""
    own_chars: int = 0
    known_tokens: int | None = None


class Sampler:
    """Bottom-k over a stream: at most `k` candidates are held. Rows with equal prompts are merged (smallest `tie` wins)."""

    def __init__(self, *, seed: int, dataset: str, k: int) -> None:
        self._seed, self._dataset, self._k = seed, dataset, k
        self._heap: list[tuple[int, str]] = []  # (negated key, sample_id): the largest key is on top
        self._held: dict[str, Candidate] = {}
        self._merged: dict[str, list[str]] = {}  # sample_id -> rows merged away
        self.offered = 0

    def offer(self, candidate: Candidate) -> None:
        self.offered += 1
        id_ = candidate.sample_id
        if id_ in self._held:
            self._merge(candidate)
            return
        key = -int.from_bytes(order_key(self._seed, self._dataset, id_))
        if len(self._heap) < self._k:
            heapq.heappush(self._heap, (key, id_))
        elif key > self._heap[0][0]:
            _, out = heapq.heapreplace(self._heap, (key, id_))
            del self._held[out]
            self._merged.pop(out, None)
        else:
            return
        self._held[id_] = candidate

    def _merge(self, candidate: Candidate) -> None:
        held = self._held[candidate.sample_id]
        keep, drop = (candidate, held) if candidate.tie < held.tie else (held, candidate)
        self._held[candidate.sample_id] = keep
        self._merged.setdefault(candidate.sample_id, []).append(drop.source_row)

    def drawn(self) -> list[Candidate]:
        """The sample in order of rank."""
        return [self._held[id_] for _, id_ in sorted(self._heap, reverse=True)]

    @property
    def merged(self) -> dict[str, list[str]]:
        """Rows merged into each drawn prompt. Exact whatever the order: a drawn prompt is held from its first row on."""
        return self._merged
