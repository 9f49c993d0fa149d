"""A corpus folder that somebody edited, that a disk damaged, or that lies on another disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets import corpus as corpora
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.errors import CorpusError
from eagle3_assets.store import Store
from eagle3_assets_tests.review.made_rows import make_row, tiny_campaign, write_tokens


def build(store: Store, rows: int = 6) -> Any:
    return build_corpus(tiny_campaign(), store, [write_tokens(store, "b3_magicoder", "00", [make_row(i) for i in range(rows)])])


def test_an_index_of_the_right_size_and_other_bytes_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    build(store)
    path = store.corpus / "index.parquet"
    whole = path.read_bytes()
    for at in range(4, len(whole), 97):  # Parquet itself notices few of these
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorpusError, match=r"index\.parquet: its checksum is not the manifest's"):
            corpora.open(store.corpus)
    path.write_bytes(whole)
    assert len(corpora.open(store.corpus)) == 6


@pytest.mark.parametrize("key", ["files", "rows", "parts", "partitions"])
def test_a_manifest_that_lost_a_key_is_one_line(tmp_path: Path, key: str) -> None:
    store = Store(tmp_path)
    build(store)
    path = store.corpus / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest[key]
    path.write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match=rf"holds no {key}, so it is damaged; materialize corpus again"):
        corpora.open(store.corpus)


def test_a_linked_corpus_is_replaced_where_it_lies_as_often_as_needed(tmp_path: Path) -> None:
    store, disk = Store(tmp_path / "demo"), tmp_path / "disk" / "corpus"
    disk.mkdir(parents=True)
    store.root.mkdir()
    store.corpus.symlink_to(disk)
    for rows in (4, 5, 6):
        build(store, rows)
        assert store.corpus.is_symlink() and len(corpora.open(store.corpus)) == rows
    assert [p.name for p in disk.parent.iterdir()] == ["corpus"] and not list(store.root.glob(".corpus*"))
    disk.rename(disk.with_name(".corpus.old"))  # killed between the two renames, over there
    assert len(corpora.open(store.corpus)) == 6
