"""Rows into an engine and states out of it, a window at a time, each row judged before it goes on.

Belongs here: windows, one window ahead of the writer, the second look at a row that is not finite.
Does not belong here: engines (`extractors/`), files (`part.py`).

A row that is not finite (an overflow in fp16, a broken row of the corpus) is captured once more by itself; if that does not help,
its reason takes the place of its states and the part goes on without it. Anything else that is wrong with an answer (short, other
ids, other shape) says that the engine is not what it claims, and stops.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.interface import Captured, Extractor
from eagle3_assets.states.extractors.self_test import nonfinite, require_sound
from eagle3_assets.states.format.part import PartSpec

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def capture_rows(
    extractor: Extractor, spec: PartSpec, packs: Sequence[Pack], window_tokens: int, before_window: Callable[[], None]
) -> Iterator[torch.Tensor | str]:
    """States of `packs` in order, or the reason why a row has none. `before_window` may raise to stop. Raises StateError."""
    for window in windows(packs, window_tokens):
        before_window()
        for pack, row in zip(window, _captured(extractor, spec, window), strict=True):
            bad = nonfinite(row.states)
            if bad:
                row = next(_captured(extractor, spec, [pack]))
                bad = nonfinite(row.states)
            yield row.states if bad is None else bad


def _captured(extractor: Extractor, spec: PartSpec, window: Sequence[Pack]) -> Iterator[Captured]:
    """One `Captured` a pack, of the right shape and ids. An engine that can stream rows gives each as soon as it is there."""
    token_lists = [tuple(int(i) for i in pack.input_ids) for pack in window]
    first = f"hidden_states {spec.shard}: rows {window[0].sample_id} to {window[-1].sample_id}"
    stream = getattr(extractor, "stream", None)
    count = 0
    try:
        rows = extractor.capture(token_lists, spec.layers) if stream is None else stream(token_lists, spec.layers)
        for pack, ids, row in zip(window, token_lists, rows, strict=False):
            where = f"hidden_states {spec.shard}: row {pack.sample_id} turn {pack.turn}"
            require_sound(row, ids, spec.slots, spec.hidden_size, where)
            count += 1
            yield row
    except StateError as error:
        said = str(error)
        raise StateError(said if said.startswith("hidden_states ") else f"{first}: {said}") from None
    except (RuntimeError, MemoryError, OSError) as error:  # out of memory, a lost device
        reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        raise StateError(f"{first}: the engine failed ({reason}); lower extraction.batch_tokens if it is memory") from error
    if count != len(window) or (stream is None and len(rows) != len(window)):
        found = len(rows) if stream is None else count
        raise StateError(f"{first}: the engine returned {found} rows, expected {len(window)}")


def windows(packs: Sequence[Pack], window_tokens: int) -> Iterator[list[Pack]]:
    """Neighbouring rows of together at most `window_tokens` tokens; at least one row each."""
    window: list[Pack] = []
    filled = 0
    for pack in packs:
        if window and filled + len(pack.input_ids) > window_tokens:
            yield window
            window, filled = [], 0
        window.append(pack)
        filled += len(pack.input_ids)
    if window:
        yield window


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, made by a thread that is up to `depth` ahead: the device works on while the disk takes the last window.

    An exception of the maker is raised here, in its place; closing the iterator stops the maker at its next item.
    """
    line: queue.Queue[tuple[str, object]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(kind: str, value: object) -> bool:
        while not stopped.is_set():
            try:
                line.put((kind, value), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=make, name="capture-ahead", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = line.get()
            if kind == "end":
                return
            if kind == "error":
                raise value  # type: ignore[misc]
            yield value  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
