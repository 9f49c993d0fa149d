"""Claims about the data root: atomic writes, manifests, locks, the campaign lock."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_assets import store as st
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import CampaignError, LockedError, StoreError
from eagle3_assets.store import Store


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    st.write_json(path, {"old": True})
    with pytest.raises(RuntimeError), st.atomic_file(path) as handle:
        handle.write(b"half of the new")
        raise RuntimeError("killed here")
    assert st.read_json(path) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with pytest.raises(StoreError, match=r"a\.bin: no space left on the disk"), st.atomic_file(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_is_current_only_for_its_own_inputs(tmp_path: Path) -> None:
    artifact = tmp_path / "x.parquet"
    artifact.write_bytes(b"content")
    st.commit(artifact, files=[artifact], inputs={"seed": 1, "shards": ("00", "01")}, numbers={"rows": 3})
    found = st.is_current(artifact, {"seed": 1, "shards": ("00", "01")})
    assert found is not None and found.numbers["rows"] == 3
    assert st.is_current(artifact, {"seed": 2, "shards": ("00", "01")}) is None


def test_a_truncated_file_is_not_trusted_and_named(tmp_path: Path) -> None:
    artifact = tmp_path / "x.parquet"
    artifact.write_bytes(b"content")
    st.commit(artifact, files=[artifact], inputs={})
    artifact.write_bytes(b"cont")
    assert st.is_current(artifact, {}) is None
    with pytest.raises(StoreError, match=r"x\.parquet: expected 7 bytes, found 4"):
        st.read_manifest(artifact)


def test_a_flipped_bit_is_found_by_checksum(tmp_path: Path) -> None:
    artifact = tmp_path / "x.parquet"
    artifact.write_bytes(b"content")
    st.commit(artifact, files=[artifact], inputs={})
    artifact.write_bytes(b"c0ntent")
    assert st.read_manifest(artifact) is not None  # sizes agree
    with pytest.raises(StoreError, match="checksum differs"):
        st.read_manifest(artifact, verify=True)


@pytest.mark.parametrize("text", ["[]", "5", "{}", '{"version": 1}', '{"version": 1, "files": 5, "inputs": {}, "numbers": {}, "created": 0}',
                                  '{"version": 1, "files": {"x": {"bytes": "many"}}, "inputs": {}, "numbers": {}, "created": 0}', "{"])  # fmt: skip
def test_a_manifest_that_is_not_whole_is_one_line_and_never_current(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_bytes(b"content")
    st.manifest_path(tmp_path / "x").write_text(text)
    assert st.is_current(tmp_path / "x", {}) is None
    with pytest.raises(StoreError, match=r"x\.manifest\.json: .* run the stage again"):
        st.read_manifest(tmp_path / "x")


def test_equal_bytes_have_equal_digests_whenever_they_were_written(tmp_path: Path) -> None:
    artifact = tmp_path / "x"
    digests = set()
    for inputs in ({"a": 1}, {"a": 2}):
        artifact.write_bytes(b"same")
        digests.add(st.commit(artifact, files=[artifact], inputs=inputs).digest)
    assert len(digests) == 1


def test_a_taken_lock_names_its_owner_and_does_not_wait(tmp_path: Path) -> None:
    with (
        st.FileLock(tmp_path / "l.lock", what="answers/b3 shard 03"),
        pytest.raises(LockedError, match=rf"answers/b3 shard 03 is in use by pid {os.getpid()} on "),
        st.FileLock(tmp_path / "l.lock", what="answers/b3 shard 03"),
    ):
        pass


def test_kill_dash_nine_frees_the_lock_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, signal; from pathlib import Path; from eagle3_assets.store import FileLock\n"
        "with FileLock(Path(sys.argv[1]), what='x'):\n print('held', flush=True); signal.pause()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "l.lock")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    with pytest.raises(LockedError, match=f"pid {child.pid}"), st.FileLock(tmp_path / "l.lock", what="x"):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with st.FileLock(tmp_path / "l.lock", what="x"):
        pass


def test_a_campaign_changed_under_paid_data_is_refused_with_the_difference(campaign: Campaign, store: Store) -> None:
    store.bind(campaign)
    store.bind(campaign)  # unchanged: fine
    colder = campaign.model_copy(update={"sampling": campaign.sampling.model_copy(update={"temperature": 0.6})})
    with pytest.raises(CampaignError, match=r'sampling was \{.*"temperature": 1.0.* and is now \{.*"temperature": 0.6'):
        store.bind(colder)


def test_budgets_and_concurrency_may_change_freely(campaign: Campaign, store: Store) -> None:
    store.bind(campaign)
    richer = campaign.model_copy(
        update={
            "budget": campaign.budget.model_copy(update={"campaign_usd": 5.0}),
            "collect": campaign.collect.model_copy(update={"in_flight": 3}),
        }
    )
    store.bind(richer)


def test_a_dataset_may_join_and_leave_but_not_change(campaign: Campaign, store: Store) -> None:
    first, *rest = campaign.dataset
    store.bind(campaign.model_copy(update={"dataset": (first,)}), answered=[first.name])
    store.bind(campaign, answered=[d.name for d in campaign.dataset])
    store.bind(campaign.model_copy(update={"dataset": tuple(rest)}))
    changed = first.model_copy(update={"turns": "first"})
    with pytest.raises(CampaignError, match=rf'dataset\.{first.name}\.turns was "last" .* and is now "first"'):
        store.bind(campaign.model_copy(update={"dataset": (changed, *rest)}))


def test_a_datasets_selection_is_free_until_it_is_paid_for_and_its_size_always(campaign: Campaign, store: Store) -> None:
    first, *rest = campaign.dataset
    store.bind(campaign)
    changed = campaign.model_copy(update={"dataset": (first.model_copy(update={"turns": "first"}), *rest)})
    store.bind(changed, answered=[first.name])  # nothing was bought before
    larger = first.model_copy(update={"turns": "first", "rows": 5000, "mean_tokens": 7})
    store.bind(campaign.model_copy(update={"dataset": (larger, *rest)}), answered=[first.name])
    with pytest.raises(CampaignError, match="turns was"):
        store.bind(campaign)


def test_damage_of_equal_size_feeds_no_stage(campaign: Campaign, store: Store) -> None:
    for path, made_by in ((store.wire_profiles, "wire_profiles"), (store.endpoints, "endpoints"), (store.pilot, "pilot")):
        with pytest.raises(StoreError, match=f"is missing; materialize {made_by} first"):
            st.read_committed(path, made_by=made_by)
        st.write_json(path, {"snapshot": {"price": 1}})
        st.commit(path, files=[path], inputs={})
        assert st.read_committed(path, made_by=made_by) == {"snapshot": {"price": 1}}
        path.write_bytes(path.read_bytes().replace(b"1", b"9"))
        with pytest.raises(
            StoreError, match=f"{path.name}: checksum differs from {path.name}.manifest.json; the file is damaged"
        ):
            st.read_committed(path, made_by=made_by)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", '{"fingerprint": "x"}', '{"facts": []}', "[" * 100_000])
def test_a_damaged_campaign_lock_is_never_to_be_removed(campaign: Campaign, store: Store, text: str) -> None:
    store.bind(campaign)
    lock = store.root / "campaign.lock"
    whole = lock.read_bytes()
    lock.write_text(text)
    with pytest.raises(CampaignError, match=r"campaign\.lock: .* do not remove it, restore it from a copy.* sampling ") as caught:
        store.bind(campaign)
    assert "\n" not in str(caught.value) and lock.read_text() == text
    lock.write_bytes(whole)
    store.bind(campaign)


def test_the_data_root_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EAGLE3_DATA", "~/x")
    assert st.data_root() == tmp_path / "x"


@pytest.mark.parametrize("value", ["x" * 300, "/".join(["y" * 200] * 40), "~nobody-of-that-name/x", __file__ + "/below"])
def test_a_data_root_that_no_file_system_takes_is_one_short_line(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_DATA", value)
    with pytest.raises(StoreError, match=r"^EAGLE3_DATA = .*: cannot be used \(.*\); set it to a folder") as caught:
        st.data_root()
    assert len(str(caught.value)) < 300


def test_two_writers_of_one_file_never_share_a_name_for_what_is_unfinished(tmp_path: Path) -> None:
    """Pods and hosts share the data root and not their process numbers: a pid alone would let one rename what the other half wrote."""
    assert len({st.unfinished(tmp_path / "manifest.json") for _ in range(100)}) == 100
    with st.atomic_file(tmp_path / "a.json") as first:
        first.write(b"first")
        with st.atomic_file(tmp_path / "a.json") as second:
            second.write(b"second")
    assert (tmp_path / "a.json").read_bytes() == b"first"
