"""The rows that acceptance is measured on, and that the small trainer learns from: corpus, verdicts and states of a campaign, side by side.

Belongs here: reading them, with what is known of each row. Does not belong here: batches (`batch.py`), choosing rows beyond split and policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eagle3_assets.accept.batch import Row
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.reader import open_corpus
from eagle3_assets.errors import StateError
from eagle3_assets.handoff.policy import judged_rows, refusal_with_states, state_row
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.reader import open as open_states
from eagle3_assets.store import Store


@dataclass(frozen=True, slots=True)
class StoredRow:
    """`sampling`: (temperature, top_p) of the answer; None where nobody knows (an import)."""

    sample_id: str
    turn: int
    dataset: str
    grade: str
    sampling: tuple[float, float] | None
    row: Row


def stored_rows(campaign: Campaign, store: Store, split: str) -> Iterator[StoredRow]:
    """Rows of a split ("train", "validation") that may be handed on, in corpus order; their states are mapped, not read.

    Raises StateError where states are missing or are of other ids than the corpus has.
    """
    known = {
        d.name: (campaign.sampling_of(d).temperature, campaign.sampling_of(d).top_p)
        for d in campaign.dataset
        if d.backend != "import"
    }
    corpus = open_corpus(store.corpus)
    for shard in corpus.parts:
        states = open_states(store.states(shard))
        for pack in judged_rows(store, corpus, shard):
            if pack.split != split or refusal_with_states(campaign, states, pack) is not None:
                continue
            found = state_row(states, pack)
            if not np.array_equal(found.input_ids.view(np.uint32), pack.input_ids):
                raise StateError(
                    f"{states.manifest.folder}: {pack.sample_id} turn {pack.turn} has states of other ids than the corpus row; materialize "
                    "hidden_states again"
                )
            row = Row(pack.input_ids.astype(np.int64), pack.loss_mask == 1, found.hidden_states)
            yield StoredRow(pack.sample_id, pack.turn, pack.dataset, pack.grade, known.get(pack.dataset), row)


def final_norm(store: Store) -> FinalNorm:
    """The norm that is stored with the states. Raises StateError where there are none."""
    for shard in open_corpus(store.corpus).parts:
        return open_states(store.states(shard)).final_norm
    raise StateError(f"{store.corpus}: has no parts; materialize corpus and hidden_states first")
