"""Fixtures of this room: tokenizer profiles, real ones where shared data is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets_tests.conftest import shared_data

TOKENIZERS = shared_data() / "tokenizers"
RECORDED = shared_data() / "wire" / "recorded.jsonl"


def needs(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path} is not there: set EAGLE3_SHARED_DATA to the folder of shared data")
    return path


@pytest.fixture(scope="session")
def tokenizers() -> Path:
    return needs(TOKENIZERS)


@pytest.fixture(scope="session")
def k25(tokenizers: Path) -> Profile:
    return load_profile("kimi-k2.5", tokenizers)


@pytest.fixture(scope="session")
def mini() -> Profile:
    return load_profile("kimi-mini")


@pytest.fixture(scope="session")
def golden(tokenizers: Path) -> dict[str, Any]:
    return dict(json.loads((tokenizers / "kimi-k2.5" / "golden.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in needs(RECORDED).read_text(encoding="utf-8").split("\n") if line]
