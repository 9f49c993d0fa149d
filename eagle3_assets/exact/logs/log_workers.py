"""Rebuilding many records on all cores: results in the order of the records, a bounded number of them in memory.

Belongs here: batches, processes, order. Does not belong here: one record (`log_rows.py`).
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.logs.log_rows import LogRebuilder

BATCH = 32
QUEUED = 4  # batches a worker that wait or are done and not yet written: what bounds the memory
Batch = list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One result: its line of JSON, and what a summary counts."""

    line: str
    grade: str
    p_exact: float


def rebuild(rebuilder: LogRebuilder, records: Iterable[bytes], workers: int) -> Iterator[Rebuilt]:
    """The results of all records, in their order. One worker: here, record by record; a log of one batch likewise."""
    numbered = enumerate(records, start=1)
    if workers > 1:
        head = list(itertools.islice(numbered, BATCH))
        numbered = itertools.chain(head, numbered)  # type: ignore[assignment]
        if len(head) == BATCH:
            yield from _in_parallel(rebuilder, numbered, workers)
            return
    for number, line in numbered:
        yield _rebuild_one(rebuilder, number, line)


def _in_parallel(rebuilder: LogRebuilder, numbered: Iterator[tuple[int, bytes]], workers: int) -> Iterator[Rebuilt]:
    # forked workers share the vocabulary's memory; where a system does not fork they load it themselves
    fork = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if fork else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(rebuilder,)) as pool:
        waiting: deque[Future[list[Rebuilt]]] = deque()
        try:
            while batch := list(itertools.islice(numbered, BATCH)):
                waiting.append(pool.submit(_rebuild_batch, batch))
                if len(waiting) >= QUEUED * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        except BrokenProcessPool:
            raise ExactError("a worker process ended by itself (out of memory?); try again with fewer --workers") from None
        finally:
            for future in waiting:
                future.cancel()


_rebuilder: LogRebuilder | None = None  # of this worker process


def _begin(rebuilder: LogRebuilder) -> None:
    global _rebuilder
    _rebuilder = rebuilder


def _rebuild_batch(batch: Batch) -> list[Rebuilt]:
    assert _rebuilder is not None
    return [_rebuild_one(_rebuilder, number, line) for number, line in batch]


def _rebuild_one(rebuilder: LogRebuilder, number: int, line: bytes) -> Rebuilt:
    row = rebuilder.row(line, number)
    return Rebuilt(json.dumps(row, ensure_ascii=True), row["grade"], row["p_exact"])
