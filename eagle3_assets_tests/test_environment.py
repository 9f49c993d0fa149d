"""Claims about environment variables: every one that the repository names is in the table, and a misspelt one is refused."""

from __future__ import annotations

import re

import pytest

from eagle3_assets.cli import main
from eagle3_assets.environment import VARIABLES, refuse_unknown
from eagle3_assets.errors import UsageError
from eagle3_assets_tests.conftest import REPOSITORY

NAME = re.compile(r"\bEAGLE3_[A-Z0-9_]+\b")
MISSPELT = "EAGLE3_CAMPAIGN" + "S"


def test_every_variable_that_the_repository_names_is_in_the_table() -> None:
    texts = [p for folder in ("eagle3_assets", "standin", "docs", "deploy", "eagle3_assets_tests", "benchmarks", "examples")
             for p in (REPOSITORY / folder).rglob("*") if p.suffix in {".py", ".md", ".yaml", ".yml", ".sh", ".sbatch", ".toml"}]  # fmt: skip
    texts += [REPOSITORY / "README.md", REPOSITORY / "Makefile"]
    named = {name: path for path in texts for name in NAME.findall(path.read_text(errors="replace"))}
    assert len(named) > 10
    assert {name: str(path) for name, path in named.items() if name not in VARIABLES and name != "EAGLE3_CAMPAIGNS"} == {}


def test_a_misspelt_variable_is_refused_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MISSPELT, "kimi-k2.5")
    assert main.run(["status"]) == 2
    assert f"sets {MISSPELT}, which nothing reads; did you mean EAGLE3_CAMPAIGN?" in capsys.readouterr().err


def test_other_peoples_variables_are_their_own() -> None:
    refuse_unknown(["PATH", "DAGSTER_HOME", "EAGLE_3"])
    with pytest.raises(UsageError):
        refuse_unknown(["EAGLE3_" + "OTHER"])
