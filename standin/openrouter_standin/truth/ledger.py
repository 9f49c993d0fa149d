"""What was really spent and what was really sampled: two append-only files that survive a restart.

Belongs here: `ledger.jsonl` (the account book: every billed generation, what /generation tells) and `truth.jsonl` (the oracle).
Does not belong here: who may read truth (`server` guards the route, `score` reads the file).
Three kinds of lines stand in the ledger: a generation, a refund of one (`refund`, a negative cost), money that somebody else spent
(`foreign_pico`). A generation that is to be given back carries `refund_due`; one that was not given back before a kill is at the next
start.
A line is written with one write to a descriptor opened for appending, before a byte of the answer leaves; a torn last line is cut
off at start, and a generation that reached truth but not the ledger (killed in between) is charged then.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson

from openrouter_standin.errors import StandinError
from openrouter_standin.truth.generation import Generation

LEDGER_FILE, TRUTH_FILE, TRUTH_TOKEN_FILE = "ledger.jsonl", "truth.jsonl", "truth.token"
KEY_FILE, MANAGEMENT_KEY_FILE = "api.key", "management.key"
_ACCOUNT_KEYS = ("generation_id", "request_hash", "attempt", "provider", "cost_pico")


def write_secret(path: Path, prefix: str = "") -> str:
    """Read the secret of a folder, or make it (mode 0600). An empty file (the disk was full) is none: it would let everybody in."""
    kept = path.read_text(errors="replace").strip() if path.exists() else ""
    if kept and kept.isascii():
        return kept
    secret = prefix + secrets.token_hex(24)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as handle:
        handle.write(secret + "\n")
    return secret


def _cut_torn_tail(path: Path) -> None:
    """Cut a last line without newline (the process died while writing it)."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as handle:
        size = at = handle.seek(0, os.SEEK_END)
        while at:
            start = max(0, at - (1 << 16))
            handle.seek(start)
            cut = handle.read(at - start).rfind(b"\n")
            if cut >= 0:
                at = start + cut + 1
                break
            at = start
        if at != size:
            handle.truncate(at)


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _write_line(fd: int, line: bytes) -> int:
    """Append a line, whole or not at all; bytes written."""
    before = os.fstat(fd).st_size
    written = 0
    try:
        written = os.write(fd, line)
    finally:
        if written != len(line):
            os.ftruncate(fd, before)
    if written != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written


def _mended(truth: dict[str, Any]) -> dict[str, Any]:
    """The account of an answer that truth alone knows; `tag` without the number of changes that the provider had behind it."""
    return {**{key: truth[key] for key in _ACCOUNT_KEYS}, "tag": str(truth["profile"]).partition("#")[0]}


class Ledger:
    """The account book, in memory and on disk. Money in picodollars. One process owns it (the server's lock)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spent_pico = 0
        self.foreign_pico = 0
        self.generations: dict[str, dict[str, Any]] = {}
        self.attempts: defaultdict[str, int] = defaultdict(int)
        self._truth_at: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for name in (LEDGER_FILE, TRUTH_FILE):
            _cut_torn_tail(folder / name)
        self._replay()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._ledger_fd = os.open(folder / LEDGER_FILE, flags, 0o644)
        self._truth_fd = os.open(folder / TRUTH_FILE, flags, 0o600)
        self._mend()

    def _replay(self) -> None:
        path = self.folder / LEDGER_FILE
        if not path.exists():
            return
        with path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                try:
                    self._take(orjson.loads(line))
                except (ValueError, KeyError, TypeError):
                    raise self._damaged(path, number) from None

    def _damaged(self, path: Path, number: int) -> StandinError:
        return StandinError(f"{path}: line {number} is damaged; move the folder {self.folder} away to start a new account")

    def _take(self, account: dict[str, Any]) -> None:
        if "foreign_pico" in account:
            self.foreign_pico += account["foreign_pico"]
            return
        self.spent_pico += account["cost_pico"]
        if "refund" in account:
            refunded = self.generations[account["refund"]]
            refunded["cost_pico"] += account["cost_pico"]
            refunded["refund_due"] = False
            return
        self.generations[account["generation_id"]] = account
        key = account["request_hash"]
        self.attempts[key] = max(self.attempts[key], account["attempt"] + 1)

    def _mend(self) -> None:
        """Index truth; charge what was sampled and not yet written down (at most the last line before a kill)."""
        path, at = self.folder / TRUTH_FILE, 0
        with path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                try:
                    # the id stands first in the line (Generation.truth); ids hold no escapes
                    generation_id = line.split(b'"', 4)[3].decode()
                    account = None if generation_id in self.generations else _mended(orjson.loads(line))
                except (ValueError, KeyError, TypeError, IndexError):
                    raise self._damaged(path, number) from None
                self._truth_at[generation_id] = at
                at += len(line)
                if account is not None:
                    self._append(account)
        self._truth_end = at
        for generation_id in [key for key, account in self.generations.items() if account.get("refund_due")]:
            self.refund(generation_id)

    def _append(self, account: dict[str, Any]) -> None:
        _write_line(self._ledger_fd, _line(account))
        self._take(account)

    def next_attempt(self, request_hash: str) -> int:
        """0 for the first time that the server sees this request; counts every try, failed ones too."""
        attempt = self.attempts[request_hash]
        self.attempts[request_hash] = attempt + 1
        return attempt

    def settle(self, generation: Generation) -> None:
        """Write truth and charge, before the answer leaves. Raises OSError (full disk) with nothing charged, and no truth."""
        truth, account = _line(generation.truth()), {**generation.account(), "settled": time.time()}
        size = _write_line(self._truth_fd, truth)
        try:
            self._append(account)
        except BaseException:
            os.ftruncate(self._truth_fd, self._truth_end)
            raise
        self._truth_at[generation.id] = self._truth_end
        self._truth_end += size

    def refund(self, generation_id: str) -> None:
        """Give back what an error finish cost (docs/research/openrouter-contract.md#2.5); once."""
        account = self.generations[generation_id]
        if account.get("refund_due"):
            self._append({"refund": generation_id, "cost_pico": -account["cost_pico"]})

    def spend_foreign(self, pico: int) -> None:
        """Somebody else spends on this account."""
        self._append({"foreign_pico": pico})

    def truth_of(self, generation_id: str) -> dict[str, Any] | None:
        at = self._truth_at.get(generation_id)
        if at is None:
            return None
        with (self.folder / TRUTH_FILE).open("rb") as handle:
            handle.seek(at)
            return dict(json.loads(handle.readline()))

    def close(self) -> None:
        for fd in (self._ledger_fd, self._truth_fd):
            os.fsync(fd)
            os.close(fd)
