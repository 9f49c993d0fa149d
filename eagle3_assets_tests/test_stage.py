"""Claims about what is current: an artifact follows its inputs, and damage is never current."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from eagle3_assets import gate, stages
from eagle3_assets import store as st
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.review.rows import row_invariants
from eagle3_assets.review.rows.fatal_rules import code_of, fatal_rules_digest
from eagle3_assets.review.verdicts.verdict import Subject, Verdict
from eagle3_assets.review.verdicts.verdict_files import Filed
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import hidden_states, tokenizer_probe, tokens
from eagle3_assets.store import Store


def _make(artifact: Path, inputs: dict[str, object], content: bytes = b"x") -> None:
    artifact.parent.mkdir(parents=True, exist_ok=True)
    artifact.write_bytes(content)
    st.commit(artifact, files=[artifact], inputs=inputs)


def _item(campaign: Campaign, store: Store, key: str) -> Artifact:
    return next(a for a in stages.artifacts(campaign, store) if a.name == key)


def test_items_follow_the_flow_and_name_every_shard(campaign: Campaign, store: Store) -> None:
    found = list(dict.fromkeys(a.stage.name for a in stages.artifacts(campaign, store)))
    assert found == [name for name in stages.names() if name != "hidden_states"]  # whose partitions only a corpus knows
    shards = [a.partition for a in stages.artifacts(campaign, store) if a.key == ("tokens", "b3_magicoder")]
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
        gate.require_current(endpoints)


def test_a_flipped_bit_is_refused_by_the_gate_by_the_files_name(campaign: Campaign, store: Store) -> None:
    _probe(store, campaign, passed=True)
    text = store.probe.read_text()
    store.probe.write_text(text.replace("wrong", "wr0ng"))
    with pytest.raises(StoreError, match=r"tokenizer_probe\.json: checksum differs"):
        gate.require(Artifact(tokenizer_probe.STAGE, campaign, store))


def _probe(store: Store, campaign: Campaign, passed: bool) -> None:
    found = {"facts": {}, "checks": {"end_of_turn": {"passed": passed, "message": "the end of turn is wrong"}}}
    _make(store.probe, Artifact(tokenizer_probe.STAGE, campaign, store).inputs(), json.dumps(found).encode())


def test_a_failed_blocking_check_stops_the_stage_behind_it_with_its_name(campaign: Campaign, store: Store) -> None:
    _probe(store, campaign, passed=True)
    gate.pass_gates([_item(campaign, store, "pilot")])
    _probe(store, campaign, passed=False)
    with pytest.raises(GateError, match=r"tokenizer_probe.*\(end_of_turn\) is outdated.*eagle3 recheck"):
        gate.pass_gates([_item(campaign, store, "pilot")])
    gate.judge(Artifact(tokenizer_probe.STAGE, campaign, store))
    with pytest.raises(GateError, match=r"tokenizer_probe.*check end_of_turn failed: the end of turn is wrong"):
        gate.pass_gates([_item(campaign, store, "pilot")])


def test_a_verdict_on_other_bytes_does_not_count(campaign: Campaign, store: Store) -> None:
    """A pass that was filed for an earlier version is not believed: refused, and judged anew by a recheck."""
    _probe(store, campaign, passed=False)
    probe = Artifact(tokenizer_probe.STAGE, campaign, store)
    other = Subject(*probe.place, "of other bytes")
    Filed(store, other, probe.stage.checks).write([Verdict("end_of_turn", True, "ERROR", True, "fine")])
    with pytest.raises(GateError, match="is outdated, it judged other bytes"):
        gate.pass_gates([_item(campaign, store, "pilot")])
    assert gate.rejudge_outdated(stages.made(campaign, store)) == [probe]
    with pytest.raises(GateError, match="check end_of_turn failed"):
        gate.pass_gates([_item(campaign, store, "pilot")])


def test_what_lacks_a_part_under_a_commit_of_its_own_is_outdated(campaign: Campaign, store: Store) -> None:
    """States without the model's verdict, for one: `eagle3 run` must make them whole and not skip them."""
    endpoints = _item(campaign, store, "endpoints")
    _make(store.endpoints, endpoints.inputs())
    lacking = dataclasses.replace(endpoints.stage, whole=lambda _: False)
    assert endpoints.state() == "current"
    assert dataclasses.replace(endpoints, stage=lacking).state() == "outdated"
    assert hidden_states.STAGE.whole is hidden_states.is_judged


def test_what_was_paid_for_is_not_outdated_by_a_newer_program(campaign: Campaign, store: Store) -> None:
    """Manifests of pilot and answers as the first version wrote them: integers, no digest of rules."""
    assert [(s.name, s.code_version) for s in stages.STAGES if s.costs_money] == [("pilot", 2), ("answers", 1)]
    shard = next(a for a in stages.artifacts(campaign, store) if a.name == "answers/b3_magicoder partition 03")
    _make(store.prompts("b3_magicoder"), {})
    digest = st.require(store.prompts("b3_magicoder"), made_by="prompts").digest
    assert shard.inputs() == {"code": 1, "prompts": digest, "shard": "03", "closed": False}


def test_other_fatal_rules_are_another_code_version_of_tokens_and_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_empty(columns: object, wires: object, rules: object) -> object:
        """Another rule of that name."""
        return columns is wires

    before = fatal_rules_digest()
    monkeypatch.setitem(row_invariants.INVARIANTS, "not_empty", not_empty)  # type: ignore[arg-type]
    assert fatal_rules_digest() != before
    assert [s.name for s in stages.STAGES if s.rules] == ["tokens"]
    assert tokens.STAGE.code_version == f"{tokens.STAGE.version}-{before[:8]}"


def test_a_comment_or_a_docstring_is_no_other_rule() -> None:
    def rule(x: int) -> int:
        """Says something."""
        # and more
        return x + 1

    plain = code_of(rule)
    assert plain == "def rule(x: int) -> int:\n    return x + 1"


def test_a_setting_is_part_of_the_code_version_that_dagster_sees(campaign: Campaign) -> None:
    other = campaign.model_copy(update={"corpus": campaign.corpus.model_copy(update={"max_length": 77})})
    changed = [
        s.name
        for s in stages.STAGES
        for d in s.datasets(campaign)[:1]
        if s.code_version_of(campaign, d) != s.code_version_of(other, d)
    ]
    assert changed == ["plan", "corpus"]


def test_runs_are_the_flow_cut_where_intents_and_partitions_change_and_nothing_is_forgotten() -> None:
    groups = [[stage.name for stage in group] for group in stages.groups()]
    assert groups == [
        ["tokenizer_probe", "endpoints", "prompts", "pilot", "plan"],
        ["answers"],
        ["wire_profiles"],
        ["tokens"],
        ["report"],
        ["corpus", "vocab_map", "handoff_tokens"],
        ["hidden_states"],
        ["handoff_tokens"],
        ["handoff_speculators", "handoff_specforge"],
        ["drafter", "acceptance"],
    ]
