"""What lies on disk is judged by reading all of it: each kind of damage is found, named, and blamed on the right check."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.states.care.verify_states import judge_states, verify_partition
from eagle3_assets.states.format import part as part_module
from eagle3_assets.states.format.part import read_header, read_record
from eagle3_assets.states.partition import write_partition
from eagle3_assets.states.reader import map_part
from eagle3_assets.states.reader import open as open_states
from eagle3_assets.store import Store, digest_file, manifest_path, read_manifest
from eagle3_assets_tests.states.conftest import CampaignMaker, FormulaEngine, make_packs

SHARD = "00000"


@pytest.fixture(params=["float32", "bfloat16"])
def campaign(make_campaign: CampaignMaker, request: pytest.FixtureRequest) -> Campaign:
    return make_campaign(dtype=request.param)


@pytest.fixture
def packs(campaign: Campaign, store: Store) -> list[Pack]:
    packs = make_packs((20, 35, 50, 18, 60, 33, 47, 70, 64, 71))
    write_partition(campaign, store, SHARD, packs, FormulaEngine(stored_dtype=getattr(torch, campaign.extraction.dtype)))
    return packs


def judged(campaign: Campaign, store: Store, packs: list[Pack]) -> dict[str, Verdict]:
    return {v.check: v for v in judge_states(campaign, store, SHARD, packs)}


def failed(campaign: Campaign, store: Store, packs: list[Pack]) -> dict[str, str]:
    return {name: v.message for name, v in judged(campaign, store, packs).items() if not v.passed}


def edit_manifest(store: Store, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    path = store.states(SHARD) / "manifest.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    recommit(store)


def recommit(store: Store) -> None:
    """The commit beside the folder over the files as they are now."""
    path = manifest_path(store.states(SHARD))
    raw = json.loads(path.read_text())
    for name, facts in raw["files"].items():
        file = path.parent / name
        facts.update(bytes=file.stat().st_size, xxh3=digest_file(file))
    path.write_text(json.dumps(raw))


def reseal(store: Store, part: Path) -> None:
    """Make record and manifest agree with a part that was changed on purpose: what a buggy writer would have committed."""
    record = json.loads(part.with_suffix(".json").read_text())
    record["xxh3"] = digest_file(part)
    part.with_suffix(".json").write_text(json.dumps(record))

    def change(raw: dict) -> None:  # type: ignore[type-arg]
        for facts in raw["parts"]:
            if facts["file"] == part.name:
                facts["xxh3"] = record["xxh3"]

    edit_manifest(store, change)


def patch(part: Path, name: str, index: tuple[int, ...], value: bytes) -> None:
    """Overwrite one element of one tensor in the file."""
    tensors, _, start = read_header(part)
    tensor = tensors[name]
    flat = int(np.ravel_multi_index(index, tensor.shape)) * len(value)
    with part.open("r+b") as handle:
        handle.seek(start + tensor.start + flat)
        handle.write(value)


def test_a_sound_partition_passes_all_three_checks_of_the_table(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    verdicts = judged(campaign, store, packs)
    assert list(verdicts) == ["states_match_rows", "finite", "layer_self_test"]
    assert set(verdicts) <= {c.name for c in CHECKS["hidden_states"]}
    assert all(v.passed and v.severity == "ERROR" and v.blocking for v in verdicts.values())
    assert verdicts["states_match_rows"].numbers["rows"] == len(packs)
    assert verdicts["states_match_rows"].numbers["tokens"] == sum(len(p.input_ids) for p in packs)
    assert verdicts["layer_self_test"].numbers["self_test"]["passed"] is True
    problems, seen = verify_partition(campaign, store, SHARD)
    assert problems == []
    assert seen["parts"] >= 2


@pytest.mark.parametrize("where", [0.0, 0.001, 0.3, 0.7, 1.0])
def test_one_flipped_bit_anywhere_is_found_and_its_part_named(
    campaign: Campaign, store: Store, packs: list[Pack], where: float
) -> None:
    part = store.states(SHARD) / "part-001.safetensors"
    data = bytearray(part.read_bytes())
    data[int(where * (len(data) - 1))] ^= 0x10
    part.write_bytes(data)
    problems, _ = verify_partition(campaign, store, SHARD)
    assert problems
    assert {p.part for p in problems} == {"part-001.safetensors"}
    assert "part-001.safetensors" in failed(campaign, store, packs)["states_match_rows"]
    assert judged(campaign, store, packs)["states_match_rows"].numbers["parts_with_problems"] == ["part-001.safetensors"]


@pytest.mark.parametrize("compress", ["none", "lossless"])
def test_any_bit_of_any_file_is_found_and_its_file_named(make_campaign: CampaignMaker, store: Store, compress: str) -> None:
    """Bits drawn at random over parts, records, norm and manifest: what is not the content (white space of JSON) may pass."""
    campaign, rng = make_campaign(more=f'compress = "{compress}"\n'), random.Random(3)
    packs = make_packs((20, 35, 50, 18, 60, 33))
    write_partition(campaign, store, SHARD, packs, FormulaEngine())
    files = sorted(store.states(SHARD).iterdir())
    assert len(files) >= 6
    for _ in range(40):
        file = rng.choice(files)
        before = file.read_bytes()
        changed = bytearray(before)
        changed[rng.randrange(len(before))] ^= 1 << rng.randrange(8)
        if file.suffix == ".json" and file.name != "manifest.json" and _same_json(before, bytes(changed)):
            continue
        file.write_bytes(changed)
        problems, _ = verify_partition(campaign, store, SHARD, packs)
        assert problems, file.name
        assert any(file.stem in p.message for p in problems), (file.name, [p.message for p in problems])
        file.write_bytes(before)
    assert verify_partition(campaign, store, SHARD, packs)[0] == []


def _same_json(before: bytes, after: bytes) -> bool:
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_fails_finite_and_names_the_row(
    campaign: Campaign, store: Store, packs: list[Pack], value: float
) -> None:
    part = store.states(SHARD) / "part-001.safetensors"
    bits = torch.tensor([value], dtype=getattr(torch, campaign.extraction.dtype)).view(torch.uint8).numpy().tobytes()
    patch(part, "hidden_states", (3, 3, 9), bits)
    reseal(store, part)
    row = read_record(part.with_suffix(".json")).rows[0]
    verdicts = judged(campaign, store, packs)
    assert [n for n, v in verdicts.items() if not v.passed] == ["finite"]
    assert f"row {row.sample_id} turn {row.turn} holds 1 NaN or infinite values" in verdicts["finite"].message
    assert verdicts["finite"].examples == (row.sample_id,)


def test_a_wrong_id_or_mask_fails_against_the_corpus_and_names_the_row(
    campaign: Campaign, store: Store, packs: list[Pack]
) -> None:
    part = store.states(SHARD) / "part-000.safetensors"
    first = read_record(part.with_suffix(".json")).rows[0]
    patch(part, "input_ids", (first.start + 4,), (511).to_bytes(4, "little"))
    reseal(store, part)
    message = failed(campaign, store, packs)["states_match_rows"]
    assert f"{first.sample_id} has id 511 at position 4, the corpus has {packs[0].input_ids[4]}" in message
    patch(part, "input_ids", (first.start + 4,), int(packs[0].input_ids[4]).to_bytes(4, "little"))
    reseal(store, part)
    assert failed(campaign, store, packs) == {}
    patch(part, "loss_mask", (first.start,), b"\x01")
    reseal(store, part)
    assert "another loss mask" in failed(campaign, store, packs)["states_match_rows"]


def test_a_corpus_that_changed_behind_the_states_is_noticed(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    swapped = [packs[1], packs[0], *packs[2:]]
    assert "row 0: is s0000 turn 0, the corpus has s0001 turn 1" in failed(campaign, store, swapped)["states_match_rows"]
    assert "10 rows, its corpus part holds 9" in failed(campaign, store, packs[:-1])["states_match_rows"]
    longer = dataclasses.replace(packs[0], input_ids=np.append(packs[0].input_ids, np.uint32(1)))
    assert "states for 20 tokens, the corpus has 21" in failed(campaign, store, [longer, *packs[1:]])["states_match_rows"]


def test_missing_files_are_named(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    folder = store.states(SHARD)
    (folder / "part-001.safetensors").unlink()
    assert "part-001.safetensors: is missing" in failed(campaign, store, packs)["states_match_rows"]
    (folder / "part-000.json").unlink()
    assert "part-000.json" in failed(campaign, store, packs)["states_match_rows"]
    (folder / "final_norm.safetensors").unlink()
    assert "final_norm.safetensors" in failed(campaign, store, packs)["layer_self_test"]
    (folder / "manifest.json").unlink()
    messages = failed(campaign, store, packs)
    assert list(messages) == ["states_match_rows", "finite", "layer_self_test"], "what was never judged has not passed"
    assert "nothing in" in messages["states_match_rows"]


def test_other_layers_than_the_campaigns_fail_the_layer_check(
    make_campaign: CampaignMaker, campaign: Campaign, store: Store, packs: list[Pack]
) -> None:
    other = make_campaign(name="other", dtype=campaign.extraction.dtype, layers="[3, 4, 6]")
    assert "layers is [2, 4, 6], the campaign's is [3, 4, 6]" in failed(other, store, packs)["layer_self_test"]
    deeper = make_campaign(name="deeper", dtype=campaign.extraction.dtype, layers="[2, 4, 6]", num_hidden_layers=10)
    assert "num_hidden_layers is 9, the campaign's is 10" in failed(deeper, store, packs)["layer_self_test"]


def test_a_stored_self_test_is_judged_again_not_believed(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    edit_manifest(store, lambda raw: raw["self_test"]["layers"][0].update(nearest=3))
    assert "E_2 is not hidden_states[2]: nearest is hidden_states[3]" in failed(campaign, store, packs)["layer_self_test"]
    edit_manifest(store, lambda raw: raw["self_test"]["layers"][0].update(nearest=2))
    assert failed(campaign, store, packs) == {}
    edit_manifest(store, lambda raw: raw["self_test"]["layers"].pop())
    assert "self-test was of layers [2, 4], stored are [2, 4, 6]" in failed(campaign, store, packs)["layer_self_test"]
    edit_manifest(store, lambda raw: raw.update(self_test={"passed": True}))
    assert "self-test is not readable" in failed(campaign, store, packs)["layer_self_test"]


def test_a_manifest_that_changed_behind_its_commit_is_found(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    path = store.states(SHARD) / "manifest.json"
    path.write_text(path.read_text().replace('"probe_tokens": 30', '"probe_tokens": 31'))
    assert "manifest.json: checksum differs from 00000.manifest.json" in failed(campaign, store, packs)["states_match_rows"]
    manifest_path(store.states(SHARD)).unlink()
    assert "has no commit beside it" in failed(campaign, store, packs)["states_match_rows"]


def test_an_unknown_convention_is_refused_in_manifest_and_part(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    edit_manifest(store, lambda raw: raw.update(convention="output_of_layer"))
    assert "layer convention 'output_of_layer'" in failed(campaign, store, packs)["states_match_rows"]


def test_post_norm_states_are_recognised_on_disk_by_the_norm_weight(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    engine = FormulaEngine()
    norm = engine.final_norm()
    for part in sorted(store.states(SHARD).glob("part-*.safetensors")):
        arrays = map_part(read_record(part.with_suffix(".json")))
        states = torch.from_numpy(arrays["hidden_states"])
        states = states.view(torch.bfloat16) if campaign.extraction.dtype == "bfloat16" else states
        changed = states.clone()
        changed[:, 3] = norm.apply(states[:, 3])
        tensors, _, start = read_header(part)
        with part.open("r+b") as handle:
            handle.seek(start + tensors["hidden_states"].start)
            handle.write(changed.view(torch.uint8).numpy().tobytes())
        reseal(store, part)
    verdicts = failed(campaign, store, packs)
    assert list(verdicts) == ["layer_self_test"]
    assert "the final states are post-norm" in verdicts["layer_self_test"]


def test_another_norm_weight_is_noticed(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    path = store.states(SHARD) / "final_norm.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "final_norm.safetensors: checksum differs" in failed(campaign, store, packs)["layer_self_test"]
    with pytest.raises(StateError, match=r"final_norm\.safetensors: is not the file that manifest\.json describes"):
        _ = open_states(store.states(SHARD)).final_norm
    with pytest.raises(StoreError, match=r"final_norm\.safetensors: checksum differs"):  # as every stage behind reads it
        read_manifest(store.states(SHARD), verify=True)


def test_the_formats_version_is_checked(
    campaign: Campaign, store: Store, packs: list[Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_manifest(store, lambda raw: raw.update(version=99))
    assert "version 99, expected 2" in failed(campaign, store, packs)["states_match_rows"]
    assert part_module.SCHEMA_VERSION == 2
