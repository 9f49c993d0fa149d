"""`benchmarks/collector.py` and `benchmarks/journal.py`: how full the slots were is counted right, and both run from end to end with a
few answers. The figures themselves are the benchmarks' own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # a folder of scripts, no package

import collector  # noqa: E402
import collector_clients  # noqa: E402
import journal  # noqa: E402


def test_slots_that_are_refilled_at_once_are_full_and_a_pause_between_requests_shows() -> None:
    full = [(end + lane / 100, 1.0, 1.0) for lane in range(4) for end in range(1, 11)]
    assert collector_clients.occupancy(full, 4)["share"] == pytest.approx(1.0)
    paused = [(end * 1.25 + lane / 100, 1.0, 1.0) for lane in range(4) for end in range(1, 11)]
    assert 0.75 < collector_clients.occupancy(paused, 4)["share"] < 0.85
    assert collector_clients.occupancy(full, 8)["share"] == 0.0  # the ramp never ended


def test_without_the_shared_server_the_benchmark_says_so_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE3_SHARED_RESEARCH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["collector.py"])
    collector.main()
    assert "skipped: everything" in (said := capsys.readouterr().out) and "EAGLE3_SHARED_RESEARCH" in said


@pytest.mark.slow
def test_base_and_ours_answer_everything_from_the_same_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (collector.research() / "bench_perf" / "mock_server.c").is_file() or not shutil.which("gcc"):
        pytest.skip("needs gcc and bench_perf/mock_server.c in $EAGLE3_SHARED_RESEARCH (default ../shared/research)")
    few = ["--answers", "60", "--in-flight", "20", "--rounds", "1", "--clients", "base,ours", "--latency", "20-60"]
    monkeypatch.setattr(sys, "argv", ["collector.py", *few])
    collector.main()
    said = capsys.readouterr().out
    assert "holds  connections the server saw" in said and "CPU, ours / base" in said and "slots in use" in said


def test_the_journal_is_written_and_opened_again_with_every_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["journal.py", "--records", "200", "--rounds", "1", "--group", "50"])
    journal.main()
    said = capsys.readouterr().out
    assert "records/s, ours / raw" in said and "resume, CPU ms per 1,000" in said
