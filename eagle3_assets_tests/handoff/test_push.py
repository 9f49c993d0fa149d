"""`eagle3 push`: a dry run by default, resumable by checksum, never a secret, never something that its checks did not pass."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from eagle3_assets import states
from eagle3_assets.cli import main as cli
from eagle3_assets.errors import StoreError
from eagle3_assets.handoff import push as pushing
from eagle3_assets.handoff.push import RECORD, parcels_of, plan_push, push
from eagle3_assets.handoff.speculators_export import export_speculators
from eagle3_assets.handoff.tokens import export_tokens
from eagle3_assets.store import commit, read_manifest
from eagle3_assets_tests.handoff.answers import Place
from eagle3_assets_tests.handoff.test_exports import small_place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = small_place(tmp_path / "data" / "tiny")
    export_tokens(place.campaign, place.store)
    export_speculators(place.campaign, place.store)
    return place


@pytest.fixture(params=["memory", "file"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield f"memory://push-{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/out/side"


def there(destination: str) -> dict[str, bytes]:
    """Every file at the destination, by its relative name."""
    fs, root = fsspec.core.url_to_fs(destination)
    root = root.rstrip("/")
    return {name[len(root) + 1 :]: fs.cat(name) for name in fs.find(root)} if fs.exists(root) else {}


def tokens(place: Place) -> list[Any]:
    return parcels_of(place.store, [read_manifest(place.store.handoff_tokens)], flat=True)  # type: ignore[list-item]


def test_planning_writes_nothing(place: Place, destination: str) -> None:
    plan = plan_push(destination, tokens(place), place.store)
    assert {p.name for p in plan.to_send} == {"README.md", "tokens.jsonl", "validation.jsonl.gz"} and not plan.there
    assert plan.bytes_to_send == sum(p.stat().st_size for p in place.store.handoff_tokens.iterdir())
    assert there(destination) == {} and plan.credentials == "none needed"


def test_what_is_sent_is_what_lies_here_with_the_card_on_top(place: Place, destination: str) -> None:
    plan = plan_push(destination, tokens(place), place.store)
    assert push(plan, place.store) == plan.bytes_to_send
    found = there(destination)
    record = json.loads(found.pop(RECORD))
    assert found == {p.name: p.read_bytes() for p in place.store.handoff_tokens.iterdir()}
    assert set(record["files"]) == set(found)


def test_pushing_again_sends_only_what_changed(place: Place, destination: str) -> None:
    push(plan_push(destination, tokens(place), place.store), place.store)
    again = plan_push(destination, tokens(place), place.store)
    assert again.to_send == () and len(again.there) == 3 and push(again, place.store) == 0
    changed = place.campaign.model_copy(update={"handoff": place.campaign.handoff.model_copy(update={"grades": ("B1", "A0")})})
    export_tokens(changed, place.store)  # another card, the same rows
    plan = plan_push(destination, tokens(place), place.store)
    assert [p.name for p in plan.to_send] == ["README.md"]
    push(plan, place.store)
    assert there(destination)["README.md"] == (place.store.handoff_tokens / "README.md").read_bytes()


def test_an_interrupted_push_goes_on_where_it_stopped(place: Place, destination: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parcels = parcels_of(place.store, [read_manifest(place.store.handoff("speculators"))], flat=False)  # type: ignore[list-item]
    assert len(parcels) >= 8 and parcels[-1].name == "handoff/speculators.manifest.json"
    whole, sent = pushing._send, []

    def dying(fs: Any, remote: str, parcel: Any, *rest: Any) -> None:
        if len(sent) == 4:
            raise KeyboardInterrupt
        sent.append(parcel.name)
        whole(fs, remote, parcel, *rest)

    monkeypatch.setattr(pushing, "_send", dying)
    with pytest.raises(KeyboardInterrupt):
        push(plan_push(destination, parcels, place.store), place.store)
    monkeypatch.setattr(pushing, "_send", whole)
    rest = plan_push(destination, parcels, place.store)
    assert [p.name for p in rest.there] == sent and len(rest.to_send) == len(parcels) - 4
    push(rest, place.store)
    found = there(destination)
    assert {p.name: p.path.read_bytes() for p in parcels} == {name: content for name, content in found.items() if name != RECORD}


def test_several_artifacts_keep_their_places_and_their_manifests_come_last(place: Place, destination: str) -> None:
    manifests = [read_manifest(place.store.handoff_tokens), read_manifest(place.store.handoff("speculators"))]
    parcels = parcels_of(place.store, manifests, flat=False)  # type: ignore[arg-type]
    names = [p.name for p in parcels]
    assert "handoff/tokens/tokens.jsonl" in names and "handoff/speculators/rows.json" in names
    assert all(name.endswith(".manifest.json") for name in names[-2:])
    with pytest.raises(StoreError, match=r"two files would both be sent as README.md; push one artifact at a time"):
        parcels_of(place.store, manifests, flat=True)  # type: ignore[arg-type]


def test_states_are_sent_with_their_records_so_that_they_can_be_opened_there(place: Place, tmp_path: Path) -> None:
    shards = [key.name for key in sorted(place.store.hidden_states.iterdir()) if key.is_dir()]
    manifests = [read_manifest(place.store.states(shard)) for shard in shards]
    destination = f"file://{tmp_path}/there"
    push(plan_push(destination, parcels_of(place.store, manifests, flat=False), place.store), place.store)  # type: ignore[arg-type]
    for shard in shards:
        here, sent = states.open(place.store.states(shard)), states.open(tmp_path / "there" / "hidden_states" / shard)
        assert [r.sample_id for r in sent] == [r.sample_id for r in here] and (sent[0].raw == here[0].raw).all()


def test_a_file_that_is_not_what_its_manifest_says_is_not_recorded(place: Place, destination: str) -> None:
    path = place.store.handoff_tokens / "tokens.jsonl"
    parcels = tokens(place)
    path.write_bytes(path.read_bytes().replace(b"B1", b"A0", 1))  # same size, other content
    with pytest.raises(StoreError, match=r"tokens.jsonl: is not what its manifest says"):
        push(plan_push(destination, parcels, place.store), place.store)
    assert "tokens.jsonl" not in json.loads(there(destination)[RECORD])["files"]
    assert "tokens.jsonl" in {p.name for p in plan_push(destination, parcels, place.store).to_send}


def test_a_destination_that_refuses_is_one_line_without_secrets(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def open(self, *_: Any) -> None:
            raise PermissionError(
                "403 for https://hub/x?X-Amz-Signature=abcdef with token hf_abcdefghijklmnop and AKIAABCDEFGHIJKLMNOP"
            )

        def makedirs(self, *_: Any, **__: Any) -> None:
            pass

    monkeypatch.setattr(pushing, "_filesystem", lambda _: (Refusing(), "x"))
    with pytest.raises(StoreError) as error:
        plan_push("memory://refused", tokens(place), place.store)
    said = str(error.value)
    assert said.startswith("memory://refused: cannot be read (403 for https://hub/x*** with token ***") and "\n" not in said
    assert "abcdef" not in said and "AKIA" not in said


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://AKIAKEYKEYKEYKEY:secret@bucket/x", "credentials before an @"),
        ("/tmp/x", "is no address that can be pushed to"),
        ("s3://bucket/x?sig=secretsecret", "a query behind a"),
        ("AKIAKEYKEYKEYKEY", "is no address that can be pushed to"),
        ("ftp://host/x", "is no address that can be pushed to"),
        ("file://tmp/x", "three slashes: file:///tmp/x"),
    ],
)
def test_impossible_destinations_are_refused_in_one_line(place: Place, address: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as error:
        plan_push(address, tokens(place), place.store)
    assert "secret" not in str(error.value) and "AKIA" not in str(error.value)


def test_a_missing_package_and_the_data_root_itself_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="lies inside the data root"):
        plan_push(f"file://{place.store.root}/out", tokens(place), place.store)
    monkeypatch.setattr(pushing.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StoreError, match="needs the package s3fs; pip install s3fs"):
        plan_push("s3://bucket/x", tokens(place), place.store)


def test_credentials_are_told_by_name_only(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    plan = plan_push("hf://datasets/nobody/nothing", tokens(place), place.store)  # no token: the hub is not asked
    assert plan.credentials == "none of HF_TOKEN, ~/.cache/huggingface/token is there" and len(plan.to_send) == 3
    with pytest.raises(StoreError, match="no credentials: none of HF_TOKEN"):
        push(plan, place.store)
    monkeypatch.setenv("HF_TOKEN", "hf_verysecretverysecret")
    assert pushing.credentials_line(pushing.PROTOCOLS["hf"]) == (True, "found HF_TOKEN")


# ---------------------------------------------------------------------------------------------------- the command
@pytest.fixture
def command(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The command over this place: its campaign, its data root, and a gate that lets everything pass."""
    from eagle3_assets.cli import push as face

    monkeypatch.setenv("EAGLE3_DATA", str(place.store.root.parent))
    monkeypatch.setattr(face, "load_campaign", lambda: place.campaign)
    for name in ("require", "require_current"):
        monkeypatch.setattr(face.gate, name, lambda *_, **__: None)
    return place


@pytest.mark.slow
def test_the_command_is_a_dry_run_unless_told(command: Place, destination: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["push", destination]) == 0
    said = capsys.readouterr().out
    assert "tokens.jsonl" in said and destination in said and "nothing was sent: this was a dry run; add --yes to send" in said
    assert there(destination) == {}
    assert cli.run(["push", destination, "--yes"]) == 0
    assert "files, " in capsys.readouterr().out and "tokens.jsonl" in there(destination)
    assert cli.run(["push", destination, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["to_send"] == [] and len(listed["there"]) == 3 and listed["bytes"] == 0


def test_the_command_refuses_an_unknown_artifact_and_one_that_is_not_there(
    command: Place, destination: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["push", destination, "--what", "answers"]) == 2
    assert "is not one of" in capsys.readouterr().err
    assert cli.run(["push", destination, "--what", "handoff/specforge"]) == 1
    assert "materialize handoff/specforge first" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_outdated_or_failed_its_checks_is_not_sent(
    place: Place, destination: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from eagle3_assets.cli import push as face

    monkeypatch.setenv("EAGLE3_DATA", str(place.store.root.parent))
    monkeypatch.setattr(face, "load_campaign", lambda: place.campaign)
    assert cli.run(["push", destination, "--yes"]) == 1  # committed by hand: made from other inputs than the flow's
    assert "handoff/tokens is outdated" in capsys.readouterr().err and there(destination) == {}


# ---------------------------------------------------------------------------------------------------- what lies there already
def test_a_file_that_was_removed_or_cut_there_is_sent_again(place: Place, tmp_path: Path) -> None:
    destination, out = f"file://{tmp_path}/out", tmp_path / "out"
    push(plan_push(destination, tokens(place), place.store), place.store)
    (out / "README.md").unlink()
    (out / "tokens.jsonl").write_bytes(b"cut")
    plan = plan_push(destination, tokens(place), place.store)
    assert [p.name for p in plan.to_send] == ["README.md", "tokens.jsonl"] and len(plan.there) == 1
    push(plan, place.store)
    assert (out / "tokens.jsonl").read_bytes() == (place.store.handoff_tokens / "tokens.jsonl").read_bytes()


def test_somebodys_own_file_and_what_an_older_push_left_are_named_first(
    command: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("mine")
    assert cli.run(["push", f"file://{tmp_path}/out"]) == 0
    assert "1 files that no push of ours sent lie there and would be overwritten: README.md" in capsys.readouterr().out
    assert cli.run(["push", f"file://{tmp_path}/out", "--yes"]) == 0
    (command.store.handoff_tokens / "validation.jsonl.gz").unlink()  # the split was given up: rows train that validated before
    commit(command.store.handoff_tokens, files=list(command.store.handoff_tokens.iterdir()), inputs={})
    assert cli.run(["push", f"file://{tmp_path}/out"]) == 0
    said = capsys.readouterr().out
    assert "1 files of earlier pushes stay there beside these" in said and "validation.jsonl.gz" in said


def test_another_campaigns_folder_is_no_destination(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "data" / "other"
    (other / "corpus").mkdir(parents=True)
    (other / "campaign.lock").write_text("{}")
    for address in (f"file://{other}", f"file://{other}/corpus"):
        with pytest.raises(StoreError, match="lies inside the campaign folder"):
            plan_push(address, tokens(place), place.store)
