"""Claims about the pilot: every eligible endpoint is asked, alone, under the pilot's cap, and never twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.pilot import pilot
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets.errors import WireError
from eagle3_assets.wire import journal
from eagle3_assets_tests.collect.fake_openrouter import COST, FakeOpenRouter, completion
from eagle3_assets_tests.collect.samples import KEY, QUICK, a_campaign, a_dataset, a_prompt, a_snapshot, an_endpoint

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
SNAPSHOT = a_snapshot(
    an_endpoint("Chutes", "chutes/int4"),
    an_endpoint("Inceptron", "inceptron/fp8"),
    an_endpoint("NoTools", "notools", supported_parameters=["temperature", "top_p", "max_tokens", "reasoning"]),
    an_endpoint("BaseTen", "baseten"),
)
CAMPAIGN = a_campaign(
    a_dataset(),
    a_dataset("b8_sweagent", turns="chain"),
    a_dataset("b1_glaive", "engine"),
    engine=({"kind": "vllm", "base_url": "embedded"},),
)


class PinnedServer(FakeOpenRouter):
    """Answers as the provider that the request pins."""

    def __init__(self) -> None:
        super().__init__(SNAPSHOT)
        self.names = {"chutes/int4": "Chutes", "inceptron/fp8": "Inceptron", "notools": "NoTools"}

    async def behave(self, request: Any, how: str) -> Any:
        from aiohttp import web

        sent = self.requests[-1] if len(self.requests) == 1 else await request.json()
        tag = sent["provider"]["only"][0]
        if how == "ok" and tag in self.names:
            self.spent += COST
            return web.json_response(completion(next(self._numbers), provider=self.names[tag]))
        return await super().behave(request, how)


def prompts() -> dict[str, list[Any]]:
    return {
        "b3_magicoder": [a_prompt(f"b3 {n}", n, reserve=n >= 20) for n in range(24)],
        "b8_sweagent": [
            a_prompt(f"b8 {n}", 100 + n, dataset="b8_sweagent", tools=(TOOL,), follow_ups=(({"role": "user", "content": "x"},),))
            for n in range(24)
        ],
        "b1_glaive": [a_prompt("engine", 300, dataset="b1_glaive")],
    }


async def go(tmp_path: Path, server: FakeOpenRouter, cap: float = 1.0, **more: Any) -> dict[str, Any]:
    with Ledger(tmp_path / "ledger.sqlite", 1.0, caps={"pilot": cap}) as ledger:
        return await pilot.run_pilot(
            CAMPAIGN,
            prompts(),
            servers=Servers(server.base_url, ApiKey(KEY)),
            ledger=ledger,
            routing=resolve(CAMPAIGN, SNAPSHOT),
            folder=tmp_path / "pilot",
            stop=asyncio.Event(),
            pace=QUICK,
            **more,
        )


def test_every_eligible_endpoint_is_asked_alone_and_the_figures_are_plain_json(tmp_path: Path) -> None:
    async def story() -> None:
        server = PinnedServer()
        async with server:
            found = await go(tmp_path, server)
            assert {tag: e["answers"] for tag, e in found["endpoints"].items()} == {
                "chutes/int4": 6,
                "inceptron/fp8": 6,
                "notools": 6,
            }
            assert all(r["provider"]["allow_fallbacks"] is False and len(r["provider"]["only"]) == 1 for r in server.requests)
            assert not any(r.get("tools") for r in server.requests if r["provider"]["only"] == ["notools"])
            assert any(r.get("tools") for r in server.requests) and not any(
                "engine" in str(r["messages"]) for r in server.requests
            )
            assert found["lengths"]["b3_magicoder"]["mean"] == 12 and set(found["lengths"]) == {"b3_magicoder", "b8_sweagent"}
            assert found["spent_usd"] == pytest.approx(18 * COST) and found["stopped"] is None and found["answers"] == 18
            assert found["endpoints"]["chutes/int4"]["cost_usd"] == pytest.approx(6 * COST)
            json.dumps(found, allow_nan=False)
            again = await go(tmp_path, server)
            assert again == found and len(server.requests) == 18
            assert len(journal.best(journal.read(tmp_path / "pilot"))) == 18  # one journal, every answer a key of its own

    asyncio.run(story())


def test_the_pilots_cap_ends_it_and_the_figures_of_what_there_is_are_returned(tmp_path: Path) -> None:
    async def story() -> None:
        server = PinnedServer()
        async with server:
            found = await go(tmp_path, server, cap=0.005)
            assert 0 < found["answers"] < 18 and server.spent <= 0.005 and "limit 0.005 USD for pilot" in found["stopped"]

    asyncio.run(story())


def test_an_endpoint_that_does_not_work_is_a_finding_and_not_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        server = PinnedServer()
        async with server:
            server.names = {"chutes/int4": "Chutes", "inceptron/fp8": "Somebody else", "notools": "NoTools"}
            found = await go(tmp_path, server)
            assert {tag: e["answers"] for tag, e in found["endpoints"].items()} == {
                "chutes/int4": 6,
                "inceptron/fp8": 0,
                "notools": 6,
            }
            assert set(found["endpoints"]["inceptron/fp8"]["errors"]) == {"wrong_provider"}

    asyncio.run(story())


def test_a_pilot_without_a_single_answer_is_an_error_that_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        server = PinnedServer()
        async with server:
            server.default = "404"
            with pytest.raises(WireError, match=r"no answer from any of 3 endpoints \(no_endpoint: 18\)"):
                await go(tmp_path, server)

    asyncio.run(story())


def test_reserve_prompts_come_first_and_datasets_take_turns() -> None:
    pool = pilot.interleave([prompts()["b3_magicoder"], prompts()["b8_sweagent"]])
    assert [(p.dataset, p.reserve) for p in pool[:4]] == [("b3_magicoder", True), ("b8_sweagent", False)] * 2
