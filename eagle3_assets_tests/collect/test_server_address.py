"""Claims about who answered: answers, prices and approvals of one server never count for another (a rehearsal never becomes real)."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import CampaignError, GateError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.store import Store, read_json, write_json
from eagle3_assets_tests.collect.fake_openrouter import FakeOpenRouter
from eagle3_assets_tests.collect.run.test_collector import Desk, prompts, run
from eagle3_assets_tests.collect.samples import a_campaign, a_dataset

URL = "OPENROUTER_BASE_URL"


@pytest.fixture
def campaign() -> Campaign:
    return a_campaign()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("", "openrouter.ai"),
        ("https://openrouter.ai/api/v1/", "openrouter.ai"),
        ("https://proxy.example:8443/v1", "proxy.example"),
        ("http://127.0.0.1:41234/api/v1", "loopback"),
        ("http://localhost:1/api/v1", "loopback"),
        ("http://[::1]:1/api/v1", "loopback"),
    ],
)
def test_an_address_is_a_host_and_a_server_on_this_machine_has_no_port(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, url: str, address: str
) -> None:
    monkeypatch.setenv(URL, url)
    assert campaign.server_address == address and campaign.is_play_money == (address == "loopback")


def test_the_embedded_server_cannot_be_another_and_engines_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, "https://proxy.example/v1")
    assert a_campaign(server={"kind": "embedded"}).server_address == "embedded"
    engines = a_campaign(a_dataset(backend="engine"), engine=({"kind": "vllm", "base_url": "http://x"},))
    assert engines.server_address is None


@pytest.mark.parametrize("there", ["http://127.0.0.1:9/api/v1", "https://proxy.example/v1"])
def test_a_root_that_one_server_answered_refuses_another_and_names_the_way_out(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    store = Store(tmp_path)
    monkeypatch.setenv(URL, there)
    store.bind(campaign, answered=["b3_magicoder"])
    store.bind(campaign)
    monkeypatch.delenv(URL)
    with pytest.raises(CampaignError, match=r"leads to openrouter\.ai: neither answers, prices nor an approval .* EAGLE3_DATA="):
        store.bind(campaign)


def test_a_lock_of_before_addresses_were_written_is_of_openrouter(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lock = Store(tmp_path), tmp_path / "campaign.lock"
    store.bind(campaign)
    facts = read_json(lock)["facts"]
    del facts["server.address"]
    write_json(lock, {"fingerprint": "x", "facts": facts})
    monkeypatch.setenv(URL, "http://127.0.0.1:9/api/v1")
    with pytest.raises(CampaignError, match=r"answered by openrouter\.ai, and OPENROUTER_BASE_URL leads to loopback"):
        store.bind(campaign)
    monkeypatch.delenv(URL)
    store.bind(campaign)
    assert store.answered_by() == "openrouter.ai"


def test_stand_in_money_approves_no_real_money(campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    monkeypatch.setenv(URL, "http://127.0.0.1:9/api/v1")
    planning.approve(campaign, store, 5.0)
    assert planning.approved_usd(campaign, store) == 5.0
    monkeypatch.delenv(URL)
    with pytest.raises(GateError, match=r"was given for money at loopback; answers would be bought at openrouter\.ai"):
        planning.approved_usd(campaign, store)


def test_every_record_of_a_journal_says_who_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        monkeypatch.setenv(URL, server.base_url)
        d.campaign = a_campaign(
            a_dataset(), a_dataset("b1_glaive", "engine"), engine=({"kind": "vllm", "base_url": f"{server.root}/engine/v1"},)
        )
        await d.collect(server, d.job(prompts(2)), d.job(prompts(1, dataset="b1_glaive"), dataset="b1_glaive"))
        assert {a.server for a in d.answers()} == {"loopback"}
        assert {a.server for a in d.answers(dataset="b1_glaive")} == {f"{server.root}/engine/v1/chat/completions"}

    run(tmp_path, story)
