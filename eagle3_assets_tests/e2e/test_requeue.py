"""A kind of rejected rows is sent back, bought once more under the approval, and the old answers stay. Through Dagster, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

import openrouter_standin as standin
from eagle3_assets import gate, stages
from eagle3_assets.campaign import SHARDS, load_campaign
from eagle3_assets.cli import requeue
from eagle3_assets.cli.status import gather
from eagle3_assets.definitions import build_definitions
from eagle3_assets.errors import GateError
from eagle3_assets.store import Store
from eagle3_assets.wire import journal
from eagle3_assets_tests.e2e.conftest import KEYLESS, small_campaign
from openrouter_standin.service.launcher import stop

pytestmark = pytest.mark.e2e
REASON, DATASET = "completion_equals_bill", "b3_magicoder"
BEFORE = ("tokenizer_probe", "endpoints", f"prompts/{DATASET}", "pilot", "plan")
BUYING = (f"answers/{DATASET}",), ("wire_profiles",), (f"tokens/{DATASET}",)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A campaign of 24 prompts whose most used provider bills a few tokens more or less than it gave."""
    campaign = small_campaign(tmp_path, "again", rows=24)
    profiles = (Path(standin.__file__).parent / "profiles" / "default.toml").read_text()
    noisy = profiles.replace('reasoning_tokens = "with_close" }', 'reasoning_tokens = "with_close", count_noise = 0.3 }', 1)
    assert noisy != profiles
    (tmp_path / "profiles.toml").write_text(noisy)
    embedded = 'kind = "embedded"'
    campaign.write_text(campaign.read_text().replace(embedded, f'{embedded}\nstandin_profiles = "{tmp_path}/profiles.toml"', 1))
    for name in KEYLESS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EAGLE3_CAMPAIGN", str(campaign))
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    found = Store.of(load_campaign())
    yield found
    stop(found.standin)


def materialize(*runs: tuple[str, ...]) -> None:
    """One run each, without the checks (hundreds of events): the verdicts are given as `eagle3 run` gives those that are lacking."""
    made = build_definitions(load_campaign())
    with dg.DagsterInstance.ephemeral() as instance:
        for keys in runs:
            ends = {"dagster/asset_partition_range_start": SHARDS[0], "dagster/asset_partition_range_end": SHARDS[-1]}
            gate.rejudge_outdated(stages.made(load_campaign(), Store.of(load_campaign())))
            done = dg.materialize(
                list(made.assets or []),  # type: ignore[arg-type]
                selection=dg.AssetSelection.assets(*(key.split("/") for key in keys)),
                instance=instance, resources=dict(made.resources or {}), tags=ends if keys[0].startswith(("answers", "tokens")) else {},
            )  # fmt: skip
            assert done.success


def rows(store: Store) -> dict[tuple[str, int], dict[str, Any]]:
    columns = ["sample_id", "turn", "attempt", "grade", "reasons", "input_ids", "provider"]
    tables = [pq.read_table(store.tokens(DATASET, shard), columns=columns).to_pylist() for shard in SHARDS]
    return {(row["sample_id"], row["turn"]): row for table in tables for row in table}


def rejected(row: dict[str, Any]) -> bool:
    return row["grade"] in ("Q", "D") and any(r.split(":", 1)[0] == REASON for r in row["reasons"])


def test_rejected_answers_are_bought_again_and_the_old_bytes_stay(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    materialize(BEFORE, *BUYING)
    before, money = rows(store), gather(load_campaign(), store)["money"]
    back = {key for key, row in before.items() if rejected(row)}
    assert 0 < len(back) < len(before) == 24
    bytes_before = {p: p.read_bytes() for p in store.answers(DATASET, "00").parent.rglob("segment-*.jsonl")}

    requeue.command(reason=REASON, dataset=None, shard=None, dry_run=True)
    assert not list(store.root.rglob("requeued.json"))
    requeue.command(reason=REASON, dataset=None, shard=None, dry_run=False)
    assert f"{len(back)} answers are asked for again" in capsys.readouterr().out
    materialize(*BUYING)

    after = rows(store)
    assert {key for key, row in after.items() if row["attempt"] > before[key]["attempt"]} == back  # those alone
    assert all(after[key]["input_ids"] == before[key]["input_ids"] for key in after.keys() - back)
    for path, data in bytes_before.items():
        assert path.read_bytes().startswith(data)
    finished = [a for s in SHARDS for a in journal.read(store.answers(DATASET, s)) if a.outcome == "finished" and a.key in back]
    assert len(finished) == 2 * len(back)
    spent, approved = gather(load_campaign(), store)["money"], load_campaign().budget.approved_usd
    assert approved is not None and money["spent_usd"] < spent["spent_usd"] <= approved and spent["reserved_usd"] == 0
    size = sum(p.stat().st_size for p in bytes_before)
    materialize((f"answers/{DATASET}",))
    assert sum(p.stat().st_size for p in bytes_before) == size  # asked once, not for ever
    with pytest.raises(GateError, match="no rejected row has the reason 'wire_txt'"):
        requeue.command(reason="wire_txt", dataset=None, shard=None, dry_run=False)
