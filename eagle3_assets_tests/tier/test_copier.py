"""Copies beside the work: the disk never holds more than it can, and an error of a copy is the run's."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from eagle3_assets.campaign import Campaign, Tier
from eagle3_assets.errors import CampaignError, StoreError
from eagle3_assets.store import Store
from eagle3_assets.tier import moves
from eagle3_assets.tier.copier import Copier, remote_of
from eagle3_assets.tier.moves import fetch
from eagle3_assets_tests.tier.made import part, partition

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def small(campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Campaign, Store]:
    """A campaign with a tier, on a disk that holds three partitions."""
    store = Store(tmp_path / "root" / "campaign")
    store.root.mkdir(parents=True)

    def usage(path: Path) -> Usage:
        there = sum(p.stat().st_size for p in store.root.rglob("*.safetensors"))
        return Usage(35_000, there, 35_000 - there)

    monkeypatch.setattr(moves.shutil, "disk_usage", usage)
    tier = Tier(remote=f"local://{tmp_path}/bucket", keep_free_gb=0)
    return campaign.model_copy(update={"store": tier}), store


def test_twelve_partitions_go_through_a_disk_that_holds_three(small: tuple[Campaign, Store]) -> None:
    campaign, store = small
    made = {}
    with Copier(campaign, store) as copier:
        for k in range(12):
            key = f"{k:05d}"
            copier.make_way(store.root, 10_001)
            assert moves.shutil.disk_usage(store.root).free >= 10_001
            partition(store, key)
            made[key] = part(store, key, 1).read_bytes()
            copier.add(store.states(key))
    for key, data in made.items():
        fetch(part(store, key, 1))
        assert part(store, key, 1).read_bytes() == data


def test_a_copy_that_fails_is_said_when_the_run_ends_and_what_was_made_stays(small: tuple[Campaign, Store]) -> None:
    campaign, store = small
    partition(store, "00000")
    data = bytearray(part(store, "00000").read_bytes())
    data[0] ^= 1
    part(store, "00000").write_bytes(data)
    with pytest.raises(StoreError, match="a damaged file is not copied"), Copier(campaign, store) as copier:
        copier.add(store.states("00000"))
    assert part(store, "00000").exists()


def test_without_a_tier_nothing_happens(campaign: Campaign, tmp_path: Path) -> None:
    store = Store(tmp_path / "campaign")
    partition(store, "00000")
    with Copier(campaign, store) as copier:
        copier.make_way(store.root, 1 << 60)
        copier.add(store.states("00000"))
    assert remote_of(campaign) is None and not store.tier.exists()


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "not-a-url"])
def test_a_campaign_with_a_bad_remote_is_refused_by_field(tmp_path: Path, url: str) -> None:
    from eagle3_assets.campaign import CAMPAIGNS_DIR, load_campaign

    text = (CAMPAIGNS_DIR / "demo.toml").read_text() + f'\n[store]\nremote = "{url}"\n'
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(CampaignError, match=r"store\.remote"):
        load_campaign(str(tmp_path / "c.toml"))
