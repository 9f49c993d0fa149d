"""Claims about buying answers: an endpoint whose provider changed its form since it was probed is probed again, before anything else is bought."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.pilot import probes, repeats
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.stage import Job
from eagle3_assets.stages.answers import probe_again
from eagle3_assets.store import Store, commit
from eagle3_assets.wire import journal
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.collect.pilot.test_pilot import CAMPAIGN, SNAPSHOT, PinnedServer
from eagle3_assets_tests.collect.samples import KEY

TURN = {"reading": "keep keep keep keep|end", "counts_end": True, "extra": 0, "arguments": "as returned"}
WINDOW: dict[str, Any] = {"from": 100.0, "to": 150.0, "stream": False, "rows": 90, "turns": {"text": TURN}}


def committed(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    commit(path, files=[path], inputs={})


def a_store(tmp_path: Path, changed_at: float) -> Store:
    """A campaign whose endpoints Chutes and Inceptron were probed at 200; Chutes changed at `changed_at`."""
    store = Store(tmp_path)
    committed(store.endpoints, {"snapshot": SNAPSHOT})
    with Journal.open(store.pilot_dir) as written:
        for number, name in enumerate(("Chutes", "Inceptron")):
            answer = WireAnswer(
                f"r{number}", name, 0, 1, probes.DATASET, "probe:word:x:plain", "openrouter", {}, 200, b"{}", "finished",
                provider=name, finished_at=200.0,
            )  # fmt: skip
            written.append(answer)
    behind = {**WINDOW, "from": changed_at, "to": changed_at + 50, "rows": 40, "turns": {"text": {**TURN, "counts_end": False}}}
    committed(store.wire_profiles, {"providers": {"Chutes": {"windows": [WINDOW, behind]}, "Inceptron": {"windows": [WINDOW]}}})
    return store


def buy(store: Store, said: list[str]) -> list[Any]:
    """The requests that the first step of buying sends."""

    async def story() -> list[Any]:
        async with PinnedServer() as server:
            job = cast(Job, SimpleNamespace(campaign=CAMPAIGN, store=store, face=SimpleNamespace(log=said.append)))
            with Ledger(store.root / "ledger.sqlite", 1.0) as ledger:
                await probe_again(job, ledger, Servers(server.base_url, ApiKey(KEY)), asyncio.Event(), count_tokens=len)
            return list(server.requests)

    return asyncio.run(story())


def test_a_changed_provider_is_probed_again_once(tmp_path: Path) -> None:
    store, said = a_store(tmp_path, changed_at=300.0), []
    first = buy(store, said)
    assert first and {tuple(request["provider"]["only"]) for request in first} == {("chutes/int4",)}
    assert said == ["Chutes changed its form: asking chutes/int4 the pilot's probes again"]
    assert all(probes.is_probe(answer) for answer in journal.read(store.probes_again))
    assert buy(store, []) == [], "they were answered behind the change"


def test_a_provider_that_was_probed_behind_its_change_is_left_alone(tmp_path: Path) -> None:
    assert buy(a_store(tmp_path, changed_at=180.0), []) == []


def test_without_wire_profiles_nobody_is_probed_again(tmp_path: Path) -> None:
    assert buy(Store(tmp_path), []) == [] and repeats.due({}, (), ()) == []
