"""Fixtures of this room: golden encodings and recorded answers, where shared data is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.conftest import needs, shared_data

RECORDED = shared_data() / "wire" / "recorded.jsonl"


@pytest.fixture(scope="session")
def golden(tokenizers: Path) -> dict[str, Any]:
    return dict(json.loads((tokenizers / "kimi-k2.5" / "golden.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in needs(RECORDED).read_text(encoding="utf-8").split("\n") if line]
