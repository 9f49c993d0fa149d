"""`rows.json`: which rows a hand-off of hidden states holds, in which order, and where in `hidden_states/` each of them lies.

Belongs here: choosing and ordering rows, writing the table, `final_norm.npy` beside it. Does not belong here: reading it
(`mapped_rows.py`, which runs in a trainer's environment), files of a trainer.

Training rows come first, in corpus order, then validation rows: speculators cuts its validation set off the end.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.reader import Corpus
from eagle3_assets.errors import CorpusError, StateError
from eagle3_assets.handoff.mapped_rows import NORM_FILE, TABLE_FILE, VERSION, digest_ids
from eagle3_assets.handoff.policy import REFUSALS, judged_rows, refusal_with_states, state_row
from eagle3_assets.states.format.part import read_header
from eagle3_assets.states.format.state_part import StatePart
from eagle3_assets.states.reader import States
from eagle3_assets.states.reader import open as open_states
from eagle3_assets.store import Store

SPLITS = ("train", "validation")


class Tally:
    """Figures of what is handed on and what is not, as the card and the manifest show them."""

    def __init__(self) -> None:
        self.datasets: dict[str, dict[str, Any]] = {}
        self.splits: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.longest = 0

    def keep(self, pack: Pack) -> None:
        facts = self.datasets.setdefault(pack.dataset, {"rows": 0, "tokens": 0, "supervised_tokens": 0, "grades": {}})
        facts["rows"] += 1
        facts["tokens"] += len(pack.input_ids)
        facts["supervised_tokens"] += int(pack.loss_mask.sum())
        facts["grades"][pack.grade] = facts["grades"].get(pack.grade, 0) + 1
        self.splits[pack.split] += 1
        self.longest = max(self.longest, len(pack.input_ids))

    def numbers(self, where: str, rows: int) -> dict[str, Any]:
        """rows, tokens, supervised tokens, rows of each split, refused rows by reason, figures of each dataset. Raises CorpusError when
        nothing is left."""
        if not self.datasets:
            why_not = ", ".join(f"{n} {reason}" for reason, n in sorted(self.refused.items()))
            raise CorpusError(f"{where}: none of {rows} corpus rows may be handed on ({why_not}); look at [handoff] grades")
        totals = {k: sum(d[k] for d in self.datasets.values()) for k in ("rows", "tokens", "supervised_tokens")}
        return {
            **totals,
            "longest": self.longest,
            "splits": {split: self.splits[split] for split in SPLITS},
            "refused": {reason: self.refused[reason] for reason in REFUSALS if self.refused[reason]},
            "datasets": dict(sorted(self.datasets.items())),
        }


def write_row_table(campaign: Campaign, store: Store, corpus: Corpus, folder: Path, name: str) -> dict[str, Any]:
    """Write `rows.json` and `final_norm.npy` into `folder` (a sibling of the committed hand-off); returns the figures.

    Raises CorpusError when no row may be handed on, StateError where states are missing, are of other ids than the corpus (or than
    the model's verdict) has, or differ between parts in layers, dtype, model or norm.
    """
    tally = Tally()
    parts: list[dict[str, Any]] = []
    rows: dict[str, list[list[Any]]] = {split: [] for split in SPLITS}
    datasets: dict[str, list[str]] = {split: [] for split in SPLITS}
    facts: dict[str, Any] | None = None
    for shard in corpus.parts:
        states = open_states(store.states(shard))
        facts = _same_facts(facts, states)
        where = {
            (r.sample_id, r.turn): (len(parts) + p, place, r)
            for p, part in enumerate(states.parts)
            for place, r in enumerate(part.rows)
        }
        parts += [_part(store, part) for part in states.parts]
        for pack in judged_rows(store, corpus, shard):
            if (why := refusal_with_states(campaign, states, pack)) is not None:
                tally.refused[why] += 1
                continue
            row = state_row(states, pack)
            if not np.array_equal(row.input_ids.view(np.uint32), pack.input_ids):
                raise StateError(
                    f"{states.manifest.folder}: {pack.sample_id} turn {pack.turn} has states of other ids than the corpus row, and no "
                    "verdict of the model says why; materialize hidden_states again"
                )
            number, place, at = where[pack.sample_id, pack.turn]
            rows[pack.split].append([pack.sample_id, pack.turn, number, place, at.start, at.end, digest_ids(row.input_ids)])
            datasets[pack.split].append(pack.dataset)
            tally.keep(pack)
    numbers = tally.numbers(name, len(corpus))
    assert facts is not None
    norm = facts.pop("norm")
    np.save(folder / NORM_FILE, norm.weight)
    table = {
        "version": VERSION,
        **facts,
        "final_norm_eps": norm.eps,
        # the folder of hand-offs may be a link to another disk, and `..` leads out of where it really lies
        "states": os.path.relpath(store.root.resolve() / store.hidden_states.name, folder.resolve()),
        "corpus": corpus.digest,
        "train_rows": len(rows["train"]),
        "parts": parts,
        "rows": [*rows["train"], *rows["validation"]],
        "datasets": [*datasets["train"], *datasets["validation"]],
    }
    (folder / TABLE_FILE).write_bytes(orjson.dumps(table))
    return numbers


def _same_facts(known: dict[str, Any] | None, states: States) -> dict[str, Any]:
    m, norm = states.manifest, states.final_norm
    facts = {
        "convention": m.raw["convention"], "final": m.raw["final"], "layers": list(m.layers), "num_hidden_layers": m.num_hidden_layers,
        "hidden_size": m.hidden_size, "dtype": m.dtype, "model_fingerprint": m.raw["model"]["fingerprint"], "norm": norm,
    }  # fmt: skip
    if known is None:
        return facts
    for name, value in facts.items():
        same = value is not norm and value == known[name]
        if name == "norm":
            same = norm.eps == known["norm"].eps and np.array_equal(norm.weight, known["norm"].weight)
        if not same:
            raise StateError(
                f"{m.path}: {name} differs from that of the parts before; materialize hidden_states again for all parts"
            )
    return known


def _part(store: Store, part: StatePart) -> dict[str, Any]:
    tensors, _, start = read_header(part.path)
    wanted = ("input_ids", "loss_mask", "hidden_states", "hidden_planes", "plane_bytes")
    return {
        "file": part.path.relative_to(store.hidden_states).as_posix(),
        "bytes": part.bytes,
        "xxh3": part.xxh3,
        "tokens": part.tokens,
        "rows": len(part.rows),
        "at": {name: [start + tensors[name].start, start + tensors[name].end] for name in wanted if name in tensors},
    }
