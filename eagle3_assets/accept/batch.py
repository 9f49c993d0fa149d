"""What a drafter is given: stored rows, and several of them end to end as one batch.

Belongs here: alignment (which state stands beside which id). Does not belong here: the layer that reads a batch (`layer.py`), where rows come
from (`stored_rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Row:
    """`ids` int64 [T], `generated` bool [T] (the loss mask, unshifted), `states` [T, A + 1, H] in any float dtype: the auxiliary layers, low to
    high, then the final state before the norm."""

    ids: npt.NDArray[np.int64]
    generated: npt.NDArray[np.bool_]
    states: torch.Tensor

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(first, last) place of every run of generated ids: one a turn."""
        edges = np.diff(self.generated.astype(np.int8), prepend=0, append=0)
        return [(int(a), int(b) - 1) for a, b in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows end to end, [positions] each; the first id of a row is dropped (speculators' `shift_batch`).

    Position j holds id x[j+1] beside the state of x[j]: what a server has when it drafts x[j+2]. `features` [positions, A * H]; `final` at j is
    the state of x[j+1] before the norm, whose softmax is the label. `documents`: the row's number. `supervised`: x[j+1] and x[j+2] are both the
    target's own.
    """

    ids: torch.Tensor
    features: torch.Tensor
    final: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor
    supervised: torch.Tensor


def make_batch(rows: Sequence[Row], device: str | torch.device = "cpu") -> Batch:
    """float32 features and finals on `device`."""
    import torch

    lengths = [len(row.ids) - 1 for row in rows]
    # the label behind the last generated id is no draft of anything
    supervised = [row.generated[1:] & np.append(row.generated[2:], False) for row in rows]
    return Batch(
        ids=torch.from_numpy(np.concatenate([row.ids[1:] for row in rows])).to(device),
        features=torch.cat([row.states[:-1, :-1].flatten(1).to(device, torch.float32) for row in rows]),
        final=torch.cat([row.states[1:, -1].to(device, torch.float32) for row in rows]),
        positions=torch.from_numpy(np.concatenate([np.arange(1, length + 1) for length in lengths])).to(device),
        documents=torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)).to(device),
        supervised=torch.from_numpy(np.concatenate(supervised)).to(device),
    )


def cut_batches(lengths: Sequence[int], batch_tokens: int, rng: np.random.Generator | None = None) -> Iterator[list[int]]:
    """Numbers of rows, each once, in a random order (as given without `rng`), up to `batch_tokens` at once; a longer row comes alone."""
    batch: list[int] = []
    for k in range(len(lengths)) if rng is None else rng.permutation(len(lengths)):
        if batch and sum(lengths[i] for i in batch) + lengths[k] > batch_tokens:
            yield batch
            batch = []
        batch.append(int(k))
    if batch:
        yield batch
