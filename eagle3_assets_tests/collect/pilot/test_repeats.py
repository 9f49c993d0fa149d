"""Claims about probes that are asked again: of endpoints whose provider changed since, once a change, and of nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.pilot import probes, repeats
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets.wire import journal
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.collect.pilot.test_pilot import CAMPAIGN, SNAPSHOT, PinnedServer
from eagle3_assets_tests.collect.samples import KEY, QUICK

ROUTING = resolve(CAMPAIGN, SNAPSHOT)


def probed(provider: str, at: float, outcome: str = "finished", shard: str = "probe:word:x:plain") -> WireAnswer:
    return WireAnswer(
        "r", provider, 0, 1, "(probes)", shard, "openrouter", {}, 200, b"{}", outcome, provider=provider, finished_at=at
    )  # fmt: skip


def test_endpoints_whose_provider_changed_behind_their_probes_are_due() -> None:
    asked = [probed("Chutes", 100.0), probed("Inceptron", 100.0), probed("NoTools", 100.0, outcome="failed")]
    changed = {"Chutes": 200.0, "Inceptron": 50.0, "NoTools": 200.0, "Somebody": 200.0}
    found = repeats.due(changed, ROUTING.eligible, asked)
    assert [(repeat.endpoint.tag, repeat.changed_at) for repeat in found] == [("chutes/int4", 200.0)]
    assert repeats.due(changed, ROUTING.eligible, [*asked, probed("Chutes", 300.0)]) == [], "asked again since"
    assert repeats.due(changed, ROUTING.eligible, [*asked, probed("Chutes", 300.0, shard="pilot")]), "a prompt is no probe"
    assert repeats.due({}, ROUTING.eligible, asked) == []


def test_probes_are_asked_again_once_a_change_and_paid_as_such(tmp_path: Path) -> None:
    async def ask(server: PinnedServer, at: float) -> int:
        with Ledger(tmp_path / "ledger.sqlite", 1.0) as ledger:
            await repeats.ask_again(
                CAMPAIGN,
                [repeats.Repeat(endpoint, at) for endpoint in ROUTING.eligible if endpoint.tag == "chutes/int4"],
                servers=Servers(server.base_url, ApiKey(KEY)),
                ledger=ledger,
                routing=ROUTING,
                folder=tmp_path / "probes-again",
                stop=asyncio.Event(),
                count_tokens=lambda text: len(text.split(" ")),
                pace=QUICK,
            )
            assert ledger.totals().scopes[repeats.SCOPE].spent_usd > 0
        return len(server.requests)

    async def story() -> None:
        async with PinnedServer() as server:
            first = await ask(server, 200.0)
            assert first > 4 and {tuple(r["provider"]["only"]) for r in server.requests} == {("chutes/int4",)}
            assert await ask(server, 200.0) == first, "resumed: nothing is bought twice"
            assert await ask(server, 900.0) == 2 * first, "another change asks anew"
            assert all(probes.is_probe(answer) for answer in journal.read(tmp_path / "probes-again"))

    asyncio.run(story())
