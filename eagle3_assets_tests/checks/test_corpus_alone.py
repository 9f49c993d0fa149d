"""docs/design.md#rule-12, through Dagster: `corpus` launched alone re-applies the gates of what it is made from.

A blocking check blocks only inside its own run; whoever materializes `corpus` by itself must be refused by name all the same.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import typer

from benchmarks.full_size import campaign_of, write_beginning, write_shard
from eagle3_assets import gate
from eagle3_assets.campaign import SHARDS
from eagle3_assets.cli import recheck, waive
from eagle3_assets.definitions import build_definitions
from eagle3_assets.exact.sample_row import read_table, rows_of, write_rows
from eagle3_assets.review.verdicts import verdict_files as verdict_files
from eagle3_assets.review.verdicts.waivers import waivers_path
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import tokens
from eagle3_assets.store import Store, commit, manifest_path, read_json, write_json

pytestmark = pytest.mark.slow  # its worlds take seconds

DATASET = "b3_magicoder"
CAMPAIGN = campaign_of("kimi-mini", 320, only=(DATASET,))


def materialize(*keys: str) -> dg.ExecuteInProcessResult:
    made = build_definitions(CAMPAIGN)
    with dg.DagsterInstance.ephemeral() as instance:
        return dg.materialize(
            [*(made.assets or []), *(made.asset_checks or [])],  # type: ignore[list-item]
            selection=dg.AssetSelection.assets(*(key.split("/") for key in keys)),
            instance=instance, resources=dict(made.resources or {}), raise_on_error=False,
        )  # fmt: skip


def execute_checks(tags: dict[str, str]) -> tuple[str, list[dg.AssetCheckEvaluation]]:
    """The checks of the dataset's tokens alone, as the UI's Execute launches them: with a partition's tag, or with none at all."""
    made = build_definitions(CAMPAIGN)
    job = dg.define_asset_job("checks", dg.AssetSelection.checks_for_assets(dg.AssetKey(["tokens", DATASET])))
    whole = dg.Definitions(assets=made.assets, asset_checks=made.asset_checks, resources=made.resources, jobs=[job])
    with dg.DagsterInstance.ephemeral() as instance:
        result = whole.resolve_job_def("checks").execute_in_process(instance=instance, tags=tags, raise_on_error=False)
        failures = [e.event_specific_data for e in result.all_events if e.is_step_failure]
        words = " ".join(str(f.user_failure_data.description if f.user_failure_data else f.error.message) for f in failures)  # type: ignore[union-attr]
        records = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        return words, [r.get_dagster_event().event_specific_data for r in records]  # type: ignore[misc]


def accept(monkeypatch: pytest.MonkeyPatch, shard: str) -> None:
    """`eagle3 waive`, for a year from today at most."""
    monkeypatch.setattr(waive, "load_campaign", lambda: CAMPAIGN)
    until = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=30)
    waive.command("tokens", "loss_mask", dataset=DATASET, shard=shard, who="ada", why="seen", until=until.isoformat())


def refusal(result: dg.ExecuteInProcessResult) -> str:
    """What a person reads of a refused run: the failure's one line."""
    assert not result.success
    said = [e.event_specific_data.user_failure_data.description for e in result.all_events if e.is_step_failure]  # type: ignore[union-attr]
    assert len(said) == 1 and "\n" not in str(said[0])
    return str(said[0])


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data root with tokens of one dataset and its report: everything that `corpus` wants."""
    root = tmp_path_factory.mktemp("reviewed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLE3_DATA", str(root))
        store = Store.of(CAMPAIGN)
        write_beginning(CAMPAIGN, store)
        for shard in SHARDS:
            write_shard(CAMPAIGN, store, DATASET, shard, 60)
        assert materialize(f"report/{DATASET}").success
        yield root


@pytest.fixture
def store(reviewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A copy to break."""
    shutil.copytree(reviewed, tmp_path / "data")
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    return Store.of(CAMPAIGN)


def artifact(store: Store, shard: str) -> Artifact:
    return Artifact(tokens.STAGE, CAMPAIGN, store, DATASET, shard)


def spoil(store: Store, shard: str) -> str:
    """One row of the shard loses the first id of its span, as if a faulty program had written it; returns its sample id."""
    path = store.tokens(DATASET, shard)
    rows = list(rows_of(read_table(path)))
    start, end = rows[0].loss_spans[0]
    write_rows(path, [dataclasses.replace(rows[0], loss_spans=((start + 1, end),)), *rows[1:]])
    commit(path, files=[path], inputs=artifact(store, shard).inputs())
    return rows[0].sample_id


def test_everything_current_and_passed_makes_a_corpus_without_waivers(store: Store) -> None:
    assert materialize("corpus").success
    assert read_json(store.corpus / "manifest.json")["waived"] == []


def test_a_verdict_on_other_bytes_is_refused_with_check_and_shard(store: Store) -> None:
    spoil(store, "07")
    line = refusal(materialize("corpus"))
    assert f"tokens/{DATASET}, shard 07" in line and "is outdated, it judged other bytes" in line and "structure" in line
    assert f"eagle3 recheck {DATASET} --shard 07" in line and not store.corpus.exists()


def test_a_failed_blocking_check_is_refused_by_name_and_a_waiver_goes_on_into_the_manifest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = spoil(store, "07")
    gate.judge(artifact(store, "07"), anew=True)
    line = refusal(materialize("corpus"))
    assert f"tokens/{DATASET}, shard 07: check loss_mask failed: 1 rows fail it" in line and f"eagle3 show {sample}" in line

    assert not materialize(f"report/{DATASET}").success  # made, and its check `tokens_pass` failed
    accept(monkeypatch, "07")
    assert materialize("corpus").success  # the report is the same, its verdict another: it is bound to the waivers of its shards
    carried = read_json(store.corpus / "manifest.json")["waived"]
    assert [(w["check"], w["shard"], w["who"], w["why"]) for w in carried] == [("loss_mask", "07", "ada", "seen")]


def test_a_waiver_that_ended_lets_nothing_through(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(store, "07")
    accept(monkeypatch, "07")
    assert materialize(f"report/{DATASET}").success
    given = read_json(waivers_path(store))
    write_json(waivers_path(store), {**given, "waivers": [{**w, "until": "2026-01-01"} for w in given["waivers"]]})
    assert "shard 07: check loss_mask failed" in refusal(materialize("corpus"))


def test_a_waiver_of_other_bytes_lets_nothing_through(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(store, "07")
    accept(monkeypatch, "07")
    spoil(store, "07")  # once more: another row set than the one that was accepted
    gate.judge(artifact(store, "07"), anew=True)
    assert "shard 07: check loss_mask failed" in refusal(materialize("corpus"))


def test_one_shard_is_checked_again_from_the_terminal(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`eagle3 recheck DATASET --shard NN`: that shard's verdict is current again, the failing row is named, the exit code says stop."""
    sample = spoil(store, "07")
    monkeypatch.setattr(recheck, "load_campaign", lambda: CAMPAIGN)
    recheck.command(dataset=DATASET, shard="06", stage="tokens", as_json=False)
    assert f"tokens {DATASET} 06: 31 of 31 checks pass" in capsys.readouterr().out
    assert "is outdated" in refusal(materialize("corpus"))
    with pytest.raises(typer.Exit) as left:
        recheck.command(dataset=DATASET, shard="07", stage="tokens", as_json=False)
    said = capsys.readouterr().out
    assert left.value.exit_code == 1 and "STOP loss_mask: 1 rows fail it" in said and f"eagle3 show {sample}" in said
    assert "shard 07: check loss_mask failed" in refusal(materialize("corpus"))


def test_a_missing_shard_is_refused_by_name(store: Store) -> None:
    path = store.tokens(DATASET, "11")
    path.unlink()
    manifest_path(path).unlink()
    line = refusal(materialize("corpus"))
    assert (
        line.startswith(f"tokens/{DATASET} partition 11 is missing")
        and f"materialize tokens/{DATASET} partition 11 again" in line
    )


def test_tokens_of_other_answers_are_refused(store: Store) -> None:
    commit(store.answers(DATASET, "02"), files=[], inputs={})
    assert f"tokens/{DATASET} partition 02 is outdated" in refusal(materialize("corpus"))


def test_executing_a_check_judges_the_files_and_not_what_was_filed(store: Store) -> None:
    sample = spoil(store, "07")
    filed = gate.filed_of(artifact(store, "07"), gate.committed(artifact(store, "07")))
    lie = [dataclasses.replace(v, passed=True) for v in gate.judge(artifact(store, "07"), anew=True)]
    filed.write(lie)
    for tags, partitions in (({"dagster/partition": "07"}, {"07"}), ({}, set(SHARDS))):
        words, evaluations = execute_checks(tags)
        shards = [e for e in evaluations if e.check_name == "verdict"]
        assert {e.partition for e in shards} == partitions
        assert [(e.partition, str(e.description).partition(":")[0]) for e in shards if not e.passed] == [
            ("07", "1 of 31 checks fail; loss_mask")
        ]
        assert len(evaluations) == len(partitions) + len(tokens.STAGE.checks)  # not one for every check of every partition
        assert "blocking" in words and "loss_mask" in words  # and no error of ours
        found = [e for e in evaluations if e.check_name == "loss_mask"]
        assert {e.partition for e in found} == {None}
        failed = [e for e in found if not e.passed]
        assert failed and all(
            e.severity is dg.AssetCheckSeverity.ERROR and "1 rows fail it" in str(e.description) for e in failed
        )
        told = failed[-1].metadata
        assert f"eagle3 show {sample}" in str(told["open_an_example"].value) and "anew" in str(told["judged_from"].value)
    judged = filed.read()
    assert judged is not None and [v.check for v in judged.verdicts if v.stops] == ["loss_mask"]


def test_a_failure_in_another_shard_is_told_and_stops_nothing_here(store: Store) -> None:
    """A check speaks of the whole dataset; only what this run made can stop it."""
    spoil(store, "07")
    gate.judge(artifact(store, "07"), anew=True)
    words, evaluations = execute_checks({"dagster/partition": "03"})
    assert words == ""
    told = next(e for e in evaluations if e.check_name == "loss_mask")
    assert not told.passed and told.blocking is False and "15 of 16 partitions pass; partition 07" in str(told.description)
    assert [(e.partition, e.passed) for e in evaluations if e.check_name == "verdict"] == [("03", True)]
