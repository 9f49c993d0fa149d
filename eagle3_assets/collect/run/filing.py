"""The journals of one run: opened together, appended to, synced in groups, reported shard by shard.

Belongs here: what one run does with all its journals. Does not belong here: the format (`journal.py`), what an answer means for
its prompt (`collector.py`, `shard_work.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.run.progress import Meter
from eagle3_assets.collect.run.shard_work import ShardResult, ShardWork
from eagle3_assets.collect.servers.breaker import Change
from eagle3_assets.errors import StoreError
from eagle3_assets.wire.journal import Journal, dump_json, require_room
from eagle3_assets.wire.wire_answer import WireAnswer

log = logging.getLogger(__name__)
PROVIDERS = "providers.jsonl"  # beside a dataset's shards


class Filing:
    """Records of `works` go through here. `on_error` ends the run; `on_shard_done` hears of each work once."""

    def __init__(
        self,
        works: Sequence[ShardWork],
        meter: Meter,
        on_error: Callable[[BaseException], None],
        on_shard_done: Callable[[ShardResult], None] | None,
    ) -> None:
        self._works, self._meter, self._on_error, self._on_shard_done = works, meter, on_error, on_shard_done
        self._unsaved: list[tuple[ShardWork, WireAnswer]] = []
        self._endings: set[asyncio.Task[None]] = set()

    def open(self, journals: ExitStack, ledger: Ledger | None) -> None:
        """Take every lock, read every journal, settle what a killed run left. Works of one folder share a journal."""
        by_folder: dict[Path, list[ShardWork]] = {}
        for work in self._works:
            by_folder.setdefault(work.job.folder, []).append(work)
        for folder, works in by_folder.items():
            billed: list[WireAnswer] = []

            def on_record(answer: WireAnswer, works: list[ShardWork] = works, billed: list[WireAnswer] = billed) -> None:
                for work in works:
                    if len(works) == 1 or work.asks(answer.key):
                        work.note(answer)
                if answer.source == "openrouter":
                    billed.append(_bill(answer, works[0].scope))

            journal = Journal.open(folder, on_record=on_record)
            journals.callback(journal.close)
            for work in works:
                work.journal = journal
            if ledger is not None:
                ledger.reconcile(billed)

    def record(self, work: ShardWork, answer: WireAnswer, completion: dict[str, Any] | None = None) -> bool:
        """Append. A record that finds no room is held in memory and tried again at the end, and the run ends."""
        try:
            work.journal.append(answer)
        except StoreError as error:
            self._unsaved.append((work, answer))
            self._on_error(error)
            return False
        work.note(answer, completion)
        self._meter.tokens += answer.completion_tokens or 0
        return True

    def note_change(self, change: Change) -> None:
        """A line in `providers.jsonl` of each dataset of this run: the report shows who was left out, when and why."""
        line = dump_json({"at": time.time(), **asdict(change)}) + b"\n"
        for folder in {work.job.folder.parent for work in self._works if work.job.dataset.backend == "openrouter"}:
            try:
                with open(folder / PROVIDERS, "ab") as handle:
                    handle.write(line)
            except OSError as error:  # a note, not an answer: the journal says so itself when the disk is full
                log.warning("%s: cannot be written (%s)", folder / PROVIDERS, error.strerror)

    # ------------------------------------------------------------------------------------------------ in groups
    async def sync_often(self, every_s: float, in_flight: Callable[[], int]) -> None:
        """Group fsync; and no request starts when its answer might find the disk full."""
        while True:
            try:
                await asyncio.to_thread(self._sync_all, in_flight())
            except StoreError as error:
                self._on_error(error)
            await asyncio.sleep(every_s)

    def _sync_all(self, in_flight: int) -> None:
        for work in self._works:
            work.journal.sync()
        if in_flight:
            require_room(self._works[0].job.folder, in_flight)

    # ------------------------------------------------------------------------------------------------ ends
    def end_if_done(self, work: ShardWork) -> None:
        if work.is_done and not work.reported:
            work.reported = True
            task = asyncio.create_task(self._end(work))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def end(self) -> None:
        """Store what found no room, and report the works that were not reported because something was left to do."""
        await self.wait()
        self.save_unsaved()
        for work in self._works:
            if not work.reported:
                work.reported = True
                await self._end(work)

    async def wait(self) -> None:
        """Until every report under way has been made."""
        await asyncio.gather(*self._endings, return_exceptions=True)

    def save_unsaved(self) -> None:
        for work, answer in self._unsaved:
            try:
                work.journal.append(answer)
                work.note(answer)
            except StoreError:
                log.error("answer %s could not be stored; its money stays accounted for", answer.request_id)

    async def _end(self, work: ShardWork) -> None:
        try:
            await asyncio.to_thread(work.journal.sync)
            if self._on_shard_done is not None:
                self._on_shard_done(work.result())
        except Exception as error:
            self._on_error(error)


def _bill(answer: WireAnswer, scope: str) -> WireAnswer:
    """What the ledger wants to know of a record, without its bytes: a journal holds more than memory should."""
    return WireAnswer(
        request_id=answer.request_id,
        sample_id=answer.sample_id,
        turn=answer.turn,
        attempt=answer.attempt,
        dataset=scope,
        shard=answer.shard,
        source=answer.source,
        request={},
        status=answer.status,
        body=b"",
        outcome=answer.outcome,
        generation_id=answer.generation_id,
        cost_usd=answer.cost_usd,
    )
