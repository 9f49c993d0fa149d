"""Artifacts in the tier: proven before anything leaves the disk, fetched once, never believed without a checksum."""

from __future__ import annotations

import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store, read_manifest, write_json
from eagle3_assets.tier import moves, remote
from eagle3_assets.tier.moves import evict, fetch, is_uploaded, make_room, upload
from eagle3_assets.tier.place import is_elsewhere, place_of, read_place
from eagle3_assets.tier.remote import Remote, check_url, local_etags
from eagle3_assets_tests.tier.made import part, partition

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.0)


@pytest.fixture
def bucket(tmp_path: Path) -> Remote:
    """A remote on another folder of this disk, through the same fsspec calls."""
    (tmp_path / "bucket").mkdir()
    return Remote(f"local://{tmp_path}/bucket/campaign")


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "root" / "campaign")


def test_what_is_copied_is_in_the_store_byte_for_byte_and_its_commit_comes_last(
    here: Store, bucket: Remote, tmp_path: Path
) -> None:
    manifest = partition(here, "00000")
    seen: list[str] = []
    put, put_bytes = bucket.put, bucket.put_bytes
    bucket.put = lambda path, name, xxh3: (seen.append(name), put(path, name, xxh3))[1]  # type: ignore[method-assign]
    bucket.put_bytes = lambda name, data: (seen.append(name), put_bytes(name, data))[1]  # type: ignore[method-assign,func-returns-value]
    upload(bucket, here.root, here.states("00000"))
    assert seen == [*(f"hidden_states/{name}" for name in manifest.files), "hidden_states/00000.manifest.json"]
    for name in manifest.files:
        assert (tmp_path / "bucket/campaign/hidden_states" / name).read_bytes() == (here.hidden_states / name).read_bytes()
    assert is_uploaded(here.root, here.states("00000"), manifest)


def test_only_proven_parts_leave_the_disk_and_the_commit_is_still_believed(here: Store, bucket: Remote) -> None:
    manifest = partition(here, "00000")
    assert evict(here.root, here.states("00000")) == 0  # nothing was copied: nothing may go
    upload(bucket, here.root, here.states("00000"))
    assert evict(here.root, here.states("00000")) == 10_001
    assert sorted(p.name for p in here.states("00000").iterdir()) == ["manifest.json"]
    assert read_manifest(here.states("00000")) == manifest
    (here.states("00000") / "manifest.json").unlink()
    assert is_elsewhere(here.states("00000") / "manifest.json", manifest.files["00000/manifest.json"])


def test_a_file_that_is_gone_and_in_no_tier_is_still_damage(here: Store, bucket: Remote) -> None:
    partition(here, "00000")
    part(here, "00000").unlink()
    with pytest.raises(StoreError, match="no file"):
        read_manifest(here.states("00000"))
    with pytest.raises(StoreError, match="no remote tier holds it"):
        fetch(part(here, "00000"))


def test_a_record_of_other_bytes_proves_nothing(here: Store, bucket: Remote) -> None:
    partition(here, "00000")
    upload(bucket, here.root, here.states("00000"))
    part(here, "00000").write_bytes(b"made again")
    shutil.rmtree(here.states("00000"))
    manifest = partition(here, "00000", size=7_000)
    assert not is_uploaded(here.root, here.states("00000"), manifest)
    assert evict(here.root, here.states("00000")) == 0
    part(here, "00000").unlink()
    with pytest.raises(StoreError, match="no file"):
        read_manifest(here.states("00000"))


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}', '{"version": 1, "url": "x", "files": [1]}', "[]"])
def test_a_record_that_cannot_be_read_is_not_believed(here: Store, bucket: Remote, text: str) -> None:
    partition(here, "00000")
    place = upload(bucket, here.root, here.states("00000"))
    place.record.write_text(text)
    assert read_place(here.root, here.states("00000")) is None
    assert evict(here.root, here.states("00000")) == 0


def test_a_part_comes_back_when_it_is_asked_for_and_a_damaged_copy_does_not(here: Store, bucket: Remote, tmp_path: Path) -> None:
    partition(here, "00000")
    before = part(here, "00000").read_bytes()
    upload(bucket, here.root, here.states("00000"))
    evict(here.root, here.states("00000"))
    fetch(part(here, "00000"))
    assert part(here, "00000").read_bytes() == before
    copy = tmp_path / "bucket/campaign/hidden_states/00000/part-001.safetensors"
    data = bytearray(copy.read_bytes())
    data[17] ^= 1
    copy.write_bytes(data)
    with pytest.raises(StoreError, match="checksum is not that of part-001"):
        fetch(part(here, "00000", 1))
    assert not part(here, "00000", 1).exists()
    assert not list(here.states("00000").glob(".*.tmp"))


def test_a_cut_object_is_said_not_stored(here: Store, bucket: Remote, tmp_path: Path) -> None:
    partition(here, "00000")
    upload(bucket, here.root, here.states("00000"))
    evict(here.root, here.states("00000"))
    copy = tmp_path / "bucket/campaign/hidden_states/00000/part-000.safetensors"
    copy.write_bytes(copy.read_bytes()[:-100])
    with pytest.raises(StoreError, match=r"cannot be read after 5 tries"):
        fetch(part(here, "00000"))
    assert not part(here, "00000").exists()


def test_an_upload_that_arrives_damaged_is_sent_again_and_then_given_up(here: Store, bucket: Remote) -> None:
    partition(here, "00000", parts=1)
    sent = []

    def damaged(local: str, url: str, **options: object) -> None:
        sent.append(url)
        target = Path(url.removeprefix("local://"))
        target.parent.mkdir(parents=True, exist_ok=True)
        data = bytearray(Path(local).read_bytes())
        if len(sent) < limit and data:
            data[0] ^= 1
        target.write_bytes(data)

    bucket._fs.put_file, before = damaged, bucket._fs.put_file
    try:
        limit = 99
        with pytest.raises(StoreError, match="is not what was sent"):
            upload(bucket, here.root, here.states("00000"))
        assert len(sent) == 2
        assert read_place(here.root, here.states("00000")) is None
        assert evict(here.root, here.states("00000")) == 0
        sent.clear()
        limit = 2
        upload(bucket, here.root, here.states("00000"))
        assert evict(here.root, here.states("00000")) == 5_000
    finally:
        bucket._fs.put_file = before


def test_a_damaged_local_file_is_never_copied(here: Store, bucket: Remote) -> None:
    partition(here, "00000")
    data = bytearray(part(here, "00000").read_bytes())
    data[9] ^= 1
    part(here, "00000").write_bytes(data)
    with pytest.raises(StoreError, match="checksum differs"):
        upload(bucket, here.root, here.states("00000"))


def test_what_is_there_already_is_not_sent_again(here: Store, bucket: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    partition(here, "00000")
    upload(bucket, here.root, here.states("00000"))
    monkeypatch.setattr(bucket._fs, "put_file", lambda *a, **k: pytest.fail("sent again"))
    upload(bucket, here.root, here.states("00000"))
    first = read_place(here.root, here.states("00000"))
    assert first is not None
    first.record.unlink()
    # without the record the store is asked, and read where it names no checksum
    upload(bucket, here.root, here.states("00000"))


def test_room_is_made_of_the_parts_that_were_used_longest_ago(
    here: Store, bucket: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    for at, key in enumerate(("00001", "00000", "00002")):
        partition(here, key, parts=1, size=1_000)
        upload(bucket, here.root, here.states(key), keep_free=500)
        os.utime(part(here, key), (1_000 + at, 1_000 + at))

    def usage(path: Path) -> Usage:
        there = sum(1_000 for key in ("00000", "00001", "00002") if part(here, key).exists())
        return Usage(4_000, there, 4_000 - there)

    monkeypatch.setattr(moves.shutil, "disk_usage", usage)
    assert make_room(here.hidden_states, 300) == 500
    assert all(part(here, key).exists() for key in ("00000", "00001", "00002"))
    assert make_room(here.hidden_states, 600) == 1_500
    assert [part(here, key).exists() for key in ("00001", "00000", "00002")] == [False, True, True]
    assert make_room(here.root, 1_600) == 2_500  # the root itself asks as well as a folder below it
    assert make_room(here.hidden_states, 9_000) == 3_500  # all that may go is gone, and the rest is said by who asked


def test_two_readers_of_one_part_fetch_it_once(here: Store, bucket: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    partition(here, "00000", parts=1)
    upload(bucket, here.root, here.states("00000"))
    evict(here.root, here.states("00000"))
    got, get = [], Remote.get
    begun = threading.Barrier(2)

    def counted(self: Remote, name: str, path: Path, size: int, xxh3: str) -> None:
        got.append(name)
        get(self, name, path, size, xxh3)

    monkeypatch.setattr(Remote, "get", counted)

    def read() -> None:
        begun.wait()
        fetch(part(here, "00000"))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["00000/part-000.safetensors"]


def test_a_store_that_fails_for_a_while_is_asked_again(here: Store, bucket: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    partition(here, "00000", parts=1)
    tries, put = [], bucket._fs.put_file

    def shaky(local: str, url: str, **options: object) -> None:
        tries.append(url)
        if len(tries) % 3:
            raise ConnectionResetError("reset by peer")
        put(local, url, auto_mkdir=True)

    monkeypatch.setattr(bucket._fs, "put_file", shaky)
    upload(bucket, here.root, here.states("00000"))
    assert len(tries) == 6  # two files


def test_a_path_outside_any_root_has_no_place(tmp_path: Path) -> None:
    assert place_of(tmp_path / "anything.bin") is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://AKIAKEY:secret@bucket/x", "holds a credential"),
        ("bucket/x", "scheme://bucket"),
        ("s3://", "scheme://bucket"),
        ("s3://bucket/x?token=1", "holds a credential"),
    ],
)
def test_a_url_that_cannot_be_a_tier_is_refused_without_showing_a_secret(url: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


def test_a_scheme_that_nothing_speaks_names_the_package() -> None:
    with pytest.raises(StoreError, match="nothing here speaks nonsense://"):
        Remote("nonsense://bucket/x")


def test_the_etags_are_those_of_one_put_and_of_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of two parts: md5 of the two digests, and the number (Amazon S3 User Guide)."""
    import hashlib

    monkeypatch.setattr(remote, "PART_BYTES", 10)
    for size, parts in ((0, 0), (5, 1), (10, 1), (25, 3)):
        data = bytes(range(size))
        (tmp_path / "f").write_bytes(data)
        many = hashlib.md5(b"".join(hashlib.md5(data[k : k + 10]).digest() for k in range(0, size, 10))).hexdigest()
        assert local_etags(tmp_path / "f") == {hashlib.md5(data).hexdigest(), f"{many}-{parts}"}


def test_a_record_is_beside_the_artifacts_and_no_artifact(here: Store, bucket: Remote) -> None:
    partition(here, "00000")
    place = upload(bucket, here.root, here.states("00000"))
    assert place.record == here.root / "tier" / "hidden_states" / "00000.json"
    write_json(here.root / "plan.json", {})
    assert place_of(here.root / "plan.json") is None
