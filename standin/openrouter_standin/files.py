"""The stand-in's own few lines about files: a lock with its owner's name, an atomic JSON file, one line for a full disk.

Belongs here: what several parts need. Does not belong here: the ledger (`truth.ledger`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from openrouter_standin.errors import InUseError, StandinError


def full_disk(path: Path, error: OSError) -> StandinError:
    """One readable line for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StandinError(f"{path}: no space left on the disk; free space and start again")
    return StandinError(f"{path}: cannot be written ({error.strerror}); check permissions and start again")


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside `path` and rename it: a reader sees the old file or the new one."""
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(tmp, "wb") as handle:
        handle.write((json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(tmp, path)


class FileLock:
    """An exclusive `flock` with the owner's name in the file. The kernel frees it when the owner dies, `kill -9` included.

    Never waits: a taken lock raises InUseError that names the owner.
    """

    def __init__(self, path: Path, *, what: str) -> None:
        self.path, self.what, self._fd = path, what, -1

    def __enter__(self) -> FileLock:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise full_disk(self.path, error) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(fd, 300, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(fd)
            raise InUseError(
                f"{self.what} is in use by {owner} ({self.path}); wait for it or stop it, then start again"
            ) from None
        with contextlib.suppress(OSError):  # a full disk may leave the owner unnamed, never the lock untaken
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode(), 0)
        self._fd = fd
        return self

    def __exit__(self, *exc: object) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1
