"""The small trainer: decided by its settings, and a run that was stopped ends where it would have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle3_assets.accept.checkpoint import load_checkpoint
from eagle3_assets.accept.stored_rows import stored_rows
from eagle3_assets.accept.trainer import settings_of
from eagle3_assets.accept.training import RESUME_FILE, Settings, fresh_drafter, train
from eagle3_assets.errors import StateError
from eagle3_assets.handoff.speculators_export import export_speculators
from eagle3_assets.handoff.training_reports import read_metrics
from eagle3_assets_tests.accept.conftest import SETTINGS, Trained


class Stop(Exception):
    pass


@pytest.mark.slow
def test_a_stopped_run_ends_in_the_same_weights_to_the_bit(trained: Trained, tmp_path: Path) -> None:
    rows = [stored.row for stored in stored_rows(trained.place.campaign, trained.place.store, "train")]
    settings = replace(SETTINGS, epochs=1)

    def fresh() -> torch.nn.Module:
        return fresh_drafter(trained.drafter.embed_tokens.weight, trained.head, trained.drafter.d2t, settings)

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 8:
            raise Stop

    whole, stopped, gone_on = fresh(), fresh(), fresh()
    losses = train(whole, rows, trained.head, settings)  # type: ignore[arg-type]
    with pytest.raises(Stop):
        train(stopped, rows, trained.head, settings, resume=tmp_path, on_step=stop)  # type: ignore[arg-type]
    seen: list[int] = []
    again = train(gone_on, rows, trained.head, settings, resume=tmp_path, on_step=lambda k, *_: seen.append(k))  # type: ignore[arg-type]
    assert seen[0] == 6 and again == losses  # kept every five steps
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), gone_on.parameters(), strict=True))
    # other rows: begins anew
    seen.clear()
    train(fresh(), rows[:20], trained.head, settings, resume=tmp_path, on_step=lambda k, *_: seen.append(k))  # type: ignore[arg-type]
    assert seen[0] == 1
    (tmp_path / RESUME_FILE).write_bytes(b"torn")
    with pytest.raises(StateError, match="remove it, and training begins anew"):
        train(fresh(), rows, trained.head, settings, resume=tmp_path)  # type: ignore[arg-type]


def test_settings_with_unknown_names_or_wrong_types_are_refused() -> None:
    assert settings_of({"epochs": 2}) == Settings(epochs=2)
    for wrong in ({"epoch": 2}, {"epochs": "two"}, {"epochs": -1}, {"epochs": True}):
        with pytest.raises(StateError, match="drafter settings"):
            settings_of(wrong)


@pytest.mark.slow
def test_the_process_killed_in_mid_run_goes_on_from_the_hand_off_alone(trained: Trained, tmp_path: Path) -> None:
    """kill -9, then the same command: the same checkpoint as of a run that nobody stopped, every step reported once."""
    place = trained.place
    export_speculators(place.campaign, place.store)
    words = [sys.executable, "-m", "eagle3_assets.accept.trainer", str(place.store.handoff("speculators"))]
    settings = ["--settings", json.dumps({"epochs": 1, "keep_every": 3})]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DAGSTER_PIPES")}
    subprocess.run([*words, str(tmp_path / "whole"), *settings], check=True, env=environment)
    process = subprocess.Popen([*words, str(tmp_path / "killed"), *settings], env=environment)
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed" / RESUME_FILE).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)  # a poll of another process's file
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    first = read_metrics(tmp_path / "killed")
    subprocess.run([*words, str(tmp_path / "killed"), *settings], check=True, env=environment)
    whole, killed = (read_metrics(tmp_path / name) for name in ("whole", "killed"))
    assert 3 <= len(first) < len(whole) and [m["loss"] for m in killed] == [m["loss"] for m in whole]
    weights = [(tmp_path / name / "checkpoint" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert not (tmp_path / "killed" / RESUME_FILE).exists()
    loaded = load_checkpoint(tmp_path / "whole" / "checkpoint", trained.drafter.embed_tokens.weight, num_hidden_layers=8)
    assert loaded.layers == place.campaign.layers
