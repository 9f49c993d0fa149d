"""One server process per folder: its lock, its port file, its life.

Belongs here: building the server from a folder and profiles, binding, announcing, idle exit. Does not belong here: starting it
from another process (`launcher`), routes (`server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from openrouter_standin.answers.load import load_source
from openrouter_standin.errors import InUseError, StandinError
from openrouter_standin.files import FileLock, full_disk, write_json
from openrouter_standin.profiles import Profiles, answering, load_profiles, profiles_file
from openrouter_standin.schema.source import Answers
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import KEY_FILE, MANAGEMENT_KEY_FILE, TRUTH_TOKEN_FILE, Ledger, write_secret

HOST = "127.0.0.1"
PORT_FILE, SERVER_LOCK = "server.json", "server.lock"
_BACKLOG = 4096
_LOCK_PATIENCE_S = 10.0  # a predecessor that is just going away


@dataclass(frozen=True)
class Settings:
    """How a process was asked to run; `port` 0 takes a free one, `idle_exit_s` and `answers` None take the profiles' value."""

    folder: Path
    profiles: Path | None = None
    seed: int = 0
    port: int = 0
    idle_exit_s: float | None = None
    answers: Answers | None = None


def build(folder: Path, profiles: Profiles, *, beside: Path = Path(), seed: int = 0, nonce: str = "") -> Standin:
    """The server's state over a folder, with the source of the profiles; its files are relative to `beside`. Raises StandinError."""
    source, vocabulary = load_source(profiles.source, beside)
    generator = Generator(profiles, vocabulary, source, seed=f"{profiles.server.seed}:{seed}")
    try:
        ledger = Ledger(folder)
        api_key = write_secret(folder / KEY_FILE, "sk-standin-")
        truth_token = write_secret(folder / TRUTH_TOKEN_FILE)
        management_key = write_secret(folder / MANAGEMENT_KEY_FILE, "sk-standin-mgmt-")
    except OSError as error:
        raise full_disk(folder, error) from None
    return Standin(generator, ledger, api_key, truth_token, management_key, nonce)


def bind(port: int) -> socket.socket:
    """A listening socket on loopback. Raises StandinError for an occupied port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        reason = {errno.EADDRINUSE: "is in use by another process", errno.EACCES: "is not allowed for this user"}
        why = reason.get(error.errno or 0, f"cannot be bound ({error.strerror})")
        raise StandinError(f"port {port} on {HOST} {why}; choose another with --port, or --port 0 for a free one") from None
    return sock


def run_server(settings: Settings, *, nonce: str = "", ready: Callable[[str, Standin], None] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or the idle limit. `ready(origin, standin)` is called once requests are accepted.

    Raises StandinError (settings, port, a second server on the folder).
    """
    profiles = answering(load_profiles(settings.profiles), settings.answers)
    _raise_socket_limit()
    with _server_lock(settings.folder), contextlib.closing(bind(settings.port)) as sock:
        beside = profiles_file(settings.profiles).resolve().parent
        standin = build(settings.folder, profiles, beside=beside, seed=settings.seed, nonce=nonce or secrets.token_hex(8))
        idle_exit_s = profiles.server.idle_exit_s if settings.idle_exit_s is None else settings.idle_exit_s
        gc.freeze()  # the bank and the vocabulary live as long as the process
        try:
            _loop_run(_serve(settings, profiles, standin, sock, idle_exit_s, ready))
        finally:
            standin.ledger.close()


def _loop_run(main: object) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)  # type: ignore[arg-type]


@contextlib.contextmanager
def _server_lock(folder: Path):  # type: ignore[no-untyped-def]
    """Hold the folder for the life of the process. Raises StandinError that names the owner."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        lock = FileLock(folder / SERVER_LOCK, what=f"the stand-in's folder {folder}")
        try:
            lock.__enter__()
            break
        except InUseError as error:
            if time.monotonic() > deadline:
                raise StandinError(str(error)) from None
            time.sleep(0.05)
        except OSError as error:
            raise full_disk(folder, error) from None
    try:
        yield
    finally:
        lock.__exit__()


async def _serve(
    settings: Settings,
    profiles: Profiles,
    standin: Standin,
    sock: socket.socket,
    idle_exit_s: float,
    ready: Callable[[str, Standin], None] | None,
) -> None:
    runner = web.AppRunner(standin.application(), access_log=None, shutdown_timeout=2.0, keepalive_timeout=75.0)
    await runner.setup()
    await web.SockSite(runner, sock, backlog=_BACKLOG).start()
    origin = f"http://{HOST}:{sock.getsockname()[1]}"
    port_file = settings.folder / PORT_FILE
    write_json(
        port_file,
        {
            "origin": origin,
            "pid": os.getpid(),
            "nonce": standin.nonce,
            "profiles_sha256": profiles.sha256,
            "seed": settings.seed,
            "answers": profiles.source.kind,
            "started": time.time(),
        },
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    if ready is not None:
        ready(origin, standin)
    while not stop.is_set():
        wait = min(5.0, max(0.05, idle_exit_s - standin.idle_s)) if idle_exit_s else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait)
        if idle_exit_s and standin.idle_s >= idle_exit_s:
            break
    port_file.unlink(missing_ok=True)  # first: nobody shall come any more
    await standin.break_off()
    await runner.cleanup()
    await asyncio.to_thread(standin.generator.source.close)


def _raise_socket_limit() -> None:
    """2,000 clients need 2,000 descriptors; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, 1 << 20), hard))
