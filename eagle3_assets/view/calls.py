"""The journals as a table of calls: who was asked when, what it cost, how it ended, and where its record lies.

Belongs here: one pass over the journals of a root (pilot included), going on where the last one stopped; reading one record back.
Does not belong here: the line format (`wire/journal.py`), statistics (`providers.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from eagle3_assets.errors import StoreError
from eagle3_assets.exact.providers.wire_profiles import provider_of
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.wire.fields import storable
from eagle3_assets.wire.journal import decode_line, dump_json, segments
from eagle3_assets.wire.wire_answer import WireAnswer

BATCH = 512
SCHEMA = pa.schema(
    [
        *[(name, pa.string()) for name in ("folder", "file")],
        *[(name, pa.int64()) for name in ("place", "bytes")],
        *[(name, pa.string()) for name in ("sample_id", "dataset", "shard", "source", "provider", "outcome", "reason", "asked")],
        *[(name, pa.int32()) for name in ("turn", "attempt", "status")],
        *[(name, pa.float64()) for name in ("started", "finished", "cost_usd")],
        ("tokens", pa.int64()),
        ("pilot", pa.bool_()),
        ("tools", pa.bool_()),
        ("stream", pa.bool_()),
    ]
)
TABLE = """CREATE TABLE IF NOT EXISTS calls (folder VARCHAR, file VARCHAR, place BIGINT, bytes BIGINT, sample_id VARCHAR, dataset VARCHAR,
  shard VARCHAR, source VARCHAR, provider VARCHAR, outcome VARCHAR, reason VARCHAR, asked VARCHAR, turn INT, attempt INT, status INT,
  started DOUBLE, finished DOUBLE, cost_usd DOUBLE, tokens BIGINT, pilot BOOLEAN, tools BOOLEAN, stream BOOLEAN)"""


class Calls:
    """The table `calls` of a catalogue. `asked` is a digest of messages and tools: equal where the same was asked."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._read: dict[str, int] = {}  # how far each segment was read, in bytes
        catalogue.ask(TABLE)

    def folders(self) -> list[Path]:
        """Every journal of the root."""
        store = self._catalogue.root.store
        return [folder for folder in (store.pilot_dir, *sorted(store.root.glob("answers/*/*"))) if folder.is_dir()]

    def fill(self, stop: threading.Event, on_folder: Callable[[], None] = lambda: None) -> None:
        """Read what was appended since the last time. A damaged line is named among the catalogue's problems."""
        for folder in self.folders():
            if stop.is_set():
                return
            try:
                paths = segments(folder)
            except StoreError as error:
                self._catalogue.problems[str(folder)] = str(error)
                continue
            for path in paths:
                self._fill(folder, path, stop)
            on_folder()

    def _fill(self, folder: Path, path: Path, stop: threading.Event) -> None:
        name, batch = str(path), []
        if path.stat().st_size < self._read.get(name, 0):  # bought anew: what was read is gone
            self._catalogue.ask("DELETE FROM calls WHERE file = ?", [name])
            self._read[name] = 0
        for at, line in _lines(path, self._read.get(name, 0)):
            if stop.is_set() or not line.endswith(b"\n"):
                break  # a record that is being written
            self._read[name] = at + len(line)
            try:
                answer = decode_line(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                self._catalogue.problems[name] = f"{path}: the record at byte {at} is damaged; `eagle3 recheck` says what to do"
                continue
            batch.append(_fact(folder, name, at, len(line), answer, folder == self._catalogue.root.store.pilot_dir))
            if len(batch) == BATCH:
                self._add(batch)
                batch = []
        self._add(batch)

    def _add(self, batch: list[dict[str, Any]]) -> None:
        if batch:
            self._catalogue.add("calls", pa.Table.from_pylist(batch, schema=SCHEMA))


def _lines(path: Path, at: int) -> Iterator[tuple[int, bytes]]:
    with path.open("rb", buffering=1 << 20) as handle:
        handle.seek(at)
        for line in handle:
            yield at, line
            at += len(line)


def asked(request: dict[str, Any]) -> str:
    """xxh3-64 of what was asked: messages and tools."""
    return xxhash.xxh3_64_hexdigest(dump_json([request.get("messages"), request.get("tools")]))


def _fact(folder: Path, file: str, at: int, size: int, answer: WireAnswer, pilot: bool) -> dict[str, Any]:
    return {
        "folder": str(folder), "file": file, "place": at, "bytes": size, "sample_id": storable(answer.sample_id), "dataset": answer.dataset,
        "shard": answer.shard, "source": answer.source, "provider": provider_of(answer.provider, None, answer.source),
        "outcome": answer.outcome, "reason": storable(answer.reason) or "", "asked": asked(answer.request), "turn": answer.turn,
        "attempt": answer.attempt, "status": answer.status, "started": answer.started_at, "finished": answer.finished_at,
        "cost_usd": answer.cost_usd, "tokens": answer.completion_tokens, "pilot": pilot, "tools": bool(answer.request.get("tools")),
        "stream": bool(answer.request.get("stream")),
    }  # fmt: skip


def record_at(file: str, at: int, size: int) -> WireAnswer:
    """One record. Raises StoreError where the file is not what it was when it was read."""
    try:
        with Path(file).open("rb") as handle:
            handle.seek(at)
            return decode_line(handle.read(size))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise StoreError(f"{file}: has no whole record at byte {at} any more; load the page again") from None


def answer_of(catalogue: Catalogue, dataset: str, shard: str, sample_id: str, turn: int, attempt: int) -> WireAnswer | None:
    """The answer behind a row: by its place where the journals were read already, else by looking through the shard's journal."""
    found = catalogue.ask(
        "SELECT file, place, bytes FROM calls WHERE sample_id = ? AND turn = ? AND attempt = ? AND dataset = ? AND NOT pilot "
        "AND outcome = 'finished'",
        [sample_id, turn, attempt, dataset],
    )
    if found:
        return record_at(*found[-1])
    mark = dump_json(sample_id)
    for path in segments(catalogue.root.store.answers(dataset, shard)):
        for _, line in _lines(path, 0):
            if mark in line:  # most lines are not parsed at all
                try:
                    answer = decode_line(line)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
                if (answer.sample_id, answer.turn, answer.attempt, answer.outcome) == (sample_id, turn, attempt, "finished"):
                    return answer
    return None
