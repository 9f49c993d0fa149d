"""Who spends by a ledger: one locked file a process, and in it what that process has set aside and not yet handed in.

Belongs here: being alive (a `flock` that the kernel drops on any death, so no pid is ever guessed at), the lines of set-aside
money. Does not belong here: limits and sums (`ledger.py`).

A process leases money from the ledger in blocks and serves reservations from them in memory (`desk.py`). Before a request is sent
its reservation stands here, handed to the operating system with one `write`: after `kill -9` the lines say what was sent, one by
one. A power loss may take lines: the file names the boot it was written in, and after another boot its leases count in full.

Lines: `boot <id>`; `+ <1e-12 USD> TAB <scope> TAB <request id>` set aside; `= <1e-12 USD> TAB <request id>` its cost, `- <request id>`
taken back. The last two free money, so they must stand here before it is set aside again, or given back to the ledger: they are
written together with whatever comes next.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eagle3_assets.errors import StoreError
from eagle3_assets.store import full_disk

_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of this boot of this machine; where the system has none, one that no other process has."""
    with suppress(OSError):
        return _BOOT_FILE.read_text().strip()
    return f"unknown-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Left:
    """What a process had set aside when it was seen last, and what of it was settled: request id -> (scope, 1e-12 USD).
    `whole`: no line is missing.
    """

    reservations: dict[str, tuple[str, int]]
    settled: dict[str, tuple[str, int]]
    whole: bool


class Owner:
    """This process beside the ledger at `ledger`. Visible to others only once it is locked. Raises StoreError."""

    def __init__(self, ledger: Path) -> None:
        self.name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.path = owner_file(ledger, self.name)
        self._broken = False
        self._freed: list[str] = []
        self._open: dict[str, tuple[str, int]] = {}  # what the lines say, so far as the ledger has not heard of it
        self._settled: dict[str, tuple[str, int]] = {}
        new = ledger.with_name(f"{ledger.name}.new-{self.name}")
        self._fd = -1
        try:
            ledger.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(f"boot {boot_id()}\n")
            new.rename(self.path)
        except OSError as error:
            new.unlink(missing_ok=True)
            self.end()
            raise full_disk(ledger, error) from None

    def set_aside(self, request_id: str, scope: str, pico: int) -> None:
        """Before the request is sent. Raises StoreError: nothing is set aside, and nothing can be any more."""
        self._freed.append(f"+ {pico}\t{scope}\t{request_id}\n")
        self.write_freed()
        self._open[request_id] = (scope, pico)

    def settle(self, request_id: str, pico: int) -> None:
        """What was set aside has cost so much."""
        self._freed.append(f"= {pico}\t{request_id}\n")
        self._settled[request_id] = (self._open.pop(request_id)[0], pico)

    def take_back(self, request_id: str) -> None:
        """Nothing was sent, or nothing was billed."""
        self._freed.append(f"- {request_id}\n")
        self._open.pop(request_id, None)

    def entered(self, request_ids: Iterable[str]) -> None:
        """The ledger has an entry of its own for each of these."""
        for request_id in request_ids:
            self._open.pop(request_id, None)
            self._settled.pop(request_id, None)

    def write_freed(self) -> None:
        """Before money that became free goes anywhere. Raises StoreError."""
        if self._broken:
            raise StoreError(f"{self.path}: cannot be written any more; no further request was sent, run again")
        lines, self._freed = "".join(self._freed), []
        try:
            self._write(lines)
        except OSError as error:
            self._broken = True  # perhaps half a line: whatever followed it would be glued to it
            raise full_disk(self.path, error) from None

    def _write(self, line: str) -> None:
        rest = line.encode()
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def left(self) -> Left:
        """What this process has set aside, and the ledger has not heard of."""
        return Left(dict(self._open), dict(self._settled), whole=True)

    def end(self) -> None:
        """Leave; may be called twice."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def owner_file(ledger: Path, name: str) -> Path:
    return ledger.with_name(f"{ledger.name}.owner-{name}")


def names_beside(ledger: Path) -> list[str]:
    """Names of all owner files there are."""
    prefix = owner_file(ledger, "").name
    return sorted(path.name.removeprefix(prefix) for path in ledger.parent.glob(f"{prefix}*"))


def is_alive(ledger: Path, name: str) -> bool:
    """Whether a process holds that owner file."""
    try:
        fd = os.open(owner_file(ledger, name), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def left_by(ledger: Path, name: str) -> Left:
    """What a dead process left. Not whole: the file is gone, or was written before the machine was started again."""
    path = owner_file(ledger, name)
    try:
        with path.open("rb") as handle:
            first = handle.readline()
    except OSError:
        return Left({}, {}, whole=False)
    return Left(*_read(path), whole=first == f"boot {boot_id()}\n".encode())


def _read(path: Path) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, int]]]:
    """(reservations still open, settled ones). A torn last line was written for a request that was not sent."""
    open_: dict[str, tuple[str, int]] = {}
    settled: dict[str, tuple[str, int]] = {}
    with suppress(OSError), path.open("rb") as handle:
        for line in handle:
            if not line.endswith(b"\n"):
                break
            with suppress(ValueError, KeyError):
                kind, _, rest = line.decode().removesuffix("\n").partition(" ")
                if kind == "+":
                    pico, scope, request_id = rest.split("\t")
                    open_[request_id] = (scope, int(pico))
                elif kind == "=":
                    pico, request_id = rest.split("\t")
                    settled[request_id] = (open_.pop(request_id)[0], int(pico))
                elif kind == "-":
                    del open_[rest]
    return open_, settled
