"""One detached process per folder, from any number of callers, through any death."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.cli.main import run
from eagle3_assets_tests.standin.conftest import chat
from openrouter_standin.errors import StandinError
from openrouter_standin.profiles import DEFAULT_PROFILES
from openrouter_standin.service.launcher import Address, ensure_running, running, stop

ASK = (
    "import sys; from pathlib import Path; from openrouter_standin.service.launcher import ensure_running; "
    "print(ensure_running(Path(sys.argv[1])).pid)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "standin"
    yield path
    with contextlib.suppress(StandinError):
        stop(path)


def call(address: Address, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address.base_url + path, data, {"Authorization": f"Bearer {address.api_key}"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.loads(response.read())


def eventually(condition: Callable[[], bool], patience_s: float = 20.0) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def spend(address: Address) -> float:
    """A few answers (the default weather may refuse some); the account's usage."""
    for k in range(6):
        with contextlib.suppress(urllib.request.HTTPError):
            call(address, "/chat/completions", chat(f"question {k}"))
    return float(call(address, "/credits")["data"]["total_usage"])


@pytest.mark.slow
def test_four_processes_at_once_get_one_server_that_survives_kill_9_and_keeps_its_ledger(folder: Path) -> None:
    callers = [subprocess.Popen([sys.executable, "-c", ASK, str(folder)], stdout=subprocess.PIPE) for _ in range(4)]
    pids = {int(caller.communicate(timeout=60)[0]) for caller in callers}
    assert len(pids) == 1 and all(caller.returncode == 0 for caller in callers)
    first = ensure_running(folder)
    assert {first.pid} == pids
    assert first.api_key not in repr(first)
    usage = spend(first)
    assert usage > 0

    os.kill(first.pid, signal.SIGKILL)
    assert (folder / "server.json").exists()  # stale now
    second = ensure_running(folder)
    assert second.pid != first.pid and second.api_key == first.api_key
    assert float(call(second, "/credits")["data"]["total_usage"]) == usage

    assert stop(folder) and running(folder) is None and not stop(folder)
    third = ensure_running(folder)
    assert spend(third) > usage


@pytest.mark.slow
def test_a_port_file_that_points_to_a_stranger_is_recognised(folder: Path) -> None:
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # listens and never answers
        port = stranger.getsockname()[1]
        stale = {
            "origin": f"http://127.0.0.1:{port}",
            "pid": os.getpid(),
            "nonce": "x",
            "profiles_sha256": "",
            "seed": 0,
            "answers": "bank",
        }
        (folder / "server.json").write_text(json.dumps(stale))
        address = ensure_running(folder)
    assert address.pid != os.getpid()
    assert str(port) not in address.base_url


@pytest.mark.parametrize("origin", [5, "nonsense", None, ["http://127.0.0.1:1"]])
def test_a_port_file_that_nobody_here_wrote_is_no_server(origin: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"origin": origin, "pid": 1, "nonce": "x", "profiles_sha256": "", "seed": 0, "answers": "bank"}
    (folder / "server.json").write_text(json.dumps(values))
    assert running(folder) is None


@pytest.mark.slow
def test_ctrl_c_in_the_callers_terminal_does_not_reach_the_server(folder: Path) -> None:
    # a runner may have been started with SIGINT ignored, which children inherit
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    wait = listen + ASK + "; sys.stdout.flush(); import time; time.sleep(60)"
    caller = subprocess.Popen(
        [sys.executable, "-c", wait, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert caller.stdout is not None
    pid = int(caller.stdout.readline())
    os.killpg(caller.pid, signal.SIGINT)  # what the terminal sends to the foreground group
    caller.wait(timeout=20)
    caller.stdout.close()
    address = running(folder)
    assert address is not None and address.pid == pid
    assert call(address, "/key")["data"]["usage"] == 0


@pytest.mark.slow
def test_another_seed_or_other_profiles_are_refused_while_it_runs(folder: Path, tmp_path: Path) -> None:
    ensure_running(folder, seed=1)
    with pytest.raises(StandinError, match=r"runs with other seed .*eagle3 standin stop"):
        ensure_running(folder, seed=2)
    with pytest.raises(StandinError, match=r"runs with other answers \(expected live, found bank\)"):
        ensure_running(folder, seed=1, answers="live")
    mine = tmp_path / "mine.toml"
    mine.write_text(DEFAULT_PROFILES.read_text() + "\n# mine\n")
    with pytest.raises(StandinError, match="runs with other profiles"):
        ensure_running(folder, profiles=mine, seed=1)


@pytest.mark.slow
def test_an_idle_server_ends_by_itself_and_the_next_caller_starts_one(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(DEFAULT_PROFILES.read_text().replace("idle_exit_s = 900", "idle_exit_s = 0.3"))
    first = ensure_running(folder, profiles=mine)
    assert eventually(lambda: running(folder) is None)
    assert not (folder / "server.json").exists()
    assert ensure_running(folder, profiles=mine).pid != first.pid


@pytest.mark.slow
def test_a_start_that_fails_is_one_line_with_the_end_of_the_log(folder: Path) -> None:
    folder.mkdir()
    (folder / "ledger.jsonl").write_text('{"no": "account"}\n')
    with pytest.raises(StandinError) as caught:
        ensure_running(folder)
    message = str(caught.value)
    assert "\n" not in message and "server.log" in message and "line 1 is damaged" in message
    assert not stop(folder)


def test_an_occupied_port_ends_in_one_line_and_exit_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code = run(["standin", "serve", "--port", str(port), "--folder", str(folder)])
    out, err = capsys.readouterr()
    assert code == 1 and out == ""
    assert err.count("\n") == 1 and f"port {port}" in err and "--port" in err


@pytest.mark.slow
def test_serve_prints_where_it_listens_and_ends_on_ctrl_c_with_its_files_kept(folder: Path) -> None:
    command = "import sys; from eagle3_assets.cli.main import run; sys.exit(run(sys.argv[1:]))"
    server = subprocess.Popen(
        [sys.executable, "-u", "-c", command, "standin", "serve", "--port", "0", "--folder", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    shown = [server.stdout.readline() for _ in range(6)]
    address = running(folder)
    assert address is not None
    text = "".join(shown)
    assert address.base_url in text and address.api_key in text and "/sglang/generate" in text and "curl" in text
    assert call(address, "/models")["data"][0]["id"] == "eagle3/kimi-mini"
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=20) == 0
    server.stdout.close()
    assert (folder / "ledger.jsonl").exists() and not (folder / "server.json").exists()


def test_stop_says_when_there_is_nothing_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["standin", "stop", "--folder", str(tmp_path / "none")]) == 0
    assert "no stand-in runs" in capsys.readouterr().out
