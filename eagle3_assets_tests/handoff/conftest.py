"""One greedy campaign for all tests of hand-offs with states: sampled and extracted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_assets.handoff.specforge_export import export_specforge
from eagle3_assets.handoff.speculators_export import export_speculators
from eagle3_assets_tests.handoff.answers import Place, mini_campaign, sampled_rows, with_states


@pytest.fixture(scope="session")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """kimi-mini's answers at temperature 0 with their states, exported for both trainers."""
    campaign = mini_campaign(sampling={"temperature": 0.0})
    place = with_states(Path(tmp_path_factory.mktemp("greedy")) / "demo", campaign, sampled_rows(40, 0.0))
    export_speculators(campaign, place.store)
    export_specforge(campaign, place.store)
    return place
