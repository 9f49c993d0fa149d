"""Which corpus rows are handed on, and as what: the final grade policy, and the model's verdict where there is one.

Belongs here: refusals and their reasons, reading `on_policy.parquet`. Does not belong here: making verdicts (`states`), files of a
trainer.

The model's verdict on a row (made with its hidden states, `states.on_policy_table`) is its final grade and the ids that won among the
survivors; states are those of the winner. So with a verdict a row is handed on with the winner's ids and mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.reader import Corpus
from eagle3_assets.errors import StateError
from eagle3_assets.states.reader import StateRow, States
from eagle3_assets.states.verdict.verdicts_manifest import VERDICTS_FILE, verdicts_manifest
from eagle3_assets.store import Store, read_manifest

_COLUMNS = ("sample_id", "turn", "final_grade", "winner", "input_ids", "loss_mask")

REFUSALS = {
    "awaits_model_verdict": "grade C1: left out until the target model has chosen among the survivors",
    "grade_not_admitted": "the grade is not in handoff.grades",
    "import_not_trusted": "grade I, and the dataset does not say trusted = true",
    "nothing_supervised": "no supervised id",
    "states_missing": "its hidden states were not finite and were left out (hand-offs of states only)",
}


def refusal(campaign: Campaign, pack: Pack) -> str | None:
    """Why a corpus row is not handed on (the first reason of `REFUSALS` that holds), or None."""
    if pack.grade == "C1":
        return "awaits_model_verdict"
    if pack.grade not in campaign.handoff.grades:
        return "grade_not_admitted"
    if pack.grade == "I" and not any(d.name == pack.dataset and d.trusted for d in campaign.dataset):
        return "import_not_trusted"
    return None if pack.loss_mask.any() else "nothing_supervised"


def refusal_with_states(campaign: Campaign, states: States, pack: Pack) -> str | None:
    """The same for a hand-off of hidden states."""
    missing = (pack.sample_id, pack.turn) in states.missing
    return refusal(campaign, pack) or ("states_missing" if missing else None)


def judged_rows(store: Store, corpus: Corpus, shard: str) -> Iterator[Pack]:
    """The rows of a corpus part as the model judged them: final grade, ids and mask of the winner. Unchanged where it judged none.

    Raises StoreError for a file of verdicts that is damaged (it decides ids: every byte is compared), StateError for one that is no table
    of them.
    """
    path = store.states(shard) / VERDICTS_FILE
    verdicts: dict[tuple[str, int], dict[str, Any]] = {}
    if verdicts_manifest(store, shard) is not None:
        read_manifest(path, verify=True)
        verdicts = _read_verdicts(path)
    for pack in corpus.part(shard):
        row = verdicts.get((pack.sample_id, pack.turn))
        yield pack if row is None else _as_judged(pack, row)


def _read_verdicts(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    try:
        table = pq.read_table(path, columns=list(_COLUMNS))  # not the figures of every token
    except (OSError, KeyError, pa.ArrowException) as error:
        first = str(error).splitlines()[0]
        raise StateError(f"{path}: expected columns {', '.join(_COLUMNS)} ({first}); materialize hidden_states again") from None
    return {(row["sample_id"], row["turn"]): row for row in table.to_pylist()}


def _as_judged(pack: Pack, row: dict[str, Any]) -> Pack:
    judged = dataclasses.replace(pack, grade=row["final_grade"])
    if not row["winner"] or row["input_ids"] is None:
        return judged
    ids, mask = np.array(row["input_ids"], dtype=np.uint32), np.array(row["loss_mask"], dtype=np.uint8)
    return dataclasses.replace(judged, input_ids=ids, loss_mask=mask)


def state_row(states: States, pack: Pack) -> StateRow:
    """The states of a corpus row. Raises StateError where there are none."""
    try:
        return states[pack.sample_id, pack.turn]
    except KeyError:
        raise StateError(
            f"{states.manifest.folder}: holds no states of {pack.sample_id} turn {pack.turn}; materialize hidden_states again"
        ) from None


def rows_as_judged(store: Store, corpus: Corpus) -> Iterator[Pack]:
    """All rows of the corpus in corpus order, as the model judged them where it did."""
    for shard in corpus.parts:
        yield from judged_rows(store, corpus, shard)
