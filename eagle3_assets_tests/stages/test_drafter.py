"""What the stage `drafter` starts, and when a stopped run may go on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from eagle3_assets.campaign import DrafterTable
from eagle3_assets.errors import StateError
from eagle3_assets.stages.drafter import begin, command, surroundings
from eagle3_assets.store import Store


def handed_off(root: Path) -> Store:
    store = Store(root)
    store.handoff("speculators").mkdir(parents=True)
    arguments = ["--verifier-name-or-path", "../target_head", "--data-path", "."]
    (store.handoff("speculators") / "train.json").write_text(json.dumps({"arguments": arguments}))
    return store


def test_each_trainer_is_started_on_the_hand_off_and_told_where_to_save(tmp_path: Path) -> None:
    store = handed_off(tmp_path / "root")
    out = str(store.drafter.resolve())
    own = command(DrafterTable(trainer="eagle3", settings={"epochs": 2}), store)
    assert own == [sys.executable, "-m", "eagle3_assets.accept.trainer", ".", out, "--settings", '{"epochs": 2}']
    table = DrafterTable(trainer="speculators", python="/env/bin/python", launcher=("srun", "-N1"), arguments=("--epochs", "1"))
    theirs = command(table, store)
    assert theirs[:5] == ["srun", "-N1", "/env/bin/python", "-m", "eagle3_assets.handoff.train_speculators"]
    assert theirs[5:] == ["--verifier-name-or-path", "../target_head", "--data-path", ".", "--save-path", out, "--epochs", "1"]
    forge = command(DrafterTable(trainer="specforge", python="python"), store)
    assert forge == ["python", "-m", "specforge.cli", "train", "--config", "train.yaml", f"output_dir={out}"]
    with pytest.raises(StateError, match="set \\[drafter\\] python to its interpreter"):
        command(DrafterTable(trainer="specforge"), store)
    assert Path(surroundings()["PYTHONPATH"].split(":")[0], "eagle3_assets").is_dir()


def test_a_run_goes_on_only_on_what_it_began_with(tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    begin(folder, {"handoff": "a"})
    (folder / "resume.pt").write_text("kept")
    begin(folder, {"handoff": "a"})
    assert (folder / "resume.pt").exists()
    begin(folder, {"handoff": "b"})
    assert not (folder / "resume.pt").exists()
