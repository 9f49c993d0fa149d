"""Claims about the ledger that `answers` and `pilot` spend by: a lost one is counted again before they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.campaign_ledger import open_ledger
from eagle3_assets.store import Store
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer


def _paid(request_id: str, usd: float) -> WireAnswer:
    return WireAnswer(
        request_id, "0" * 32, 0, 1, "x", "00", "openrouter", {}, status=200, body=b"{}", outcome="finished", cost_usd=usd
    )


def test_money_of_the_pilot_and_of_every_shard_is_known_to_a_ledger_that_was_lost(
    tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    store = Store.of(campaign)
    name = campaign.dataset[0].name
    for folder, usd in ((store.pilot_dir, 0.5), (store.answers(name, "00"), 0.25), (store.answers(name, "15"), 0.125)):
        with Journal.open(folder) as journal:
            journal.append(_paid(f"{folder}", usd))
    store.ledger.touch()
    with open_ledger(campaign, store, 1.0) as ledger:
        totals = ledger.totals()
        assert totals.total.spent_usd == 0.875 and totals.scopes["pilot"].spent_usd == 0.5
        assert totals.scopes[name].spent_usd == 0.375
