"""`drafter`: a trainer is started on the hand-off in a process of its own, and its checkpoint is kept with what it was trained on.

Belongs here: the command that is started, when a stopped run may go on. Does not belong here: training (`accept`, the user's trainer), how the
process is run (the face: Dagster Pipes). It can run anywhere that sees the data root: `[drafter] launcher` puts words before it (srun,
torchrun).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign, DrafterTable
from eagle3_assets.errors import StateError
from eagle3_assets.installed import STATES
from eagle3_assets.progress import Every, Step, publish
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import After, Artifact, Card, Face, Gate, Made, Per, Picture, Stage, one_by_one
from eagle3_assets.stages import handoff_specforge, handoff_speculators
from eagle3_assets.store import Store, commit, digest_json, write_bytes

POLL_S, OBSERVE_S = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digest of the hand-off that the trainer reads; through it of states, ids and vocabulary."""

    handoff: str
    target_head: str


def handoff_of(campaign: Campaign) -> Stage:
    """The hand-off that the campaign's trainer reads."""
    specforge = campaign.drafter is not None and campaign.drafter.trainer == "specforge"
    return handoff_specforge.STAGE if specforge else handoff_speculators.STAGE


def inputs(a: Artifact) -> Inputs:
    from eagle3_assets.store import require

    head = require(a.store.handoff("target_head"), made_by="handoff/speculators or handoff/specforge")
    return Inputs(a.of(handoff_of(a.campaign)).digest(), head.digest)


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    return table_of(campaign).model_dump(mode="json", include={"trainer", "arguments", "settings"})


def table_of(campaign: Campaign) -> DrafterTable:
    assert campaign.drafter is not None, "a campaign without [drafter] has no artifact of this stage"
    return campaign.drafter


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.accept.training_record import draw_losses, find_checkpoint, write_record
    from eagle3_assets.handoff.training_reports import read_metrics

    table, store, folder = table_of(a.campaign), a.store, a.path
    made_from = a.inputs()
    with store.lock("drafter", what="drafter"):
        begin(folder, made_from)
        begun = time.monotonic()
        with watching(a, face, folder):
            face.run_process(
                command(table, store),
                told={"trained_on": made_from},
                environment=surroundings(),
                folder=a.of(handoff_of(a.campaign)).path.resolve(),
            )
        metrics = read_metrics(folder)
        record = write_record(
            folder, trainer=table.trainer, trained_on=made_from, metrics=metrics, seconds=time.monotonic() - begun
        )
        checkpoint = find_checkpoint(folder)
        files = [p for p in checkpoint.rglob("*") if p.is_file()] + [folder / "training.json"]
        manifest = commit(folder, files=files, inputs=made_from, numbers={k: v for k, v in record.items() if k != "losses"})
    shown = {k: manifest.numbers[k] for k in ("trainer", "steps", "first_loss", "last_loss", "seconds")}
    loss = Picture(draw_losses(record["losses"])) if record["losses"] else None
    return Made(a, manifest, {**shown, "checkpoint": checkpoint, "trained_on": made_from, "loss": loss})


def command(table: DrafterTable, store: Store) -> list[str]:
    """What is started, in the folder of the hand-off. Raises StateError where the trainer's environment is not named."""
    from eagle3_assets.handoff.speculators_export import read_train_command

    out = str(store.drafter.resolve())
    if table.trainer == "eagle3":
        words = [
            table.python or sys.executable,
            "-m",
            "eagle3_assets.accept.trainer",
            ".",
            out,
            "--settings",
            json.dumps(table.settings),
        ]
        return [*table.launcher, *words]
    if table.python is None:
        raise StateError(
            f"[drafter] trainer = {table.trainer!r} runs in an environment of its own: set [drafter] python to its interpreter (make trainers)"
        )
    if table.trainer == "speculators":
        words = [
            "-m",
            "eagle3_assets.handoff.train_speculators",
            *read_train_command(store.handoff("speculators")),
            "--save-path",
            out,
        ]
    else:
        words = ["-m", "specforge.cli", "train", "--config", "train.yaml", f"output_dir={out}"]
    return [*table.launcher, table.python, *words, *table.arguments]


def surroundings() -> dict[str, str]:
    """Environment of the trainer: this package is importable from wherever it starts."""
    here = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}


def begin(folder: Path, inputs: dict[str, Any]) -> None:
    """An unfinished run on the same things goes on; one on others is cleared away, so that no trainer resumes what it was not given."""

    marker, digest = folder / ".trained_on", digest_json(inputs)
    if folder.exists() and (not marker.exists() or marker.read_text() != digest):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(marker, digest.encode())


@contextmanager
def watching(a: Artifact, face: Face, folder: Path) -> Iterator[None]:
    """Tell of the trainer's steps while it runs: to the terminal's line, and to the asset as observations, which the UI plots."""
    from eagle3_assets.handoff.training_reports import read_metrics

    stop, due = threading.Event(), Every(OBSERVE_S)

    def watch() -> None:
        told = 0
        while not stop.wait(POLL_S):
            lines = read_metrics(folder)
            if not lines or (last := lines[-1])["step"] == told:
                continue
            told = last["step"]
            publish(Step("drafter", told, last.get("steps") or told, f"steps, loss {last['loss']:.3f}"))
            if due.due():
                face.observe([a], {"loss": last["loss"], "step": told})

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets.accept.training_record import judge_training

    return judge_training(a.path)


def card(campaign: Campaign, dataset: str) -> Card:
    return Card(
        frozenset({"torch"}),
        f"An EAGLE-3 drafter, trained by {table_of(campaign).trainer} on {'/'.join(handoff_of(campaign).key)} in a process of its own "
        "(Dagster Pipes). Stopped, it goes on from its last kept point.",
    )


STAGE = Stage(
    name="drafter",
    per=Per.CAMPAIGN,
    version=1,
    wanted=lambda campaign: campaign.drafter is not None,
    packages=STATES,
    path=lambda a: a.store.drafter,
    after=tuple(
        After(stage, when=lambda campaign, stage=stage: handoff_of(campaign) is stage)  # type: ignore[misc]
        for stage in (handoff_speculators.STAGE, handoff_specforge.STAGE)
    ),
    gates=lambda a: [Gate(a.of(handoff_of(a.campaign)), verify=False)],
    settings=settings,
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["drafter"],
    resources=frozenset({"pipes"}),
    card=card,
)
