"""Machines on one machine: each host has its own network, host name and process numbers, all see one file system.

Belongs here: namespaces, the bridge between them, PostgreSQL on the far end of it, killing a host whole.
Does not belong here: what runs on them (`test_cluster.py`). Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NETWORK = "198.18.7"  # of the range for benchmarks of networks (RFC 2544): nobody's own
OUTSIDE = f"{NETWORK}.1"


def missing() -> str:
    """What keeps hosts from being made here, or an empty string."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for program in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: iproute2, util-linux)"
    if postgres_bin() is None:
        return "PostgreSQL is not installed (Debian: postgresql)"
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True
    )
    return f"namespaces cannot be made here: {probe.stderr.strip()}" if probe.returncode else ""


def postgres_bin() -> Path | None:
    """The folder of PostgreSQL's own programs: Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


def wait_for(true: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Poll until `true()`; an AssertionError that names `what` after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)


@dataclass
class Host:
    """One machine: `address` on the network, processes of its own. `kill` is the power cord."""

    name: str
    address: str
    folder: Path
    env: Mapping[str, str]
    init: subprocess.Popen[bytes]
    logs: list[Path] = field(default_factory=list)

    @property
    def _inside(self) -> list[str]:
        with open(f"/proc/{self.init.pid}/task/{self.init.pid}/children") as handle:
            first = handle.read().split()[0]  # `unshare --fork`: its child is process 1 of the host
        return ["nsenter", "--target", first, "--net", "--uts", "--pid", "--mount", f"--wd={self.folder}", "--"]

    def run(self, *command: str, timeout_s: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        """`command` to its end, in this environment."""
        return subprocess.run(
            [*self._inside, *_program(command)], env={**self.env, **env}, capture_output=True, text=True, timeout=timeout_s
        )

    def start(self, label: str, *command: str, **env: str) -> subprocess.Popen[bytes]:
        """`command` in the background, its output in `label`.log of the host's folder."""
        log = self.folder / f"{label}.log"
        self.logs.append(log)
        with open(log, "wb") as out:
            return subprocess.Popen(
                [*self._inside, *_program(command)], env={**self.env, **env}, stdout=out, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        """Everything on the host ends at once, as when its power is cut."""
        with open(f"/proc/{self.init.pid}/task/{self.init.pid}/children") as handle:
            for pid in handle.read().split():
                os.kill(int(pid), signal.SIGKILL)
        self.init.wait()


# As modules: an environment laid over another one has the packages, not their scripts.
MODULES = {
    "eagle3": "eagle3_assets",
    "dagster": "dagster",
    "dagster-daemon": "dagster._daemon",
    "dagster-webserver": "dagster_webserver",
}


def _program(command: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", MODULES[command[0]], *command[1:]] if command[0] in MODULES else list(command)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def hosts(names: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> Iterator[dict[str, Host]]:
    """One bridge with the address OUTSIDE, and a host a name: its working folder is `folder`/name."""
    token = secrets.token_hex(3)
    bridge = f"e3b{token}"
    made: dict[str, Host] = {}
    spaces: list[str] = []
    _ip("link", "add", bridge, "type", "bridge")
    try:
        _ip("addr", "add", f"{OUTSIDE}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, name in enumerate(names, start=2):
            space, outer, inner = f"e3{token}{name}", f"e3o{number}{token}", f"e3i{number}{token}"
            _ip("netns", "add", space)
            spaces.append(space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", space)
            _ip("link", "set", outer, "master", bridge)
            _ip("link", "set", outer, "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{NETWORK}.{number}/24", "dev", inner),
                ("link", "set", inner, "up"),
            ):
                _ip("-n", space, *words)
            (folder / name).mkdir(parents=True, exist_ok=True)
            init = subprocess.Popen(
                ["ip", "netns", "exec", space, "unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child",
                 "sh", "-c", f"hostname {name} && exec sleep infinity"],
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            made[name] = Host(name, f"{NETWORK}.{number}", folder / name, {**os.environ, **env}, init)
            wait_for(lambda pid=init.pid: Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), f"host {name} is up")  # type: ignore[misc]
            wait_for(lambda h=made[name]: h.run("hostname").stdout.strip() == h.name, f"host {name} has its name")  # type: ignore[misc]
        yield made
    finally:
        for host in made.values():
            if host.init.poll() is None:
                host.kill()
        for space in spaces:
            _ip("netns", "del", space)
        _ip("link", "del", bridge)


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[dict[str, str]]:
    """A PostgreSQL server at OUTSIDE; yields the variables that deploy/dagster-postgres.yaml names."""
    programs = postgres_bin()
    assert programs is not None
    user = pwd.getpwnam("nobody")  # PostgreSQL refuses root
    data = folder / "pg"
    data.mkdir(parents=True)
    os.chown(data, user.pw_uid, user.pw_gid)
    for parent in data.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    as_nobody = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
    password = secrets.token_hex(8)
    secret = data.parent / "pg-password"
    secret.write_text(password)
    secret.chmod(0o644)
    subprocess.run(
        [*as_nobody, programs / "initdb", "-D", data, "-U", "dagster", "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync"],
        check=True, capture_output=True,
    )  # fmt: skip
    with open(data / "pg_hba.conf", "a") as handle:
        handle.write(f"host all all {NETWORK}.0/24 scram-sha-256\n")
    with socket.socket() as s:
        s.bind((OUTSIDE, 0))
        port = int(s.getsockname()[1])
    log = open(folder / "pg.log", "wb")  # noqa: SIM115 - the server's, until it ends
    server = subprocess.Popen(
        [*as_nobody, programs / "postgres", "-D", data, "-h", OUTSIDE, "-p", str(port), "-k", data, "-c", "fsync=off"],
        stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_for(
            lambda: (
                subprocess.run([programs / "pg_isready", "-h", OUTSIDE, "-p", str(port)], capture_output=True).returncode == 0
            ),
            "PostgreSQL answers",
        )
        subprocess.run(
            [programs / "createdb", "-h", OUTSIDE, "-p", str(port), "-U", "dagster", "eagle3"],
            check=True, capture_output=True, env={**os.environ, "PGPASSWORD": password},
        )  # fmt: skip
        yield {
            "EAGLE3_PG_HOST": OUTSIDE, "EAGLE3_PG_PORT": str(port), "EAGLE3_PG_USER": "dagster", "EAGLE3_PG_PASSWORD": password,
            "EAGLE3_PG_DB": "eagle3",
        }  # fmt: skip
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
        log.close()
