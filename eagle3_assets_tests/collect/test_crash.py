"""Claims about `kill -9` of the process that collects: nothing paid for is lost, nothing is bought twice beyond what was in
flight.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.wire import journal
from eagle3_assets_tests.collect.fake_openrouter import COST, FakeOpenRouter
from eagle3_assets_tests.collect.samples import KEY, everything_written

COUNT, IN_FLIGHT, LIMIT_USD = 120, 16, 5.0

CHILD = """
import asyncio, pathlib, sys
from eagle3_assets.collect.run.collector import Servers, ShardJob, collect
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets_tests.collect.samples import KEY, QUICK, a_campaign, a_prompt, a_snapshot

root, base_url, count, limit = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
campaign, folder = a_campaign(), root / "answers" / "b3_magicoder" / "00"
async def main():
    with Ledger(root / "ledger.sqlite", limit) as ledger:
        job = ShardJob(campaign.dataset[0], "00", tuple(a_prompt(f"q{n}", n) for n in range(count)), folder)
        (result,) = await collect(
            campaign, [job], servers=Servers(base_url, ApiKey(KEY)), ledger=ledger, routing=resolve(campaign, a_snapshot()),
            stop=asyncio.Event(), pace=QUICK)
        assert result.complete, result
asyncio.run(main())
"""


@pytest.mark.slow
def test_after_kills_the_run_resumes_at_once_and_every_sample_is_there_once(tmp_path: Path) -> None:
    async def start(server: FakeOpenRouter) -> asyncio.subprocess.Process:
        arguments = [sys.executable, "-c", CHILD, str(tmp_path), server.base_url, str(COUNT), str(LIMIT_USD)]
        return await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)

    async def story() -> None:
        server = FakeOpenRouter()

        def have_reached(count: int) -> bool:
            return len(server.requests) >= count

        async with server:
            for kill_after in (20, 55, 90):  # requests that reached the server in all runs together
                process = await start(server)
                await asyncio.wait_for(server.wait_until(partial(have_reached, kill_after)), 20)
                process.kill()
                await process.wait()
            process = await start(server)
            _, shown = await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode == 0, shown.decode()
            judge(server)

    def judge(server: FakeOpenRouter) -> None:
        answers = list(journal.read(tmp_path / "answers" / "b3_magicoder" / "00"))
        assert set(journal.best(answers)) == {(f"{n:032x}", 0) for n in range(COUNT)}
        assert Counter(a.sample_id for a in answers).most_common(1)[0][1] == 1  # none is in the journal twice
        bought_again = len(server.requests) - COUNT
        assert 0 < bought_again <= 3 * IN_FLIGHT
        with Ledger(tmp_path / "ledger.sqlite", LIMIT_USD) as ledger:
            lost = ledger.entries("ambiguous")
            total = ledger.totals().total
        known = {a.request_id for a in answers}
        assert len(lost) >= bought_again and not known & {request_id for request_id, _, _ in lost}  # each is listed
        assert all(request_id[:32] in {a.sample_id for a in answers} for request_id, _, _ in lost)
        assert abs(total.spent_usd - COUNT * COST) < 1e-9 and total.reserved_usd == 0
        assert server.spent <= total.committed_usd <= LIMIT_USD
        assert KEY.encode() not in everything_written(tmp_path)

    asyncio.run(asyncio.wait_for(story(), 60))
