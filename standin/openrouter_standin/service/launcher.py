"""Exactly one stand-in process per folder, whoever asks and how many do.

Belongs here: finding the running server, starting it, stopping it, from any process. Does not belong here: the server itself.

How: the server holds `server.lock` (flock: the kernel frees it on any death) and writes `server.json` after binding; /health
repeats the instance's nonce, so a stale file or a foreign process on a recycled port is recognised. Callers start one at a time
under `launch.lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrouter_standin.errors import InUseError, StandinError
from openrouter_standin.files import FileLock, full_disk
from openrouter_standin.profiles import answering, load_profiles, profiles_file
from openrouter_standin.schema.source import Answers
from openrouter_standin.service.process import PORT_FILE, SERVER_LOCK
from openrouter_standin.truth.ledger import KEY_FILE

# what a running server has to agree on with whoever wants it: field of the port file -> its name for people
_AGREED = {"profiles_sha256": "profiles", "seed": "seed", "answers": "answers"}
LOG_FILE, LAUNCH_LOCK = "server.log", "launch.lock"
_START_TIMEOUT_S = 180.0  # a live source imports torch, on a machine that may be busy; a server that dies is noticed at once
_STOP_TIMEOUT_S = 10.0
_BUSY_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Address:
    """Where a stand-in listens. `api_key` is worth nothing outside of it, but is not shown in the repr either."""

    base_url: str
    engine_url: str
    api_key: str
    pid: int
    folder: Path

    def __repr__(self) -> str:
        return f"Address({self.base_url}, pid {self.pid}, {self.folder})"


def ensure_running(folder: Path, *, profiles: Path | None = None, seed: int = 0, answers: Answers | None = None) -> Address:
    """The folder's server, started when there is none. Safe to call from any number of processes at once. `answers` None: as the
    profiles say.

    Raises StandinError with one line: it could not be started (with the end of its log), or it runs with other profiles, seed or answers.
    """
    folder = folder.resolve()
    asked = answering(load_profiles(profiles), answers)
    wanted = {"profiles_sha256": asked.sha256, "seed": seed, "answers": asked.source.kind}
    address = _alive(folder, wanted)
    if address is not None:
        return address
    with _launch_lock(folder):
        address = _wait_for_owner(folder, wanted)
        if address is None:
            nonce = secrets.token_hex(8)
            _start(folder, profiles, seed, answers, nonce)
            address = _alive(folder, wanted)
        if address is None:
            raise StandinError(f"the stand-in in {folder} went away right after its start; {_log_tail(folder)}")
        return address


def running(folder: Path) -> Address | None:
    """The folder's server if it answers; never starts one."""
    folder = folder.resolve()
    port_file = _read_port_file(folder)
    return _address(folder, port_file) if port_file and _answers(port_file) else None


def stop(folder: Path) -> bool:
    """End the folder's server (SIGTERM, then SIGKILL) and wait until its lock is free. False when none ran. Raises StandinError."""
    folder = folder.resolve()
    if not folder.is_dir():
        return False
    with _launch_lock(folder):
        owner = _lock_owner(folder)
        if owner is None:
            (folder / PORT_FILE).unlink(missing_ok=True)
            return False
        for name, patience_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, _STOP_TIMEOUT_S)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner, name)
            if _wait(lambda: _lock_owner(folder) is None, patience_s):
                (folder / PORT_FILE).unlink(missing_ok=True)
                return True
    raise StandinError(f"the stand-in in {folder} (pid {owner}) does not end; end it by hand")


def _wait(condition: Any, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# ---------------------------------------------------------------------------------------------------- who is there
def _read_port_file(folder: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((folder / PORT_FILE).read_bytes())
        return value if {"origin", "pid", "nonce", *_AGREED} <= set(value) else None
    except (OSError, ValueError, TypeError):
        return None


def _answers(port_file: dict[str, Any], timeout_s: float = 3.0) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(port_file["origin"] + "/health", timeout=timeout_s) as response:
            return bool(json.loads(response.read()).get("nonce") == port_file["nonce"])
    except (OSError, ValueError, AttributeError, TypeError):  # a port file of somebody else's
        return False


def _address(folder: Path, port_file: dict[str, Any]) -> Address:
    origin = port_file["origin"]
    key = (folder / KEY_FILE).read_text().strip()
    return Address(f"{origin}/api/v1", f"{origin}/engine/v1", key, int(port_file["pid"]), folder)


def _alive(folder: Path, wanted: dict[str, Any]) -> Address | None:
    port_file = _read_port_file(folder)
    if port_file is None or not _answers(port_file):
        return None
    for field, what in _AGREED.items():
        mine, theirs = wanted[field], port_file[field]
        if mine != theirs:
            raise StandinError(
                f"the stand-in in {folder} (pid {port_file['pid']}) runs with other {what} (expected {str(mine)[:12]}, found "
                f"{str(theirs)[:12]}); stop it with `eagle3 standin stop` (`openrouter-standin stop`) and run again"
            )
    return _address(folder, port_file)


def _wait_for_owner(folder: Path, wanted: dict[str, Any]) -> Address | None:
    """The server that holds the folder's lock; one that does not answer is busy, starting or ending. None = no owner."""
    found: list[Address] = []

    def settled() -> bool:
        if _lock_owner(folder) is None:
            return True
        address = _alive(folder, wanted)
        found.extend([address] if address else [])
        return bool(found)

    if not _wait(settled, _BUSY_PATIENCE_S):
        raise StandinError(
            f"the stand-in in {folder} (pid {_lock_owner(folder)}) holds its lock and does not answer; {_log_tail(folder)}"
        )
    return found[0] if found else None


def _lock_owner(folder: Path) -> int | None:
    """Pid of the process that holds the server lock, None when it is free. Raises StandinError for an owner on another machine."""
    for _ in range(50):
        try:
            with FileLock(folder / SERVER_LOCK, what="stand-in"):
                return None
        except InUseError:
            words = (folder / SERVER_LOCK).read_text().split()  # "pid N on HOST since ..." (files.FileLock)
        if len(words) > 3 and words[1].isdigit():
            if words[3] != socket.gethostname():
                raise StandinError(f"the stand-in in {folder} runs on {words[3]} (pid {words[1]}); end it there")
            return int(words[1])
        time.sleep(0.02)  # between taking the lock and writing the name
    raise StandinError(f"{folder / SERVER_LOCK} is held by an unknown process; end it, then run again")


@contextlib.contextmanager
def _launch_lock(folder: Path) -> Iterator[None]:
    """One launcher at a time; the others wait (a launch is bounded by its timeouts)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LAUNCH_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise full_disk(folder, error) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# ---------------------------------------------------------------------------------------------------- starting
def _start(folder: Path, profiles: Path | None, seed: int, answers: Answers | None, nonce: str) -> None:
    """Start the detached process and wait for its word, or its end. Raises StandinError with the end of its log."""
    (folder / PORT_FILE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "openrouter_standin", "--folder", str(folder), "--seed", str(seed), "--nonce", nonce]
    if profiles is not None:
        command += ["--profiles", str(profiles_file(profiles).resolve())]
    if answers is not None:
        command += ["--answers", answers]
    read_fd, write_fd = os.pipe()
    try:
        with (folder / LOG_FILE).open("ab") as log:
            log_start = log.tell()
            child = subprocess.Popen(
                [*command, "--ready-fd", str(write_fd)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is not for the server
                pass_fds=(write_fd,),
                cwd=folder,
                env=_environment(),
            )
    except OSError as error:
        os.close(read_fd)
        raise StandinError(f"the stand-in could not be started ({error.strerror}); see {folder / LOG_FILE}") from None
    finally:
        os.close(write_fd)
    with os.fdopen(read_fd, "rb", buffering=0) as pipe:
        readable, _, _ = select.select([pipe], [], [], _START_TIMEOUT_S)
        word = pipe.read(64) if readable else None
    child.wait()  # the forking parent only
    if not word:
        why = "ended at its start" if word == b"" else f"was not ready after {_START_TIMEOUT_S:g} s"
        raise StandinError(f"the stand-in in {folder} {why}; {_log_tail(folder, log_start)}")


def _environment() -> dict[str, str]:
    """This process's environment with this very package importable, and without the real key: the stand-in has no use for it."""
    env = {k: v for k, v in os.environ.items() if k != "OPENROUTER_API_KEY"}
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    return env


def _log_tail(folder: Path, start: int = 0) -> str:
    """The last line of the log, for one readable line."""
    try:
        text = (folder / LOG_FILE).read_bytes()[start:].decode(errors="replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"last line of {folder / LOG_FILE}: {lines[-1][:300] if lines else '(empty)'}"
