"""Claims about death at any moment: `kill -9` and a loss of power, each again and again, then a run to the end."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.wire import journal
from eagle3_assets_tests.collect.fake_openrouter import COST, FakeOpenRouter
from eagle3_assets_tests.collect.test_crash import CHILD, IN_FLIGHT, LIMIT_USD

COUNT = 160
# In a process of its own: what was on the disk for sure is written down at every fsync of a journal.
WATCHED = """
import os, json, pathlib, sys
real = os.fdatasync
def watched(fd):
    size = os.fstat(fd).st_size
    real(fd)
    path = os.readlink(f"/proc/self/fd/{fd}")
    if "segment-" in path:
        note = pathlib.Path(sys.argv[1]) / "synced"
        note.with_suffix(".new").write_text(str(size))
        note.with_suffix(".new").replace(note)  # killed in between, the older note stands
os.fdatasync = watched
"""


def kills(count: int, seed: int) -> list[int]:
    """Moments, as counts of requests that reached the server in all runs together."""
    return sorted(random.Random(seed).sample(range(5, COUNT - 10), count))


def lose_power(root: Path) -> int:
    """Cut the journal back to what the last fsync left; how many bytes went."""
    (segment,) = journal.segments(root / "answers" / "b3_magicoder" / "00")
    note = root / "synced"
    sure = int(note.read_text()) if note.exists() else 0
    lost = segment.stat().st_size - sure
    os.truncate(segment, sure)
    return lost


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill -9", "power loss"])
def test_death_at_random_moments_loses_no_sample_and_buys_nothing_twice_that_was_on_the_disk(power: bool, tmp_path: Path) -> None:
    moments = kills(6 if power else 20, seed=7)
    known: set[str] = set()  # request ids that a journal held when its process died
    lost_bytes = 0

    async def start(server: FakeOpenRouter) -> asyncio.subprocess.Process:
        code = (WATCHED if power else "") + CHILD
        arguments = [sys.executable, "-c", code, str(tmp_path), server.base_url, str(COUNT), str(LIMIT_USD)]
        return await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)

    async def story() -> None:
        nonlocal lost_bytes
        server = FakeOpenRouter()

        def have_reached(count: int) -> bool:
            return len(server.requests) >= count

        async with server:
            for moment in moments:
                process = await start(server)
                await asyncio.wait_for(server.wait_until(partial(have_reached, moment)), 20)
                process.kill()
                await process.wait()
                if power:
                    lost_bytes += lose_power(tmp_path)
                known.update(answer.request_id for answer in journal.read(tmp_path / "answers" / "b3_magicoder" / "00"))
            process = await start(server)
            _, shown = await asyncio.wait_for(process.communicate(), 40)
            assert process.returncode == 0, shown.decode()
            judge(server)

    def judge(server: FakeOpenRouter) -> None:
        answers = list(journal.read(tmp_path / "answers" / "b3_magicoder" / "00"))
        assert set(journal.best(answers)) == {(f"{n:032x}", 0) for n in range(COUNT)}
        assert Counter(a.sample_id for a in answers).most_common(1)[0][1] == 1  # none is in the journal twice
        assert known <= {a.request_id for a in answers}  # what was there stayed
        bought_again = len(server.requests) - COUNT
        group = 4 * IN_FLIGHT if power else 0  # answers that one group of an fsync may hold at this pace
        assert 0 < bought_again <= len(moments) * (IN_FLIGHT + group)
        with Ledger(tmp_path / "ledger.sqlite", LIMIT_USD) as ledger:
            lost, total = ledger.entries("ambiguous"), ledger.totals().total
        if not power:  # each is listed; after a loss of power, a settled answer that the disk lost is settled still
            assert len(lost) >= bought_again and not {a.request_id for a in answers} & {request_id for request_id, _, _ in lost}
            assert abs(total.spent_usd - COUNT * COST) < 1e-9
        assert total.reserved_usd == 0
        assert server.spent <= total.committed_usd + 1e-9 <= LIMIT_USD

    asyncio.run(asyncio.wait_for(story(), 170))
    assert lost_bytes > 0 or not power
