"""The data root: where files lie, how they are written, how they are trusted, who owns them.

Belongs here: paths of docs/design.md#files, atomic writes (temporary name, fsync, rename, fsync of the folder), manifests
(renamed last: the commit), digests, file locks with the owner's name, the campaign lock.
Does not belong here: what is inside the files (each room knows its own), Dagster.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import CampaignError, LockedError, StoreError
from eagle3_assets.tier.place import is_elsewhere

MANIFEST_SUFFIX = ".manifest.json"
MANIFEST_VERSION = 1


def data_root() -> Path:
    """EAGLE3_DATA (`~` expanded), default `data` in the working directory. The one place that reads the variable.

    Raises StoreError for a value that no file system takes (too long, an unknown `~user`, below a file).
    """
    value = os.environ.get("EAGLE3_DATA") or "data"
    shown = value if len(value) <= 80 else f"{value[:77]}... ({len(value)} characters)"
    try:
        root = Path(value).expanduser()
        root.stat()
    except FileNotFoundError:
        return root
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(f"EAGLE3_DATA = {shown}: cannot be used ({why}); set it to a folder that you can write") from None
    return root


# ---------------------------------------------------------------------------------------------------- atomic writes
def _fsync_dir(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def full_disk(path: Path, error: OSError) -> StoreError:
    """One readable line for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"{path}: no space left on the disk; nothing that was committed is lost; free space and run again")
    return StoreError(f"{path}: cannot be written ({error.strerror}); check permissions and run again")


def unfinished(path: Path) -> Path:
    """Where `path` is written before it is renamed: beside it, a name that no other process has. A pid alone does not do: two hosts
    (or two pods, where it is always the same small number) share the file system and not the numbers."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; on success fsync and rename it to `path`, on any error remove it.

    Raises StoreError (full disk, no permission).
    """
    tmp = unfinished(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(tmp, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(tmp, path)
        _fsync_dir(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise full_disk(path, error) from None
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Atomically write `data` to `path`."""
    with atomic_file(path) as handle:
        handle.write(data)


def write_json(path: Path, value: Any) -> None:
    """Atomically write JSON (UTF-8, two-space indent, keys in the order given)."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path, *, otherwise: str = "remove it and run the stage again") -> Any:
    """Read JSON; raises StoreError naming the file. `otherwise`: what to do about one that is damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"{path}: is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: cannot be read as JSON ({error}); {otherwise}") from None


# ---------------------------------------------------------------------------------------------------- digests, manifests
def digest_file(path: Path) -> str:
    """xxh3-128 of a file, hex (20 GB/s a core: docs/research/hidden-states.md#3)."""
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def digest_json(value: Any) -> str:
    """sha256 of canonical JSON, first 32 hex digits. For settings and input lists."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The commit record of an artifact: what it is made of, what it was made from, and figures worth showing."""

    path: Path
    inputs: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]  # name relative to the manifest's folder -> {"bytes", "xxh3"}
    numbers: Mapping[str, Any]
    created: float

    @property
    def digest(self) -> str:
        """Identity of the content: changes when any file changes, not when it is rewritten with equal bytes."""
        return digest_json({name: f["xxh3"] for name, f in self.files.items()})


def manifest_path(artifact: Path) -> Path:
    return artifact.with_name(artifact.name + MANIFEST_SUFFIX)


def commit(
    artifact: Path,
    *,
    files: Iterable[Path],
    inputs: Mapping[str, Any],
    numbers: Mapping[str, Any] | None = None,
    known: Mapping[Path, str] | None = None,
) -> Manifest:
    """Write the manifest of `artifact` (a file or a folder) over `files`, which must already be in place. The last rename.

    `known`: more files, with the xxh3-128 that their writer took while streaming (they are not read again).
    """
    base, digests = manifest_path(artifact).parent, dict(known or {})
    listed = {
        str(f.relative_to(base)): {"bytes": f.stat().st_size, "xxh3": digests.get(f) or digest_file(f)}
        for f in sorted({*files, *digests})
    }
    manifest = Manifest(manifest_path(artifact), dict(inputs), listed, dict(numbers or {}), time.time())
    write_json(
        manifest.path,
        {
            "version": MANIFEST_VERSION,
            "inputs": manifest.inputs,
            "files": manifest.files,
            "numbers": manifest.numbers,
            "created": manifest.created,
        },
    )
    return manifest


def read_manifest(artifact: Path, *, verify: bool = False) -> Manifest | None:
    """The manifest of `artifact`, or None when it was never committed.

    Sizes are always compared with the disk, checksums with `verify=True`; a difference raises StoreError. A file that is not here
    and that the tier is proven to hold counts as there (its checksum was compared when it was copied).
    """
    path = manifest_path(artifact)
    if not path.exists():
        return None
    manifest = parse_manifest(path, _bytes_of(path))
    for name, facts in manifest.files.items():
        file = path.parent / name
        found = file.stat().st_size if file.exists() else None
        if found is None and is_elsewhere(file, facts):
            continue
        if found != facts["bytes"]:
            raise StoreError(
                f"{file}: expected {facts['bytes']} bytes, found {'no file' if found is None else found}; remove {path.name} and run the stage again"
            )
        if verify and digest_file(file) != facts["xxh3"]:
            raise StoreError(
                f"{file}: checksum differs from {path.name}; the file is damaged: remove both and run the stage again"
            )
    return manifest


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); remove it and run the stage again") from None


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """The manifest that `data` spells; no file is looked at. Raises StoreError naming `path`."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: cannot be read as JSON ({error}); remove it and run the stage again") from None
    version = raw.get("version") if isinstance(raw, dict) else None
    if version != MANIFEST_VERSION:
        raise StoreError(
            f"{path}: expected manifest version {MANIFEST_VERSION}, found {version}; remove it and run the stage again"
        )
    try:
        files = {str(name): {"bytes": int(f["bytes"]), "xxh3": str(f["xxh3"])} for name, f in raw["files"].items()}
        return Manifest(path, dict(raw["inputs"]), files, dict(raw["numbers"]), float(raw["created"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{path}: is not a whole manifest ({error!r}); remove it and run the stage again") from None


def is_current(artifact: Path, inputs: Mapping[str, Any]) -> Manifest | None:
    """The manifest when `artifact` is committed and was made from exactly `inputs`; else None (damage counts as not current)."""
    try:
        manifest = read_manifest(artifact)
    except StoreError:
        return None
    # through JSON, because the stored side went through it (tuples, ints as keys)
    same = manifest is not None and manifest.inputs == json.loads(json.dumps(dict(inputs), default=str))
    return manifest if same else None


def require(artifact: Path, *, made_by: str, verify: bool = False) -> Manifest:
    """The manifest of a predecessor; raises StoreError that says which stage to run, or what is damaged."""
    manifest = read_manifest(artifact, verify=verify)
    if manifest is None:
        raise StoreError(f"{artifact}: is missing; materialize {made_by} first")
    return manifest


def read_committed(artifact: Path, *, made_by: str) -> Any:
    """The JSON of a committed artifact, its checksum compared first: damage that leaves the size feeds no stage. Raises StoreError."""
    require(artifact, made_by=made_by, verify=True)
    return read_json(artifact)


# ---------------------------------------------------------------------------------------------------- locks
class FileLock:
    """An exclusive `flock` with the owner's name in the file. The kernel frees it when the owner dies, `kill -9` included.

    Never waits: a taken lock raises LockedError that names the owner. flock works on local disks and on NFS >= 4.
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
            raise LockedError(f"{self.what} is in use by {owner} ({self.path}); wait for it or stop it, then run again") from None
        with contextlib.suppress(OSError):  # a full disk may leave the owner unnamed, never the lock untaken
            os.ftruncate(fd, 0)
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()} since {started}\n".encode(), 0)
        self._fd = fd
        return self

    def __exit__(self, *exc: object) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1


# ---------------------------------------------------------------------------------------------------- the campaign's folder
@dataclass(frozen=True, slots=True)
class Store:
    """Paths of one campaign. A value object: nothing is opened or created by building it."""

    root: Path

    @classmethod
    def of(cls, campaign: Campaign) -> Store:
        return cls(data_root() / campaign.name)

    @property
    def tokenizers(self) -> Path:
        return self.root.parent / "tokenizers"

    @property
    def probe(self) -> Path:
        return self.root / "tokenizer_probe.json"

    @property
    def endpoints(self) -> Path:
        return self.root / "endpoints.json"

    @property
    def pilot(self) -> Path:
        return self.root / "pilot.json"

    @property
    def pilot_dir(self) -> Path:
        return self.root / "pilot"

    @property
    def probes_again(self) -> Path:
        """Folder of the journal of probes that were asked again behind a change of a provider; there may be none."""
        return self.root / "probes-again"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def approval(self) -> Path:
        return self.root / "approval.json"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def wire_profiles(self) -> Path:
        return self.root / "wire_profiles.json"

    @property
    def audit(self) -> Path:
        """What `eagle3 audit` measured; there may be none."""
        return self.root / "audit.json"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def vocab_map(self) -> Path:
        return self.root / "vocab_map"

    @property
    def hidden_states(self) -> Path:
        return self.root / "hidden_states"

    @property
    def handoff_tokens(self) -> Path:
        return self.root / "handoff" / "tokens"

    def handoff(self, name: str) -> Path:
        return self.root / "handoff" / name

    @property
    def drafter(self) -> Path:
        return self.root / "drafter"

    @property
    def acceptance(self) -> Path:
        return self.root / "acceptance"

    @property
    def standin(self) -> Path:
        return self.root / "standin"

    @property
    def tier(self) -> Path:
        """Records of what the remote tier holds."""
        return self.root / "tier"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    def prompts(self, dataset: str) -> Path:
        return self.root / "prompts" / f"{dataset}.parquet"

    def answers(self, dataset: str, shard: str) -> Path:
        """Folder of one journal; its manifest appears beside it when the shard is complete."""
        return self.root / "answers" / dataset / shard

    def closed(self, dataset: str) -> Path:
        return self.root / "answers" / dataset / "closed.json"

    def tokens(self, dataset: str, shard: str) -> Path:
        return self.root / "tokens" / dataset / f"{shard}.parquet"

    def verdict(self, stage: str, dataset: str, shard: str = "all") -> Path:
        return self.root / "verdicts" / stage / dataset / f"{shard}.json"

    def report(self, dataset: str) -> Path:
        return self.reports / f"{dataset}.json"

    def states(self, shard: str) -> Path:
        return self.hidden_states / shard

    def lock(self, name: str, *, what: str) -> FileLock:
        return FileLock(self.locks / f"{name}.lock", what=what)

    def answered_by(self) -> str | None:
        """`server.address` in campaign.lock: whose answers, prices and money lie here; None before the first. Never raises."""
        try:
            raw = json.loads((self.root / "campaign.lock").read_bytes())
            facts = raw["facts"]
            return str(facts.get("server.address", "openrouter.ai" if facts["server.kind"] == "openrouter" else "embedded"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def bind(self, campaign: Campaign, answered: Collection[str] = ()) -> None:
        """Write what must not change under paid data into `campaign.lock`; refuse a campaign that differs. Raises CampaignError.

        The target, server and sampling are locked at first use, a dataset's selection once it is in `answered` (about to be paid for).
        A dataset may join, or be left out: what is in the lock stays there.
        """
        path = self.root / "campaign.lock"
        now = json.loads(json.dumps(campaign.locked_facts()))
        old = _locked_facts(campaign, path) if path.exists() else {}
        if old and old.get("server.kind") == "openrouter" and campaign.rents:
            old.setdefault("server.address", "openrouter.ai")  # a lock of before the address was written
        changed = [k for k, v in old.items() if now.get(k) != v and not _left_out(k, campaign)]
        if changed:
            raise CampaignError(_difference(campaign, path, old, now, changed))
        locked = {k: v for k, v in now.items() if not k.startswith("dataset.") or k.split(".")[1] in answered}
        if any(old.get(k) != v for k, v in locked.items()):
            facts = {**old, **locked}
            write_json(path, {"fingerprint": digest_json(facts), "facts": facts})


def _locked_facts(campaign: Campaign, path: Path) -> dict[str, Any]:
    """The facts in campaign.lock. Raises CampaignError for a damaged one: answers that were paid for lie under it, so never "remove it"."""
    instead = (
        f"it says what the answers in {path.parent} were paid for under: do not remove it, restore it from a copy. If there is none: "
        f"check that campaign.seed, target, server.kind, sampling and every dataset's source, mapping and turns in {campaign.path} are "
        "those of that time; then move it aside, and the next run writes them down again"
    )
    try:
        raw = read_json(path, otherwise=instead)
    except StoreError as error:
        raise CampaignError(str(error)) from None
    facts = raw.get("facts") if isinstance(raw, dict) else None
    if not isinstance(facts, dict):
        raise CampaignError(f"{path}: expected an object with `facts`, found another JSON value; {instead}")
    return facts


def _left_out(fact: str, campaign: Campaign) -> bool:
    return fact.startswith("dataset.") and fact.split(".")[1] not in {d.name for d in campaign.dataset}


def _difference(campaign: Campaign, path: Path, old: dict[str, Any], new: dict[str, Any], changed: list[str]) -> str:
    first = changed[0]
    if first == "server.address":
        return _another_server(path, str(old[first]), str(new[first]))
    more = f" (and {len(changed) - 1} more: {', '.join(changed[1:4])})" if len(changed) > 1 else ""
    return (
        f"{campaign.path}: {first} was {json.dumps(old[first])} when data in {path.parent} was paid for and is now "
        f"{json.dumps(new.get(first))}{more}; put it back, or give this campaign another campaign.name"
    )


def _another_server(path: Path, then: str, now: str) -> str:
    """Answers, prices and profiles of one server are no facts about another: rehearsed ones never become real ones, or the other way."""
    same = "unset it" if then == "openrouter.ai" else f"set it to the server of that time ({then})"
    return (
        f"{path}: what lies in {path.parent} was answered by {then}, and OPENROUTER_BASE_URL leads to {now}: neither answers, prices nor an "
        f"approval carry over; {same}, or start in a fresh root: EAGLE3_DATA=<another folder>"
    )
