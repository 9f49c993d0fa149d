"""Ten thousand requests in bad weather: what the ledger says was spent is what truth says was sampled, to the picodollar."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eagle3_assets_tests.standin.conftest import TOOL, Client, MakeStandin, chat, connected, settings
from kimi_mini.bank import load_bank
from openrouter_standin.openrouter import faults as catalogue
from openrouter_standin.profiles import load_profiles
from openrouter_standin.schema.faults import Faults
from openrouter_standin.schema.server import Money
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Vocabulary

REQUESTS, AT_ONCE, BAD = 10_000, 200, 0.2
NEVER_ENDING = {"hang", "silence"}  # have a test of their own


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def billed_by_hand(truth: dict[str, Any], vocabulary: Vocabulary) -> int:
    """Picodollars of one answer, from its ids, the price list and the provider's convention."""
    provider = next(p for p in load_profiles().provider if p.tag == truth["profile"])
    counted = [i for i in truth["completion_ids"] if provider.billing.counts_end or i != vocabulary.im_end]
    return len(truth["prompt_ids"]) * int(provider.price_prompt * 10**6) + len(counted) * int(provider.price_completion * 10**6)


@pytest.mark.slow
def test_after_10000_requests_with_a_fifth_of_faults_the_ledger_equals_the_sum_over_truth(
    make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    names = [name for name in catalogue.ALL if name not in NEVER_ENDING]
    bad = Faults(rates={name: BAD / len(names) for name in names})
    money = Money(foreign_usd_per_s=0.01, foreign_on_this_key=False, refund_delay_s=0.0)
    standin = make_standin(settings(faults=bad, money=money, credit_usd=1000.0), bank=load_bank()[:400])
    met: Counter[str] = Counter()

    async def one(client: Client, k: int) -> float:
        """USD that the client knows of."""
        tools = {"tools": [TOOL]} if k % 5 == 0 else {}
        body = chat(f"{k}", stream=k % 10 == 0, provider={"ignore": ["baseten"]}, **tools)
        try:
            status, _, raw = await client.post(body)
        except aiohttp.ClientError as error:
            met[type(error).__name__] += 1
            return 0.0
        met[str(status)] += 1
        if status != 200:
            return 0.0
        try:
            events = [e for e in raw.split(b"\n") if e.startswith(b"data: {")] if body["stream"] else [raw]
            told = [json.loads(event.removeprefix(b"data: ")) for event in events]
        except ValueError:
            met["unreadable"] += 1
            return 0.0
        if any("error" in value or "error" in (value.get("choices") or [{}])[0] for value in told):
            met["error in 200"] += 1
            return 0.0
        usage = told[-1].get("usage") or {}
        return float(usage.get("cost", 0.0))

    async def run() -> float:
        todo, known = iter(range(REQUESTS)), 0.0

        async def worker(client: Client) -> None:
            nonlocal known
            for k in todo:
                known += await one(client, k)

        async with connected(standin) as client:
            await asyncio.gather(*(worker(client) for _ in range(AT_ONCE)))
            _, key = await client.get("/api/v1/key")
            _, credit = await client.get("/api/v1/credits")
        assert key["data"]["usage"] == standin.ledger.spent_pico / 1e12
        assert credit["data"]["total_usage"] > key["data"]["usage"]  # somebody else spends, too
        return known

    known = asyncio.run(run())
    folder = standin.ledger.folder
    truths, ledger = lines(folder / "truth.jsonl"), lines(folder / "ledger.jsonl")
    refunds = {line["refund"] for line in ledger if "refund" in line}
    by_hand = sum(billed_by_hand(truth, vocabulary) for truth in truths if truth["generation_id"] not in refunds)
    assert standin.ledger.spent_pico == by_hand == sum(truth["cost_pico"] for truth in truths)
    assert sum(line.get("cost_pico", 0) for line in ledger) == by_hand
    assert len({truth["generation_id"] for truth in truths}) == len(truths)
    assert 0 < known < by_hand / 1e12  # lost and damaged answers are billed, too
    answered = len(truths) / REQUESTS
    assert 0.8 < answered < 0.95, answered
    assert {
        "200",
        "401",
        "402",
        "429",
        "500",
        "502",
        "503",
        "524",
        "529",
        "ClientPayloadError",
        "unreadable",
        "error in 200",
    } <= set(met)
    standin.ledger.close()
    again = Ledger(folder)
    assert again.spent_pico == by_hand
    again.close()
