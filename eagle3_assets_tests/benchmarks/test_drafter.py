"""`benchmarks/drafter.py`: the alignment of what a drafter learns from, the walk that counts acceptance, and a world small enough to be
learned in seconds. The figures themselves are the benchmark's (docs/drafter.md)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # a folder of scripts, no package

import drafter  # noqa: E402
from drafter_models import DRAFTERS, OwnDrafter, SpeculatorsDrafter, Target  # noqa: E402

from eagle3_assets.campaign import load_campaign  # noqa: E402
from eagle3_assets.corpus.pack import Pack  # noqa: E402
from eagle3_assets.errors import StateError  # noqa: E402
from eagle3_assets.states.format.final_norm import FinalNorm, save_final_norm  # noqa: E402
from eagle3_assets.states.format.layers import CONVENTION, FINAL  # noqa: E402
from eagle3_assets.states.format.manifest import write_manifest  # noqa: E402
from eagle3_assets.states.format.part import PartSpec, write_part  # noqa: E402
from eagle3_assets.states.target.weights import model_fingerprint  # noqa: E402
from eagle3_assets.store import Store  # noqa: E402

V, H, STRIDES = 40, 32, 4  # ids, hidden size, kinds of row
SETTINGS = drafter.Settings(chain=3, epochs=8, batch_tokens=120, warm_up=5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target() -> Target:
    """Every second id can be proposed; the norm's weight is not 1."""
    rng = np.random.default_rng(0)
    embedding, head = rng.normal(size=(2, V, H)).astype(np.float32)
    norm = FinalNorm(rng.uniform(0.5, 1.5, H).astype(np.float32), 1e-5)
    chosen = np.arange(0, V, 2)
    return Target(embedding, head[chosen], chosen, norm)


def make_rows(target: Target, count: int, seed: int) -> list[drafter.Row]:
    """A row counts in even steps of its own stride, which only the states tell; the final state says the next id through norm and head."""
    rng = np.random.default_rng(seed)
    marks = np.random.default_rng(1).normal(size=(STRIDES, H)).astype(np.float32)
    rows = []
    for _ in range(count):
        length, stride = int(rng.integers(20, 40)), int(rng.integers(STRIDES))
        ids = (2 * rng.integers(V // 2) + 2 * (stride + 1) * np.arange(length)) % V
        aux = np.repeat(marks[stride][None, None], length, axis=0) + 0.1 * rng.normal(size=(length, 3, H))
        following = (ids + 2 * (stride + 1)) % V
        final = 3.0 * target.head[following // 2] / target.final_norm.weight
        states = np.concatenate([aux, final[:, None]], axis=1).astype(np.float32)
        rows.append(drafter.Row(ids.astype(np.int64), np.arange(length) >= 8, states))
    return rows


# ---------------------------------------------------------------------------------------------------- the walk
def test_a_verification_accepts_up_to_the_first_miss_and_adds_one_id() -> None:
    ids = np.arange(10)  # prompt 0 1 2, answer 3 .. 9: the first of it comes from prefill
    drafts = np.full((2, 9), -1)
    drafts[0, 2], drafts[1, 2] = 4, 5  # from 3 on: both right, so 6 is the target's own
    drafts[0, 5], drafts[1, 5] = 0, 8  # from 6 on: the first is wrong, so the second does not count
    drafts[0, 6], drafts[1, 6] = 8, 0  # from 7 on: one right, 9 is the target's own
    assert drafter.walk(drafts, ids, prompt=3) == drafter.Walk(tokens=6, verifications=3, first_hits=2)


@pytest.mark.parametrize("length", range(5, 20))
def test_right_drafts_save_their_share_and_wrong_ones_cost_nothing(length: int) -> None:
    ids, chain, prompt = np.arange(length), 3, 4
    right = np.stack([np.arange(length - 1) + 2 + k for k in range(chain)])
    tokens = length - 1 - prompt
    verifications = -(-tokens // (chain + 1))
    assert drafter.walk(right, ids, prompt) == drafter.Walk(tokens, verifications, verifications)
    assert drafter.walk(np.full_like(right, -1), ids, prompt) == drafter.Walk(tokens, tokens, 0)


# ---------------------------------------------------------------------------------------------------- alignment
def test_an_id_stands_beside_the_state_before_it_and_the_label_of_its_own(target: Target) -> None:
    first, second = make_rows(target, 2, seed=3)
    batch = drafter.make_batch([first, second])
    assert batch.ids.tolist() == [*first.ids[1:], *second.ids[1:]]
    size = len(first.ids) - 1
    assert torch.equal(batch.features[size], torch.from_numpy(second.states[0, :3].reshape(-1)))
    assert torch.equal(batch.final[size], torch.from_numpy(second.states[1, 3]))
    assert batch.positions[[0, size]].tolist() == [1, 1]
    # of answer ids 8 .. T-1 the first needs no draft: starts with the ids 8 .. T-2
    assert batch.supervised[:size].nonzero()[:, 0].tolist() == list(range(7, size - 1))


def test_off_by_one_puts_the_state_of_the_token_before_in_every_slot(target: Target) -> None:
    (row,) = make_rows(target, 1, seed=3)
    moved = drafter.off_by_one(row)
    assert np.array_equal(moved.ids, row.ids) and np.array_equal(moved.generated, row.generated)
    assert np.array_equal(moved.states[1:], row.states[:-1])


def test_batches_hold_every_row_once_and_no_more_tokens_than_asked_for(target: Target) -> None:
    rows = make_rows(target, 30, seed=3)
    batches = list(drafter.make_batches(rows, 90, np.random.default_rng(0)))
    assert sorted(id(row) for batch in batches for row in batch) == sorted(map(id, rows))
    assert all(sum(len(row.ids) for row in batch) <= 90 for batch in batches)
    assert [len(batch) for batch in drafter.make_batches(rows[:3], 1)] == [1, 1, 1]
    assert [row for batch in drafter.make_batches(rows, 90) for row in batch] == rows


@pytest.mark.slow
def test_a_draft_depends_on_its_own_row_and_on_nothing_behind_it(target: Target) -> None:
    a, b = make_rows(target, 2, seed=3)
    drafting = OwnDrafter(target, seed=0)
    # from a state to a different one: fresh weights propose almost the same everywhere
    drafter.train(drafting, make_rows(target, 30, seed=4), replace(SETTINGS, epochs=2), seed=0)
    both, alone = drafting.drafts(drafter.make_batch([a, b]), 3), drafting.drafts(drafter.make_batch([b]), 3)
    assert torch.equal(both[:, len(a.ids) - 1 :], alone)
    changed = replace(b, ids=np.append(b.ids[:-1], 1), states=np.concatenate([b.states[:-1], b.states[-1:] + 1.0]))
    after = drafting.drafts(drafter.make_batch([changed]), 3)
    for k in range(3):  # the last id is read by draft k of the start len - 2 - k, not by those before
        assert torch.equal(after[k, : len(b.ids) - 2 - k], alone[k, : len(b.ids) - 2 - k])
        assert (alone[k, 7 : len(b.ids) - 2] >= 0).all()


# ---------------------------------------------------------------------------------------------------- learning
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DRAFTERS if drafter.installed(name)])
def test_states_teach_a_drafter_and_states_off_by_one_teach_it_the_wrong_thing(name: str, target: Target) -> None:
    bench = drafter.Bench(name, target, make_rows(target, 60, seed=1), make_rows(target, 20, seed=2), SETTINGS)
    runs = [drafter.run_arm(bench, arm, seed=0) for arm in drafter.ARMS]
    untrained, trained, off = (run["tokens_per_verification"] for run in runs)
    assert untrained < 1.2
    assert trained > 3.0  # of 4 that a chain of 3 can give
    assert off < 1.2


def test_a_run_is_decided_by_its_seed(target: Target) -> None:
    bench = drafter.Bench("own", target, make_rows(target, 10, seed=1), make_rows(target, 5, seed=2), replace(SETTINGS, epochs=1))
    first, again, other = (OwnDrafter(target, seed) for seed in (0, 0, 1))
    for drafting, seed in ((first, 0), (again, 0), (other, 1)):
        drafter.train(drafting, bench.rows, bench.settings, seed)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.linear["fc"].weight, other.linear["fc"].weight)


def test_a_wrong_last_id_gives_the_same_drafter_to_the_bit(target: Target) -> None:
    """What docs/drafter.md says acceptance cannot see: a wrong end id, its own state and label included."""
    rows = make_rows(target, 10, seed=1)
    wrong = [replace(r, ids=np.append(r.ids[:-1], 1), states=np.concatenate([r.states[:-1], -r.states[-1:]])) for r in rows]
    pair = OwnDrafter(target, 0), OwnDrafter(target, 0)
    for drafting, learnt in zip(pair, (rows, wrong), strict=True):
        drafter.train(drafting, learnt, replace(SETTINGS, epochs=2), seed=0)
    assert all(torch.equal(a, b) for a, b in zip(*(d.parameters() for d in pair), strict=True))


def test_our_layer_computes_what_speculators_model_computes(target: Target) -> None:
    pytest.importorskip("speculators", reason="needs the package speculators (pyproject: extra speculators)")
    theirs, ours = SpeculatorsDrafter(target, 0), OwnDrafter(target, 1)
    layer = theirs.model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    pairs = {
        "fc": theirs.model.fc, "q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj, "o": attention.o_proj,
        "gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj,
    }  # fmt: skip
    for name, linear in pairs.items():
        ours.linear[name].weight.data = linear.weight.data * 5.0
        linear.weight.data = linear.weight.data * 5.0
    batch = drafter.make_batch(make_rows(target, 3, seed=1))
    for k, (mine, other) in enumerate(zip(ours.drafts(batch, 4), theirs.drafts(batch, 4), strict=True)):
        inside = batch.supervised & batch.supervised.roll(-k)  # start and end of the draft in one answer
        assert inside.sum() > 20 and torch.equal(mine[inside], other[inside])
    mine, other = ours.loss(batch, 3), theirs.loss(batch, 3)
    assert mine.item() == pytest.approx(other.item(), rel=1e-4)
    mine.backward()
    other.backward()
    assert torch.allclose(ours.linear["q"].weight.grad, attention.q_proj.weight.grad, rtol=1e-3, atol=1e-6)


# ---------------------------------------------------------------------------------------------------- from disk
def stored_partition(store: Store, fingerprint: str) -> torch.Tensor:
    """One part of two rows in bfloat16, as `states` commits it."""
    spec = PartSpec("00000", CONVENTION, FINAL, (2, 4, 5), 8, H, "bfloat16", fingerprint)
    states = torch.randn(9, 4, H, generator=torch.Generator().manual_seed(0)).bfloat16()
    packs = [
        Pack(k, f"s{k}", 0, "b1", "B1", "00000", np.arange(n, dtype=np.uint32), (np.arange(n) > 1).astype(np.uint8))
        for k, n in enumerate((4, 5))
    ]
    folder = store.states("00000")
    folder.mkdir(parents=True)
    save_final_norm(folder / "final_norm.safetensors", FinalNorm(np.full(H, 2.0, np.float32), 1e-5))
    part = write_part(folder / "part-000.safetensors", spec, packs, states.split([4, 5]), "f")
    write_manifest(folder, spec, [part], corpus_part_digest="d", model={"fingerprint": fingerprint}, self_test={})
    return states.float()


def test_rows_come_from_the_partitions_as_stored(tmp_path: Path) -> None:
    campaign, store = load_campaign("demo"), Store(tmp_path)
    states = stored_partition(store, model_fingerprint(campaign))
    rows, norm = drafter.read_rows(campaign, store)
    assert [row.ids.tolist() for row in rows] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert rows[1].generated.tolist() == [False, False, True, True, True]
    assert np.array_equal(rows[1].states, states[4:].numpy())
    assert norm.weight.tolist() == [2.0] * H


def test_states_of_another_model_and_no_states_are_refused_in_one_line(tmp_path: Path) -> None:
    campaign = load_campaign("demo")
    with pytest.raises(StateError, match="holds no states; run the campaign first"):
        drafter.read_rows(campaign, Store(tmp_path))
    stored_partition(Store(tmp_path), "another")
    with pytest.raises(StateError, match="states of another model"):
        drafter.read_rows(campaign, Store(tmp_path))


def test_the_summary_has_mean_and_deviation_of_every_arm() -> None:
    runs = [
        {"arm": arm, "tokens_per_verification": 1.0 + k, "first_draft_hits": 0.5} for arm in drafter.ARMS for k in (0.0, 0.2, 0.4)
    ]
    arms = drafter.summarise(runs)
    assert arms["trained"]["tokens_per_verification_mean"] == pytest.approx(1.2)
    assert arms["trained"]["tokens_per_verification_sd"] == pytest.approx(0.2)
    assert arms["off_by_one"]["first_draft_hits_sd"] == 0.0
    assert "1.200 (0.200)" in drafter.report(arms)
