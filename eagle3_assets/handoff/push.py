"""Sending committed artifacts to a hub repository or an object store, through fsspec: what would go, what is there, what is sent.

Belongs here: the list of files, comparing it with what the destination says it has, streaming the rest. Does not belong here: whether an
artifact may leave (the command asks the gate), credentials (the environment's; looked for by name and never read here).

The destination keeps `eagle3-push.json`: name, size and xxh3-128 of every file that arrived whole. Sending again compares with it, so an
interrupted push goes on where it stopped and an equal one sends nothing. A file is hashed while it is read; one that is not what its
manifest says is not recorded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import xxhash

from eagle3_assets.errors import StoreError
from eagle3_assets.states.verdict.verdicts_manifest import VERDICTS_FILE
from eagle3_assets.store import MANIFEST_SUFFIX, Manifest, Store, digest_file

RECORD = "eagle3-push.json"
RECORD_VERSION = 1
BLOCK_BYTES = 8 << 20
RECORD_EVERY = 32  # files between two writes of the record: on the hub each write is a commit


@dataclass(frozen=True, slots=True)
class Protocol:
    """`package` speaks it (None: fsspec itself); one of `variables`, or the file `token_file`, must be there where `needed`."""

    package: str | None = None
    variables: tuple[str, ...] = ()
    token_file: str | None = None
    needed: bool = False


PROTOCOLS: Mapping[str, Protocol] = {
    "hf": Protocol("huggingface_hub", ("HF_TOKEN",), "~/.cache/huggingface/token", needed=True),
    "s3": Protocol("s3fs", ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"), "~/.aws/credentials"),
    "gs": Protocol("gcsfs", ("GOOGLE_APPLICATION_CREDENTIALS",)),
    "az": Protocol("adlfs", ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME")),
    "file": Protocol(),
    "memory": Protocol(),
}
# what an error text of a storage library might carry along: tokens, keys, signed queries
_SECRETS = re.compile(r"\b(?:hf_|AKIA|ASIA|ya29\.)[\w.-]{8,}|\?[^\s'\"]+|://[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class Parcel:
    """One file: where it lies here, its name at the destination (POSIX, relative), its size and checksum."""

    path: Path
    name: str
    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class PushPlan:
    """`to_send` and `there` together are all parcels; `there` arrived with an earlier push, lies there at its size and did not change
    since. `overwritten`: names to send that something else has there; `left`: files of earlier pushes that are none of these parcels."""

    destination: str
    to_send: tuple[Parcel, ...]
    there: tuple[Parcel, ...]
    credentials: str
    overwritten: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def bytes_to_send(self) -> int:
        return sum(p.bytes for p in self.to_send)


def parcels_of(store: Store, manifests: Iterable[Manifest], *, flat: bool) -> list[Parcel]:
    """The files that the manifests list, and (unless `flat`) the manifests themselves, under their names in the data root.

    `flat`: names start inside the artifact's own folder (one hand-off into one repository, its card on top). Raises StoreError for a name
    that occurs twice.
    """
    found: dict[str, Parcel] = {}
    for manifest in manifests:
        base = manifest.path.parent
        parcels = [Parcel(base / name, name, f["bytes"], f["xxh3"]) for name, f in manifest.files.items()]
        parcels += [_parcel(path, path.relative_to(base).as_posix()) for path in _records(store, manifest)]
        for p in parcels:
            name = p.name.partition("/")[2] or p.name if flat else (base / p.name).relative_to(store.root).as_posix()
            if name in found:
                raise StoreError(f"{p.path}: two files would both be sent as {name}; push one artifact at a time")
            found[name] = Parcel(p.path, name, p.bytes, p.xxh3)
        if not flat:
            name = manifest.path.relative_to(store.root).as_posix()
            found[name] = _parcel(manifest.path, name)
    # a manifest is the commit: it goes behind what it lists
    return sorted(found.values(), key=lambda p: (p.name.endswith(".manifest.json"), p.name))


def _parcel(path: Path, name: str) -> Parcel:
    return Parcel(path, name, path.stat().st_size, digest_file(path))


def _records(store: Store, manifest: Manifest) -> list[Path]:
    """What a partition of hidden states holds beside what its manifest lists: the parts' records, the model's verdict."""
    folder = manifest.path.with_name(manifest.path.name.removesuffix(MANIFEST_SUFFIX))
    if folder.parent != store.hidden_states:
        return []
    return sorted([*folder.glob("part-*.json"), *folder.glob(f"{VERDICTS_FILE}*")])


def check_destination(destination: str, store: Store) -> Protocol:
    """The protocol of an address. Raises StoreError: not an address, a protocol that is unknown or whose package is missing, credentials
    inside it (never shown), a place inside the data root or inside another campaign's folder."""
    try:
        parts = urlsplit(destination)
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc:
        raise StoreError("the destination holds credentials before an @; take them out and set them in the environment")
    if parts.query and parts.scheme not in ("file", "memory"):
        raise StoreError(
            "the destination holds a query behind a ?, where credentials may stand; take it out and set them in the environment"
        )
    known = ", ".join(f"{name}://" for name in PROTOCOLS)
    protocol = PROTOCOLS.get(parts.scheme)
    if protocol is None:
        raise StoreError(
            f"{_SECRETS.sub('***', destination)}: is no address that can be pushed to; start it with one of {known} (hf://datasets/org/name)"
        )
    if protocol.package is not None and importlib.util.find_spec(protocol.package) is None:
        raise StoreError(f"{destination}: {parts.scheme}:// needs the package {protocol.package}; pip install {protocol.package}")
    if parts.scheme == "file":
        if parts.netloc:
            raise StoreError(f"{destination}: file addresses have three slashes: file:///{parts.netloc}{parts.path}")
        place = Path(parts.path).absolute().resolve()
        if place.is_relative_to(store.root.resolve()):
            raise StoreError(f"{destination}: lies inside the data root {store.root}; name a place outside it")
        if owner := next((p for p in (place, *place.parents) if (p / "campaign.lock").is_file()), None):
            raise StoreError(
                f"{destination}: lies inside the campaign folder {owner}, whose files it would overwrite; name a place outside it"
            )
    return protocol


def credentials_line(protocol: Protocol) -> tuple[bool, str]:
    """(enough to try, one line): which names of credentials are set. Values are not looked at."""
    if not protocol.variables:
        return True, "none needed"
    names = [name for name in protocol.variables if os.environ.get(name)]
    if protocol.token_file is not None and Path(protocol.token_file).expanduser().is_file():
        names.append(protocol.token_file)
    if names:
        return True, f"found {', '.join(names)}"
    wanted = ", ".join(filter(None, (*protocol.variables, protocol.token_file)))
    return not protocol.needed, f"none of {wanted} is there"


def plan_push(destination: str, parcels: list[Parcel], store: Store) -> PushPlan:
    """What a push would send. Asks the destination for its record and for what lies there; writes nothing. Raises StoreError."""
    protocol = check_destination(destination, store)
    enough, credentials = credentials_line(protocol)
    recorded = _read_record(destination) if enough else {}
    sizes = _sizes(destination, [p.name for p in parcels]) if enough else {}
    there = tuple(p for p in parcels if recorded.get(p.name) == _facts(p) and sizes.get(p.name) == p.bytes)
    known = set(there)
    to_send = tuple(p for p in parcels if p not in known)
    overwritten = tuple(p.name for p in to_send if p.name in sizes and p.name not in recorded)
    return PushPlan(
        destination, to_send, there, credentials, overwritten, tuple(sorted(recorded.keys() - {p.name for p in parcels}))
    )


def push(plan: PushPlan, store: Store, *, on_bytes: Callable[[int], None] = lambda n: None) -> int:
    """Send what is to be sent, file by file, and record it; returns the bytes sent. Raises StoreError; what arrived stays recorded."""
    enough, line = credentials_line(check_destination(plan.destination, store))
    if not enough:
        raise StoreError(f"{plan.destination}: no credentials: {line}; set one, then push again")
    fs, root = _filesystem(plan.destination)
    recorded: dict[str, dict[str, Any]] = {**_read_record(plan.destination), **{p.name: _facts(p) for p in plan.there}}
    sent, unrecorded = 0, 0
    try:
        for parcel in plan.to_send:
            recorded.pop(parcel.name, None)
            _send(fs, f"{root}/{parcel.name}", parcel, plan.destination, on_bytes)
            recorded[parcel.name] = _facts(parcel)
            sent, unrecorded = sent + parcel.bytes, unrecorded + 1
            if unrecorded >= RECORD_EVERY:
                _write_record(fs, root, recorded, plan.destination)
                unrecorded = 0
    finally:
        if unrecorded:
            _write_record(fs, root, recorded, plan.destination)
    return sent


def _facts(parcel: Parcel) -> dict[str, Any]:
    return {"bytes": parcel.bytes, "xxh3": parcel.xxh3}


def _filesystem(destination: str) -> tuple[Any, str]:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(destination)
    except Exception as error:  # each storage library raises its own
        raise _unreachable(destination, "cannot be opened", error) from None
    return fs, str(root).rstrip("/")


def _send(fs: Any, remote: str, parcel: Parcel, destination: str, on_bytes: Callable[[int], None]) -> None:
    hasher = xxhash.xxh3_128()
    try:
        with open(parcel.path, "rb") as source:
            fs.makedirs(remote.rpartition("/")[0], exist_ok=True)
            with fs.open(remote, "wb") as target:
                while block := source.read(BLOCK_BYTES):
                    hasher.update(block)
                    target.write(block)
                    on_bytes(len(block))
    except Exception as error:  # each storage library raises its own
        raise _unreachable(
            f"{destination}/{parcel.name}", "could not be sent; what was sent before is kept, push again", error
        ) from None
    if hasher.hexdigest() != parcel.xxh3:
        raise StoreError(f"{parcel.path}: is not what its manifest says; materialize it again, then push again")


def _sizes(destination: str, names: Iterable[str]) -> dict[str, int | None]:
    """Bytes of those of `names` that lie at the destination: its folders are listed, so a file that was removed there is sent again."""
    fs, root = _filesystem(destination)
    wanted: dict[str, dict[str, str]] = {}
    for name in names:
        folder, _, last = f"{root}/{name}".rpartition("/")
        wanted.setdefault(folder, {})[last] = name
    found: dict[str, int | None] = {}
    for folder, files in wanted.items():
        try:
            listed = fs.ls(folder, detail=True)
        except FileNotFoundError:
            continue
        except Exception as error:  # each storage library raises its own
            raise _unreachable(destination, "cannot be listed", error) from None
        by_last = {str(entry["name"]).rstrip("/").rpartition("/")[2]: entry.get("size") for entry in listed}
        found |= {files[last]: size for last, size in by_last.items() if last in files}
    return found


def _read_record(destination: str) -> dict[str, dict[str, Any]]:
    """The destination's record; empty where there is none."""
    fs, root = _filesystem(destination)
    try:
        with fs.open(f"{root}/{RECORD}", "rb") as handle:
            record = json.loads(handle.read())
        return dict(record["files"]) if record["version"] == RECORD_VERSION else {}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        return {}  # damaged: everything is sent again
    except Exception as error:
        raise _unreachable(destination, "cannot be read", error) from None


def _write_record(fs: Any, root: str, files: dict[str, dict[str, Any]], destination: str) -> None:
    content = json.dumps({"version": RECORD_VERSION, "files": dict(sorted(files.items()))}, indent=1).encode()
    try:
        with fs.open(f"{root}/{RECORD}", "wb") as handle:
            handle.write(content)
    except Exception as error:
        raise _unreachable(f"{destination}/{RECORD}", "could not be written", error) from None


def _unreachable(where: str, what: str, error: Exception) -> StoreError:
    """One line without secrets that an error text might carry."""
    said = _SECRETS.sub("***", (str(error).strip() or type(error).__name__).splitlines()[0])[:200]
    hint = "; create the repository first (it decides who may read it)" if where.startswith("hf://") else ""
    return StoreError(f"{where}: {what} ({said}){hint}")
