"""Claims about odd surroundings: paths with markup, unreadable bytes, full disks, damaged little files. One line each, or the truth."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy.exc import OperationalError

from eagle3_assets.campaign import Campaign
from eagle3_assets.cli import main, run
from eagle3_assets.cli import plan as plan_command
from eagle3_assets.cli.standin import compare
from eagle3_assets.errors import StoreError, WireError
from eagle3_assets.estimate.plan import make_plan
from eagle3_assets.exact.sample_row import write_rows
from eagle3_assets.store import Store
from eagle3_assets_tests.conftest import REPOSITORY
from eagle3_assets_tests.review.made_rows import make_row

MARKUP = "x[/red]y[bold]z"


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith("eagle3: ")
    return line


# ------------------------------------------------------------------------------------------------ markup
def test_markup_in_the_data_roots_name_is_shown_and_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], campaign: Campaign
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / MARKUP))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(REPOSITORY)
    assert main.run(["status"]) == 0
    shown = capsys.readouterr()
    assert MARKUP in shown.out and MARKUP in shown.err
    main.run(["doctor", "--no-network"])
    assert MARKUP in capsys.readouterr().out
    store = Store.of(campaign)
    monkeypatch.setattr(plan_command.planning, "approved_usd", _refuse)
    plan_command.show(campaign, store, make_plan(campaign, [], {}, (0.5, 2.0), 10**12))
    assert f"no ({MARKUP})" in capsys.readouterr().out


def _refuse(*_: object) -> float:
    raise StoreError(MARKUP)


def test_markup_in_a_checks_words_is_shown_and_never_read(tmp_path: Path) -> None:
    class Result:
        def get_asset_check_evaluations(self) -> list[Any]:
            key = type("Key", (), {"to_user_string": lambda self: "tokens/b3"})()
            severity = type("Severity", (), {"value": "ERROR"})()
            facts = {"passed": False, "asset_key": key, "check_name": "structure", "severity": severity, "description": MARKUP}
            return [type("Evaluation", (), facts)()]

    with (tmp_path / "out").open("w") as file:
        run._print_checks(Console(file=file, width=200), Result())
    assert f"structure: {MARKUP}" in (tmp_path / "out").read_text()


# ------------------------------------------------------------------------------------------------ names that no disk takes
@pytest.mark.parametrize("command", [["status"], ["plan"], ["show", "ab"], ["close", "b3_magicoder"]])
def test_a_data_root_that_is_too_long_is_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", "x" * 300)
    assert main.run(command) == 1
    assert "EAGLE3_DATA = xxx" in one_line(capsys)


def test_doctor_finds_a_data_root_that_is_too_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EAGLE3_DATA", "x" * 300)
    monkeypatch.setenv("COLUMNS", "400")
    assert main.run(["doctor", "--no-network"]) == 1
    assert "cannot be used" in capsys.readouterr().out


def eagle3(*args: str | bytes, stdout: int | None = subprocess.PIPE, **env: str) -> subprocess.CompletedProcess[bytes]:
    code = "import sys; from eagle3_assets.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *args],
        cwd=REPOSITORY, env={**os.environ, **env}, stdout=stdout, stderr=subprocess.PIPE, timeout=60,
    )  # fmt: skip


@pytest.mark.slow
def test_bytes_that_are_no_text_are_one_line_or_shown_escaped(tmp_path: Path, campaign: Campaign) -> None:
    root = tmp_path / "data"
    path = root / campaign.name / "tokens" / "b3_magicoder" / "00.parquet"
    write_rows(path, [make_row(1)])
    done = eagle3("show", b"\xff", EAGLE3_DATA=str(root))
    assert done.returncode == 1 and done.stderr.startswith(b"eagle3: ") and done.stderr.count(b"\n") == 1, done.stderr
    assert b"no token row starts with" in done.stderr
    shown = eagle3("status", EAGLE3_DATA=os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff"), COLUMNS="400")
    assert shown.returncode == 0 and b"odd\\udcff" in shown.stdout and b"Traceback" not in shown.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is not there")
@pytest.mark.parametrize("args", [["--help"], ["status"], ["status", "--json"], ["--version"]])
def test_output_that_cannot_be_written_is_one_line_and_exit_1(args: list[str], tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = eagle3(*args, stdout=full, EAGLE3_DATA=str(tmp_path))
    finally:
        os.close(full)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1 and lines[-1].startswith("eagle3: output: No space left on device"), lines
    assert "Traceback" not in done.stderr.decode() and "Exception ignored" not in done.stderr.decode()


# ------------------------------------------------------------------------------------------------ Dagster's own state
def _full() -> OperationalError:
    return OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))


@pytest.mark.slow
def test_a_full_disk_under_dagsters_state_names_the_folder_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dagster as dg

    def full(*_: object, **__: object) -> None:
        try:
            raise _full()
        except OperationalError as error:
            raise RuntimeError("Dagster wraps some of them") from error

    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(dg.JobDefinition, "execute_in_process", full)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dagster.yaml").write_bytes((REPOSITORY / "dagster.yaml").read_bytes())
    assert main.run(["run", "--until", "tokenizer_probe"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        f"eagle3: {tmp_path}/data/dagster: Dagster's own state cannot be used (database or disk is full); free space"
    )


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (_full(), "free space on its disk"),
        (OSError(errno.ENOSPC, "No space left on device"), "free space on its disk"),
        (OperationalError("", {}, sqlite3.OperationalError("attempt to write a readonly database")), "check its permissions"),
        (
            OperationalError("", {}, sqlite3.DatabaseError("database disk image is malformed")),
            "move it aside: it holds the history",
        ),
    ],
)
def test_each_fault_of_the_state_has_its_advice_and_the_folder_that_was_named(
    error: Exception, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/somewhere/dagster")
    with pytest.raises(StoreError, match=rf"^/somewhere/dagster: Dagster's own state .*{advice}"), run.readable_state():
        raise error


def test_what_is_not_the_states_fault_stays_what_it_is() -> None:
    for error in (ZeroDivisionError(), sqlite3.OperationalError("of our own ledger"), StoreError("ours")):
        with pytest.raises(type(error)) as caught, run.readable_state():
            raise error
        assert caught.value is error


# ------------------------------------------------------------------------------------------------ little files
@pytest.mark.parametrize("text", ["5\n", "[]\n", '{"a": 1}\n', '{"generation_id": "gen-1"}\n', '{"generation_id": "gen-1", broken\n',
                                  '{"generation_id": "gen-1", "prompt_ids": 5, "completion_ids": []}\n'])  # fmt: skip
def test_a_truth_file_that_is_not_one_is_one_line_and_status_goes_on(
    text: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.tokens("b3_magicoder", "00")
    write_rows(path, [make_row(1, generation_id="gen-1")])
    store.standin.mkdir(parents=True)
    (store.standin / "truth.jsonl").write_text(text)
    try:
        compare(store.standin, [path])
    except WireError as error:
        assert "truth.jsonl: is not the truth of a stand-in" in str(error) and "\n" not in str(error)
        assert main.run(["standin", "score"]) == 1
        one_line(capsys)
    else:
        assert text == '{"a": 1}\n'  # a line about nothing that was asked
