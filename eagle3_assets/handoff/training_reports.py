"""What a trainer's process tells of itself: a line of `metrics.jsonl` a step, and Dagster's log where Dagster started it.

Runs inside the trainer's environment: the standard library, and `dagster-pipes` where Dagster started the process (one small package without
dependencies; started by hand, nothing of Dagster's is needed). Belongs here: this channel. Does not belong here: any trainer.

    metrics.jsonl    {"step": 1, "steps": 400, "loss": 5.1, ...}; `steps` where the trainer knows it
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

METRICS: Final = "metrics.jsonl"
PIPES_VARIABLE: Final = "DAGSTER_PIPES_CONTEXT"
SECONDS_A_LINE: Final = 5.0  # Dagster's log takes tens of milliseconds a line


class Reports:
    """`extras`: what the asset hands over; empty where nobody did."""

    def __init__(self, folder: Path, pipes: Any = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics, self._pipes, self._last = folder / METRICS, pipes, 0.0
        self.extras: Mapping[str, Any] = dict(pipes.extras) if pipes is not None else {}

    def step(self, step: int, steps: int | None, loss: float, **more: float) -> None:
        line = {"step": step, "steps": steps, "loss": loss, **more}
        with self._metrics.open("a") as out:
            out.write(json.dumps(line) + "\n")
        if self._pipes is not None and (time.monotonic() - self._last > SECONDS_A_LINE or step == steps):
            self._last = time.monotonic()
            self._pipes.log.info(f"step {step}{'' if steps is None else f' of {steps}'}: loss {loss:.4f}")

    def say(self, line: str) -> None:
        if self._pipes is not None:
            self._pipes.log.info(line)


@contextmanager
def reporting(folder: Path) -> Iterator[Reports]:
    """Reports of one training run into `folder`."""
    if PIPES_VARIABLE not in os.environ:
        yield Reports(folder)
        return
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        yield Reports(folder, pipes)


class MetricsHandler(logging.Handler):
    """speculators logs a dict a step on the logger `speculators.metrics`: {"train": {"loss": ...}, "epoch": ..., "lr": ...}, its step as
    `record.step` (speculators 0.9.0, train/trainer.py)."""

    def __init__(self, reports: Reports) -> None:
        super().__init__(logging.INFO)
        self.reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        said: Any = record.msg
        loss = (said.get("train") or {}).get("loss") if isinstance(said, dict) else None
        if loss is not None:
            epoch = {"epoch": float(said["epoch"])} if "epoch" in said else {}
            self.reports.step(int(getattr(record, "step", 0)) + 1, None, float(loss), **epoch)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines so far; a torn last one is left out. A run that went on from an earlier point reports some steps twice: the last stays."""
    lines: dict[int, dict[str, Any]] = {}
    try:
        text = (folder / METRICS).read_text()
    except OSError:
        return []
    for line in text.splitlines():
        try:
            found = json.loads(line)
            lines[int(found["step"])] = found
        except (ValueError, KeyError, TypeError):
            continue
    return [lines[step] for step in sorted(lines)]
