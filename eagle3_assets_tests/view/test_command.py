"""Claims about the command: it says where, ends when told, and never with a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from eagle3_assets.cli.main import run
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.viewer_links import base_url, report_url, row_url, rows_url
from eagle3_assets_tests.conftest import REPOSITORY

MAIN = "import sys; from eagle3_assets.cli.main import run; sys.exit(run(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_stop_and_that_is_no_error(
    rows: list[SampleRow], tmp_path: Path, how: signal.Signals
) -> None:
    env = {**os.environ, "EAGLE3_DATA": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "view", "--port", "0", "--no-browser"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    address = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
    assert f"{len(rows):,} rows of campaign demo" in line
    with urllib.request.urlopen(address, timeout=30) as page:
        assert b"eagle3 view" in page.read()
    process.send_signal(how)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")


def test_nothing_to_look_at_is_one_line(store: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["view", "--no-browser"]) == 1
    error = capsys.readouterr().err
    assert "does not exist" in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_folder_is_written_without_a_server(rows: list[SampleRow], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["view", "--export", str(tmp_path / "out"), "--rows", "3"]) == 0
    assert f"3 of {len(rows)} rows" in capsys.readouterr().out and (tmp_path / "out" / "index.html").exists()
    assert run(["view", "--export", str(tmp_path / "demo")]) == 1
    assert "no export of the viewer" in capsys.readouterr().err


def test_links_lead_to_pages_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report_url("b3") == "http://127.0.0.1:8337/reports/b3.html"
    assert rows_url(dataset="b3", provider="A&B") == "http://127.0.0.1:8337/#/rows?dataset=b3&provider=A%26B"
    assert row_url("b3", "ab", 1) == "http://127.0.0.1:8337/#/row/b3/ab/1"
    monkeypatch.setenv("EAGLE3_VIEW_URL", "http://localhost:9000/")
    assert base_url() == "http://localhost:9000"
