"""Fixtures for all rooms.

Belongs here: where shared data is found, tokenizer profiles, a campaign of its own for a test. Does not belong here: any stage's data.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.store import Store
from eagle3_assets.targets.tokenizer import Profile, load_profile

REPOSITORY = Path(__file__).parent.parent

# Property tests draw the same cases on every machine: what fails here fails everywhere, and the other way round.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


def shared_data() -> Path:
    return Path(os.environ.get("EAGLE3_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")


TOKENIZERS = shared_data() / "tokenizers"


SLOW_FIXTURES = {"trained", "greedy"}  # seconds each: a test that stands on one is slow, however quick its own lines are


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test never sees the key, campaign or Dagster state of the person who runs it."""
    for name in ("OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "EAGLE3_CAMPAIGN", "EAGLE3_DATA", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def campaign() -> Campaign:
    return load_campaign("demo")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, campaign: Campaign) -> Store:
    """A data root of the test's own."""
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    return Store.of(campaign)


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
