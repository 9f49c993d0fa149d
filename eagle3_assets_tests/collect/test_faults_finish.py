"""Claims about the whole fault catalogue of the stand-in: whatever goes wrong, in the end the finished samples are the finishable ones,
and the money is accounted for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.run.collector import Servers, ShardJob, collect
from eagle3_assets.collect.run.filing import PROVIDERS
from eagle3_assets.collect.run.outcomes import TABLE
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets.errors import BudgetStop, WireError
from eagle3_assets.wire import journal
from eagle3_assets_tests.collect.samples import QUICK, a_campaign, a_prompt
from eagle3_assets_tests.standin.conftest import KEY, SLUG, MakeStandin, connected, settings
from eagle3_assets_tests.standin.conftest import answers as answers
from eagle3_assets_tests.standin.conftest import make_standin as make_standin
from eagle3_assets_tests.standin.conftest import vocabulary as vocabulary
from openrouter_standin import chance
from openrouter_standin.openrouter import faults as catalogue
from openrouter_standin.request import read_request
from openrouter_standin.schema.faults import Faults, FaultScript
from openrouter_standin.service.server import Standin

COUNT, SHARE, LIMIT_USD = 40, 0.4, 5.0
# One provider does not take this row, and says so: another is asked. (What all refuse is given up: test_providers_misbehave.py.)
OF_A_ROW = {"400", "403", "413", "422", "error_400_in_200"}
RUNS = 60  # a refused key or a budget stop ends a run; people mend it and run again


def run_to_the_end(standin: Standin, root: Path, attempts: int) -> None:
    """Run as people do, again and again, until every sample is finished or failed."""
    campaign = a_campaign(
        target={"model": SLUG},
        collect={"attempts": attempts, "in_flight": 8, "timeout_s": 2.0},
        budget={"campaign_usd": LIMIT_USD},
    )
    prompts = tuple(a_prompt(f"sample {n}", n) for n in range(COUNT))

    async def once(origin: str, snapshot: Any) -> bool:
        with Ledger(root / "ledger.sqlite", LIMIT_USD) as ledger:
            job = ShardJob(campaign.dataset[0], "00", prompts, root / "answers" / "00")
            servers = Servers(f"{origin}/api/v1", ApiKey(KEY))
            try:
                (result,) = await collect(
                    campaign,
                    [job],
                    servers=servers,
                    ledger=ledger,
                    routing=resolve(campaign, snapshot),
                    stop=asyncio.Event(),
                    pace=QUICK,
                )
            except (BudgetStop, WireError):
                return False
            return result.complete

    async def story() -> None:
        async with connected(standin) as client:
            _, snapshot = await client.get(f"/api/v1/models/{SLUG}/endpoints")
            for _ in range(RUNS):
                if await once(client.origin, snapshot):
                    return
        raise AssertionError("some sample is still neither finished nor failed")

    asyncio.run(asyncio.wait_for(story(), 60))


def finished(root: Path) -> set[str]:
    return {sample_id for sample_id, _ in journal.best(journal.read(root / "answers" / "00"))}


def money_is_right(standin: Standin, root: Path, *, refunded: bool) -> None:
    with Ledger(root / "ledger.sqlite", LIMIT_USD) as ledger:
        total = ledger.totals().total
    true_usd = standin.ledger.spent_pico / 1e12
    assert total.reserved_usd == 0
    assert true_usd <= total.committed_usd + 1e-9 <= LIMIT_USD
    if not refunded:  # an error finish states its price and is given back later: until somebody looks, ours is the higher figure
        assert total.spent_usd <= true_usd + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("fault", catalogue.ALL)
def test_with_one_fault_alone_the_finished_samples_are_the_finishable_ones(
    fault: Any, make_standin: MakeStandin, tmp_path: Path
) -> None:
    script = (FaultScript(fault=fault, times=1 if fault in OF_A_ROW else 2, share=SHARE),)
    standin = make_standin(settings(faults=Faults(script=script), hang_s=0.05, retry_after_s=0), folder=tmp_path / "server")
    run_to_the_end(standin, tmp_path, attempts=3)
    hashes = [read_request(json.dumps(a.request).encode()).hash for a in journal.read(tmp_path / "answers" / "00")]
    struck = [h for h in hashes if chance.unit("0", h, "script", fault) < SHARE]
    everything = {f"{n:032x}" for n in range(COUNT)}
    assert struck, "the fault struck nobody: the test proves nothing"
    assert finished(tmp_path) == everything
    money_is_right(standin, tmp_path, refunded=fault == "finish_error")


def test_with_all_faults_together_nothing_that_can_be_finished_is_left(make_standin: MakeStandin, tmp_path: Path) -> None:
    names = [name for name in catalogue.ALL if name not in OF_A_ROW]
    faults = Faults(rates={name: 0.5 / len(names) for name in names})
    standin = make_standin(settings(faults=faults, hang_s=0.05, retry_after_s=0), folder=tmp_path / "server")
    run_to_the_end(standin, tmp_path, attempts=20)
    assert finished(tmp_path) == {f"{n:032x}" for n in range(COUNT)}
    assert {answer.reason for answer in journal.read(tmp_path / "answers" / "00") if answer.reason} <= set(TABLE)
    money_is_right(standin, tmp_path, refunded=True)


# What providers and edges say of themselves (docs/research/real-campaign.md#5): none of it is about the key, and none of it ends
# a run.
OF_OTHERS = (
    "401_provider", "402_provider", "403_provider", "402_bare", "401_transient", "400_html", "401_html", "403_html", "403_1010", "400",
    "html_502", "error_401_in_200", "error_402_in_200", "error_403_in_200", "error_400_in_200",
)  # fmt: skip


@pytest.mark.slow
def test_one_run_of_2000_answers_among_providers_that_say_all_this_is_complete_and_its_ledger_is_the_servers(
    make_standin: MakeStandin, tmp_path: Path
) -> None:
    """The cheapest provider's key is broken from the first request to the last, another's balance half of the time; the rest is weather."""
    count = 2000
    profiles = settings(faults=Faults(rates=dict.fromkeys(OF_OTHERS, 0.002)), retry_after_s=0)
    names = ["verbatim/int4", "injector/fp8"]
    broken: dict[str, Any] = {names[0]: {"401_provider": 1.0}, names[1]: {"error_402_in_200": 0.5}}
    providers = tuple(p.model_copy(update={"faults": broken.get(p.tag, {})}) for p in profiles.provider)
    standin = make_standin(profiles.model_copy(update={"provider": providers}), folder=tmp_path / "server")
    campaign = a_campaign(
        target={"model": SLUG}, collect={"attempts": 4, "in_flight": 200}, routing={"ignore": (), "quantizations": ()},
        budget={"campaign_usd": 1000.0},
    )  # fmt: skip
    prompts = tuple(a_prompt(f"sample {n}", n) for n in range(count))

    async def story() -> None:
        async with connected(standin) as client:
            _, snapshot = await client.get(f"/api/v1/models/{SLUG}/endpoints")
            routing = resolve(campaign, snapshot)
            assert {names[0], names[1]} <= {e.tag for e in routing.eligible} and len(
                {e.provider_name for e in routing.eligible}
            ) > 2
            with Ledger(tmp_path / "ledger.sqlite", 1000.0) as ledger:
                job = ShardJob(campaign.dataset[0], "00", prompts, tmp_path / "answers" / "00")
                (result,) = await collect(
                    campaign, [job], servers=Servers(f"{client.origin}/api/v1", ApiKey(KEY)), ledger=ledger, routing=routing,
                    stop=asyncio.Event(), pace=QUICK,
                )  # fmt: skip
                total = ledger.totals().total
            assert result.complete and result.finished == count, result.reasons
            assert total.reserved_usd == 0
            lost = total.ambiguous_usd  # an edge's 502 may hide an answer: its bound stays held
            assert total.spent_usd == pytest.approx(standin.ledger.spent_pico / 1e12, abs=1e-9) or lost > 0
            assert total.spent_usd <= standin.ledger.spent_pico / 1e12 + 1e-9 <= total.committed_usd + 2e-9

    asyncio.run(asyncio.wait_for(story(), 120))
    by_provider = {a.provider for a in journal.read(tmp_path / "answers" / "00") if a.outcome == "finished"}
    assert by_provider == {"Injector", "Stripper"}
    changes = [json.loads(line) for line in (tmp_path / "answers" / PROVIDERS).read_bytes().splitlines()]
    assert {c["provider"] for c in changes if c["after"] == "open"} >= {"Verbatim"}
    assert not [c for c in changes if c["provider"] == "Verbatim" and c["after"] == "closed"]
