"""Claims about what is current: an artifact follows its inputs, and damage is never current."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from eagle3_assets import gate, lineage
from eagle3_assets import store as st
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.review.verdicts import verdict_files as verdict_files
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import Store


def _make(artifact: Path, inputs: dict[str, object], content: bytes = b"x") -> None:
    artifact.parent.mkdir(parents=True, exist_ok=True)
    artifact.write_bytes(content)
    st.commit(artifact, files=[artifact], inputs=inputs)


def _item(campaign: Campaign, store: Store, key: str, partition: str | None = None) -> lineage.Item:
    return next(i for i in lineage.items(campaign, store) if "/".join(i.key) == key and i.partition == partition)


def test_items_follow_the_flow_and_name_every_shard(campaign: Campaign, store: Store) -> None:
    stages = list(dict.fromkeys(i.stage for i in lineage.items(campaign, store)))
    assert stages == [s for s in lineage.STAGES if s != "hidden_states"]  # whose partitions only a corpus knows
    shards = [i.partition for i in lineage.items(campaign, store) if i.key == ("tokens", "b3_magicoder")]
    assert shards == list(SHARDS)


def test_a_missing_predecessor_names_the_stage_to_run(campaign: Campaign, store: Store) -> None:
    with pytest.raises(StoreError, match="materialize endpoints first"):
        _item(campaign, store, "pilot").inputs()


def test_an_artifact_is_outdated_when_its_input_changes_and_current_again_when_it_is_made_again(
    campaign: Campaign, store: Store
) -> None:
    endpoints = _item(campaign, store, "endpoints")
    assert endpoints.state() == "missing"
    _make(store.endpoints, endpoints.inputs())
    assert endpoints.state() == "current"
    for d in campaign.dataset:
        prompts = _item(campaign, store, f"prompts/{d.name}")
        _make(store.prompts(d.name), prompts.inputs())
    pilot = _item(campaign, store, "pilot")
    _make(store.pilot, pilot.inputs())
    assert pilot.state() == "current"
    _make(store.endpoints, endpoints.inputs(), b"another snapshot")
    assert endpoints.state() == "current" and pilot.state() == "outdated"
    _make(store.pilot, pilot.inputs())
    assert pilot.state() == "current"


def test_equal_bytes_made_again_outdate_nothing(campaign: Campaign, store: Store) -> None:
    test_an_artifact_is_outdated_when_its_input_changes_and_current_again_when_it_is_made_again(campaign, store)
    _make(store.endpoints, _item(campaign, store, "endpoints").inputs(), b"another snapshot")
    assert _item(campaign, store, "pilot").state() == "current"


def test_a_truncated_artifact_is_damaged_and_refused_by_the_gate(campaign: Campaign, store: Store) -> None:
    endpoints = _item(campaign, store, "endpoints")
    _make(store.endpoints, endpoints.inputs())
    store.endpoints.write_bytes(b"")
    assert endpoints.state() == "damaged"
    with pytest.raises(GateError, match=r"endpoints is damaged .*materialize endpoints again"):
        gate.require_current(campaign, store, "endpoints")


def test_a_flipped_bit_is_refused_by_the_gate_by_the_files_name(campaign: Campaign, store: Store) -> None:
    _probe(store, campaign, passed=True)
    text = store.probe.read_text()
    store.probe.write_text(text.replace("wrong", "wr0ng"))
    with pytest.raises(StoreError, match=r"tokenizer_probe\.json: checksum differs"):
        gate.require(campaign, store, "tokenizer_probe")


def _probe(store: Store, campaign: Campaign, passed: bool) -> None:
    found = {"facts": {}, "checks": {"end_of_turn": {"passed": passed, "message": "the end of turn is wrong"}}}
    _make(store.probe, lineage.probe_inputs(campaign, store), json.dumps(found).encode())


def test_a_failed_blocking_check_stops_the_stage_behind_it_with_its_name(campaign: Campaign, store: Store) -> None:
    _probe(store, campaign, passed=True)
    gate.require_probe(campaign, store)
    _probe(store, campaign, passed=False)
    with pytest.raises(GateError, match=r"tokenizer_probe.*\(end_of_turn\) is outdated.*eagle3 recheck"):
        gate.require_probe(campaign, store)
    gate.judge(campaign, store, "tokenizer_probe")
    with pytest.raises(GateError, match=r"tokenizer_probe.*check end_of_turn failed: the end of turn is wrong"):
        gate.require_probe(campaign, store)


def test_a_verdict_on_other_bytes_does_not_count(campaign: Campaign, store: Store) -> None:
    """A pass that was filed for an earlier version is not believed: refused, and judged anew by a recheck."""
    _probe(store, campaign, passed=False)
    verdict_files.write_verdicts(
        store,
        "tokenizer_probe",
        gate.ALL,
        digest="of other bytes",
        verdicts=[Verdict("end_of_turn", True, "ERROR", True, "fine")],
    )
    with pytest.raises(GateError, match="is outdated, it judged other bytes"):
        gate.require_probe(campaign, store)
    assert gate.rejudge_outdated(campaign, store) == [("tokenizer_probe", gate.ALL, gate.ALL)]
    with pytest.raises(GateError, match="check end_of_turn failed"):
        gate.require_probe(campaign, store)


def test_what_lacks_a_part_under_a_commit_of_its_own_is_outdated(store: Store) -> None:
    """States without the model's verdict, for one: `eagle3 run` must make them whole and not skip them."""
    _make(store.pilot, {"a": 1})
    item = lineage.Item("pilot", ("pilot",), None, store.pilot, lambda: {"a": 1})
    assert item.state() == "current"
    assert dataclasses.replace(item, whole=lambda: False).state() == "outdated"
