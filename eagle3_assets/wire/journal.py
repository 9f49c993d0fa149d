"""The journal of one shard: append-only JSONL segments with a checksum a record. The only place where paid bytes live.

Belongs here: the line format, appending, group fsync, recovery after a crash, reading.
Does not belong here: what an outcome means for a retry (`collector.py`), what the body means (`exact`).

One line is `{"crc":"<xxh3-64 hex>","record":{...}}`; the checksum covers the bytes of the record's JSON. A body that is valid
UTF-8 is stored as the string `body`, any other as base64 in `body_b64`; both give back the received bytes exactly. A record
counts as done when `append` returned (the operating system has it); `sync` makes a group of them survive a power loss.
"""

from __future__ import annotations

import base64
import json
import logging
import operator
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import xxhash

from eagle3_assets.errors import StoreError
from eagle3_assets.store import FileLock, full_disk, write_bytes
from eagle3_assets.wire.wire_answer import WireAnswer

log = logging.getLogger(__name__)

SEGMENT_BYTES = 256 << 20
LOCK_NAME = "lock"
ANSWER_BYTES = 64 << 10  # room that an answer in flight must find on the disk when it arrives (mean record: 14 KB)

_PREFIX, _MIDDLE, _SUFFIX = b'{"crc":"', b'","record":', b"}\n"
_CRC_HEX = 16
_RECORD_AT = len(_PREFIX) + _CRC_HEX + len(_MIDDLE)
_SEGMENT = re.compile(r"segment-(\d+)\.jsonl")
_PLAIN_FIELDS = tuple(f.name for f in fields(WireAnswer) if f.name != "body")
_plain_values = operator.attrgetter(*_PLAIN_FIELDS)


# ---------------------------------------------------------------------------------------------------- one line
def dump_json(value: Any) -> bytes:
    """Compact JSON. orjson refuses lone surrogates and integers beyond 64 bits; the standard library writes both."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


class TooDeep(ValueError):
    """JSON nested deeper than anybody reads."""


def load_json(data: bytes) -> Any:
    r"""Parse JSON; a lone surrogate escape (`"\ud83d"`, legal JSON that orjson refuses) is read too. Raises ValueError."""
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data)
        except RecursionError:
            raise TooDeep("nested too deep") from None


def encode_line(answer: WireAnswer) -> bytes:
    """The journal line of `answer`, newline included."""
    record: dict[str, Any] = dict(zip(_PLAIN_FIELDS, _plain_values(answer), strict=True))
    try:
        record["body"] = answer.body.decode("utf-8")  # strict UTF-8 decoding is injective, so this loses nothing
    except UnicodeDecodeError:
        record["body_b64"] = base64.b64encode(answer.body).decode("ascii")
    payload = dump_json(record)
    return b"".join((_PREFIX, xxhash.xxh3_64_hexdigest(payload).encode(), _MIDDLE, payload, _SUFFIX))


def decode_line(line: bytes) -> WireAnswer:
    """The answer of one journal line (its newline may be missing). Raises ValueError on any damage."""
    text = line.removesuffix(b"\n")
    payload = text[_RECORD_AT:-1]
    if not text.startswith(_PREFIX) or not text.endswith(b"}"):
        raise ValueError("not a journal line")
    if xxhash.xxh3_64_hexdigest(payload).encode() != text[len(_PREFIX) : len(_PREFIX) + _CRC_HEX]:
        raise ValueError("checksum differs")
    record = load_json(payload)
    encoded = record.pop("body_b64", None)
    record["body"] = base64.b64decode(encoded) if encoded is not None else record["body"].encode("utf-8")
    return WireAnswer(**record)


# ---------------------------------------------------------------------------------------------------- reading
def segments(folder: Path) -> list[Path]:
    """Segment files of a journal in order (what a manifest lists). Raises StoreError for what only looks like one."""
    found: list[tuple[int, Path]] = []
    for path in folder.glob("segment-*.jsonl"):
        named = _SEGMENT.fullmatch(path.name)
        if named is None or not path.is_file():
            what = "a folder" if path.is_dir() else "something else"
            raise StoreError(
                f"{path}: expected a journal segment (a file named segment-NNN.jsonl), found {what}; "
                "move it out of the journal's folder and run again"
            )
        found.append((int(named[1]), path))
    return [path for _, path in sorted(found)]


def _scan(path: Path) -> Iterator[tuple[int, int, bytes, WireAnswer | None]]:
    """(line number, byte offset, line, answer or None when it is torn or damaged) of a segment."""
    offset = 0
    for number, line in enumerate(_lines(path), 1):
        try:
            answer = decode_line(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            answer = None
        yield number, offset, line, answer
        offset += len(line)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=1 << 20) as handle:
            yield from handle
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); check the file and its disk, then run again") from None


def _damage(path: Path, number: int, offset: int) -> StoreError:
    return StoreError(
        f"{path} line {number}: expected a record with a matching checksum, found damage at byte {offset}; "
        "restore the file from a copy, or delete this line (its answer will be asked for again)"
    )


def read(folder: Path) -> Iterator[WireAnswer]:
    """Every whole record of a journal, in the order written. Takes no lock.

    The torn tail of a segment that is being written is ignored; any other damage raises StoreError with file and line.
    """
    paths = segments(folder)
    for path in paths:
        for number, offset, line, answer in _scan(path):
            if answer is not None:
                yield answer
            elif path is not paths[-1] or line.endswith(b"\n"):
                raise _damage(path, number, offset)


def best(answers: Iterable[WireAnswer]) -> dict[tuple[str, int], WireAnswer]:
    """(sample_id, turn) -> its highest finished attempt. Keys without a finished attempt are absent."""
    out: dict[tuple[str, int], WireAnswer] = {}
    for answer in answers:
        if answer.outcome == "finished":
            known = out.get(answer.key)
            if known is None or answer.attempt >= known.attempt:
                out[answer.key] = answer
    return out


# ---------------------------------------------------------------------------------------------------- writing
class Journal:
    """The one writer of a shard. Open with `Journal.open`, close with `close` or as a context manager."""

    def __init__(self, folder: Path, lock: FileLock) -> None:
        self.folder = folder
        self.notes: list[str] = []  # what recovery did, one readable line each
        self._lock = lock
        self._file_guard = threading.Lock()  # rotate/close against a sync that runs in a thread
        self._fd = -1
        self._path = folder / "segment-000.jsonl"
        self._size = 0
        self._torn = False
        self._dirty = False

    @classmethod
    def open(cls, folder: Path, *, on_record: Callable[[WireAnswer], None] | None = None, what: str | None = None) -> Journal:
        """Own the journal in `folder` (`answers/<dataset>/<shard>`) and recover it; `on_record` sees every whole record once.

        A torn tail is cut off before anything can be appended; its bytes are kept beside the segment and a line about it stands
        in `notes`. Only a last line without its newline is torn: records are written newline last, so a damaged line that has
        one was whole once, and paid for. Raises LockedError naming the owner, StoreError naming file and line of such damage,
        wherever it stands.
        """
        lock = FileLock(folder / LOCK_NAME, what=what or f"answers/{folder.parent.name} shard {folder.name}")
        try:
            lock.__enter__()
        except OSError as error:  # LockedError is not an OSError
            raise full_disk(lock.path, error) from None
        try:
            journal = cls(folder, lock)
            journal._recover(on_record or (lambda answer: None))
            return journal
        except BaseException:
            lock.__exit__()
            raise

    def _recover(self, on_record: Callable[[WireAnswer], None]) -> None:
        paths = segments(self.folder)
        for path in paths:
            good_end, torn, newline = 0, False, True
            for number, offset, line, answer in _scan(path):
                newline = line.endswith(b"\n")
                if answer is not None:
                    good_end = offset + len(line)
                    on_record(answer)
                elif newline or path is not paths[-1]:
                    raise _damage(path, number, offset)
                else:
                    torn = newline = True  # what is cut off leaves the record before it with its newline
            self._path, self._size = path, good_end
            if torn:
                self._cut(path, good_end)
        self._open_segment()
        if paths and not newline:  # the last record is whole, only its newline was lost
            self._write(b"\n")

    def _cut(self, path: Path, end: int) -> None:
        with path.open("rb") as handle:
            handle.seek(end)
            tail = handle.read()
        kept = path.with_name(f"torn-{path.stem.split('-')[1]}-{end}.bin")
        write_bytes(kept, tail)
        os.truncate(path, end)
        note = (
            f"{path}: cut off a torn tail of {len(tail)} bytes at byte {end} (kept in {kept.name}); "
            "its answer will be asked for again"
        )
        self.notes.append(note)
        log.warning(note)

    def _open_segment(self) -> None:
        try:
            new = not self._path.exists()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if new:
                _fsync_folder(self.folder)
        except OSError as error:
            raise full_disk(self._path, error) from None

    def append(self, answer: WireAnswer) -> None:
        """Hand one record to the operating system. On a full disk raises StoreError, and nothing half-written stays."""
        line = encode_line(answer)
        if self._size and self._size + len(line) > SEGMENT_BYTES:
            self._rotate()
        self._write(line)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            if self._torn:  # an earlier write failed and could not be taken back: never glue a record to it
                os.ftruncate(self._fd, self._size)
                self._torn = False
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self._torn = True
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
                self._torn = False
            raise full_disk(self._path, error) from None
        self._size += len(line)
        self._dirty = True

    def _rotate(self) -> None:
        self.sync()
        with self._file_guard:
            os.close(self._fd)
            self._path = self.folder / f"segment-{int(self._path.stem.split('-')[1]) + 1:03d}.jsonl"
            self._size = 0
            self._open_segment()

    def sync(self) -> None:
        """fsync what was appended. Safe to call from another thread than `append`'s. Raises StoreError."""
        with self._file_guard:
            if not self._dirty or self._fd < 0:
                return
            self._dirty = False  # before the call: an append during it makes the journal dirty again
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._dirty = True
                raise full_disk(self._path, error) from None

    def close(self) -> None:
        """Sync, close, give the lock back. May be called twice."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            with self._file_guard:
                os.close(self._fd)
                self._fd = -1
            self._lock.__exit__()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def require_room(folder: Path, in_flight: int) -> None:
    """Raises StoreError while there is still room for the answers that are already in flight, and for no others."""
    disk = os.statvfs(folder)
    free, needed = disk.f_bavail * disk.f_frsize, (in_flight + 1) * ANSWER_BYTES
    if free < needed:
        raise StoreError(
            f"{folder}: {free >> 10:,} KB are free on the disk, {in_flight} answers in flight may need {needed >> 10:,} KB; "
            "no further request was sent and nothing is lost; free space, or lower collect.in_flight, and run again"
        )


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
