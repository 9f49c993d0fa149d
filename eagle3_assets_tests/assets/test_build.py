"""Claims about what Dagster is told of a stage's work: when, of which partition, under which versions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from eagle3_assets import stages
from eagle3_assets import store as st
from eagle3_assets.assets.build import build, described
from eagle3_assets.assets.provenance import DATA_VERSION
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.servers.routing import stored_routing
from eagle3_assets.errors import BudgetStop, StoreError
from eagle3_assets.stage import Artifact, Card, Face, Job, Made, Markdown, Per, Records, Stage, Url, one_by_one
from eagle3_assets.stages import handoff_tokens, tokens, vocab_map
from eagle3_assets.store import Store

pytestmark = pytest.mark.slow  # its worlds take seconds

DATASET = "b3_magicoder"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclasses.dataclass(frozen=True)
class Nothing:
    """Made from nothing."""


def make(a: Artifact, face: Any) -> Made:
    if a.partition == "02":
        raise BudgetStop("stopped on budget")
    st.write_json(a.path, {"shard": a.partition})
    numbers = {"rows": 1, "grades": {"A0": 1}, "passed": True}
    return Made(
        a, st.commit(a.path, files=[a.path], inputs=a.inputs(), numbers=numbers), {"name": f"shard {a.partition}"}, rows=1
    )


def fail(a: Artifact) -> list[Any]:
    return []


SHARDED = Stage(
    name="sharded",
    per=Per.SHARD,
    version=3,
    path=lambda a: a.store.root / "sharded" / a.dataset / f"{a.partition}.json",
    inputs=lambda a: Nothing(),
    work=one_by_one(make),
    judge=fail,
    checks=(),
    card=lambda campaign, dataset: Card(frozenset({"json"}), "Made up."),
)


def run(
    campaign: Campaign, instance: dg.DagsterInstance, stage: str, dataset: str, first: str = "", last: str = ""
) -> dg.ExecuteInProcessResult:
    key = dg.AssetKey(next(s for s in stages.STAGES if s.name == stage).asset_key(dataset))
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last} if first else {}
    chosen = [a for a in build(campaign) if key in a.keys]
    return dg.materialize(
        chosen,
        selection=[key],
        instance=instance,
        tags=tags,
        raise_on_error=False,
        run_config=QUIET,
        resources={"openrouter": None},
    )


@pytest.fixture
def instance(tmp_path: Path) -> Any:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as found:
        yield found


def recorded(instance: dg.DagsterInstance, key: list[str], shard: str) -> dg.AssetMaterialization | None:
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(key), asset_partitions=[shard])
    records = instance.fetch_materializations(wanted, limit=1).records
    return records[0].asset_materialization if records else None


def test_each_partition_of_a_range_has_its_own_data_version_and_figures(
    campaign: Campaign, store: Store, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "STAGES", [SHARDED])
    assert run(campaign, instance, "sharded", DATASET, "00", "01").success
    for shard in ("00", "01"):
        event = recorded(instance, ["sharded", DATASET], shard)
        assert event is not None and event.tags is not None
        digest = Artifact(SHARDED, campaign, store, DATASET, shard).digest()
        assert event.tags[DATA_VERSION] == digest and event.tags["dagster/code_version"] == "3"
        assert event.metadata["name"].value == f"shard {shard}" and event.metadata["digest"].value == digest
        assert event.metadata["dagster/partition_row_count"].value == 1


def test_no_event_of_a_partition_is_empty_and_the_asset_has_figures_of_its_own(
    campaign: Campaign, store: Store, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "STAGES", [SHARDED])
    assert run(campaign, instance, "sharded", DATASET, "00", "01").success
    key = dg.AssetKey(["sharded", DATASET])
    events = [r.asset_materialization for r in instance.fetch_materializations(key, limit=100).records]
    assert len(events) >= 4 and all(e is not None and e.metadata["name"].value == f"shard {e.partition}" for e in events)
    latest = events[0]
    assert latest is not None
    figures = {name: value.value for name, value in latest.metadata.items() if name.startswith(("whole_asset", "dagster/row"))}
    assert figures == {
        "whole_asset/partitions": "2 of 16", "whole_asset/rows": 2, "whole_asset/grades": {"A0": 2}, "dagster/row_count": 2,
    }  # fmt: skip


def test_what_was_committed_before_the_work_stopped_is_recorded_and_nothing_else(
    campaign: Campaign, store: Store, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "STAGES", [SHARDED])
    assert not run(campaign, instance, "sharded", DATASET, "00", "03").success
    found = [s for s in ("00", "01", "02", "03") if recorded(instance, ["sharded", DATASET], s) is not None]
    assert found == ["00", "01"]


def test_metadata_keeps_numbers_numeric_and_drops_nothing_but_none(campaign: Campaign, store: Store) -> None:
    manifest = st.Manifest(Path("x.manifest.json"), {}, {}, {}, 0.0)
    words = {
        "rows": 3, "share": 0.5, "why": {"a": 1}, "none": None, "file": Path("x"), "text": Markdown("# t"), "page": Url("file:///x"),
        "table": Records([{"a": 1, "b": None}]),
    }  # fmt: skip
    shown = described(Made(Artifact(SHARDED, campaign, store, DATASET, "00"), manifest, words, rows=7))
    assert shown["rows"] == 3 and shown["share"] == 0.5 and "none" not in shown and shown["dagster/partition_row_count"] == 7
    kinds = {
        "why": dg.JsonMetadataValue, "file": dg.PathMetadataValue, "text": dg.MarkdownMetadataValue, "page": dg.UrlMetadataValue,
        "table": dg.TableMetadataValue,
    }  # fmt: skip
    assert {name: type(shown[name]) for name in kinds} == kinds


def _committed_then_damaged(path: Path, content: dict[str, object]) -> None:
    """Written, committed, and one byte changed: the size stays."""
    st.write_json(path, content)
    st.commit(path, files=[path], inputs={})
    data = bytearray(path.read_bytes())
    data[data.index(b"0"[0])] = b"7"[0]
    path.write_bytes(data)


def test_wire_profiles_damaged_without_changing_their_size_make_no_tokens(
    campaign: Campaign, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Artifact, "inputs", lambda artifact: {})
    _committed_then_damaged(store.wire_profiles, {"version": 1, "providers": {"P": {"rows": 100}}})
    with pytest.raises(StoreError, match=r"wire_profiles\.json: checksum differs"):
        tokens.make(Artifact(tokens.STAGE, campaign, store, DATASET, "00"))
    assert not store.tokens(DATASET, "00").exists()


def test_endpoints_damaged_without_changing_their_size_route_nothing(campaign: Campaign, store: Store) -> None:
    _committed_then_damaged(
        store.endpoints, {"snapshot": {"data": {"endpoints": [], "price": "0.001"}}, "eligible": [], "refused": []}
    )
    with pytest.raises(StoreError, match=r"endpoints\.json: checksum differs"):
        stored_routing(campaign, store)


@pytest.mark.parametrize(("stage", "lock"), [(vocab_map.STAGE, "vocab_map"), (handoff_tokens.STAGE, "handoff-tokens")])
def test_two_runs_at_once_never_write_into_one_folder(
    stage: Stage, lock: str, campaign: Campaign, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Artifact, "inputs", lambda artifact: {})
    job = Job((Artifact(stage, campaign, store),), cast(Face, SimpleNamespace(done=None)))
    with store.lock(lock, what="it"), pytest.raises(StoreError, match="is in use by pid"):
        stage.work(job)
