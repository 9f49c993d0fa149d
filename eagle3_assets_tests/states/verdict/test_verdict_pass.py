"""One partition with the model's verdict, on Kimi-mini: winners, states of the winners, the file, its checks, resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from eagle3_assets import gate
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import hidden_states
from eagle3_assets.states.care.verify_states import verify_partition
from eagle3_assets.states.extractors import Captured, open_extractor
from eagle3_assets.states.extractors.ray_pool import RayPool
from eagle3_assets.states.reader import open as open_states
from eagle3_assets.states.verdict.on_policy_checks import judge_on_policy, sources, summary_markdown
from eagle3_assets.states.verdict.on_policy_table import (
    ALONE,
    VERDICTS_FILE,
    choose_winners,
    in_share,
    is_judged,
    read_on_policy,
    winning_packs,
)
from eagle3_assets.states.verdict.verdict_pass import VerdictPass
from eagle3_assets.store import Store, manifest_path, read_manifest
from kimi_mini.model import load_model
from kimi_mini.sampler import Ask, sample_all
from kimi_mini.tokenizer import load_encoding, special_tokens
from kimi_mini_workshop.evaluate import questions

pytestmark = pytest.mark.slow  # its worlds take seconds

ROWS = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass]:
    """A partition of true B1 rows; the first two are C1 with a leading space as their own ids and the true ids as survivor."""
    patch = pytest.MonkeyPatch()
    patch.setenv("EAGLE3_DATA", str(tmp_path_factory.mktemp("verdict")))
    campaign, encoding, markers = load_campaign("demo"), load_encoding(), set(special_tokens().values())
    store = Store.of(campaign)
    asked = questions(ROWS)[:ROWS]
    samples = sample_all(load_model(), [Ask(q.prompt, 1.0, 0.95, 9 + k, 120) for k, q in enumerate(asked)], slots=16)
    packs, survivors = [], []
    for k, (question, sample) in enumerate(zip(asked, samples, strict=True)):
        ids, others = sample.ids, []
        if k < 2:
            start = next(i for i, token in enumerate(ids) if token not in markers)
            stop = next(i for i in range(start, len(ids)) if ids[i] in markers)
            bent = (*ids[:start], *encoding.encode_ordinary(" " + encoding.decode(list(ids[start:stop]))), *ids[stop:])
            others, ids = [(*question.prompt, *ids)], bent
        row = np.array((*question.prompt, *ids), dtype=np.uint32)
        mask = np.zeros(len(row), dtype=np.uint8)
        mask[len(question.prompt) :] = 1
        packs.append(Pack(k, f"{k:032x}", 0, "b3_magicoder", "C1" if k < 2 else "B1", "00000", row, mask))
        survivors.append(others)
    archive = pa.table(
        {
            "survivors": pa.array(survivors, pa.list_(pa.list_(pa.int32()))),
            "prompt_len": pa.array([len(q.prompt) for q in asked], pa.int32()),
            "p_exact": pa.array([0.7] * ROWS),
            "provider": pa.array(["P"] * ROWS),
            "source": pa.array(["openrouter"] * ROWS),
        }
    )
    engine = VerdictPass.of(campaign, open_extractor(campaign))
    engine.write(store, "00000", packs, archive, corpus_part_digest="d", on_tokens=lambda _: None)
    patch.undo()
    return campaign, store, packs, archive, engine


def test_the_model_picks_the_true_ids_and_the_states_are_the_winners(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass],
) -> None:
    campaign, store, packs, archive, _ = made
    table = read_on_policy(store.states("00000"))
    assert table is not None
    rows = table.to_pylist()
    assert [r["winner"] for r in rows] == [1, 1, *[0] * (ROWS - 2)]
    assert [r["final_grade"] for r in rows[:2]] == ["B2", "B2"] and {r["final_grade"] for r in rows[2:]} == {"B1"}
    states = open_states(store.states("00000"))
    for k in range(2):
        true = archive.column("survivors")[k].as_py()[0]
        assert states[packs[k].sample_id].input_ids.tolist() == true
        assert states[packs[k].sample_id].loss_mask.sum() == len(true) - archive.column("prompt_len")[k].as_py()
    assert all(len(r["logprob"]) == len(r["entropy"]) == len(r["mass_above"]) == r["tokens"] for r in rows)
    problems, _ = verify_partition(campaign, store, "00000", packs)
    assert not problems, "states of a winner are as good as those of the row's own ids"


def test_states_that_are_neither_the_rows_nor_the_winners_are_found(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass],
) -> None:
    campaign, store, packs, _, _ = made
    other = [
        *packs[:3],
        Pack(**{**{f: getattr(packs[3], f) for f in packs[3].__dataclass_fields__}, "input_ids": packs[3].input_ids + 1}),
    ]
    problems, _ = verify_partition(campaign, store, "00000", [*other, *packs[4:]])
    assert any(p.check == "states_match_rows" and p.sample_id == packs[3].sample_id for p in problems)


def test_a_second_run_keeps_everything(made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass]) -> None:
    campaign, store, packs, archive, engine = made
    before = {p.name: p.stat().st_mtime_ns for p in store.states("00000").iterdir() if p.suffix == ".safetensors"}
    assert is_judged(campaign, store, "00000")
    numbers = engine.write(store, "00000", packs, archive, corpus_part_digest="d", on_tokens=lambda _: None)
    assert numbers["verdict_chosen"] == 2 and numbers["verdict_out"] == 0
    assert before == {p.name: p.stat().st_mtime_ns for p in store.states("00000").iterdir() if p.suffix == ".safetensors"}


def test_a_damaged_verdict_is_refused_by_name(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass], tmp_path: Path
) -> None:
    _, store, packs, _archive, _engine = made
    path = store.states("00000") / VERDICTS_FILE
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(StateError, match=r"on_policy\.parquet"):
        read_on_policy(store.states("00000"))
    path.write_bytes(good)
    assert len(winning_packs(packs, read_on_policy(store.states("00000")))) == ROWS


def test_checks_and_summary_name_the_source(made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass]) -> None:
    _, store, _, _, _ = made
    table = read_on_policy(store.states("00000"))
    assert table is not None
    assert all(v.passed for v in judge_on_policy(table, asked=True))
    text = summary_markdown(sources([table]))
    assert "| P | b3_magicoder | 12 |" in text and "sound" in text
    hot = table.set_column(table.schema.get_field_index("heat"), "heat", pa.array([200.0] * ROWS))
    hot = hot.set_column(hot.schema.get_field_index("spread"), "spread", pa.array([400.0] * ROWS))
    verdicts = {v.check: v for v in judge_on_policy(hot, asked=True)}
    assert not verdicts["on_policy"].passed and "P / b3_magicoder" in verdicts["on_policy"].message
    edged = table.set_column(table.schema.get_field_index("edges"), "edges", pa.array([[3]] * ROWS, pa.list_(pa.int32())))
    assert not {v.check: v for v in judge_on_policy(edged, asked=True)}["edge_tokens"].passed


def test_a_temperature_beyond_all_bounds_is_a_failed_check_that_can_be_filed(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass],
) -> None:
    table = read_on_policy(made[1].states("00000"))
    assert table is not None
    hot = table.set_column(table.schema.get_field_index("heat"), "heat", pa.array([500.0] * ROWS))
    hot = hot.set_column(hot.schema.get_field_index("spread"), "spread", pa.array([100.0] * ROWS))
    verdicts = judge_on_policy(hot, asked=True)
    assert not verdicts[0].passed
    json.dumps([asdict(v) for v in verdicts], allow_nan=False)


# ---------------------------------------------------------------------------------------------------- what may lie beside it
def without_verdict(campaign: Campaign) -> Campaign:
    return campaign.model_copy(update={"extraction": campaign.extraction.model_copy(update={"verdict_share": 0.0})})


@pytest.fixture
def copied(made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass], tmp_path: Path) -> Store:
    shutil.copytree(made[1].root, tmp_path / "demo")
    return Store(tmp_path / "demo")


def test_a_verdict_on_earlier_states_is_no_verdict_on_those_that_are_there(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass], copied: Store
) -> None:
    campaign, _, packs, archive, engine = made
    plain = VerdictPass(without_verdict(campaign), engine.engine, None)
    plain.write(copied, "00000", packs, archive, corpus_part_digest="another", on_tokens=lambda _: None)
    assert (copied.states("00000") / VERDICTS_FILE).exists() and read_on_policy(copied.states("00000")) is None
    problems, _ = verify_partition(campaign, copied, "00000", packs)
    assert not problems, "the states are those of the rows' own ids"


def test_states_of_winners_do_not_stand_without_the_file_that_names_the_winners(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass], copied: Store
) -> None:
    """A run that died between the two, and a person who then goes on without a head."""
    campaign, _, packs, archive, engine = made
    assert is_judged(without_verdict(campaign), copied, "00000"), "with it they do"
    for path in (copied.states("00000") / VERDICTS_FILE, manifest_path(copied.states("00000") / VERDICTS_FILE)):
        path.unlink()
    assert not is_judged(without_verdict(campaign), copied, "00000") and not is_judged(campaign, copied, "00000")
    plain = VerdictPass(without_verdict(campaign), engine.engine, None)
    plain.write(copied, "00000", packs, archive, corpus_part_digest="d", on_tokens=lambda _: None)
    assert is_judged(without_verdict(campaign), copied, "00000") and not verify_partition(campaign, copied, "00000", packs)[0]


def test_what_was_filed_about_the_checks_is_bound_to_the_models_verdict(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass], copied: Store
) -> None:
    states = read_manifest(copied.states("00000"))
    assert states is not None
    artifact = Artifact(hidden_states.STAGE, made[0], copied, partition="00000")
    bound = gate.filed_of(artifact, states).subject
    for path in (copied.states("00000") / VERDICTS_FILE, manifest_path(copied.states("00000") / VERDICTS_FILE)):
        path.unlink()
    assert gate.filed_of(artifact, states).subject != bound


def test_a_pool_of_workers_has_a_judge_before_any_worker_has_proved_itself(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass],
) -> None:
    campaign, _, _, _, engine = made
    pool = object.__new__(RayPool)  # no Ray here: nothing of it is asked for the head
    pool._campaign, pool._facts = campaign, None
    judge = VerdictPass.of(campaign, pool).judge
    assert judge is not None and engine.judge is not None
    np.testing.assert_array_equal(judge.head.norm.weight, engine.judge.head.norm.weight)


def test_a_new_dataset_leaves_the_verdict_and_other_sampling_of_its_own_does_not(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass],
) -> None:
    campaign, store, _, _, _ = made
    more = campaign.dataset[0].model_copy(update={"name": "b5_openthoughts"})
    assert is_judged(campaign.model_copy(update={"dataset": (*campaign.dataset, more)}), store, "00000")
    colder = campaign.sampling.model_copy(update={"temperature": 0.6})
    assert not is_judged(campaign.model_copy(update={"sampling": colder}), store, "00000")
    others = tuple(d for d in campaign.dataset if d.name != "b3_magicoder")
    assert not is_judged(campaign.model_copy(update={"dataset": others}), store, "00000")


def test_a_row_with_a_survivor_that_cannot_be_run_is_not_chosen(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass],
) -> None:
    _, _, packs, archive, engine = made
    survivors = [[*archive.column("survivors")[0].as_py(), [9, 9, 9, 9, 9]]]
    table = archive.slice(0, 1).set_column(0, "survivors", pa.array(survivors, pa.list_(pa.list_(pa.int32()))))
    winners, choices = choose_winners(engine.engine, engine.judge, "00000", packs[:1], table)  # type: ignore[arg-type]
    assert choices == [ALONE] and winners == packs[:1]


class Overflowing:
    """The real engine, whose states of every row but the one named are not finite."""

    def __init__(self, engine: Any, sound: tuple[int, ...]) -> None:
        self.describe, self._capture, self._sound = engine.describe, engine.capture, sound

    def capture(self, token_lists: Sequence[Sequence[int]], layers: Sequence[int], final: str = "prenorm") -> list[Captured]:
        rows = self._capture(token_lists, layers, final)
        return [r if r.input_ids == self._sound else replace(r, states=r.states * float("nan")) for r in rows]


def test_a_candidate_whose_states_are_not_finite_never_wins(
    made: tuple[Campaign, Store, list[Pack], pa.Table, VerdictPass],
) -> None:
    _, _, packs, archive, engine = made
    broken: Any = Overflowing(engine.engine, tuple(int(i) for i in packs[0].input_ids))
    winners, choices = choose_winners(broken, engine.judge, "00000", packs[:1], archive.slice(0, 1))  # type: ignore[arg-type]
    assert choices[0].winner == 0 and choices[0].posterior == 0.0 and winners == packs[:1]


def test_without_a_wish_nothing_is_missing_and_with_one_it_is() -> None:
    assert all(v.passed for v in judge_on_policy(None, asked=False))
    assert not any(v.passed for v in judge_on_policy(None, asked=True))


def test_a_share_is_the_same_rows_everywhere() -> None:
    names = [f"{k:032x}" for k in range(2000)]
    chosen = [n for n in names if in_share(n, 0.25)]
    assert 430 < len(chosen) < 570 and set(chosen) <= {n for n in names if in_share(n, 0.5)}
    assert not any(in_share(n, 0.0) for n in names) and all(in_share(n, 1.0) for n in names)
