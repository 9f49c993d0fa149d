"""Files in the trainers' own formats: only when asked for, of a size that was confirmed, whole after any interruption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.handoff import state_files
from eagle3_assets.handoff.file_sizes import export_bytes
from eagle3_assets.handoff.mapped_rows import MappedRows
from eagle3_assets.handoff.specforge_export import export_specforge
from eagle3_assets.handoff.specforge_rows import KEYS, FeatureRow
from eagle3_assets.handoff.speculators_export import export_speculators
from eagle3_assets.handoff.state_files import LOG, file_faults, files_folder, write_state_files
from eagle3_assets_tests.handoff.answers import Place
from eagle3_assets_tests.handoff.test_exports import small_campaign, small_place

EXPORT = {"speculators": export_speculators, "specforge": export_specforge}
TRAINERS = ("speculators", "specforge")


def asking(**handoff: Any) -> Campaign:
    return small_campaign(corpus={"validation_share": 0.25}, handoff={"files": TRAINERS, "file_bytes": 10**9, **handoff})


def files_of(place: Place, trainer: Any) -> dict[str, bytes]:
    folder = files_folder(place.store, trainer)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != LOG}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_without_being_asked_for_nothing_is_written(tmp_path: Path, trainer: Any) -> None:
    place = small_place(tmp_path / "tiny")
    numbers = EXPORT[trainer](place.campaign, place.store).numbers
    assert numbers["files"] == {"files": 0, "bytes": 0, "kept": 0} and numbers["files_bytes"] == 0
    assert not files_folder(place.store, trainer).exists()


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_size_is_asked_first_and_said_in_bytes(tmp_path: Path, trainer: Any) -> None:
    place = small_place(tmp_path / "tiny", asking(file_bytes=None))
    needed = export_bytes(place.campaign, rows=24, tokens=_tokens(place), trainer=trainer)
    with pytest.raises(StoreError, match=f"none are confirmed; write handoff.file_bytes = {needed}, or leave them out") as error:
        EXPORT[trainer](place.campaign, place.store)
    assert f"{needed:,} bytes" in str(error.value)
    assert not place.store.handoff(trainer).exists() and not files_folder(place.store, trainer).exists()
    with pytest.raises(StoreError, match=f"handoff.file_bytes = {needed - 1:,} are confirmed"):
        EXPORT[trainer](asking(file_bytes=needed - 1), place.store)
    assert EXPORT[trainer](asking(file_bytes=needed), place.store).numbers["files_bytes"] == needed


def _tokens(place: Place) -> int:
    from eagle3_assets import corpus as corpora

    return sum(len(p.input_ids) for p in corpora.open(place.store.corpus))


def test_files_that_do_not_fit_on_the_disk_are_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = small_place(tmp_path / "tiny", asking())
    monkeypatch.setattr(state_files.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 5, 5))  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="5 bytes are free; free space, or leave them out"):
        export_speculators(place.campaign, place.store)
    assert not files_folder(place.store, "speculators").exists()


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_stated_size_is_the_size(tmp_path: Path, trainer: Any) -> None:
    """Within 3 % above (headers are a little shorter), and never below what is written."""
    place = small_place(tmp_path / "tiny", asking())
    numbers = EXPORT[trainer](place.campaign, place.store).numbers
    written = sum(len(content) for content in files_of(place, trainer).values())
    assert numbers["files"]["bytes"] == written <= numbers["files_bytes"] <= 1.03 * written


def test_speculators_files_hold_the_row_as_it_is_stored(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    place = small_place(tmp_path / "tiny", asking())
    export_speculators(place.campaign, place.store)
    rows = MappedRows(place.store.handoff("speculators"))
    for i in range(len(rows)):
        found = load_file(files_folder(place.store, "speculators") / f"hs_{i}.safetensors")
        assert set(found) == {"hidden_states", "token_ids"} and found["token_ids"].dtype == torch.int64
        assert torch.equal(found["hidden_states"], rows[i].hidden_states)
        assert np.array_equal(found["token_ids"].numpy(), rows[i].input_ids)


def test_specforges_files_need_nothing_of_ours_to_be_read(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny", asking())
    export_specforge(place.campaign, place.store)
    rows, folder = MappedRows(place.store.handoff("specforge")), files_folder(place.store, "specforge")
    paths = sorted(folder.rglob("*.ckpt"), key=str)
    assert {p.relative_to(folder).parts[0] for p in paths} == {"train", "validation"} and len(paths) == len(rows)
    for i, path in enumerate(paths):
        found = torch.load(path, weights_only=True)  # plain tensors: no code runs
        wanted = FeatureRow(str(rows.folder), i)
        assert set(found) == set(KEYS) and all(torch.equal(found[k], wanted[k]) and found[k].is_contiguous() for k in KEYS)
        assert path.stat().st_size < 10_000 + sum(v.nbytes for v in found.values())  # not the storage that a row is a view of


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_killed_at_any_file_the_next_run_ends_with_the_same_bytes(
    tmp_path: Path, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_place(tmp_path / "tiny", asking())
    EXPORT[trainer](place.campaign, place.store)
    wanted = files_of(place, trainer)
    whole = state_files.WRITERS[trainer]
    for survived in (0, 1, 11, 23):
        shutil.rmtree(files_folder(place.store, trainer))
        written = 0

        def dying(out: Any, rows: Any, i: int, survived: int = survived) -> None:
            nonlocal written
            if written == survived:
                raise KeyboardInterrupt
            written += 1
            whole(out, rows, i)

        monkeypatch.setitem(state_files.WRITERS, trainer, dying)
        with pytest.raises(KeyboardInterrupt):
            write_state_files(place.campaign, place.store, trainer)
        monkeypatch.setitem(state_files.WRITERS, trainer, whole)
        with (files_folder(place.store, trainer) / LOG).open("ab") as log:
            log.write(b'{"file": "hs_')  # a torn line
        assert write_state_files(place.campaign, place.store, trainer)["kept"] == survived
        assert files_of(place, trainer) == wanted


def test_a_file_that_is_there_but_not_logged_or_of_another_size_is_written_again(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny", asking())
    export_speculators(place.campaign, place.store)
    folder, wanted = files_folder(place.store, "speculators"), files_of(place, "speculators")
    lines = (folder / LOG).read_bytes().splitlines(keepends=True)
    (folder / LOG).write_bytes(b"".join(lines[:-1]))
    name = json.loads(lines[-1])["file"]
    (folder / name).write_bytes(b"torn")
    (folder / "hs_3.safetensors").write_bytes(wanted["hs_3.safetensors"][:-1])
    assert write_state_files(place.campaign, place.store, "speculators")["kept"] == 22
    assert files_of(place, "speculators") == wanted


def test_files_of_another_table_of_rows_are_cleared(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny", asking())
    export_speculators(place.campaign, place.store)
    fewer = asking(grades=("A0",))
    path = place.store.handoff("speculators") / "rows.json"
    table = json.loads(path.read_bytes())
    path.write_text(json.dumps({**table, "rows": table["rows"][:5], "datasets": table["datasets"][:5], "train_rows": 5}))
    assert "another table of rows" in file_faults(fewer, place.store, "speculators")[0]
    made = write_state_files(fewer, place.store, "speculators")
    assert made == {"files": 5, "bytes": sum(map(len, files_of(place, "speculators").values())), "kept": 0}
    assert len(files_of(place, "speculators")) == 5


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_flipped_bit_or_a_missing_file_is_found(tmp_path: Path, trainer: Any) -> None:
    place = small_place(tmp_path / "tiny", asking())
    EXPORT[trainer](place.campaign, place.store)
    assert file_faults(place.campaign, place.store, trainer) == []
    names = sorted(files_of(place, trainer))
    path = files_folder(place.store, trainer) / names[7]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    (files_folder(place.store, trainer) / names[9]).unlink()
    faults = file_faults(place.campaign, place.store, trainer)
    assert sorted(fault.partition(": ")[0] for fault in faults) == sorted(
        str(files_folder(place.store, trainer) / names[k]) for k in (7, 9)
    )
