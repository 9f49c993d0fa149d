"""Reading a corpus: `eagle3_assets.corpus.open(path)`. Public API (docs/corpus.md).

    from eagle3_assets import corpus

    c = corpus.open("data/demo/corpus")
    len(c)                         # rows
    pack = c[17]                   # Pack: input_ids uint32 [length], loss_mask uint8 [length], sample_id, turn, split, ...
    c.by_sample_id("4be1...")      # its turns, in order
    c.rows(split="train")          # one side of the split, in corpus order
    c.part("00003")                # one partition, in corpus order
    c.lineage(17)                  # where row 17 came from

Ids and masks are views of mapped files: nothing is copied, nothing is held, and every process of a data loader shares the page
cache. Only files that `manifest.json` names are opened, and only at the size that it says.

Belongs here: reading. Does not belong here: checking checksums (`verify.py`), trainers' formats (`handoff`).
Memory: the index, about 400 bytes a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.corpus.forms import ROWS_PER_GROUP
from eagle3_assets.corpus.groups import SPLITS
from eagle3_assets.corpus.merge import VERSION
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.swap import whole_folder
from eagle3_assets.errors import CorpusError, StoreError
from eagle3_assets.store import digest_file, read_json

_KEYS = {"rows", "files", "parts", "partitions", "datasets", "inputs", "supervised_tokens", "digest"}


class Corpus(Sequence[Pack]):
    """An opened corpus: a sequence of `Pack`s in corpus (shuffled) order. Build with `open_corpus`. Cheap to pickle: it
    reopens."""

    def __init__(self, path: Path, manifest: dict[str, Any], index: pa.Table) -> None:
        self.path, self.manifest = path, manifest
        self._tokens = np.memmap(path / "tokens.bin", dtype="<u4", mode="r").view(np.ndarray)
        self._masks = np.memmap(path / "loss_mask.bin", dtype=np.uint8, mode="r").view(np.ndarray)
        self._offsets: list[int] = index.column("offset").to_pylist()
        self._lengths: list[int] = index.column("length").to_pylist()
        self._sample_ids: list[str] = index.column("sample_id").to_pylist()
        self._turns: list[int] = index.column("turn").to_pylist()
        self._datasets: list[str] = index.column("dataset").to_pylist()
        self._grades: list[str] = index.column("grade").to_pylist()
        self._parts: list[str] = index.column("part").to_pylist()
        self._splits: list[str] = index.column("split").to_pylist()
        self._truncated: list[bool] = index.column("truncated").to_pylist()
        self._rows_of_sample: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, i: int) -> Pack: ...
    @overload
    def __getitem__(self, i: slice) -> list[Pack]: ...
    def __getitem__(self, i: int | slice) -> Pack | list[Pack]:
        if isinstance(i, slice):
            return [self._pack(k) for k in range(*i.indices(len(self)))]
        k = i + len(self) if i < 0 else i
        if not 0 <= k < len(self):
            raise IndexError(f"{self.path}: row {i} of a corpus of {len(self)} rows")
        return self._pack(k)

    def _pack(self, k: int) -> Pack:
        start = self._offsets[k]
        end = start + self._lengths[k]
        return Pack(
            k, self._sample_ids[k], self._turns[k], self._datasets[k], self._grades[k], self._parts[k],
            self._tokens[start:end], self._masks[start:end], self._splits[k], self._truncated[k],
        )  # fmt: skip

    def __iter__(self) -> Iterator[Pack]:
        return (self._pack(k) for k in range(len(self)))

    def by_sample_id(self, sample_id: str) -> list[Pack]:
        """The rows of a sample, by turn. Raises CorpusError for an id that the corpus does not hold."""
        if self._rows_of_sample is None:
            self._rows_of_sample = {}
            for k, name in enumerate(self._sample_ids):
                self._rows_of_sample.setdefault(name, []).append(k)
        rows = self._rows_of_sample.get(sample_id)
        if not rows:
            raise CorpusError(f"{self.path}: holds no sample {sample_id!r}; it was dropped (see manifest.json) or never answered")
        return sorted((self._pack(k) for k in rows), key=lambda p: p.turn)

    def rows(self, split: str | None = None) -> Iterator[Pack]:
        """The rows of one side of the split ("train", "validation"), or all, in corpus order. Raises CorpusError for another name."""
        if split is not None and split not in SPLITS:
            raise CorpusError(f"{self.path}: no split {split!r}; there are {', '.join(SPLITS)}")
        return (self._pack(k) for k in range(len(self)) if split is None or self._splits[k] == split)

    def lineage(self, i: int) -> dict[str, Any]:
        """Where row `i` came from: the archive's columns without the ids (see `corpus.lineage.journal_record`)."""
        k = range(len(self))[i]
        facts = self._part(self._parts[k])
        file = pq.ParquetFile(self.path / f"part-{facts['key']}.parquet")
        columns = [name for name in file.schema_arrow.names if name != "input_ids"]
        group, row = divmod(k - facts["first"], ROWS_PER_GROUP)
        found: dict[str, Any] = file.read_row_group(group, columns=columns).slice(row, 1).to_pylist()[0]
        return found

    @property
    def parts(self) -> tuple[str, ...]:
        """Partition keys in order."""
        return tuple(self.manifest["partitions"])

    @property
    def digest(self) -> str:
        """Identity of the content."""
        return str(self.manifest["digest"])

    @property
    def tokens(self) -> npt.NDArray[np.uint32]:
        """All ids, uint32, in corpus order (mapped)."""
        return self._tokens

    @property
    def loss_mask(self) -> npt.NDArray[np.uint8]:
        """All masks, uint8, unshifted (mapped)."""
        return self._masks

    def part(self, key: str) -> list[Pack]:
        """The rows of one partition in corpus order. Raises CorpusError for an unknown key."""
        facts = self._part(key)
        return self[facts["first"] : facts["first"] + facts["rows"]]

    def archive(self, key: str) -> pa.Table:
        """One part in archive form: lineage, `survivors`, `truncated`, `group`, `split` and ids."""
        self._part(key)
        return pq.read_table(self.path / f"part-{key}.parquet")

    def _part(self, key: str) -> dict[str, Any]:
        for facts in self.manifest["parts"]:
            if facts["key"] == key:
                found: dict[str, Any] = facts
                return found
        raise CorpusError(f"{self.path}: has no part {key!r}; it has {self.parts[0]} to {self.parts[-1]}")

    def __reduce__(self) -> tuple[Any, ...]:
        return open_corpus, (self.path,)


def open_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Open a corpus folder. Raises CorpusError when it is missing, half copied, or of another version."""
    folder = whole_folder(Path(path))
    manifest = read_corpus_manifest(folder)
    for name, facts in manifest["files"].items():
        file = folder / name
        found = file.stat().st_size if file.exists() else None
        if found != facts["bytes"]:
            what = "no file" if found is None else f"{found} bytes"
            raise CorpusError(f"{file}: expected {facts['bytes']} bytes, found {what}; materialize corpus again")
    # what decides which ids belong to which row and side is small: compared whole. The ids themselves: `verify.py`
    if digest_file(folder / "index.parquet") != manifest["files"]["index.parquet"]["xxh3"]:
        raise CorpusError(
            f"{folder / 'index.parquet'}: its checksum is not the manifest's, so it is damaged; materialize corpus again"
        )
    try:
        index = pq.read_table(folder / "index.parquet")
    except (OSError, pa.ArrowException) as error:
        first = str(error).splitlines()[0]
        raise CorpusError(f"{folder / 'index.parquet'}: is not readable Parquet ({first}); materialize corpus again") from None
    if index.num_rows != manifest["rows"]["kept"]:
        kept, found = manifest["rows"]["kept"], index.num_rows
        raise CorpusError(f"{folder / 'index.parquet'}: expected {kept} rows, found {found}; materialize corpus again")
    return Corpus(folder, manifest, index)


def read_corpus_manifest(folder: Path) -> dict[str, Any]:
    """`manifest.json` of a corpus; raises CorpusError."""
    path = folder / "manifest.json"
    if not path.exists():
        raise CorpusError(f"{path}: is missing, so there is no corpus in this folder; materialize corpus first")
    try:
        manifest = read_json(path)
    except StoreError as error:
        raise CorpusError(str(error)) from None
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        found = manifest.get("version") if isinstance(manifest, dict) else manifest
        raise CorpusError(f"{path}: expected version {VERSION}, found {found!r}; materialize corpus again")
    missing = _KEYS - manifest.keys() or {name for name in ("index.parquet",) if name not in manifest["files"]}
    if missing:
        raise CorpusError(f"{path}: holds no {', '.join(sorted(missing))}, so it is damaged; materialize corpus again")
    return manifest
