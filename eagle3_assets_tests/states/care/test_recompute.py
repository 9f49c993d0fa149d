"""Rows through the model again: the same model agrees, another one, other layers and other ids do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from eagle3_assets import states as states_room
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.care.recompute import choose_rows, recompute_rows
from eagle3_assets.states.extractors.transformers import TransformersExtractor
from eagle3_assets.states.partition import write_partition
from eagle3_assets.states.reader import States
from eagle3_assets.store import Store
from eagle3_assets_tests.states.conftest import CampaignMaker, make_packs, tiny_model

PACKS = make_packs((20, 35, 50, 18, 90, 33))


def engine(model: Any, dtype: str) -> TransformersExtractor:
    return TransformersExtractor(model, name="tiny", revision=None, fingerprint="x", batch_tokens=64, stored_dtype=dtype)


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stored(make_campaign: CampaignMaker, store: Store, dtype: str) -> tuple[Campaign, States]:
    campaign = make_campaign(dtype=dtype, model_dtype=dtype)
    write_partition(campaign, store, "00000", PACKS, engine(tiny_model("deepseek_v3", getattr(torch, dtype)), dtype))
    return campaign, states_room.open(store.states("00000"))


@pytest.mark.slow
def test_the_same_model_agrees_on_every_row(stored: tuple[Campaign, States], dtype: str) -> None:
    rows = recompute_rows(engine(tiny_model("deepseek_v3", getattr(torch, dtype)), dtype), stored[1], range(len(PACKS)))
    assert all(row.agrees for row in rows)
    assert [row.tokens for row in rows] == [len(p.input_ids) for p in PACKS]


def test_the_chosen_rows_hold_the_longest_and_repeat_with_the_seed(stored: tuple[Campaign, States]) -> None:
    assert choose_rows(stored[1], 1, seed=3) == [4]
    assert choose_rows(stored[1], 3, seed=3) == choose_rows(stored[1], 3, seed=3)
    assert 4 in choose_rows(stored[1], 3, seed=1)
    assert choose_rows(stored[1], 99, seed=0) == list(range(len(PACKS)))


def test_weights_that_changed_behind_their_fingerprint_are_seen(stored: tuple[Campaign, States], dtype: str) -> None:
    """A fine-tune of one upper layer: E_low agrees, what lies behind it does not."""
    model = tiny_model("deepseek_v3", getattr(torch, dtype))
    with torch.no_grad():
        model.model.layers[3].self_attn.o_proj.weight.mul_(1.5)
    row = recompute_rows(engine(model, dtype), stored[1], [4])[0]
    assert not row.agrees
    assert row.distances[0] <= row.tolerance < min(row.distances[1:])
    assert (
        "row s0004 turn 1: stored states differ from what the model gives now (low 0, mid" in row.message or dtype == "bfloat16"
    )


def test_another_model_is_refused_by_its_fingerprint(stored: tuple[Campaign, States], dtype: str) -> None:
    other = TransformersExtractor(tiny_model("llama"), name="o", revision=None, fingerprint="y", stored_dtype=dtype)
    with pytest.raises(StateError, match="states of model x, the engine holds y: another model"):
        recompute_rows(other, stored[1], [0])


def test_states_of_the_next_layer_under_the_right_name_are_seen(stored: tuple[Campaign, States], dtype: str) -> None:
    """A manifest that says [2, 4, 6] over states of [3, 5, 7]: checksums, ids and self-test all agree; only the model knows."""
    _, opened = stored
    model = tiny_model("deepseek_v3", getattr(torch, dtype))

    class Off(TransformersExtractor):
        def capture(self, token_lists: Any, layers: Any, final: str = "prenorm") -> Any:
            return super().capture(token_lists, [k + 1 for k in layers], final)

    wrong = Off(model, name="tiny", revision=None, fingerprint="x", stored_dtype=dtype)
    row = recompute_rows(wrong, opened, [4])[0]
    assert not row.agrees
    assert row.distances[3] <= row.tolerance
    assert json.dumps(row.message)
