"""What lies in `hidden_states/` and is no longer wanted: found, shown with its bytes, deleted or moved to an archive.

Belongs here: finding it, and removing it without ever leaving the campaign's own folder. Does not belong here: the command
(`cli/prune.py`), the Dagster job (`assets/hidden_states.py`).

A candidate is a direct child of `hidden_states/`, reached without a symbolic link: a link is removed as a link, and what it points to
is never touched. Its commit goes first, so a removal that is cut off leaves nothing that anyone believes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle3_assets.errors import StateError
from eagle3_assets.store import MANIFEST_SUFFIX, FileLock, Store, digest_file, full_disk, manifest_path

Why = Literal["not in the corpus", "outdated", "unfinished", "asked for", "link", "stray file"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """`path` in `hidden_states/`; `bytes` of what lies below it (links not followed), its commit included; `committed`: when the commit
    was written (ns; 0 where there is none, None where nobody looked)."""

    path: Path
    why: Why
    bytes: int
    committed: int | None = None


def find_candidates(
    store: Store, *, wanted: Collection[str], current: Collection[str], asked: Iterable[str] = (), unfinished: bool = False
) -> list[Candidate]:
    """What may go: partitions that the corpus has no more, outdated ones, links and files that belong to nobody.

    `wanted`: partition keys of the corpus; `current`: those whose states are what they should be now. `asked`: partitions to remove
    whatever they are. `unfinished`: also those that were begun and never committed (they resume otherwise). Raises StateError.
    """
    root, named = store.hidden_states, list(asked)
    if root.is_symlink() or store.root.is_symlink():
        raise StateError(f"{root}: is reached through a symbolic link; name the real folder in EAGLE3_DATA")
    found = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        why = _why(store, path, wanted, current, named, unfinished)
        if why is not None:
            found.append(Candidate(path, why, _bytes(path) + _bytes(manifest_path(path)), _committed(path)))
    unknown = [key for key in named if key not in {c.path.name for c in found}]
    if unknown:
        raise StateError(f"{root}: holds no partition {', '.join(unknown)}")
    return found


def _why(
    store: Store, path: Path, wanted: Collection[str], current: Collection[str], asked: Collection[str], unfinished: bool
) -> Why | None:
    if path.is_symlink():
        return "link"
    if not path.is_dir():
        owner = path.with_name(path.name.removesuffix(MANIFEST_SUFFIX))
        return None if path.name.endswith(MANIFEST_SUFFIX) and owner.is_dir() and not owner.is_symlink() else "stray file"
    if path.name in asked:
        return "asked for"
    if path.name not in wanted:
        return "not in the corpus"
    if not manifest_path(path).exists():
        return "unfinished" if unfinished else None
    return None if path.name in current else "outdated"


def _bytes(path: Path) -> int:
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(path, followlinks=False) for name in names)


def _committed(path: Path) -> int:
    manifest = manifest_path(path)
    return manifest.stat().st_mtime_ns if manifest.is_file() else 0


def remove(store: Store, candidates: Sequence[Candidate], *, archive: Path | None = None) -> int:
    """Delete each candidate, or move it below `archive` (copied, checksums compared, then deleted). Returns bytes given back.

    Raises StateError for a path outside the campaign's `hidden_states/`, for an archive inside it, for a partition that was made anew
    since it was looked at, and for what cannot be written.
    """
    if archive is not None and store.root.resolve() in (archive.resolve(), *archive.resolve().parents):
        raise StateError(f"{archive}: lies inside {store.root}; an archive is elsewhere")
    for candidate in candidates:
        _require_inside(store, candidate.path)
        with partition_lock(store, candidate.path.name):
            if candidate.committed not in (None, _committed(candidate.path)):
                raise StateError(
                    f"{candidate.path}: was made anew since it was called {candidate.why}; nothing of it was touched: look again"
                )
            try:
                if archive is not None and candidate.why != "link":
                    _copy(candidate.path, archive)
                _delete(candidate.path)
            except OSError as error:
                raise StateError(
                    f"{candidate.path}: cannot be removed ({error.strerror or error}); what is left is not believed"
                ) from None
    return sum(candidate.bytes for candidate in candidates)


def _delete(path: Path) -> None:
    """The commit first, then the manifest, then the rest; a link as a link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    manifest_path(path).unlink(missing_ok=True)
    (path / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(path)  # which does not follow links


def partition_lock(store: Store, key: str) -> FileLock:
    """Held by whoever writes or removes the partition."""
    return store.lock(f"states-{key}", what=f"hidden_states partition {key}")


def _require_inside(store: Store, path: Path) -> None:
    """A direct child of the campaign's own folder of states, by its real place: never something that a link leads to."""
    root = store.hidden_states
    if path.parent != root or root.is_symlink() or path.name in ("", ".", "..") or path.parent.resolve() != root.resolve():
        raise StateError(f"{path}: is not a direct child of {root}; nothing outside is ever removed")


def _copy(path: Path, archive: Path) -> None:
    """Copy with commit, compare every checksum; links inside stay links."""
    target = archive / path.name
    if target.exists() or target.is_symlink():
        raise StateError(f"{target}: is there already; archive into a folder of its own")
    try:
        archive.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, symlinks=True)
        else:
            shutil.copy2(path, target, follow_symlinks=False)
        if manifest_path(path).is_file():
            shutil.copy2(manifest_path(path), manifest_path(target))
    except shutil.Error as error:
        raise StateError(
            f"{target}: cannot be written ({error.args[0][0][2] if error.args and error.args[0] else error})"
        ) from None
    except OSError as error:
        raise StateError(str(full_disk(target, error))) from None
    pairs = [(path, target)] if path.is_file() else [(f, target / f.relative_to(path)) for f in sorted(path.rglob("*"))]
    for ours, theirs in pairs:
        if ours.is_file() and not ours.is_symlink() and digest_file(ours) != digest_file(theirs):
            raise StateError(f"{theirs}: differs from {ours} after copying; nothing was removed")
