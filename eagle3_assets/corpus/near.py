"""Near duplicates: rows whose responses share nearly all of their shingles, found by MinHash and proved by the Jaccard index itself.

A shingle is 5 ids in a row that the target generated (inside one loss span; prompts do not count, so the turns of one conversation do
not look alike for what they share). A row is sketched by one pass over its shingles: each is hashed to 64 bits, the upper 7 bits choose
one of 128 bins, and the smallest hash of a bin is kept (one-permutation MinHash; an empty bin borrows from the next one, Shrivastava and
Li, ICML 2014). 32 bands of 4 bins make candidates: two rows with a Jaccard index of 0.8 share a band with probability
1 - (1 - 0.8^4)^32 > 0.9999. Nothing is dropped on a sketch: the index of every candidate pair is computed from all shingles.

Belongs here: shingles, sketches, candidates, the decision. Does not belong here: who is stronger (`order.py`), reading files.
All constants are fixed: equal rows give equal sketches on any machine. Memory: 264 bytes a row, and 256 shingle sets while deciding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from eagle3_assets.review.rows.columns import Ragged

SHINGLE = 5  # ids: one changed id in fifty still leaves an index of 0.82
BINS, BANDS = 128, 32
MIN_SHINGLES = (
    32  # shorter responses (an acknowledgement, a small tool call) are alike without being copies: exact duplicates only
)

U64 = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_BIN_SHIFT = np.uint64(64 - 7)
_EDGES = np.arange(BINS, dtype=np.uint64) << _BIN_SHIFT


def mix(x: U64) -> U64:
    """splitmix64's finaliser, elementwise."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_WEIGHTS = mix(np.arange(1, BINS + 1, dtype=np.uint64) * _PRIME) | np.uint64(1)  # one odd factor a bin, for the bands


@dataclass(frozen=True, slots=True)
class Sketches:
    """`bands` uint64 [rows, BANDS]; `sizes` int64 [rows]: distinct shingles of each row."""

    bands: U64
    sizes: Ints


def shingles_of(ids: npt.NDArray[np.uint32], starts: Ints, ends: Ints) -> U64:
    """The distinct shingle hashes of one row, ascending. `starts`, `ends`: its loss spans."""
    every = _hash_windows(ids)
    found = [every[a : b - SHINGLE + 1] for a, b in zip(starts.tolist(), ends.tolist(), strict=True) if b - a >= SHINGLE]
    together = np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)
    distinct: U64 = together[np.diff(together, prepend=~together[:1]) != 0]  # np.unique hashes first: four times as long
    return distinct


def _hash_windows(ids: npt.NDArray[np.uint32]) -> U64:
    """uint64 [len - SHINGLE + 1]: a hash of every window of SHINGLE ids."""
    windows = max(0, len(ids) - SHINGLE + 1)
    hashed = np.zeros(windows, dtype=np.uint64)
    for k in range(SHINGLE if windows else 0):
        hashed *= _PRIME
        hashed += ids[k : k + windows]
        hashed += np.uint64(1)
    return mix(hashed)


def sketch_rows(ids: Ragged, starts: Ragged, ends: Ragged) -> Sketches:
    """Sketch every row of a table. `ids` are uint32, `starts` and `ends` the loss spans of its rows."""
    rows = len(ids.offsets) - 1
    bands, sizes = np.zeros((rows, BANDS), dtype=np.uint64), np.zeros(rows, dtype=np.int64)
    for i in range(rows):
        found = shingles_of(ids.row(i), starts.row(i), ends.row(i))
        sizes[i] = len(found)
        if len(found) >= MIN_SHINGLES:
            bands[i] = _bands(found)
    return Sketches(bands, sizes)


def _bands(found: U64) -> U64:
    first = np.searchsorted(found, _EDGES)
    filled = np.flatnonzero(np.diff(first, append=len(found)) > 0)
    least = found[first[filled]]
    if len(filled) < BINS:  # an empty bin takes the next filled one's value, marked with the distance
        bins = np.arange(BINS)
        lender = np.searchsorted(filled, bins)
        around = lender % len(filled)
        distance = (filled[around] - bins) % BINS
        least = least[around] + distance.astype(np.uint64) * _PRIME
    bands: U64 = mix((least * _WEIGHTS).reshape(BANDS, -1).sum(axis=1, dtype=np.uint64))
    return bands


def find_near_duplicates(
    ranked: Sequence[int],
    sketches: Sketches,
    conversation: Ints,
    shingles: Callable[[int], U64],
    threshold: float,
) -> dict[int, int]:
    """Row -> the stronger row that it nearly repeats (Jaccard index >= `threshold`), for every row that must go.

    `ranked`: row numbers, the strongest first. A row goes when it nearly repeats one that stays; so of a cluster the strongest stays, and
    every dropped row is close to one that is kept, not merely to a neighbour of a neighbour. Rows of one `conversation` (a number a row)
    are never held against each other. `shingles(row)` gives a row's shingles again.
    """
    load = lru_cache(maxsize=256)(shingles)
    rows = _in_company(np.asarray([i for i in ranked if sketches.sizes[i] >= MIN_SHINGLES], dtype=np.int64), sketches.bands)
    rank = {i: n for n, i in enumerate(rows)}
    stays: dict[tuple[int, int], list[int]] = {}  # (band, hash) -> rows that are kept, the strongest first
    dropped: dict[int, int] = {}
    for i in rows:
        keys = list(enumerate(sketches.bands[i].tolist()))
        others = {j for key in keys for j in stays.get(key, ()) if conversation[j] != conversation[i]}
        for j in sorted(others, key=rank.__getitem__):
            small, large = sorted((int(sketches.sizes[i]), int(sketches.sizes[j])))
            if small >= threshold * large and jaccard(load(i), load(j)) >= threshold:  # the index is at most small / large
                dropped[i] = j
                break
        else:
            for key in keys:
                stays.setdefault(key, []).append(i)
    return dropped


def _in_company(rows: Ints, bands: U64) -> list[int]:
    """The rows that share a band with another one, in the order given: most rows of a corpus share none."""
    shared = np.zeros(len(rows), dtype=bool)
    for band in range(BANDS if len(rows) else 0):
        _, where, count = np.unique(bands[rows, band], return_inverse=True, return_counts=True)
        shared |= count[where] > 1
    company: list[int] = rows[shared].tolist()
    return company


def jaccard(a: U64, b: U64) -> float:
    """|a and b| / |a or b| of two ascending sets; 0.0 when both are empty."""
    both = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - both
    return both / union if union else 0.0
