"""The schema is the documentation: complete, and the committed pages are made of it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.cli.main import run
from openrouter_standin.openrouter import faults as catalogue
from openrouter_standin.profiles import DEFAULT_PROFILES, Profiles, profiles_schema
from openrouter_standin.service import reference

DOCS = Path(__file__).parents[3] / "docs"


def test_the_committed_reference_is_what_the_schema_says() -> None:
    assert (DOCS / "standin_keys.md").read_text() == reference.markdown(), (
        "run: eagle3 standin schema --markdown > docs/standin_keys.md"
    )


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, table in schema["$defs"].items():
        for key, value in table.get("properties", {}).items():
            yield f"{name}.{key}", value


def test_the_json_schema_forbids_unknown_keys_and_reaches_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["standin", "schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == profiles_schema() and "sha256" not in printed["properties"]
    assert all(table.get("additionalProperties") is False for table in printed["$defs"].values() if table.get("type") == "object")
    keys = {key for key, _ in properties(printed)}
    assert {"Money.in_flight_share", "Text.tool_ids", "Billing.counts_end", "Replay.tokenizer", "FaultScript.times"} <= keys


def test_the_guide_tells_every_fault_and_its_examples_are_valid() -> None:
    guide = (DOCS / "standin.md").read_text()
    words = set(guide.replace("`", " ").replace(",", " ").split())
    assert [name for name in catalogue.ALL if name not in words] == []
    base = tomllib.loads(DEFAULT_PROFILES.read_text())
    examples = [block.split("```")[0] for block in guide.split("```toml\n")[1:]]
    assert len(examples) >= 4
    for example in examples:
        told = tomllib.loads(example)
        merged = {**base, **told}
        for table in ("server", "source"):
            merged[table] = {**base[table], **told.get(table, {})}
        Profiles.model_validate(merged)
