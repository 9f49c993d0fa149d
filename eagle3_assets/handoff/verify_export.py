"""Is what a trainer will read what the corpus and the states hold? The verdicts on `handoff/speculators` and `handoff/specforge`.

Belongs here: comparing a committed export, as its trainer would read it, with corpus, states and vocabulary map; sampling rows for the head
probe. Does not belong here: the probe's measure (`head_probe.py`), checks of the states themselves (`states.verify`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.reader import open_corpus
from eagle3_assets.corpus.swap import whole_folder
from eagle3_assets.corpus.vocab import read_vocab_map
from eagle3_assets.errors import Eagle3Error
from eagle3_assets.handoff import head_probe
from eagle3_assets.handoff.arrow_dataset import read_arrow_rows
from eagle3_assets.handoff.head_probe import Positions
from eagle3_assets.handoff.mapped_rows import MappedRows
from eagle3_assets.handoff.policy import judged_rows, refusal_with_states
from eagle3_assets.handoff.row_table import SPLITS
from eagle3_assets.handoff.specforge_export import DRAFT, VOCABULARY
from eagle3_assets.handoff.specforge_rows import FeatureRow, references
from eagle3_assets.handoff.state_files import Trainer, file_faults
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.format.layers import translate_back
from eagle3_assets.states.reader import StateRow, States
from eagle3_assets.states.reader import open as open_states
from eagle3_assets.states.target.target_head import load_head
from eagle3_assets.store import Store

if TYPE_CHECKING:
    import torch

LOOKED_AT = 64  # rows compared by value, states included


def judge_export(campaign: Campaign, store: Store, trainer: Trainer) -> list[Verdict]:
    """`rows_match_corpus`, `vocabulary_and_layers`, `exported_states_predict` of one hand-off of hidden states."""
    stage, folder = f"handoff_{trainer}", whole_folder(store.handoff(trainer))
    try:
        rows = MappedRows(folder)
    except Eagle3Error as error:
        names = ("rows_match_corpus", "vocabulary_and_layers", "exported_states_predict")
        return [verdict(stage, name, False, str(error)) for name in names]
    return [
        _rows(campaign, store, stage, trainer, rows),
        _labels(campaign, store, stage, trainer, rows),
        judge_predictions(campaign, stage, trainer, rows),
    ]


# ---------------------------------------------------------------------------------------------------- rows
def _rows(campaign: Campaign, store: Store, stage: str, trainer: Trainer, rows: MappedRows) -> Verdict:
    wanted, wrong = 0, []
    try:
        exported = _arrow(rows) if trainer == "speculators" else iter(())
        for i, pack in enumerate(_wanted(campaign, store)):
            wanted += 1
            if (fault := _fault(rows, i, pack)) is not None:
                wrong.append(fault)
            elif trainer == "speculators" and not _equal(next(exported, None), pack):
                wrong.append(f"row {i}: {pack.sample_id} has other ids or another mask in Arrow")
        if len(rows) != wanted or next(exported, None) is not None:
            wrong.append(f"{len(rows)} rows, but {wanted} of the corpus may be handed on")
        if trainer == "specforge":
            wrong += _reference_faults(campaign, store, rows)
        elif not wrong:
            wrong += [
                f"row {i}: has other states than are stored" for i in _drawn(campaign, rows) if not _same_states(store, rows, i)
            ]
        wrong += file_faults(campaign, store, trainer)
    except (Eagle3Error, OSError, ValueError, KeyError) as error:
        wrong.append(str(error).splitlines()[0])
    message = f"{len(rows)} rows, {wanted} of the corpus may be handed on; {len(wrong)} differ" + (
        f": {wrong[0]}" if wrong else ""
    )
    numbers = {"rows": len(rows), "wanted": wanted, "wrong": len(wrong)}
    return verdict(stage, "rows_match_corpus", not wrong, message, numbers=numbers, examples=tuple(wrong[:10]))


def _wanted(campaign: Campaign, store: Store) -> Iterator[Pack]:
    """The rows that belong in an export, in its order."""
    corpus = open_corpus(store.corpus)
    for split in SPLITS:
        for shard in corpus.parts:
            states = open_states(store.states(shard))
            for pack in judged_rows(store, corpus, shard):
                if pack.split == split and refusal_with_states(campaign, states, pack) is None:
                    yield pack


def _fault(rows: MappedRows, i: int, pack: Pack) -> str | None:
    if i >= len(rows):
        return f"row {i}: {pack.sample_id} is missing"
    row = rows[i]
    if (row.sample_id, row.turn) != (pack.sample_id, pack.turn):
        return f"row {i}: is {row.sample_id} turn {row.turn}, expected {pack.sample_id} turn {pack.turn}"
    return None if _equal((row.input_ids, row.loss_mask), pack) else f"row {i}: {pack.sample_id} has other ids or another mask"


def _arrow(rows: MappedRows) -> Iterator[tuple[Any, Any]]:
    return read_arrow_rows(rows.folder)


def _equal(found: tuple[Any, Any] | None, pack: Pack) -> bool:
    return found is not None and np.array_equal(found[0], pack.input_ids) and np.array_equal(found[1], pack.loss_mask)


def _reference_faults(campaign: Campaign, store: Store, rows: MappedRows) -> list[str]:
    """Every reference is there, in SpecForge's order, and no other; of some, all that SpecForge would get equals the stored states."""
    import torch

    paths = references(rows.folder, rows.table)
    found = sorted(str(p) for p in rows.folder.rglob("*.ckpt"))
    faults = [
        f"{a or b}: {'is no row of rows.json' if b is None else 'is missing or out of order'}"
        for a, b in zip_longest(found, (str(p) for p in paths))
        if a != b
    ]
    if faults:
        return faults
    for i in _drawn(campaign, rows):
        loaded = torch.load(paths[i], weights_only=False, mmap=True)  # our own references, just listed
        if not isinstance(loaded, FeatureRow) or loaded.index != i or not _as_stored(store, rows, i, loaded):
            faults.append(f"{paths[i]}: is not row {i} as it is stored, with the final norm applied once")
    return faults


def _drawn(campaign: Campaign, rows: MappedRows) -> list[int]:
    """The rows that are compared by value: drawn by the campaign's seed."""
    return sorted(random.Random(campaign.campaign.seed).sample(range(len(rows)), min(LOOKED_AT, len(rows))))


def _stored(store: Store, rows: MappedRows, i: int) -> tuple[States, StateRow]:
    """The same row by the states' own reader."""
    sample_id, turn, number, *_ = rows.table["rows"][i]
    states = open_states(store.states(Path(rows.table["parts"][number]["file"]).parts[0]))
    return states, states[sample_id, turn]


def _same_states(store: Store, rows: MappedRows, i: int) -> bool:
    return np.array_equal(rows[i].raw.view(np.uint8), _stored(store, rows, i)[1].raw.view(np.uint8))


def _as_stored(store: Store, rows: MappedRows, i: int, loaded: FeatureRow) -> bool:
    """Compared with what the states' own reader and norm give."""
    import torch

    states, row = _stored(store, rows, i)
    return (
        np.array_equal(loaded["input_ids"].numpy(), row.input_ids)
        and np.array_equal(loaded["loss_mask"].numpy(), row.loss_mask)
        and torch.equal(loaded["aux_hidden_state"][0], row.hidden_states[:, :3].flatten(1))
        and torch.equal(loaded["hidden_state"][0], states.final_norm.apply(row.hidden_states[:, 3]))
    )


# ---------------------------------------------------------------------------------------------------- vocabulary, layers
def _labels(campaign: Campaign, store: Store, stage: str, trainer: Trainer, rows: MappedRows) -> Verdict:
    """The draft vocabulary is today's, and the layer ids mean the layers that are stored."""
    faults = []
    n = campaign.vocab.draft_vocab_size
    try:
        maps = read_vocab_map(campaign, store)
        wanted = {"d2t": maps.d2t, "t2d": maps.t2d}
        if trainer == "speculators":
            full = n == campaign.target.vocab_size
            found = {} if full else {k: np.load(rows.folder / f"{k}-{n}.npy", allow_pickle=False) for k in wanted}
        else:
            import torch

            found = {k: v.numpy() for k, v in torch.load(rows.folder / VOCABULARY, weights_only=True).items()}
            ids = json.loads((rows.folder / DRAFT).read_bytes())["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
            meant = list(translate_back(ids, of="specforge", num_hidden_layers=rows.table["num_hidden_layers"]))
            if meant != rows.table["layers"]:
                faults.append(f"{DRAFT} names outputs of layers {ids} = E_{meant}, stored are E_{rows.table['layers']}")
        faults += [
            f"{k} differs from vocab_map's"
            for k, v in found.items()
            if v.dtype != wanted[k].dtype or not np.array_equal(v, wanted[k])
        ]
    except (Eagle3Error, OSError, ValueError, KeyError) as error:
        faults.append(str(error).splitlines()[0])
    if rows.table["layers"] != list(campaign.layers):
        faults.append(f"layers are E_{rows.table['layers']}, the campaign's E_{list(campaign.layers)}")
    message = "; ".join(faults) or f"{n:,} draft ids as in vocab_map; stored are E_{rows.table['layers']} and the final state"
    return verdict(stage, "vocabulary_and_layers", not faults, message, numbers={"faults": faults, "draft_vocab_size": n})


# ---------------------------------------------------------------------------------------------------- prediction
def judge_predictions(
    campaign: Campaign, stage: str, trainer: Trainer, rows: MappedRows, *, positions: int = head_probe.POSITIONS
) -> Verdict:
    """`exported_states_predict`: the head over what the trainer would feed it, on positions drawn by the campaign's seed."""
    name = "exported_states_predict"
    try:
        norm = FinalNorm(np.load(rows.folder / "final_norm.npy", allow_pickle=False), rows.table["final_norm_eps"])
        found = head_probe.measure(
            sample_positions(campaign, rows, final_of(trainer), positions), load_head(campaign, norm, "cpu").weight, norm
        )
    except (Eagle3Error, OSError, ValueError) as error:
        return verdict(stage, name, False, f"could not be measured: {str(error).splitlines()[0]}")
    why, e = head_probe.refusal_of(found), found.exported
    forecast = f", forecast {e.forecast / e.forecast_of:.2%}" if e.forecast_of else ""
    good = f"{e.share:.2%} of {e.positions:,} next ids are the head's best{forecast}"
    return verdict(stage, name, why is None, why or good, numbers=found.numbers())


def final_of(trainer: Trainer) -> Callable[[MappedRows, int], torch.Tensor]:
    """What a trainer's head gets of row i, [T, H]: speculators applies the norm itself, SpecForge is given it applied."""
    if trainer == "speculators":
        return lambda rows, i: rows.post_norm(rows[i].hidden_states[:, -1])
    return lambda rows, i: FeatureRow(str(rows.folder), i)["hidden_state"][0]


def sample_positions(
    campaign: Campaign, rows: MappedRows, final: Callable[[MappedRows, int], torch.Tensor], positions: int
) -> list[Positions]:
    """Up to `positions` positions whose next id is supervised, at most 64 a row. Rows whose temperature is known come first."""
    known = {d.name: campaign.sampling_of(d) for d in campaign.dataset if d.backend != "import"}
    of_row = rows.table["datasets"]
    order = list(range(len(rows)))
    random.Random(campaign.campaign.seed).shuffle(order)
    order.sort(key=lambda i: of_row[i] not in known)
    chosen: list[Positions] = []
    for i in order:
        if sum(len(p.at) for p in chosen) >= positions:
            break
        row, sampling = rows[i], known.get(of_row[i])
        at = np.flatnonzero(row.loss_mask[1:] == 1)
        at = (
            at[np.unique(np.linspace(0, len(at) - 1, min(len(at), head_probe.POSITIONS_A_ROW)).astype(np.int64))]
            if len(at)
            else at
        )
        temperature, top_p = (None, 1.0) if sampling is None else (sampling.temperature, sampling.top_p)
        chosen.append(Positions(final(rows, i), row.input_ids, at, temperature, top_p))
    return chosen
