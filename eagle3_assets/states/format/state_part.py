"""`StatePart`: one committed part of hidden states, as the next rooms see it. Only the types live here (its file: `part.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PartRow:
    """One row of a part: which corpus row it is, and where its tokens lie: half-open [start, end) of the part's token axis."""

    sample_id: str
    turn: int
    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A corpus row that this part should hold and does not: why its states are not believed (they were not finite)."""

    sample_id: str
    turn: int
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class StatePart:
    """`path` holds `hidden_states` [tokens, len(layers) + 1, hidden_size] in `dtype`: E_k for `layers`, then the pre-norm final;
    with `compress = "lossless"` the same values in compressed planes, row by row.

    `xxh3` is the checksum of the whole file; `fingerprint` is of everything that decided its content (corpus part, model, layers,
    dtype, rows).
    """

    path: Path
    shard: str
    bytes: int
    xxh3: str
    fingerprint: str
    convention: str
    final: str
    layers: tuple[int, ...]
    num_hidden_layers: int
    hidden_size: int
    dtype: str
    tokens: int
    rows: tuple[PartRow, ...]
    missing: tuple[MissingRow, ...] = ()
    compress: str = "none"
