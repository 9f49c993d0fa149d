"""Rows come from JSONL, Parquet and Hugging Face sources; what cannot be read ends in one line that names the file."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_assets.campaign import Source
from eagle3_assets.errors import PromptError
from eagle3_assets.prompts.sources import SCAN_MINIMUM, look_ahead, read_rows, source_digests, source_files
from eagle3_assets_tests.prompts.conftest import write_jsonl

PIN = "5f839b1f368a76b161028bb9edff055db34022b2"


def rows_of(source: Source, base: Path, *columns: str, limit: int | None = None) -> list[Any]:
    return list(read_rows(source, base, columns=columns or ("a",), limit=limit))


def failure(source: Source, base: Path, *columns: str) -> str:
    with pytest.raises(PromptError) as caught:
        rows_of(source, base, *columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_read_recursively_and_sorted_whatever_the_order_of_creation(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d" / "b.jsonl", [{"a": 2}])
    write_jsonl(tmp_path / "d" / "sub" / "a.jsonl", [{"a": 3}])
    write_jsonl(tmp_path / "d" / "a.jsonl", [{"a": 0}, {"a": 1}])
    write_jsonl(tmp_path / "d" / ".cache" / "old.jsonl", [{"a": 9}])
    (tmp_path / "d" / "README.md").write_text("not rows")
    rows = rows_of(Source(kind="jsonl", path="d"), tmp_path)
    assert [(r.where, r.row["a"]) for r in rows] == [("a.jsonl:1", 0), ("a.jsonl:2", 1), ("b.jsonl:1", 2), ("sub/a.jsonl:1", 3)]


def test_a_glob_a_file_and_gzip_are_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x" / "1.jsonl", [{"a": 1}])
    (tmp_path / "x" / "2.jsonl.gz").write_bytes(gzip.compress(b'{"a": 2}\n\n{"a": 3}\n'))
    assert [r.row["a"] for r in rows_of(Source(kind="jsonl", path="x"), tmp_path)] == [1, 2, 3]
    assert [r.row["a"] for r in rows_of(Source(kind="jsonl", path="x/*.gz"), tmp_path)] == [2, 3]
    assert [r.where for r in rows_of(Source(kind="jsonl", path="x/2.jsonl.gz"), tmp_path)] == ["2.jsonl.gz:1", "2.jsonl.gz:3"]
    assert source_files(Source(kind="jsonl", path=str(tmp_path / "x" / "1.jsonl")), Path("/elsewhere"))[0].name == "1.jsonl"


def test_one_bad_line_is_a_bad_row_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(
        b'\xef\xbb\xbf{"a": 1}\n{"a": \n[1]\n{"a": NaN}\n{"a": "\xff"}\n' + b"[" * 100_000 + b'\n{"a": "\\ud800"}\n{"a": 2}'
    )
    rows = rows_of(Source(kind="jsonl", path="r.jsonl"), tmp_path)
    assert [r.reason for r in rows] == ["", "not_json", "not_json", "not_json", "not_json", "not_json", "", ""]
    assert [r.where for r in rows][1] == "r.jsonl:2"
    assert rows[6].row == {"a": "\ud800"}  # read here, set aside by the screen under its own name
    assert "expected an object, found list" in rows[2].detail


def test_a_file_without_a_single_json_line_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("\n\nproblem,answer\n1,2\n")
    line = failure(Source(kind="jsonl", path="r.jsonl"), tmp_path)
    assert line.startswith(f"{tmp_path}/r.jsonl: line 3: ") and "expected JSONL, one object a line" in line
    (tmp_path / "array.jsonl").write_text('[{"a": 1}, {"a": 2}]')
    assert "array.jsonl: line 1: expected an object, found list" in failure(Source(kind="jsonl", path="array.jsonl"), tmp_path)


def test_missing_empty_and_unmatched_paths_say_where_they_were_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/no.jsonl: is missing" in failure(Source(kind="jsonl", path="no.jsonl"), tmp_path)
    assert f"{tmp_path}/empty: holds no .parquet file" in failure(Source(kind="parquet", path="empty"), tmp_path)
    assert "no*.jsonl: no file matches" in failure(Source(kind="jsonl", path="no*.jsonl"), tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything; run as another user to see the message")
def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "r.jsonl", [{"a": 1}]).chmod(0)
    assert "r.jsonl: cannot be read (Permission denied)" in failure(Source(kind="jsonl", path="r.jsonl"), tmp_path)


def test_damaged_gzip_names_file_and_line(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"a": 1}\n' * 1000)
    (tmp_path / "torn.jsonl.gz").write_bytes(whole[:-20])
    line = failure(Source(kind="jsonl", path="torn.jsonl.gz"), tmp_path)
    assert "torn.jsonl.gz: line " in line and "gzip" in line
    (tmp_path / "no.jsonl.gz").write_bytes(b'{"a": 1}\n')
    assert "no.jsonl.gz: line 1: the gzip data is damaged" in failure(Source(kind="jsonl", path="no.jsonl.gz"), tmp_path)


def test_parquet_decodes_only_the_columns_asked_for_and_drops_nulls_of_structs(tmp_path: Path) -> None:
    calls = [{"role": "user", "content": "x", "id": None}, {"role": "tool", "content": "y", "id": "7"}]
    pq.write_table(pa.table({"m": [calls] * 200, "logs": ["z" * 100] * 200, "n": [None] * 200}), tmp_path / "r.parquet")
    rows = rows_of(Source(kind="parquet", path="r.parquet"), tmp_path, "m", "n")
    assert len(rows) == 200 and rows[199].where == "r.parquet:199"
    assert rows[0].row == {"m": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y", "id": "7"}]}


def test_a_dotted_column_reads_its_parent(tmp_path: Path) -> None:
    pq.write_table(pa.table({"meta": [{"question": "q"}], "other": [1]}), tmp_path / "r.parquet")
    assert rows_of(Source(kind="parquet", path="r.parquet"), tmp_path, "meta.question")[0].row == {"meta": {"question": "q"}}


def test_corrupt_parquet_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"a": [str(i) * 50 for i in range(5000)]}), path, compression="none", use_dictionary=False)
    good = path.read_bytes()
    for damaged in (good[:-100], b"PAR1" + b"\0" * 100, b"", good[:2000] + b"\xff" * 4000 + good[6000:]):
        path.write_bytes(damaged)
        line = failure(Source(kind="parquet", path="r.parquet"), tmp_path)
        assert line.startswith(f"{path}: ") and "not readable as Parquet" in line


def test_a_parquet_text_column_that_is_not_utf8_loses_that_row_only(tmp_path: Path) -> None:
    # Arrow's own constructors refuse this; files written by other tools hold it
    raw = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\4\0\0\0\6\0\0\0\x0a\0\0\0"), pa.py_buffer(b"good\xff\xfefine")]
    )
    pq.write_table(pa.table({"a": raw}), tmp_path / "r.parquet")
    rows = rows_of(Source(kind="parquet", path="r.parquet"), tmp_path)
    assert [(r.row, r.reason) for r in rows] == [({"a": "good"}, ""), (None, "not_json"), ({"a": "fine"}, "")]


def test_a_parquet_file_without_the_mapped_column_says_which_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem": ["x"], "lang": ["c"]}), tmp_path / "r.parquet")
    line = failure(Source(kind="parquet", path="r.parquet"), tmp_path, "prompt")
    assert line.endswith("r.parquet: has no column 'prompt', only problem, lang; correct [dataset.mapping]")


def test_digests_of_local_files_change_with_their_content_only(tmp_path: Path) -> None:
    source = Source(kind="jsonl", path="d")
    file = write_jsonl(tmp_path / "d" / "a.jsonl", [{"a": 1}])
    before = source_digests(source, tmp_path)
    os.utime(file, ns=(1, 1))
    assert source_digests(source, tmp_path) == before
    write_jsonl(file, [{"a": 2}])
    assert source_digests(source, tmp_path) != before
    write_jsonl(file, [{"a": 1}])
    write_jsonl(tmp_path / "d" / "b.jsonl", [{"a": 1}])
    assert list(source_digests(source, tmp_path)) == ["a.jsonl", "b.jsonl"]


# ---------------------------------------------------------------------------------------------------- Hugging Face
def hub(path: str = "ise-uiuc/Magicoder-OSS-Instruct-75K", **more: Any) -> Source:
    return Source(kind="hf", path=path, revision=PIN, **more)


def test_the_look_ahead_is_bounded_for_the_hub_only_and_can_be_stated() -> None:
    assert look_ahead(Source(kind="jsonl", path="x"), 10) is None
    assert look_ahead(hub(), 10) == SCAN_MINIMUM == 20_000
    assert look_ahead(hub(), 2200) == 44_000
    assert look_ahead(hub(scan_rows=50), 2200) == 50


@pytest.mark.slow
def test_a_hub_dataset_is_streamed_at_its_pinned_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: dict[str, Any] = {}

    def load_dataset(path: str, **options: Any) -> Any:
        asked.update(options, path=path)
        return datasets.Dataset.from_list([{"a": i, "b": None} for i in range(100)]).to_iterable_dataset(num_shards=4)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = rows_of(hub(subset="all", split="train_sft", data_files="x.json"), tmp_path, limit=8)
    assert asked == {
        "path": "ise-uiuc/Magicoder-OSS-Instruct-75K",
        "name": "all",
        "split": "train_sft",
        "data_files": "x.json",
        "revision": PIN,
        "streaming": True,
    }
    # two rows of each of the four files: a split sorted by topic is still seen from end to end
    assert [r.row for r in rows] == [{"a": i} for i in (0, 1, 25, 26, 50, 51, 75, 76)]
    assert rows[0].where == "ise-uiuc/Magicoder-OSS-Instruct-75K@5f839b1f368a:0"


def test_of_many_files_sixteen_are_looked_at_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    stream = datasets.Dataset.from_list([{"a": i} for i in range(320)]).to_iterable_dataset(num_shards=32)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: stream)
    assert [r.row["a"] for r in rows_of(hub(), tmp_path, limit=16)] == list(range(0, 320, 20))
    assert [r.row["a"] for r in rows_of(hub(), tmp_path, limit=2)] == [0, 160]


def test_a_short_file_of_a_stream_leaves_its_share_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *a, **k: datasets.Dataset.from_list([{"a": i} for i in range(10)]).to_iterable_dataset(num_shards=3),
    )
    # files of 4, 3 and 3 rows: with 10 wanted each gives up to 4, with 9 each gives 3
    assert sorted(r.row["a"] for r in rows_of(hub(), tmp_path, limit=10)) == list(range(10))
    assert sorted(r.row["a"] for r in rows_of(hub(), tmp_path, limit=9)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert len(rows_of(hub(), tmp_path, limit=1000)) == 10


def test_an_unreachable_hub_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*args: Any, **options: Any) -> Any:
        raise ConnectionError("Couldn't reach the Hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    line = failure(hub(), tmp_path)
    assert "hub dataset ise-uiuc/Magicoder-OSS-Instruct-75K" in line
    assert "ConnectionError: Couldn't reach the Hub)" in line
    assert "set source.path to the local copy" in line


def test_a_hub_that_fails_in_the_middle_of_the_stream_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def rows() -> Any:
        yield {"a": 1}
        raise OSError("connection reset")

    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: datasets.IterableDataset.from_generator(rows))
    assert "connection reset" in failure(hub(), tmp_path)


@pytest.mark.parametrize("saved", ["one", "dict"])
def test_a_folder_made_by_save_to_disk_is_a_local_copy(tmp_path: Path, saved: str) -> None:
    import datasets

    data = datasets.Dataset.from_list([{"a": i} for i in range(40)])
    (datasets.DatasetDict(train=data) if saved == "dict" else data).save_to_disk(str(tmp_path / "copy"))
    source = hub("copy")
    assert sorted(r.row["a"] for r in rows_of(source, tmp_path, limit=40)) == list(range(40))
    assert "revision" not in source_digests(source, tmp_path)


def test_a_checkout_of_a_hub_repository_is_a_local_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "checkout" / "data").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "checkout" / "data" / "train-00000-of-00001.parquet")
    assert [r.row["a"] for r in rows_of(hub("checkout"), tmp_path, limit=10)] == [1, 2, 3]
    assert "split nosuch" in failure(hub("checkout", split="nosuch"), tmp_path)
