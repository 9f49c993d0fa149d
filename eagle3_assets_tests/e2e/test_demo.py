"""Claims about the whole walk, from outside: `eagle3 run` on the demo campaign and Dagster's own commands."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from eagle3_assets import corpus as corpora
from eagle3_assets import states as hidden
from eagle3_assets.campaign import SHARDS, load_campaign
from eagle3_assets.handoff.mapped_rows import MappedRows
from eagle3_assets_tests.e2e.conftest import Place, last_line, small_campaign

pytestmark = pytest.mark.e2e


def _summary(demo: Place) -> dict[str, dict[str, object]]:
    found = json.loads(demo.run("eagle3", "status", "--json").stdout)
    return {d["dataset"]: d for d in found["datasets"]}


def test_every_dataset_is_complete_and_every_stage_current(demo: Place) -> None:
    found = json.loads(demo.run("eagle3", "status", "--json").stdout)
    assert all(set(states) == {"current"} for states in found["stages"].values()), found["stages"]
    for d in load_campaign("demo").dataset:
        assert _summary(demo)[d.name]["rows"] == d.n_rows


def test_server_ids_are_exact_and_b1_keeps_its_promise(demo: Place) -> None:
    """The stand-in's truth is the oracle. B1 promises one surviving hypothesis, which a count-neutral non-canonical split can betray."""
    score = json.loads(demo.run("eagle3", "standin", "score", "--json").stdout)
    assert score["datasets"]["b1_glaive"]["exact"] == score["datasets"]["b1_glaive"]["rows"]
    b1 = [score["datasets"][n]["grades"]["B1"] for n in ("b3_magicoder", "b8_sweagent")]
    exact, rows = sum(g["exact"] for g in b1), sum(g["rows"] for g in b1)
    assert rows >= 80 and exact / rows >= 0.97, (exact, rows)


def test_the_live_model_and_the_bank_give_the_same_kind_of_result(demo: Place, place: Place) -> None:
    """The same prompts answered from the committed bank: as many rows, the same grades in about the same shares, as exact.

    About: the bank was sampled from the whole distribution, so its edges vary more, and of a provider with thirty answers the leading
    space may stay open: its rows, two fifths of a dataset, are C1 then.
    """
    names = tuple(d.name for d in load_campaign("demo").dataset)
    campaign = small_campaign(place.folder, "banked", datasets=names, rows=None)
    done = place.run("eagle3", "run", "--until", "corpus", EAGLE3_CAMPAIGN=str(campaign))
    assert done.returncode == 0, done.stderr
    live = json.loads(demo.run("eagle3", "standin", "score", "--json").stdout)["datasets"]
    bank = json.loads(place.run("eagle3", "standin", "score", "--json", EAGLE3_CAMPAIGN=str(campaign)).stdout)["datasets"]
    for name in names:
        assert live[name]["rows"] == bank[name]["rows"]
        shares = [
            {g: counts["rows"] / found[name]["rows"] for g, counts in found[name]["grades"].items()} for found in (live, bank)
        ]
        for grade in {*shares[0], *shares[1]}:
            assert abs(shares[0].get(grade, 0) - shares[1].get(grade, 0)) < 0.5, (name, grade, shares)
    for found in (live, bank):
        trusted = [
            counts for d in found.values() for g, counts in d["grades"].items() if g in ("A0", "B1") and not counts["no_truth"]
        ]
        assert sum(c["exact"] for c in trusted) >= 0.97 * sum(c["rows"] for c in trusted) > 100


def test_the_demos_answers_are_on_policy_for_its_states(demo: Place) -> None:
    """The weights that give the states are the weights that sampled the answers: what was sampled is probable under them."""
    import torch

    from kimi_mini.model import load_model

    model, corpus = load_model(), corpora.open(demo.root("demo") / "corpus")
    chances = []
    for pack in corpus.part(corpus.parts[0])[:30]:
        ids = torch.tensor(pack.input_ids.astype(np.int64))
        with torch.inference_mode():
            own = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        chances.append(own[torch.from_numpy(pack.loss_mask.astype(bool))[1:]])
    assert -0.6 < float(torch.cat(chances).mean()) < -0.02


def test_stripped_rows_are_never_better_than_c1(demo: Place) -> None:
    """Rule 4: while data has not decided a provider's leading-space question, no row of it is better than C1."""
    decided = json.loads((demo.root("demo") / "wire_profiles.json").read_text())["providers"]
    undecided = {name for name, facts in decided.items() if not facts["decided"]}
    for dataset in ("b3_magicoder", "b8_sweagent"):
        for shard in SHARDS:
            table = pq.read_table(demo.root("demo") / "tokens" / dataset / f"{shard}.parquet", columns=["provider", "grade"])
            better = {
                g for p, g in zip(*(table.column(n).to_pylist() for n in ("provider", "grade")), strict=True) if p in undecided
            }
            assert not better & {"A1", "A2", "B1", "B2"}


def test_a_second_run_buys_nothing_and_skips_what_is_current(demo: Place) -> None:
    truth = demo.root("demo") / "standin" / "truth.jsonl"
    before, runs = truth.read_bytes(), sorted((demo.folder / "data" / "dagster" / "history" / "runs").iterdir())
    done = demo.run("eagle3", "run")
    assert done.returncode == 0 and done.stderr.count("current") >= 6
    assert truth.read_bytes() == before
    assert sorted((demo.folder / "data" / "dagster" / "history" / "runs").iterdir()) == runs


def test_money_adds_up_with_the_servers_own_ledger(demo: Place) -> None:
    money = json.loads(demo.run("eagle3", "status", "--json").stdout)["money"]
    lines = (demo.root("demo") / "standin" / "ledger.jsonl").read_text().splitlines()
    theirs = sum(json.loads(line)["cost_pico"] for line in lines) / 1e12
    assert money["reserved_usd"] == money["ambiguous_usd"] == 0.0
    assert money["spent_usd"] == pytest.approx(theirs, abs=1e-9) and theirs > 0


def test_handed_on_rows_are_the_corpus_rows(demo: Place) -> None:
    corpus = corpora.open(demo.root("demo") / "corpus")
    lines = (demo.root("demo") / "handoff" / "tokens" / "tokens.jsonl").read_text().splitlines()
    assert 0 < len(lines) <= len(corpus)
    for row in map(json.loads, lines):
        sample_id, turn = row["id"].split("/")
        pack = next(p for p in corpus.by_sample_id(sample_id) if p.turn == int(turn))
        assert row["input_ids"] == pack.input_ids.tolist() and row["loss_mask"] == pack.loss_mask.tolist()
        assert len(row["input_ids"]) == len(row["loss_mask"]) and 1 in row["loss_mask"]


def test_both_trainers_are_handed_the_same_rows_with_their_states(demo: Place) -> None:
    root = demo.root("demo") / "handoff"
    texts = (
        (root / "tokens" / "tokens.jsonl").read_text(),
        gzip.decompress((root / "tokens" / "validation.jsonl.gz").read_bytes()).decode(),
    )
    train, validation = ([json.loads(line) for line in text.splitlines()] for text in texts)
    lines = [*train, *validation]
    for trainer in ("speculators", "specforge"):
        rows = MappedRows(root / trainer)
        assert len(rows) == len(lines) and rows.train_rows == len(train) and validation
        for i, line in enumerate(lines):  # each side in corpus order, validation behind
            row = rows[i]
            assert f"{row.sample_id}/{row.turn}" == line["id"] and row.input_ids.tolist() == line["input_ids"]
            assert row.loss_mask.tolist() == line["loss_mask"] and row.hidden_states.shape[:2] == (len(row.input_ids), 4)


def test_hidden_states_equal_transformers_own(demo: Place) -> None:
    """`output_hidden_states` for E_low, E_mid, E_high, and the input of the final norm, up to the rounding of what is stored (bf16)."""
    import torch
    from transformers import AutoModelForCausalLM

    from eagle3_assets.installed import kimi_mini_weights

    campaign = load_campaign("demo")
    corpus = corpora.open(demo.root("demo") / "corpus")
    key = corpus.parts[0]
    stored = hidden.open(demo.root("demo") / "hidden_states" / key)
    model = AutoModelForCausalLM.from_pretrained(kimi_mini_weights(), dtype=torch.float32)
    seen: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for pack in corpus.part(key)[:3]:
        row = stored[pack.sample_id, pack.turn]
        assert np.array_equal(row.input_ids, pack.input_ids) and np.array_equal(row.loss_mask, pack.loss_mask)
        with torch.inference_mode():
            out = model(input_ids=torch.tensor(pack.input_ids.astype(np.int64))[None], output_hidden_states=True, use_cache=False)
        expected = torch.stack([*(out.hidden_states[k][0] for k in campaign.layers), seen.pop()[0]], dim=1)
        found = row.hidden_states.to(torch.float32)
        # several rows ran in one pass here and one there: sums in another order (docs/research/hidden-states.md#2: 5e-3 in bf16)
        assert ((found - expected).norm(dim=(0, 2)) <= 5e-3 * expected.norm(dim=(0, 2))).all()
        behind_the_norm = out.hidden_states[-1][0]
        assert (found[:, 3] - behind_the_norm).norm() > 0.1 * behind_the_norm.norm()


def test_one_partition_and_a_range_of_two_datasets_materialize_as_one_step(demo: Place) -> None:
    module = ("-m", "eagle3_assets.definitions")
    one = demo.run("dagster", "asset", "materialize", *module, "--select", "answers/b3_magicoder", "--partition", "00")
    assert one.returncode == 0, last_line(one)
    two = demo.run(
        "dagster", "asset", "materialize", *module, "--select", "answers/b3_magicoder,answers/b8_sweagent", "--partition-range", "00...15"
    )  # fmt: skip
    assert two.returncode == 0, last_line(two)
    assert two.stderr.count("answers - STEP_SUCCESS") == 1
    behind = demo.run(
        "dagster", "asset", "materialize", *module, "--select", "tokens/b3_magicoder", "--partition-range", "02...03"
    )
    assert behind.returncode == 0, last_line(behind)


def test_every_table_has_the_columns_that_its_asset_describes(demo: Place) -> None:
    from eagle3_assets.assets.description import columns_of

    root = demo.root("demo")
    files = {
        "prompts": root / "prompts" / "b3_magicoder.parquet", "tokens": root / "tokens" / "b3_magicoder" / "00.parquet",
        "corpus": root / "corpus" / "part-00000.parquet", "vocab_map": root / "vocab_map" / "token_freq.parquet",
        "hidden_states": root / "hidden_states" / "00000" / "on_policy.parquet",
    }  # fmt: skip
    for stage, path in files.items():
        assert set(columns_of(stage)) == set(pq.read_schema(path).names), stage
    first = json.loads((root / "handoff" / "tokens" / "tokens.jsonl").read_text().splitlines()[0])
    assert set(columns_of("handoff_tokens")) == set(first)


def test_runs_of_the_command_have_a_jobs_name_and_tags_and_a_campaign(demo: Place) -> None:
    """So that the UI names them, puts them into its timeline and executes them again."""
    runs = sqlite3.connect(demo.folder / "data" / "dagster" / "history" / "runs.db")
    names = {name for (name,) in runs.execute("SELECT pipeline_name FROM runs")}
    assert {"prepare", "collect", "judge", "merge", "extract", "handoff", "train"} <= names and not any(
        "ephemeral" in n for n in names
    )
    tagged = {key for (key,) in runs.execute("SELECT DISTINCT key FROM run_tags")}
    assert {"eagle3/campaign", "eagle3/stages", "eagle3/datasets"} <= tagged


def test_definitions_validate(demo: Place) -> None:
    assert demo.run("dagster", "definitions", "validate").returncode == 0


def test_show_prints_a_sample_and_a_page(demo: Place, tmp_path: Path) -> None:
    corpus = corpora.open(demo.root("demo") / "corpus")
    done = demo.run("eagle3", "show", corpus[0].sample_id[:12], "--html", str(tmp_path / "x.html"))
    assert done.returncode == 0, done.stderr
    assert "\x1b[31m<script" not in done.stdout and "<script>alert" not in (tmp_path / "x.html").read_text()


def test_a_second_dagster_state_is_asked_for_by_another_campaign(demo: Place) -> None:
    other = small_campaign(demo.folder, "other")
    done = demo.run("eagle3", "run", "--until", "prompts", EAGLE3_CAMPAIGN=str(other))
    assert done.returncode == 2, done.stderr
    line = last_line(done)
    assert "belongs to campaign 'demo', not 'other' in" in line and "export DAGSTER_HOME=" in line


def test_the_demo_ends_with_a_trained_drafter_and_its_acceptance(demo: Place) -> None:
    """Trained on the hand-off by another process (Dagster Pipes), measured on conversations that it never saw; the command computes the same."""
    root = demo.root("demo")
    record = json.loads((root / "drafter" / "training.json").read_bytes())
    assert record["last_loss"] < 0.25 * record["first_loss"] and len(record["losses"]) == record["steps"] > 100
    assert record["trained_on"]["handoff"] and record["trained_on"]["target_head"]
    document = json.loads((root / "acceptance" / "acceptance.json").read_bytes())
    taus = {way: found["all"]["tau"] for way, found in document["ways"].items()}
    assert (
        1.8 < taus["sampled_chain"] < 4.0 and taus["sampled_tree"] > taus["sampled_chain"] and document["untrained"]["tau"] < 1.1
    )
    corpus = corpora.open(root / "corpus")
    validation = {p.sample_id for p in corpus if p.split == "validation"}
    assert document["rows"] == sum(p.split == "validation" and p.grade in ("A0", "B1") for p in corpus) and len(validation) > 10
    page = (root / "acceptance" / "acceptance.html").read_text()
    assert f"{taus['sampled_chain']:.2f}" in page and "data:image/png" in page
    again = json.loads(demo.run("eagle3", "accept", "--json").stdout)
    assert {way: found["all"]["tau"] for way, found in again["ways"].items()} == taus


def test_the_trainers_steps_are_in_dagsters_log_and_on_the_asset(demo: Place) -> None:
    """What Pipes brought: lines of loss in the run, observations and metadata on the asset, verdicts beside it."""
    code = (
        "import dagster as dg, json\n"
        "from eagle3_assets.cli.run import dagster_instance\n"
        "with dagster_instance() as instance:\n"
        "    key = dg.AssetKey('drafter')\n"
        "    made = instance.get_latest_materialization_event(key)\n"
        "    lines = [e.user_message for e in instance.all_logs(made.run_id)]\n"
        "    metadata = {k: str(v.value)[:60] for k, v in made.asset_materialization.metadata.items()}\n"
        "    print(json.dumps({'lines': lines, 'metadata': metadata}))\n"
    )
    found = json.loads(demo.run("python", "-c", code).stdout.splitlines()[-1])
    assert any(" loss " in line and line.startswith("step ") for line in found["lines"]), found["lines"][:20]
    assert {"trainer", "steps", "last_loss", "trained_on", "loss", "checkpoint"} <= set(found["metadata"])
