"""Copies to the tier beside the work that makes what is copied: one partition is on its way while the next is computed.

Belongs here: the one thread that copies, and waiting for it where the disk has no room otherwise. Does not belong here: a copy
(`moves.py`), when a partition is finished (`stages/hidden_states.py`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from eagle3_assets.campaign import Campaign
from eagle3_assets.store import Store
from eagle3_assets.tier.moves import make_room, upload
from eagle3_assets.tier.place import Place
from eagle3_assets.tier.remote import Remote


def remote_of(campaign: Campaign) -> Remote | None:
    """The campaign's folder in `[store] remote`; None where the campaign has no tier. Raises StoreError for a URL that cannot be one."""
    url = campaign.store.remote
    return None if url is None else Remote(f"{url.rstrip('/')}/{campaign.name}")


class Copier:
    """Use as a context manager; does nothing at all where the campaign has no tier. Leaving it waits for the copies and raises the first
    error of one (StoreError): what was made stays, uncopied, and the next run copies it."""

    def __init__(self, campaign: Campaign, store: Store) -> None:
        self._remote, self._store = remote_of(campaign), store
        self._keep_free = int(campaign.store.keep_free_gb * 1e9)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tier") if self._remote is not None else None
        self._waiting: list[Future[Place]] = []

    def add(self, artifact: Path) -> None:
        """`artifact` is committed and checked: copy it."""
        if self._pool is not None and self._remote is not None:
            self._waiting.append(self._pool.submit(upload, self._remote, self._store.root, artifact, keep_free=self._keep_free))

    def make_way(self, folder: Path, planned: int) -> None:
        """Wait for copies, the oldest first, while `planned` bytes do not fit and a finished copy would let more leave the disk."""
        if self._pool is None:
            return
        while self._waiting and make_room(folder, planned) < planned:
            self._waiting.pop(0).result()

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for copy in self._waiting:
                copy.result()
