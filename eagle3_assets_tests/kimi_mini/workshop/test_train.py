"""Training: batches are the world's, packed attention is attention, a resumed run is the run, and the loss falls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kimi_mini import model as kimi_mini_model
from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import train, world

torch = pytest.importorskip("torch")

TINY = train.Recipe(steps=6, step_tokens=300, warm_up=2)


def test_a_batch_marks_exactly_the_predictions_of_generated_tokens():
    rows = [world.make_row(world.training_episode(1, k)) for k in range(5)]
    batch = train.make_batch(rows)
    assert batch.ids.tolist() == [token for row in rows for token in row.ids]
    start = 0
    for row in rows:
        wanted = {start + t for begin, end in row.spans for t in range(begin - 1, end - 1)}
        here = range(start, start + len(row.ids))
        assert {t for t in here if batch.generated[t]} == wanted
        assert {t for t in here if batch.prompt[t]} == set(here) - wanted - {here[-1]}
        start += len(row.ids)


def test_batches_depend_on_seed_and_step_alone_and_are_about_as_large_as_asked():
    one, again, other = train.batch_of(TINY, 3), train.batch_of(TINY, 3), train.batch_of(replace(TINY, seed=1), 3)
    assert np.array_equal(one.ids, again.ids) and not np.array_equal(one.ids, other.ids)
    assert 300 <= len(one.ids) < 300 + 600


def test_packed_attention_gives_each_conversation_the_states_it_has_alone():
    from kimi_mini_workshop.packed import NAME

    rows = [world.make_row(world.training_episode(2, k)) for k in range(4)]
    batch = train.make_batch(rows)
    alone, packed = kimi_mini_model.fresh_model(), kimi_mini_model.fresh_model()
    packed.set_attn_implementation(NAME)
    positions = torch.cat([torch.arange(length) for length in batch.lengths])
    with torch.no_grad():
        together = packed.model(
            input_ids=torch.from_numpy(batch.ids)[None], position_ids=positions[None], use_cache=False, lengths=batch.lengths
        ).last_hidden_state[0]
        for row, part in zip(rows, together.split(list(batch.lengths)), strict=True):
            single = alone.model(input_ids=torch.tensor(row.ids)[None], use_cache=False).last_hidden_state[0]
            assert torch.allclose(part, single, atol=1e-4)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path):
    whole = train.train(tmp_path / "whole", TINY, checkpoint_every=2, held_out_conversations=4)
    lines: list[dict[str, object]] = []

    def stop_after_four(line: dict[str, object]) -> None:
        lines.append(line)
        if line["step"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.train(tmp_path / "cut", TINY, checkpoint_every=2, report_every=2, held_out_conversations=4, report=stop_after_four)
    resumed = train.train(
        tmp_path / "cut", TINY, checkpoint_every=2, report_every=2, held_out_conversations=4, report=lines.append
    )
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True))


@pytest.mark.slow
def test_another_recipe_does_not_go_on_from_a_foreign_checkpoint(tmp_path: Path):
    train.train(tmp_path, replace(TINY, steps=2), checkpoint_every=2, held_out_conversations=4)
    with pytest.raises(KimiMiniError, match="belongs to the recipe"):
        train.train(tmp_path, TINY)


@pytest.mark.slow
def test_the_loss_falls_and_the_router_is_balanced_by_hand(tmp_path: Path):
    recipe = train.Recipe(steps=14, step_tokens=600, warm_up=4)
    rows = [world.make_row(world.held_out_episode(0, k)) for k in range(12)]
    fresh = kimi_mini_model.fresh_model(recipe.seed)
    before = train.held_out_loss(_packed(fresh), rows, recipe)
    trained = train.train(tmp_path, recipe, held_out_conversations=4)
    assert train.held_out_loss(_packed(trained), rows, recipe) < before - 1.0
    biases = [layer.mlp.gate.e_score_correction_bias for layer in trained.model.layers[1:]]
    assert all(0 < float(bias.abs().max()) <= recipe.steps * recipe.bias_step * 1.01 for bias in biases)


def _packed(model):
    from kimi_mini_workshop.packed import NAME

    model.set_attn_implementation(NAME)
    return model


def test_muon_steps_are_nearly_orthogonal():
    from kimi_mini_workshop.muon import orthogonalised

    made = orthogonalised(torch.randn(3, 24, 60, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(made)
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3
