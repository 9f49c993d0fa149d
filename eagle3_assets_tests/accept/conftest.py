"""One campaign of kimi-mini's sampled answers with a validation side, and a drafter trained on its other side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_assets.accept.layer import Drafter
from eagle3_assets.accept.stored_rows import StoredRow, final_norm, stored_rows
from eagle3_assets.accept.training import Settings, fresh_drafter, train
from eagle3_assets.corpus.vocab import read_vocab_map
from eagle3_assets.states.target.target_head import TargetHead, load_head
from eagle3_assets_tests.handoff.answers import Place, mini_campaign, sampled_rows, with_states
from kimi_mini.model import load_model

SETTINGS = Settings(epochs=2, keep_every=5)


@dataclass(frozen=True, slots=True)
class Trained:
    place: Place
    model: Any
    head: TargetHead
    drafter: Drafter
    untrained: Drafter
    validation: list[StoredRow]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.set_num_threads(1)
    campaign = mini_campaign(corpus={"validation_share": 0.3})
    place = with_states(Path(tmp_path_factory.mktemp("accept")) / "demo", campaign, sampled_rows(120, 1.0))
    model, head = load_model(), load_head(campaign, final_norm(place.store))
    embedding = model.get_input_embeddings().weight.detach().float()
    d2t = torch.from_numpy(read_vocab_map(campaign, place.store).d2t)
    drafter, untrained = (fresh_drafter(embedding, head, d2t, SETTINGS) for _ in range(2))
    train(drafter, [stored.row for stored in stored_rows(campaign, place.store, "train")], head, SETTINGS)
    return Trained(place, model, head, drafter.eval(), untrained.eval(), list(stored_rows(campaign, place.store, "validation")))
