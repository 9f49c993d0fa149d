"""Which rows go through the model together.

Belongs here: cutting rows into forward passes by a budget of tokens. Does not belong here: running them (`transformers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def packs(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers of each forward pass of packed rows, longest first: sum(T) <= `batch_tokens`, at least one row each.

    Longest first, so that a pass which needs too much memory is the first one.
    """
    batch: list[int] = []
    filled = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and filled + lengths[i] > batch_tokens:
            yield batch
            batch, filled = [], 0
        batch.append(i)
        filled += lengths[i]
    if batch:
        yield batch


def padded_batches(lengths: Sequence[int], batch_tokens: int | None) -> Iterator[list[int]]:
    """The same for right-padded rows: longest x rows <= `batch_tokens`. None: one row at a time, in order."""
    if batch_tokens is None:
        yield from ([i] for i in range(len(lengths)))
        return
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
