"""The plan in the Dagster UI: numbers that it can plot, the tables and the picture that `eagle3 plan` shows, small enough for an event."""

from __future__ import annotations

import pytest

from eagle3_assets.campaign import load_campaign
from eagle3_assets.estimate import plan as planning
from eagle3_assets.estimate.page import as_markdown
from eagle3_assets.stage import Markdown
from eagle3_assets.stages.plan import shown_of


@pytest.mark.slow
def test_the_plans_metadata_are_numbers_tables_and_a_picture_in_less_than_fifty_kilobytes() -> None:
    plan = planning.outline_plan(load_campaign("kimi-k2.5"), 10**13)
    metadata = shown_of(plan)
    numbers = {k: v for k, v in metadata.items() if type(v) in (int, float)}
    assert numbers["usd_expected"] == plan["usd"]["expected"] and numbers["state_terabytes"] == plan["states"]["bytes"] / 1e12
    assert numbers["usd_output"] + numbers["usd_prompt"] == numbers["usd_expected"] and len(numbers) == len(metadata) - 2
    assert metadata["plan"] == as_markdown(plan) and isinstance(metadata["plan"], Markdown)
    assert "data:image/png;base64," in metadata["picture"]
    assert sum(len(metadata[k].encode()) for k in ("plan", "picture")) < 50_000
