"""Artifacts to the tier and back; big files leave the disk when it is low, and come when they are asked for.

Belongs here: upload of one artifact, eviction, fetching, room. Does not belong here: the store's calls (`remote.py`), which artifacts a
campaign has (`campaign_copy.py`).

Only parts of hidden states ever leave the disk: they are nearly all of the bytes, are written once, and are read a part at a time. What leaves
was proven to lie in the store just before, by the checksum that the manifest has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle3_assets.errors import StoreError
from eagle3_assets.store import Manifest, digest_file, read_manifest, write_json
from eagle3_assets.tier.place import FOLDER, VERSION, Place, place_of, places, read_place
from eagle3_assets.tier.remote import Remote

STATES_FOLDER = "hidden_states"
PART_SUFFIX = ".safetensors"


def upload(
    remote: Remote, root: Path, artifact: Path, *, keep_free: int = 0, on_bytes: Callable[[int], None] = lambda n: None
) -> Place:
    """Copy a committed artifact (its files, then its manifest) and write down where it lies. What is there already is not sent again.

    Raises StoreError: not committed, or the store cannot take it; the local files stay whatever happens.
    """
    manifest = read_manifest(artifact)
    if manifest is None:
        raise StoreError(f"{artifact}: is not committed; materialize it before it is copied to {remote.url}")
    base = manifest.path.parent
    before = read_place(root, artifact)
    files: dict[str, dict[str, Any]] = {}
    for name, facts in manifest.files.items():
        path = base / name
        if before is not None and before.url == _url(remote, root, base) and before.proven(name, facts):
            files[name] = dict(before.files[name])
        else:
            if digest_file(path) != facts["xxh3"]:
                raise StoreError(
                    f"{path}: checksum differs from {manifest.path.name}; a damaged file is not copied: make it again"
                )
            proof = remote.put(path, _name(root, path), facts["xxh3"])
            files[name] = {"bytes": facts["bytes"], "xxh3": facts["xxh3"], "proof": proof}
        on_bytes(facts["bytes"])
    remote.put_bytes(_name(root, manifest.path), manifest.path.read_bytes())
    return write_place(root, artifact, _url(remote, root, base), files, keep_free)


def write_place(root: Path, artifact: Path, url: str, files: Mapping[str, Mapping[str, Any]], keep_free: int) -> Place:
    """Write the record of an artifact. Call it when the store is proven to hold `files`."""
    place = Place(root, artifact.relative_to(root), url, files, keep_free)
    write_json(place.record, {"version": VERSION, "url": url, "keep_free": keep_free, "files": files})
    return place


def is_uploaded(root: Path, artifact: Path, manifest: Manifest) -> bool:
    """Whether the tier is known to hold every file of this very commit."""
    place = read_place(root, artifact)
    return place is not None and all(place.proven(name, facts) for name, facts in manifest.files.items())


def fetch(path: Path) -> None:
    """Bring the file back that the tier holds; nothing where it is here. Two processes that ask for one file fetch it once.

    Raises StoreError where no record speaks of it, the store does not answer, or the disk has no room.
    """
    if path.exists():
        return
    found = place_of(path)
    if found is None:
        raise StoreError(f"{path}: is missing, and no remote tier holds it; materialize the artifact again")
    place, name = found
    facts = place.files[name]
    with _locked(place.root, f"tier-{path.parent.name}-{path.name}"):
        if path.exists():
            return
        free = make_room(path, int(facts["bytes"]))
        if free < int(facts["bytes"]):
            raise StoreError(
                f"{path}: needs {facts['bytes'] / 1e9:.3f} GB and {free / 1e9:.3f} GB are free, though all that the tier holds has "
                "left the disk; free space and run again"
            )
        Remote(place.url).get(name, path, int(facts["bytes"]), str(facts["xxh3"]))


def make_room(path: Path, wanted: int) -> int:
    """Let parts of states leave the disk of `path`, least recently used first, until `wanted` bytes more fit beside what stays free.

    Returns the free bytes after that (what is to stay free not counted). Nothing happens where no tier is in use.
    """
    root = _root_of(path)
    here = path if path.is_dir() else path.parent
    while not here.is_dir():
        here = here.parent
    if root is None:
        return shutil.disk_usage(here).free
    with _locked(root, "tier"):
        known = list(places(root))
        keep = max((place.keep_free for place in known), default=0)
        for part in sorted(_evictable(known), key=_last_used):
            if shutil.disk_usage(here).free - keep >= wanted:
                break
            part.unlink(missing_ok=True)
        return shutil.disk_usage(here).free - keep


def evict(root: Path, artifact: Path) -> int:
    """Let every part of this artifact leave the disk that the tier is proven to hold. Returns the bytes."""
    place = read_place(root, artifact)
    gone = 0
    with _locked(root, "tier"):
        for part in _evictable([place] if place is not None else []):
            gone += part.stat().st_size
            part.unlink()
    return gone


def _evictable(known: list[Place]) -> Iterator[Path]:
    """Local parts of states that a commit of today describes and the tier holds, byte for byte."""
    for place in known:
        if place.artifact.parts[0] != STATES_FOLDER:
            continue
        artifact = place.root / place.artifact
        with contextlib.suppress(StoreError):
            manifest = read_manifest(artifact)
            for name, facts in manifest.files.items() if manifest is not None else ():
                path = place.folder / name
                if path.suffix == PART_SUFFIX and path.name.startswith("part-") and path.is_file() and place.proven(name, facts):
                    yield path


def _last_used(path: Path) -> float:
    with contextlib.suppress(OSError):
        at = path.stat()
        return max(at.st_mtime, at.st_atime)
    return 0.0


def used(path: Path) -> None:
    """Say that a part was just used, so that it leaves the disk last (many disks are mounted without access times)."""
    if _root_of(path) is not None:
        with contextlib.suppress(OSError):
            os.utime(path)


def _root_of(path: Path) -> Path | None:
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if (folder / FOLDER).is_dir()), None)


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _url(remote: Remote, root: Path, folder: Path) -> str:
    relative = folder.relative_to(root).as_posix()
    return remote.url if relative == "." else f"{remote.url}/{relative}"


@contextlib.contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    """Wait for the lock: unlike a stage, a reader has nothing better to do than wait for another reader's file."""
    path = root / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
