"""Shards over the cores of this machine: one mechanism for every stage whose artifacts are made one by one.

Belongs here: worker processes, the order of results, what a lost worker costs. Does not belong here: what is done (`stages/`), several
machines (Dagster's runs over disjoint shards: docs/scale.md).

Every seat is one process with a queue of its own, so a worker that dies (memory, a signal) loses the shard it was at and nothing else; that
shard is done once more in a new process. Results come in the order of the items, so what is written does not depend on the number of workers.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from queue import SimpleQueue
from typing import TypeVar

from eagle3_assets.errors import StoreError

T = TypeVar("T")
R = TypeVar("R")

SEAT_BYTES = (
    32 << 20
)  # of input that a worker must find: below it, starting one (imports, a vocabulary) takes longer than the work


def seats(asked: int | None, items: int, size: int) -> int:
    """How many workers to use for `items` shards of `size` bytes together; `asked`: the campaign's, None for all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked or cores, items, size // SEAT_BYTES))


def over_cores(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """`function` of every item, in their order; here where `workers` is 1. `function` is one of a module, items and results can be pickled.

    What `function` raises is raised at its place; what was begun is ended first. Raises StoreError where a worker died twice at one item.
    """
    if workers <= 1:
        for item in items:
            with collector_paused():
                done = function(item)
            yield done
        return
    free: SimpleQueue[_Seat] = SimpleQueue()
    taken = [_Seat() for _ in range(workers)]
    for seat in taken:
        free.put(seat)

    def sit(item: T) -> R:
        seat = free.get()
        try:
            return seat.run(function, item)
        finally:
            free.put(seat)

    threads = ThreadPoolExecutor(workers, thread_name_prefix="shards")
    try:
        for future in [threads.submit(sit, item) for item in items]:
            yield future.result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
        for seat in taken:
            seat.leave()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No hunt for circles while a shard's rows are made: its hundreds of thousands of objects form none, and each hunt walks all of them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Seat:
    """One worker process at a time."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def run(self, function: Callable[[T], R], item: T) -> R:
        for _ in range(2):
            pool = self._pool = self._pool or _started()
            try:
                return pool.submit(_quietly, function, item).result()
            except BrokenProcessPool:
                self.leave()
        raise StoreError(
            f"a worker process died twice at {item}: out of memory? Set `[execution] workers` lower in the campaign file and run again"
        )

    def leave(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _started() -> ProcessPoolExecutor:
    # A clean process is forked, never this one: it may hold threads and locks (Dagster's, gRPC's) that do not survive a fork
    clean = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if clean else "spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(dict(os.environ),))


def _begin(environment: dict[str, str]) -> None:
    """In a new worker: the parent's environment of today, no part in its Ctrl-C, and an end when it ends (a killed parent closes no queue)."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel

        def leave_with_it() -> None:
            with suppress(OSError):
                wait([sentinel])
            os._exit(1)

        threading.Thread(target=leave_with_it, daemon=True).start()


def _quietly(function: Callable[[T], R], item: T) -> R:
    with collector_paused():
        return function(item)
