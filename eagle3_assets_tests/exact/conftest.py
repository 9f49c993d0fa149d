"""Fixtures of this room: golden encodings and recorded answers, where shared data is there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3_assets_tests.conftest import needs, shared_data

RECORDED = shared_data() / "wire" / "recorded.jsonl"


@pytest.fixture(scope="session")
def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in needs(RECORDED).read_text(encoding="utf-8").split("\n") if line]
