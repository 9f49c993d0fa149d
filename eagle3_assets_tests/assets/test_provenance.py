"""What `eagle3 status` calls outdated the UI calls outdated, and the reverse: asked through the GraphQL that the UI itself asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from eagle3_assets import stages
from eagle3_assets import store as st
from eagle3_assets.assets.provenance import follow
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import register_partitions
from eagle3_assets.stage import Artifact
from eagle3_assets.states.verdict import on_policy_table
from eagle3_assets.store import Store
from eagle3_assets_tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow  # its worlds take seconds

PARTS = ("00000", "00001")
QUERY = """{
  whole: assetNodes { assetKey { path } isPartitioned staleStatus }
  parts: assetNodes(assetKeys: [%s]) { assetKey { path } partitionKeys staleStatusByPartition }
}"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Dagster state of its own."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    yield folder


def write(artifact: Artifact, content: str, parts: dict[str, str] | None = None) -> None:
    """An artifact of this content, committed under the inputs that it should have now."""
    path, made_from = artifact.path, artifact.inputs()
    file = path if path.suffix else path / "segment-000.jsonl"
    st.write_bytes(file, content.encode())
    numbers = {"partitions": list(PARTS), "content": parts} if parts else {}
    st.commit(path, files=[file], inputs=made_from, numbers=numbers)
    if artifact.name == "handoff/speculators":  # written by the same export, under a commit of its own
        head = artifact.store.handoff("target_head")
        st.write_bytes(head / "model.safetensors", b"head")
        st.commit(head, files=[head / "model.safetensors"], inputs={})


def find(campaign: Campaign, store: Store, name: str) -> Artifact:
    return next(a for a in stages.artifacts(campaign, store) if a.name == name)


def of_status(campaign: Campaign, store: Store) -> dict[str, bool]:
    """Name of an artifact -> whether `eagle3 status` calls it current."""
    return {a.name: a.state() == "current" for a in stages.artifacts(campaign, store)}


def of_ui(campaign: Campaign) -> dict[str, bool]:
    """Name of an artifact -> whether the UI calls it fresh."""
    partitioned = [list(s.asset_key(d)) for s in stages.STAGES if s.per.partitioned for d in s.datasets(campaign)]
    keys = ", ".join("{path: " + json.dumps(path) + "}" for path in partitioned)
    done = subprocess.run(
        [Path(sys.executable).parent / "dagster-graphql", "-m", "eagle3_assets.definitions", "-t", QUERY % keys],
        capture_output=True, text=True, timeout=120, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    answer = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))["data"]
    found = {"/".join(n["assetKey"]["path"]): n["staleStatus"] == "FRESH" for n in answer["whole"] if not n["isPartitioned"]}
    for node in answer["parts"]:
        name = "/".join(node["assetKey"]["path"])
        for key, status in zip(node["partitionKeys"], node["staleStatusByPartition"], strict=True):
            found[f"{name} partition {key}"] = status == "FRESH"
    return found


@pytest.fixture
def everything(campaign: Campaign, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Every artifact of the campaign, made in the order of the flow by a program that had no Dagster."""
    monkeypatch.setattr(on_policy_table, "is_judged", lambda *_: True)
    for artifact in stages.artifacts(campaign, store):
        parts = {key: f"rows of {key}" for key in PARTS} if artifact.stage.name == "corpus" else None
        write(artifact, f"0 {artifact.name}", parts)
    return store


def test_a_data_root_that_dagster_never_saw_is_shown_as_it_is(campaign: Campaign, everything: Store) -> None:
    with dg.DagsterInstance.get() as instance:
        register_partitions(instance, campaign, PARTS)
        told = follow(instance, stages.artifacts(campaign, everything))
        assert len(told) == len(list(stages.artifacts(campaign, everything))) > 140
        assert follow(instance, stages.artifacts(campaign, everything)) == []  # and is told once
    shown = of_ui(campaign)
    assert all(shown.values()) and shown == of_status(campaign, everything)


def test_status_and_the_ui_agree_on_every_artifact_after_every_kind_of_change(campaign: Campaign, everything: Store) -> None:
    with dg.DagsterInstance.get() as instance:
        register_partitions(instance, campaign, PARTS)
        follow(instance, stages.artifacts(campaign, everything))

        def again(name: str, content: str, parts: dict[str, str] | None = None) -> None:
            artifact = find(campaign, everything, name)
            write(artifact, content, parts)
            follow(instance, [artifact])

        again("endpoints", "another snapshot")  # a predecessor of pilot and plan
        again("answers/b3_magicoder partition 03", "more answers")  # of tokens 03 and of wire_profiles
        again("tokens/b8_sweagent partition 05", "0 tokens/b8_sweagent partition 05")  # equal bytes: of nothing
        again("corpus", "a larger corpus", {PARTS[0]: f"rows of {PARTS[0]}", PARTS[1]: "more rows"})  # states of one part only
        everything.closed("b1_glaive").write_text("{}")  # a fact that Dagster knows nothing of
        everything.report("a1_deepswekimi").unlink()  # damage
        follow(instance, stages.artifacts(campaign, everything))
    status, shown = of_status(campaign, everything), of_ui(campaign)
    assert shown == status
    outdated = {name.split(" ")[0] for name, current in status.items() if not current}
    assert outdated == {
        "pilot", "plan", "answers/b1_glaive", "tokens/b3_magicoder", "wire_profiles", "report/a1_deepswekimi", "vocab_map",
        "handoff/tokens", "hidden_states", "handoff/speculators", "handoff/specforge",
    }  # fmt: skip
    assert status["hidden_states partition 00000"] and not status["hidden_states partition 00001"]
    assert [n for n, current in status.items() if n.startswith("tokens/") and not current] == ["tokens/b3_magicoder partition 03"]


def test_what_is_mended_is_shown_as_current_again(campaign: Campaign, everything: Store) -> None:
    with dg.DagsterInstance.get() as instance:
        follow(instance, stages.artifacts(campaign, everything))
        everything.closed("b1_glaive").write_text("{}")
        closed = [a for a in stages.artifacts(campaign, everything) if a.key == ("answers", "b1_glaive")]
        assert follow(instance, stages.artifacts(campaign, everything)) == closed
        everything.closed("b1_glaive").unlink()
        assert follow(instance, stages.artifacts(campaign, everything)) == closed
        assert follow(instance, stages.artifacts(campaign, everything)) == []
