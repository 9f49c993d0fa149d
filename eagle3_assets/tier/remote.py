"""One object store, by its URL: put a file and prove that it is there, get one and prove that it is whole.

Belongs here: the few calls that the tier makes of fsspec, retries, errors as one line. Does not belong here: what is moved, and when.

An S3 store says an object's ETag: the md5 of what it holds, or the md5 of its parts' md5s and their number (Amazon S3 User Guide, "Checking
object integrity"). It is compared with ours, taken from the file; where it is neither (KMS encryption, another kind of store), the
object is read back and its xxh3 compared. Credentials come from the environment (`AWS_…`), never from a campaign file.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import xxhash

from eagle3_assets.errors import StoreError
from eagle3_assets.store import unfinished

PART_BYTES = 64 << 20  # of a multipart upload: S3 takes at most 10,000 parts, so files up to 640 GB
READ_BYTES = 16 << 20
READERS = 4
TRIES = 5
FIRST_WAIT_S = 0.5

S3 = ("s3", "s3a")
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "memory")  # no folders there; every other kind of store has them made

T = TypeVar("T")


class RemoteError(StoreError):
    """The store did not do what it was asked; names the object and what to do."""


def check_url(url: str) -> str:
    """`url` without a slash at its end. Raises StoreError for one that cannot be a tier (no scheme, a key inside)."""
    parts = urlsplit(url)
    if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
        raise StoreError(f"[store] remote = {url!r}: expected scheme://bucket/prefix, e.g. s3://states/kimi")
    if "@" in parts.netloc or parts.query:
        raise StoreError(
            "[store] remote holds a credential; put it into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    return url.rstrip("/")


@lru_cache(maxsize=8)
def _file_system(scheme: str, process: int) -> Any:
    """One a scheme and process: the event loop of s3fs does not survive a fork."""
    import fsspec

    # each layer of s3fs retries by itself, and a server that is gone would be asked 125 times: the tries that count are `_try`'s
    options = (
        {"config_kwargs": {"retries": {"total_max_attempts": 1}, "connect_timeout": 20, "read_timeout": 60}}
        if scheme in S3
        else {}
    )
    try:
        made = fsspec.filesystem(scheme, skip_instance_cache=True, **options)
        if scheme in S3:
            made.retries = 3  # of one part; a whole file is not sent again for one connection that was cut
        return made
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"[store] remote: nothing here speaks {scheme}:// ({error}); for S3: pip install 'eagle3-assets[s3]'"
        ) from None


class Remote:
    """`url`: the folder that stands for a campaign's root. All names are relative to it, with `/`."""

    def __init__(self, url: str) -> None:
        self.url = check_url(url)
        self._fs = _file_system(urlsplit(self.url).scheme, os.getpid())

    def at(self, name: str) -> str:
        return f"{self.url}/{name}"

    def put(self, path: Path, name: str, xxh3: str) -> str:
        """Copy the file `path` to `name`, unless it is there already. Returns the proof that the store holds its bytes: "etag" or "read".

        Raises RemoteError.
        """
        etags = local_etags(path)
        if (proof := self._proof(path, name, xxh3, etags)) is not None:
            return proof
        for attempt in range(2):  # an upload that arrived damaged is sent once more
            self._make_folder(name)
            self._try(name, "written", lambda: self._fs.put_file(str(path), self.at(name), **self._put_options()))
            if (proof := self._proof(path, name, xxh3, etags)) is not None:
                return proof
            if attempt == 0:
                self._try(name, "removed", lambda: self._fs.rm_file(self.at(name)))
        raise RemoteError(f"{self.at(name)}: is not what was sent, twice; nothing was deleted here; run again")

    def holds(self, path: Path | None, name: str, size: int, xxh3: str) -> bool:
        """Whether the object is there with these bytes: by its ETag where `path` is here to compare with, else read and hashed."""
        etags = local_etags(path) if path is not None and path.is_file() else frozenset[str]()
        info = self._info(name)
        if info is None or info.get("size") != size:
            return False
        return etag_of(info) in etags or self._hash(name, size) == xxh3

    def get(self, name: str, path: Path, size: int, xxh3: str) -> None:
        """Copy the object to the file `path` (beside it first, then renamed). Raises RemoteError where it is not what it should be."""
        part = unfinished(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "wb") as handle:
                if size:
                    os.posix_fallocate(handle.fileno(), 0, size)  # a full disk is seen before anything is fetched
                for block in self._blocks(name, size):
                    handle.write(block)
                handle.flush()
                os.fsync(handle.fileno())
            hasher = xxhash.xxh3_128()
            with open(part, "rb") as handle:
                while data := handle.read(1 << 20):
                    hasher.update(data)
            if hasher.hexdigest() != xxh3:
                raise RemoteError(
                    f"{self.at(name)}: its checksum is not that of {path.name}; the copy is damaged: restore it, or make the "
                    "artifact again"
                )
            os.replace(part, path)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise RemoteError(f"{path}: cannot be written ({error.strerror or error}); free space and run again") from None
        finally:
            part.unlink(missing_ok=True)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write a small object: a commit, after everything that it speaks of."""
        self._make_folder(name)
        self._try(name, "written", lambda: self._fs.pipe_file(self.at(name), data))

    def read_bytes(self, name: str) -> bytes | None:
        """A small object; None where there is none."""
        if self._info(name) is None:
            return None
        return bytes(self._try(name, "read", lambda: self._fs.cat_file(self.at(name))))

    def names(self, suffix: str) -> list[str]:
        """All names that end in `suffix`, sorted."""
        prefix = self._fs._strip_protocol(self.url).rstrip("/") + "/"
        found = self._try("", "listed", lambda: self._fs.find(self.url))
        return sorted(str(n).removeprefix(prefix) for n in found if str(n).endswith(suffix))

    # ------------------------------------------------------------------------------------------------ inside
    def _make_folder(self, name: str) -> None:
        if urlsplit(self.url).scheme not in BUCKETS:
            self._try(name, "written", lambda: self._fs.makedirs(self.at(name).rpartition("/")[0], exist_ok=True))

    def _put_options(self) -> dict[str, Any]:
        return {"chunksize": PART_BYTES} if urlsplit(self.url).scheme in S3 else {}

    def _proof(self, path: Path, name: str, xxh3: str, etags: frozenset[str]) -> str | None:
        info = self._info(name)
        size = path.stat().st_size
        if info is None or info.get("size") != size:
            return None
        if etag_of(info) in etags:
            return "etag"
        return "read" if self._hash(name, size) == xxh3 else None

    def _info(self, name: str) -> dict[str, Any] | None:
        def ask() -> dict[str, Any] | None:
            self._fs.invalidate_cache()
            try:
                return dict(self._fs.info(self.at(name)))
            except FileNotFoundError:
                return None

        return self._try(name, "looked at", ask)

    def _hash(self, name: str, size: int) -> str:
        hasher = xxhash.xxh3_128()
        for block in self._blocks(name, size):
            hasher.update(block)
        return hasher.hexdigest()

    def _blocks(self, name: str, size: int) -> Any:
        """The object's bytes in order, a few ranges on their way at a time; each range is asked for again by itself."""

        def read(start: int) -> bytes:
            end = min(start + READ_BYTES, size)

            def once() -> bytes:
                data = bytes(self._fs.cat_file(self.at(name), start=start, end=end))
                if len(data) != end - start:
                    raise ConnectionError(f"{len(data)} bytes of {end - start}")
                return data

            return self._try(name, "read", once)

        starts = range(0, size, READ_BYTES)
        with ThreadPoolExecutor(READERS) as pool:
            waiting = [pool.submit(read, start) for start in starts[: READERS * 2]]
            for start in starts:
                following = start + READERS * 2 * READ_BYTES
                block = waiting.pop(0).result()
                if following < size:
                    waiting.append(pool.submit(read, following))
                yield block

    def _try(self, name: str, done: str, call: Callable[[], T]) -> T:
        """`call()`, again after a growing wait where the store or the way to it failed. Raises RemoteError with the last reason."""
        wait = FIRST_WAIT_S
        for attempt in range(1, TRIES + 1):
            try:
                return call()
            except (FileNotFoundError, PermissionError) as error:
                raise RemoteError(
                    f"{self.at(name)}: cannot be {done} ({_reason(error)}); check the bucket's name and the credentials in the environment"
                ) from None
            except Exception as error:  # every store has errors of its own, and none of them may end in a traceback
                if attempt == TRIES:
                    raise RemoteError(
                        f"{self.at(name)}: cannot be {done} after {TRIES} tries ({_reason(error)}); what is here stays here; run again"
                    ) from None
                time.sleep(wait)
                wait *= 2
        raise AssertionError


def _reason(error: BaseException) -> str:
    """One line, without what a signed URL or a header might carry."""
    text = str(error).split("\n")[0].split("?")[0]
    return (text or type(error).__name__)[:200]


def etag_of(info: dict[str, Any]) -> str:
    return str(info.get("ETag") or "").strip('"')


def local_etags(path: Path) -> frozenset[str]:
    """The ETags that S3 may show for this file: of one PUT, and of our multipart upload."""
    whole, parts = hashlib.md5(usedforsecurity=False), []
    with open(path, "rb") as handle:
        while True:
            part, left = hashlib.md5(usedforsecurity=False), PART_BYTES
            while left and (block := handle.read(min(left, 1 << 20))):
                whole.update(block)
                part.update(block)
                left -= len(block)
            if left == PART_BYTES:
                break
            parts.append(part.digest())
            if left:
                break
    many = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return frozenset((whole.hexdigest(), f"{many}-{len(parts)}"))
