"""What is kept of a training run beside its checkpoint, and what is judged of it.

Belongs here: `training.json` and the curve of the loss. Does not belong here: running a trainer (`assets/drafter.py` starts it).

    drafter/checkpoint/     the drafter, as the trainer saved it
    drafter/training.json   trainer, versions, what it was trained on (digests), steps, losses
    drafter/metrics.jsonl   a line a step
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_assets.errors import StateError
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import read_json, write_json

RECORD, CHECKPOINT = "training.json", "checkpoint"


def write_record(
    folder: Path, *, trainer: str, trained_on: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], seconds: float
) -> dict[str, Any]:
    """Write `training.json`; returns it. `trained_on`: digests (the stage `drafter`)."""
    losses = [float(line["loss"]) for line in metrics]
    record = {
        "trainer": trainer,
        "trained_on": dict(trained_on),
        "steps": len(losses),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "seconds": round(seconds, 1),
        "losses": losses,
    }
    write_json(folder / RECORD, record)
    return record


def find_checkpoint(folder: Path) -> Path:
    """The folder with the drafter under a trainer's output: `checkpoint`, speculators' `checkpoint_best`, else the newest with config and
    weights. Raises StateError where there is none."""
    for name in (CHECKPOINT, "checkpoint_best"):
        if (folder / name / "config.json").is_file():
            return folder / name
    found = [p.parent for p in folder.rglob("config.json") if any(p.parent.glob("*.safetensors"))]
    if not found:
        raise StateError(f"{folder}: the trainer left no folder with config.json and safetensors; look at its log in the run")
    return max(found, key=lambda p: ((p / "config.json").stat().st_mtime, str(p)))


def judge_training(folder: Path) -> list[Verdict]:
    """Checks of the asset `drafter`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file  # bfloat16 is no type of numpy

    losses = read_json(folder / RECORD)["losses"]
    tenth = max(1, len(losses) // 10)
    first, last = (float(np.mean(part)) if part else math.nan for part in (losses[:tenth], losses[-tenth:]))
    falls = len(losses) > 1 and all(math.isfinite(x) for x in losses) and last < first
    said = f"{first:.3f} to {last:.3f} in {len(losses)} steps" if losses else "the trainer reported no step"
    try:
        checkpoint = find_checkpoint(folder)
        bad = [
            name
            for file in sorted(checkpoint.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
            if tensor.is_floating_point() and not bool(tensor.isfinite().all())
        ]
        loads, line = not bad, f"{checkpoint.name}: " + (f"not finite: {', '.join(bad[:5])}" if bad else "finite weights")
    except (StateError, SafetensorError, OSError, TypeError) as error:
        loads, line = False, str(error).splitlines()[0]
    return [
        verdict("drafter", "loss_falls", falls, said, numbers={"steps": len(losses)}),
        verdict("drafter", "checkpoint_loads", loads, line),
    ]


def draw_losses(losses: Sequence[float], dpi: int = 80) -> bytes:
    """PNG of the curve; equal curves give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 2.6), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, color="#4c78a8", linewidth=1.0)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
