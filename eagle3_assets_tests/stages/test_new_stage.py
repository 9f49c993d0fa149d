"""A new stage is one file and one line: it is in the asset graph, `eagle3 run`, `status` and `recheck` without another word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_assets_tests.conftest import REPOSITORY

FILE = '''
"""`word_count/<ds>`: how many words each dataset's probe says. Made up."""

from dataclasses import dataclass

from eagle3_assets.review.verdicts.table import Check
from eagle3_assets.stage import Card, Gate, Made, Per, Stage, one_by_one
from eagle3_assets.stages import tokenizer_probe
from eagle3_assets.store import commit, read_json, write_json

NOT_NONE = Check("not_none", "ERROR", True, "there is a word")


@dataclass(frozen=True)
class Inputs:
    probe: str


def make(a, face):
    made_from = a.inputs()
    write_json(a.path, {"words": len(a.store.probe.read_text().split())})
    numbers = read_json(a.path)
    return Made(a, commit(a.path, files=[a.path], inputs=made_from, numbers=numbers), numbers)


def judge(a):
    words = read_json(a.path)["words"]
    return [NOT_NONE.verdict(words > 0, f"{words} words")]


STAGE = Stage(
    name="word_count",
    per=Per.DATASET,
    version=1,
    path=lambda a: a.store.root / "word_count" / f"{a.dataset}.json",
    after=(tokenizer_probe.STAGE,),
    gates=lambda a: [Gate(a.of(tokenizer_probe.STAGE))],
    inputs=lambda a: Inputs(a.of(tokenizer_probe.STAGE).digest()),
    work=one_by_one(make),
    judge=judge,
    checks=(NOT_NONE,),
    card=lambda campaign, dataset: Card(frozenset({"json"}), f"Words of {dataset}."),
)
'''
LINE = "from eagle3_assets import stages; import word_count; stages.STAGES.insert(1, word_count.STAGE)"
GRAPH = """
import json
from eagle3_assets.definitions import defs
specs = {s.key.to_user_string(): s for s in defs.resolve_all_asset_specs()}
checks = [s.name for c in defs.asset_checks for s in c.check_specs if list(s.asset_key.path) == ["word_count", "b3_magicoder"]]
found = specs["word_count/b3_magicoder"]
print(json.dumps([found.group_name, [d.asset_key.to_user_string() for d in found.deps], found.code_version, checks]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "word_count.py").write_text(FILE)
    shutil.copy(REPOSITORY / "dagster.yaml", tmp_path)
    return tmp_path


def python(place: Path, code: str, *arguments: str) -> str:
    path = os.pathsep.join([str(place), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", f"{LINE}\n{code}", *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def eagle3(place: Path, *arguments: str) -> str:
    return python(place, "from eagle3_assets.cli.main import main; main()", *arguments)


@pytest.mark.slow
def test_a_stage_of_one_file_and_one_line_is_everywhere(place: Path) -> None:
    group, before, version, checks = json.loads(python(place, GRAPH))
    assert (group, before, version, checks) == ("1_prepare/word_count", ["tokenizer_probe"], "1", ["not_none"])

    eagle3(place, "run", "--until", "word_count")
    counted = json.loads((place / "data" / "demo" / "word_count" / "b3_magicoder.json").read_text())
    assert counted["words"] > 10

    states = json.loads(eagle3(place, "status", "--json"))["stages"]
    assert states["word_count"] == {"current": 4} and list(states)[:2] == ["tokenizer_probe", "word_count"]

    judged = json.loads(eagle3(place, "recheck", "--stage", "word_count", "b1_glaive", "--json"))
    assert [(v["stage"], v["dataset"], v["check"], v["passed"]) for v in judged] == [
        ("word_count", "b1_glaive", "not_none", True)
    ]
