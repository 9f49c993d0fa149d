"""A campaign copied to the tier and brought back to an empty disk; what the store lost is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store, commit, read_manifest, write_bytes, write_json
from eagle3_assets.tier.campaign_copy import compare, copy_all, pull, whereabouts
from eagle3_assets.tier.moves import evict
from eagle3_assets.tier.remote import Remote
from eagle3_assets_tests.tier.made import part, partition


@pytest.fixture
def world(tmp_path: Path) -> tuple[Store, Remote, list[Path]]:
    store = Store(tmp_path / "root" / "campaign")
    (tmp_path / "bucket").mkdir()
    for key in ("00000", "00001"):
        partition(store, key)
    write_bytes(store.tokens("b3", "00"), b"rows")
    commit(store.tokens("b3", "00"), files=[store.tokens("b3", "00")], inputs={})
    write_json(store.root / "campaign.lock", {"facts": {}})
    write_json(store.verdict("tokens", "b3", "00"), {"passed": True})
    items = [
        store.tokens("b3", "00"),
        *(store.states(key) for key in ("00000", "00001")),
        store.corpus,  # not made yet
    ]
    return store, Remote(f"local://{tmp_path}/bucket/campaign"), items


def everything(root: Path) -> dict[str, bytes]:
    kept = ("tier", "locks")
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.relative_to(root).parts[0] not in kept
    }


def test_a_campaign_comes_back_to_an_empty_disk_and_its_states_when_they_are_asked_for(
    world: tuple[Store, Remote, list[Path]],
) -> None:
    store, remote, items = world
    before = everything(store.root)
    assert copy_all(remote, store, items, keep_free=0) > 20_000
    shutil.rmtree(store.root)
    artifacts, fetched = pull(remote, store, keep_free=0)
    assert artifacts == 3 and fetched < 100
    back = everything(store.root)
    assert {name for name in before if name not in back} == {
        f"hidden_states/{key}/part-00{k}.safetensors" for key in ("00000", "00001") for k in (0, 1)
    }
    assert all(read_manifest(path) is not None for path in items[:3])
    pull(remote, store, keep_free=0, partitions=["00001"])
    assert part(store, "00001", 1).read_bytes() == before["hidden_states/00001/part-001.safetensors"]
    assert not part(store, "00000").exists()
    pull(remote, store, keep_free=0, partitions=["all"])
    assert everything(store.root) == before


def test_a_second_copy_sends_nothing(world: tuple[Store, Remote, list[Path]]) -> None:
    store, remote, items = world
    copy_all(remote, store, items, keep_free=0)
    assert copy_all(remote, store, items, keep_free=0) == 0


def test_where_says_here_both_and_tier(world: tuple[Store, Remote, list[Path]]) -> None:
    store, remote, items = world
    assert [w.where for w in whereabouts(store, items)] == ["here"] * 3
    copy_all(remote, store, items, keep_free=0)
    evict(store.root, store.states("00001"))
    assert [w.where for w in whereabouts(store, items)] == ["both", "both", "partly here"]


def test_what_the_store_lost_or_changed_is_named_one_line_each(world: tuple[Store, Remote, list[Path]], tmp_path: Path) -> None:
    store, remote, items = world
    copy_all(remote, store, items, keep_free=0)
    assert list(compare(store, items)) == []
    bucket = tmp_path / "bucket/campaign/hidden_states"
    (bucket / "00000/part-000.safetensors").unlink()
    data = bytearray((bucket / "00001/part-001.safetensors").read_bytes())
    data[3] ^= 1
    (bucket / "00001/part-001.safetensors").write_bytes(data)
    evict(store.root, store.states("00001"))
    lines = list(compare(store, items))
    assert len(lines) == 2
    assert "00000/part-000.safetensors" in lines[0] and "copy it again" in lines[0]
    assert "00001/part-001.safetensors" in lines[1] and "materialize it again" in lines[1]


def test_a_commit_that_is_here_is_left_alone(world: tuple[Store, Remote, list[Path]]) -> None:
    store, remote, items = world
    copy_all(remote, store, items, keep_free=0)
    shutil.rmtree(store.states("00000"))
    again = partition(store, "00000", size=9_000)
    pull(remote, store, keep_free=0)
    assert read_manifest(store.states("00000")) == again


def test_an_empty_remote_and_an_unknown_partition_are_one_line(world: tuple[Store, Remote, list[Path]], tmp_path: Path) -> None:
    store, remote, items = world
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no campaign"):
        pull(Remote(f"local://{tmp_path}/empty"), store, keep_free=0)
    copy_all(remote, store, items, keep_free=0)
    with pytest.raises(StoreError, match=r"no partition 00009; it holds 00000, 00001"):
        pull(remote, store, keep_free=0, partitions=["00009"])
