"""Rows of a `campaign.Source`, one `dict` at a time: JSONL and Parquet files, folders and globs of them, Hugging Face datasets.

Belongs here: finding and reading files, streaming a pinned hub revision, the bound on how far a stream is read, digests of
local files. A file that cannot be read ends in one `PromptError` line; a single bad line is a `SourceRow` with a reason.
Does not belong here: what the columns mean (`mapping.py`).
"""

from __future__ import annotations

import glob
import gzip
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from eagle3_assets.campaign import Source
from eagle3_assets.errors import PromptError
from eagle3_assets.store import digest_file

SUFFIXES = {"jsonl": (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), "parquet": (".parquet",)}
PARQUET_BATCH = 64  # rows decoded at once: agent trajectories reach a megabyte a row
SCAN_FACTOR, SCAN_MINIMUM = 20, 20_000
SCAN_FILES = 16  # a split is often sorted by topic: look at the heads of up to so many of its files, evenly spaced


@dataclass(frozen=True, slots=True)
class SourceRow:
    """`row` is None when the row cannot be read: then `reason` (a name of `set_aside.REASONS`) and `detail` say why."""

    where: str
    row: dict[str, Any] | None
    reason: str = ""
    detail: str = ""


def look_ahead(source: Source, wanted: int) -> int | None:
    """How many rows of the source are read to choose `wanted` (selected and reserve) from; None = all of them.

    Only `hf` is bounded, so that a sample of 2,000 does not download 1.2 M rows: max(20 x wanted, 20,000), or
    `source.scan_rows`. Growing a sample keeps its prefix only while this bound stays the same (state `scan_rows` for that).
    """
    if source.kind != "hf":
        return None
    return source.scan_rows or max(SCAN_FACTOR * wanted, SCAN_MINIMUM)


def read_rows(source: Source, base: Path, *, columns: Iterable[str], limit: int | None = None) -> Iterator[SourceRow]:
    """Rows of `source` in its own order. `columns` are those that the mapping needs: others are not decoded where that saves.

    Raises PromptError: nothing there, not readable, corrupt, hub unreachable.
    """
    if source.kind == "hf":
        rows = _read_hub(source, base, limit or SCAN_MINIMUM)
    else:
        reader = _read_jsonl if source.kind == "jsonl" else _read_parquet
        root = local_path(source, base)
        rows = itertools.chain.from_iterable(reader(f, _name(f, root), tuple(columns)) for f in source_files(source, base))
    return itertools.islice(rows, limit) if limit else rows


# ---------------------------------------------------------------------------------------------------- files
def local_path(source: Source, base: Path) -> Path:
    """The file, folder or glob that `source.path` means, seen from the campaign file's folder."""
    return base / Path(source.path).expanduser()


def source_files(source: Source, base: Path) -> list[Path]:
    """The files of a local source, sorted: a file, a folder (recursively, by suffix) or a glob. Raises PromptError when none."""
    path, suffixes = local_path(source, base), SUFFIXES[source.kind]
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.is_file() and f.name.endswith(suffixes) and not _hidden(f, path))
        if not files:
            raise PromptError(f"{path}: holds no {' or '.join(suffixes)} file; put the rows there or correct source.path")
        return files
    if any(char in source.path for char in "*?["):
        files = sorted(f for f in map(Path, glob.glob(str(path), recursive=True)) if f.is_file())  # noqa: PTH207 (absolute patterns)
        if not files:
            raise PromptError(f"{path}: no file matches; put the rows there or correct source.path")
        return files
    if not path.is_file():
        raise PromptError(
            f"{path}: is missing; put the rows there or correct source.path (relative paths start at the campaign file)"
        )
    return [path]


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _name(file: Path, root: Path) -> str:
    """Short, stable name of a file in `source_row`: relative to a folder, else just its name (no machine path)."""
    return str(file.relative_to(root)) if root.is_dir() else file.name


def source_digests(source: Source, base: Path) -> dict[str, str]:
    """What pins the content of a source: its revision on the hub, or the checksum of each local file."""
    if source.kind == "hf" and not local_path(source, base).is_dir():
        return {"revision": str(source.revision)}
    root = local_path(source, base)
    if source.kind == "hf":
        files = sorted(f for f in root.rglob("*") if f.is_file() and not _hidden(f, root))
    else:
        files = source_files(source, base)
    try:
        return {_name(f, root): digest_file(f) for f in files}
    except OSError as error:
        raise PromptError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None


# ---------------------------------------------------------------------------------------------------- JSONL
def _not_a_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_line(line: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        # the standard library, not orjson: it lets lone surrogates through, so that they get their own reason
        value = json.loads(line, parse_constant=_not_a_number)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    if not isinstance(value, dict):
        return None, f"expected an object, found {type(value).__name__}"
    return value, ""


def _read_jsonl(file: Path, name: str, columns: tuple[str, ...]) -> Iterator[SourceRow]:
    good, first_bad = 0, ""
    number = 0
    try:
        with _open_lines(file) as handle:
            for number, line in enumerate(handle, 1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not line.strip():
                    continue
                row, problem = _parse_line(line)
                good += row is not None
                first_bad = first_bad or (problem and f"line {number}: {problem}")
                text = problem and f"{problem}: {line[:200].decode(errors='replace')}"
                yield SourceRow(f"{name}:{number}", row, "not_json" if problem else "", text)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PromptError(f"{file}: line {number + 1}: the gzip data is damaged ({error}); fetch the file again") from None
    except OSError as error:
        raise PromptError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    if first_bad and not good:
        raise PromptError(f"{file}: {first_bad}; no line of this file is JSON: expected JSONL, one object a line")


def _open_lines(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.name.endswith(".gz") else file.open("rb")  # type: ignore[return-value]


# ---------------------------------------------------------------------------------------------------- Parquet
def _read_parquet(file: Path, name: str, columns: tuple[str, ...]) -> Iterator[SourceRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as parquet:
            here = parquet.schema_arrow.names
            heads = [c if c in here else c.split(".")[0] for c in columns]
            if heads[0] not in here:
                raise PromptError(f"{file}: has no column {heads[0]!r}, only {', '.join(here)}; correct [dataset.mapping]")
            for batch in parquet.iter_batches(PARQUET_BATCH, columns=[c for c in here if c in heads]):
                for i in range(batch.num_rows):
                    yield _arrow_row(batch.slice(i, 1), f"{name}:{number}")
                    number += 1
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PromptError(f"{file}: row {number}: not readable as Parquet ({reason}); fetch the file again") from None


def _arrow_row(one: Any, where: str) -> SourceRow:
    try:
        return SourceRow(where, without_nulls(one.to_pylist()[0]))
    except UnicodeDecodeError as error:
        return SourceRow(where, None, "not_json", f"a text column is not UTF-8 ({error.reason} at byte {error.start})")


def without_nulls(value: Any) -> Any:
    """Drop null members of structs: Arrow gives every struct of a column the union of all keys, so null means absent there."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------------------------------------- Hugging Face
def _read_hub(source: Source, base: Path, limit: int) -> Iterator[SourceRow]:
    streams = _open_streams(source, base, limit)
    name = source.path if local_path(source, base).is_dir() else f"{source.path}@{str(source.revision)[:12]}"
    share = max(1, math.ceil(limit / max(1, len(streams))))
    number = 0
    # An equal share of each stream in turn; what a short one leaves goes to the next round.
    while streams:
        for stream in list(streams):
            taken = 0
            while taken < share:
                row = _next_row(stream, source)
                if row is None:
                    streams.remove(stream)
                    break
                yield SourceRow(f"{name}:{number}", without_nulls(row))
                number, taken = number + 1, taken + 1


def _open_streams(source: Source, base: Path, limit: int) -> list[Iterator[dict[str, Any]]]:
    """Up to SCAN_FILES iterators over evenly spaced shards of the split (fewer when the bound is small)."""
    import datasets

    path = local_path(source, base)
    try:
        if path.is_dir() and ((path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()):
            saved = datasets.load_from_disk(str(path))
            split = saved[source.split] if isinstance(saved, datasets.DatasetDict) else saved
            stream = split.to_iterable_dataset(num_shards=max(1, min(SCAN_FILES, len(split))))
        else:
            stream = datasets.load_dataset(
                str(path) if path.is_dir() else source.path,
                name=source.subset,
                split=source.split,
                data_files=source.data_files,
                revision=None if path.is_dir() else source.revision,
                streaming=True,
            )
        shards = int(stream.num_shards)
        wanted = min(shards, SCAN_FILES, limit)
        return [iter(stream.shard(shards, i * shards // wanted)) for i in range(wanted)]
    except Exception as error:
        raise _hub_error(source, error) from None


def _next_row(stream: Iterator[dict[str, Any]], source: Source) -> dict[str, Any] | None:
    try:
        return next(stream, None)
    except Exception as error:
        raise _hub_error(source, error) from None


def _hub_error(source: Source, error: Exception) -> PromptError:
    """`datasets` raises a dozen types (HTTP clients, fsspec, Arrow, builders): all mean the same to the person who reads it."""
    lines = str(error).strip().splitlines()
    return PromptError(
        f"hub dataset {source.path} (revision {source.revision}, split {source.split}): cannot be read "
        f"({type(error).__name__}: {lines[0] if lines else 'no message'}); check network, revision, subset and split, or "
        f"download it once and set source.path to the local copy (a checkout of the repository or a folder made by save_to_disk)"
    )
