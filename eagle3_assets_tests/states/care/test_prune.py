"""What may go is shown with its bytes; what goes is inside the campaign's own folder; a link is never followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle3_assets import states as states_room
from eagle3_assets.errors import LockedError, StateError
from eagle3_assets.states.care.prune import Candidate, find_candidates, partition_lock, remove
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store, manifest_path
from eagle3_assets_tests.states.conftest import CampaignMaker, FormulaEngine, make_packs

KEYS = ("00000", "00001", "00002")


@pytest.fixture
def full(make_campaign: CampaignMaker, store: Store) -> Store:
    for key in KEYS:
        write_partition(make_campaign(), store, key, make_packs((20, 35, 50)), FormulaEngine())
    return store


def size(store: Store, key: str) -> int:
    files = [f for f in store.states(key).rglob("*") if f.is_file()]
    return sum(f.stat().st_size for f in [*files, manifest_path(store.states(key))])


def names(candidates: list[Candidate]) -> dict[str, str]:
    return {c.path.name: c.why for c in candidates}


def test_outdated_orphaned_and_stray_things_are_found_with_their_bytes(full: Store) -> None:
    manifest_path(full.states("00002")).unlink()
    (full.hidden_states / "notes.txt").write_text("x")
    found = find_candidates(full, wanted=["00001", "00002"], current=[])
    assert names(found) == {"00000": "not in the corpus", "00001": "outdated", "notes.txt": "stray file"}
    assert {c.path.name: c.bytes for c in found} == {"00000": size(full, "00000"), "00001": size(full, "00001"), "notes.txt": 1}
    assert names(find_candidates(full, wanted=KEYS, current=KEYS)) == {"notes.txt": "stray file"}
    assert names(find_candidates(full, wanted=KEYS, current=KEYS, unfinished=True))["00002"] == "unfinished"
    assert names(find_candidates(full, wanted=KEYS, current=KEYS, asked=["00001"]))["00001"] == "asked for"
    with pytest.raises(StateError, match="holds no partition 00009"):
        find_candidates(full, wanted=KEYS, current=KEYS, asked=["00009"])
    with pytest.raises(StateError, match=r"holds no partition \.\./x"):
        find_candidates(full, wanted=KEYS, current=KEYS, asked=["../x"])


def test_removing_gives_the_bytes_back_and_leaves_the_others(full: Store) -> None:
    found = find_candidates(full, wanted=["00001", "00002"], current=KEYS)
    assert remove(full, found) == found[0].bytes
    assert not full.states("00000").exists()
    assert not manifest_path(full.states("00000")).exists()
    assert len(states_room.open(full.states("00001"))) == 3


def test_a_partition_that_a_run_made_anew_meanwhile_stays(full: Store, make_campaign: CampaignMaker) -> None:
    found = find_candidates(full, wanted=KEYS, current=["00001", "00002"])
    assert names(found) == {"00000": "outdated"}
    write_partition(make_campaign(), full, "00000", make_packs((20, 35, 51)), FormulaEngine())
    with pytest.raises(StateError, match="made anew since it was called outdated"):
        remove(full, found)
    assert len(states_room.open(full.states("00000"))) == 3


def test_an_archive_holds_a_partition_that_opens_and_verifies(full: Store, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    remove(full, find_candidates(full, wanted=["00001", "00002"], current=KEYS), archive=cold)
    assert not full.states("00000").exists()
    assert len(states_room.open(cold / "00000")) == 3
    assert manifest_path(cold / "00000").is_file()
    again = find_candidates(full, wanted=["00000", "00002"], current=KEYS)
    (cold / "00001").mkdir()
    with pytest.raises(StateError, match=r"cold/00001: is there already"):
        remove(full, again, archive=cold)
    assert full.states("00001").exists()
    with pytest.raises(StateError, match=r"lies inside"):
        remove(full, again, archive=full.root / "archive")


def test_a_link_goes_as_a_link_and_nothing_behind_it_is_touched(full: Store, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("x" * 1000)
    (full.hidden_states / "00009").symlink_to(treasure)
    (full.states("00000") / "inside").symlink_to(treasure)
    found = find_candidates(full, wanted=["00001", "00002"], current=KEYS)
    assert names(found) == {"00000": "not in the corpus", "00009": "link"}
    assert sum(c.bytes for c in found) == size(full, "00000") - 1000 * 0, "what a link points to is not counted"
    remove(full, found)
    assert (treasure / "gold").read_text() == "x" * 1000
    assert not os.path.lexists(full.hidden_states / "00009")


def test_nothing_outside_the_folder_of_states_is_ever_removed(full: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for path in (outside, full.root, full.hidden_states, full.hidden_states / "..", full.states("00000") / "part-000.json"):
        with pytest.raises(StateError, match="nothing outside is ever removed"):
            remove(full, [Candidate(path, "asked for", 1)])
    assert outside.exists()
    assert (full.states("00000") / "part-000.json").exists()


def test_a_folder_of_states_that_is_a_link_is_refused(full: Store, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    full.hidden_states.rename(real)
    full.hidden_states.symlink_to(real)
    with pytest.raises(StateError, match="is reached through a symbolic link"):
        find_candidates(full, wanted=[], current=[])
    with pytest.raises(StateError, match="nothing outside is ever removed"):
        remove(full, [Candidate(full.hidden_states / "00000", "asked for", 1)])
    assert (real / "00000").exists()


def test_a_partition_that_is_being_written_is_not_removed(full: Store) -> None:
    found = find_candidates(full, wanted=["00001", "00002"], current=KEYS)
    with partition_lock(full, "00000"), pytest.raises(LockedError, match="hidden_states partition 00000 is in use by pid"):
        remove(full, found)
    assert len(states_room.open(full.states("00000"))) == 3
