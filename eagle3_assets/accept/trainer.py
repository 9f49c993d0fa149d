"""`python -m eagle3_assets.accept.trainer HANDOFF OUT`: train a small drafter from a hand-off alone, on this machine's CPU.

HANDOFF is `handoff/speculators`, with `target_head` beside it; OUT gets `checkpoint/` (speculators' format), `metrics.jsonl` and, while it runs, the
point from which a stopped run goes on. Settings come as JSON (`--settings '{"epochs": 4}'`), or from the asset `drafter` through Dagster Pipes.

Belongs here: reading a hand-off, this process. Does not belong here: the loop (`training.py`). The asset starts other trainers the same way.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagle3_assets.accept.batch import Row
from eagle3_assets.accept.checkpoint import save_checkpoint
from eagle3_assets.accept.training import RESUME_FILE, Settings, fresh_drafter, train
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.handoff.mapped_rows import NORM_FILE, MappedRows
from eagle3_assets.handoff.training_reports import METRICS, Reports, reporting
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.target.target_head import TargetHead, read_tensor

CHECKPOINT, TARGET_HEAD = "checkpoint", "target_head"


def train_from_handoff(folder: Path, out: Path, settings: Settings, reports: Reports) -> dict[str, Any]:
    """Train on the hand-off's training rows; returns figures of the run. Raises StateError for a hand-off that is not whole."""
    rows = MappedRows(folder)
    table, target = rows.table, folder.resolve().parent / TARGET_HEAD
    try:
        weights, config = target / "model.safetensors", json.loads((target / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(f"{target}: cannot be read ({error}); fetch or make handoff/{TARGET_HEAD} again") from None
    embedding = read_tensor(weights, "model.embed_tokens.weight").float()
    norm = FinalNorm(np.load(folder / NORM_FILE, allow_pickle=False), table["final_norm_eps"])
    head = TargetHead(read_tensor(weights, "lm_head.weight").float(), norm)
    drafter = fresh_drafter(embedding, head, _offsets(folder, len(embedding)), settings, aux=len(table["layers"]))
    learnt = [_row(rows, i) for i in range(rows.train_rows)]
    reports.say(f"{len(learnt)} rows, {sum(len(row.ids) for row in learnt):,} tokens; {settings.epochs} epochs")
    losses = train(drafter, learnt, head, settings, resume=out, on_step=reports.step)
    verifier = {"name_or_path": str(config.get("_name_or_path") or ""), "architectures": config.get("architectures", [])}
    save_checkpoint(out / CHECKPOINT, drafter, layers=tuple(table["layers"]), verifier=verifier, tokens=settings.ttt_steps)
    (out / RESUME_FILE).unlink(missing_ok=True)
    return {"steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1], "rows": len(learnt)}


def _offsets(folder: Path, vocab: int) -> torch.Tensor:
    """d2t of the hand-off; zeros (every id) where it has no map."""
    found = sorted(folder.glob("d2t-*.npy"))
    return torch.from_numpy(np.load(found[0], allow_pickle=False)) if found else torch.zeros(vocab, dtype=torch.int64)


def _row(rows: MappedRows, i: int) -> Row:
    found = rows[i]
    return Row(found.input_ids.astype(np.int64), found.loss_mask == 1, found.hidden_states)


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Raises StateError for a name or a type that there is not."""
    kinds = Settings.__dataclass_fields__
    for name, value in given.items():
        if name not in kinds:
            raise StateError(f"drafter settings: there is no {name!r}; there are {', '.join(kinds)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise StateError(f"drafter settings: {name} is {value!r}, expected a number that is not negative")
    return Settings(**given)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("handoff", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON: " + ", ".join(Settings.__dataclass_fields__))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)  # tiny matrices: a second thread costs more than it gives
    with reporting(chosen.out) as reports:
        if not (chosen.out / RESUME_FILE).exists():
            (chosen.out / METRICS).unlink(missing_ok=True)
        figures = train_from_handoff(chosen.handoff, chosen.out, settings_of(chosen.settings), reports)
        reports.say(f"trained: loss {figures['first_loss']:.3f} to {figures['last_loss']:.3f} in {figures['steps']} steps")


if __name__ == "__main__":
    try:
        main()
    except Eagle3Error as error:
        sys.exit(f"drafter: {error}")
