"""Replacing a whole folder so that a reader sees the old one or the new one, never a mixture, whenever the writer is killed.

Belongs here: the swap and what is left to do after a kill in the middle of it. Does not belong here: what the folder holds.
A folder cannot be renamed over another, so two renames are needed: `X` -> `.X.old`, `.X.new` -> `X`. Between them `.X.old` is
whole: `whole_folder` finds it, and the next writer puts it back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3_assets.store import full_disk


def _beside(folder: Path, suffix: str) -> Path:
    folder = _real(folder)
    return folder.with_name(f".{folder.name}.{suffix}")


def _real(folder: Path) -> Path:
    """Where the folder lies: a link to another disk stays a link, and what it points to is replaced (a link itself cannot be swapped)."""
    return folder.resolve() if folder.is_symlink() else folder


def whole_folder(folder: Path) -> Path:
    """`folder`, or the old one beside it when a writer was killed between the two renames. Changes nothing on the disk."""
    old = _beside(folder, "old")
    return old if not folder.exists() and old.exists() else folder


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`; on success sync it and swap it in, on any error remove it.

    Raises StoreError (full disk, no permission). Two writers at once must be kept apart by the caller's lock.
    """
    folder = _real(folder)
    new = _beside(folder, "new")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _put_back(folder)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        yield new
        _sync_tree(new)
        _swap(new, folder)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        _put_back(folder)
        if isinstance(error, OSError) and error.errno is not None:
            raise full_disk(folder, error) from None
        raise


def _put_back(folder: Path) -> None:
    """Finish, or undo, a swap that a kill interrupted."""
    old = _beside(folder, "old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        _move(old, folder)


def _swap(new: Path, folder: Path) -> None:
    old = _beside(folder, "old")
    if folder.exists():
        _move(folder, old)
    _move(new, folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    source.rename(target)


def _sync_tree(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
