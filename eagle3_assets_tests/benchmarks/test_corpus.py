"""The corpus benchmark in small: it measures builds that drop exactly what was planted, and the same bytes with one or two threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import corpus as benchmark
from eagle3_assets import corpus as corpora


@pytest.fixture
def threads_restored() -> Iterator[None]:
    before = pa.cpu_count(), pa.io_thread_count()
    yield
    pa.set_cpu_count(before[0])
    pa.set_io_thread_count(before[1])


@pytest.mark.slow
@pytest.mark.usefixtures("threads_restored")
def test_planted_copies_are_what_is_dropped_and_threads_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "DATASETS", (("a1_sessions", 96, 900, 0.5, 0.5), ("b2_answers", 320, 300, 0.5, 0.1)))
    monkeypatch.setattr(benchmark, "POOL_IDS", 200_000)
    monkeypatch.setattr(benchmark, "COPIES", 0.05)
    monkeypatch.setattr(benchmark, "NEAR_COPIES", 0.05)
    benchmark.make_files(tmp_path, 1.0, tmp_path / "no tokenizer here")
    facts = json.loads((tmp_path / "facts.json").read_bytes())
    two, one = benchmark.build(tmp_path, 2, shuffled=False), benchmark.build(tmp_path, 1, shuffled=True)
    assert two["dropped"] == {"duplicate": facts["copies"], "near_duplicate": facts["near_copies"]} == one["dropped"]
    assert facts["copies"] > 5 and facts["near_copies"] > 5 and two["rows"] + sum(two["dropped"].values()) == facts["rows"] == 416
    assert two["digest"] == one["digest"] and two["peak_mb"] > 0
    read = benchmark.read_ours(tmp_path)
    assert read["cpu_us_per_row"] > 0 and len(corpora.open(tmp_path / "ours-2" / "corpus")) == two["rows"]
