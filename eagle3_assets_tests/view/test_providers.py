"""Claims about providers and comparisons: figures are those of the journals, and the answers that decided are those that tell readings apart."""

from __future__ import annotations

import shutil
import statistics
import threading
from dataclasses import replace

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.exact.search.readings import BILLING_SHARES, UNLEARNED
from eagle3_assets.stages import STAGES
from eagle3_assets.store import Store
from eagle3_assets.view.calls import Calls
from eagle3_assets.view.campaign_state import FLOW, campaign_page
from eagle3_assets.view.catalogue import Catalogue, open_catalogue
from eagle3_assets.view.compare import Side, compare, pair_of
from eagle3_assets.view.deciding import reading_named
from eagle3_assets.view.providers import deciding, providers_page
from eagle3_assets.view.roots import roots_of
from eagle3_assets_tests.view.small_root import DATASET, write_tokens


def test_figures_of_a_provider_are_those_of_its_calls_and_rows(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    page = {one["name"]: one for one in providers_page(catalogue)["providers"]}
    plain, mine = page["Plain"], [row for row in rows if row.provider == "Plain"]
    assert plain["calls"]["calls"] == len(mine) + 1 and plain["calls"]["finished"] == len(mine)
    assert plain["failures"] == [{"reason": "rate limit", "status": 429, "calls": 1}]
    assert plain["calls"]["usd"] == pytest.approx(0.001 * len(mine)) and plain["calls"]["seconds"][1] == pytest.approx(2.5)
    assert plain["rows"]["expected_exact"] == pytest.approx(statistics.mean(row.p_exact for row in mine))
    assert sum(n or 0 for n in plain["time"]["calls"]) == len(mine) + 1
    assert (
        page["Joining"]["standing"] == "decided"
        and page["Joining"]["windows"][0]["edges"]["reasoning_lead"]["mechanism"] == "join"
    )
    assert page["Young"]["standing"] == "not decided"


@pytest.mark.parametrize("reading", UNLEARNED, ids=lambda reading: reading.name)
def test_a_reading_is_known_by_its_name(reading: object) -> None:
    found = reading_named(reading.name)  # type: ignore[attr-defined]
    assert found is not None and found.name == reading.name  # type: ignore[attr-defined]
    assert found.billing in {billing for billing, _ in BILLING_SHARES}


@pytest.mark.parametrize("name", ["", "keep keep|end", "a b c d|end", "keep keep keep keep|sometimes", "keep keep keep keep"])
def test_another_text_is_no_reading(name: str) -> None:
    assert reading_named(name) is None


@pytest.mark.slow
def test_answers_that_decided_are_met_by_the_reading_and_not_by_a_rival(catalogue: Catalogue) -> None:
    found = deciding(catalogue, "Joining", 0)
    assert found["looked_at"] >= 24 and found["looked_at"] - found["met"] <= 1  # the one whose bill was changed
    assert found["rows"] and all(row["rivals"] >= 1 for row in found["rows"])
    assert {row["key"] for row in found["rows"]} <= {
        key for (key,) in catalogue.ask("SELECT key FROM rows WHERE provider = 'Joining'")
    }
    assert max(rival["against"] for rival in found["rivals"]) >= len(found["rows"]) / 2
    changed = catalogue.ask("SELECT key FROM rows WHERE \"check\" = 'completion_equals_bill'")[0][0]
    assert changed not in {row["key"] for row in found["rows"]}


@pytest.mark.slow
def test_a_window_that_does_not_exist_is_said_in_words(catalogue: Catalogue) -> None:
    with pytest.raises(StoreError, match="no window 7"):
        deciding(catalogue, "Joining", 7)


def test_two_providers_meet_on_the_prompts_that_both_answered(catalogue: Catalogue) -> None:
    left, right = Side("demo", catalogue, "Plain"), Side("demo", catalogue, "Joining")
    found = compare(left, right)
    assert found["pairs"] == 24 == len(found["lines"])
    assert sum(n for _, _, n in found["grades"]) == 24
    assert all(a["provider"] == "Plain" and b["provider"] == "Joining" and a["asked"] == b["asked"] for a, b in found["lines"])
    weights = (
        [abs(a["tokens"] - b["tokens"]) + 1000 * (a["grade"] != b["grade"]) for a, b in found["lines"]]
        if found["lines"][0][0]["tokens"]
        else []
    )
    assert weights == sorted(weights, reverse=True)
    pair = pair_of(left, right, found["lines"][0][0]["asked"])
    assert pair["found"] == [True, True]
    assert "".join(text for _, text in pair["texts"][0]).split() == "".join(text for _, text in pair["texts"][1]).split()
    assert pair_of(left, right, "nothing")["found"] == [False, False]


def test_a_side_is_not_compared_with_itself(catalogue: Catalogue) -> None:
    side = Side("demo", catalogue, "Plain")
    assert compare(side, side)["pairs"] == 0


def test_campaigns_are_found_beside_each_other_and_by_folder(campaign: Campaign, store: Store, rows: list[SampleRow]) -> None:
    shutil.copytree(store.root, store.root.parent / "other")
    shutil.copytree(store.root, store.root.parent / "elsewhere" / "demo")
    found = roots_of(campaign, [store.root.parent / "elsewhere" / "demo"])
    assert list(found) == ["demo", "other", "demo'"]
    with pytest.raises(StoreError, match="holds no `tokens` folder"):
        roots_of(campaign, [store.root.parent])


@pytest.mark.slow
def test_two_campaigns_meet_where_they_asked_the_same(
    campaign: Campaign, store: Store, rows: list[SampleRow], catalogue: Catalogue
) -> None:
    other = store.root.parent / "other"
    shutil.copytree(store.root, other)
    write_tokens(Store(other), [replace(row, grade="Q") for row in rows])
    found = roots_of(campaign)["other"]
    there = open_catalogue(found)
    Calls(there).fill(threading.Event())
    compared = compare(Side("demo", catalogue), Side("other", there))
    asked = catalogue.ask("SELECT count(DISTINCT asked) FROM calls WHERE outcome = 'finished'")[0][0]
    assert compared["pairs"] == asked and {after for _, after, _ in compared["grades"]} == {"Q"}
    assert campaign_page(there)["flow"][0]["stages"][0] == {
        "stage": "tokenizer_probe"
    }  # no campaign file: not known, not "missing"


@pytest.mark.slow
def test_the_picture_of_the_flow_has_every_stage_that_the_campaign_wants(catalogue: Catalogue, campaign: Campaign) -> None:
    drawn = [stage["stage"] for step in campaign_page(catalogue)["flow"] for stage in step["stages"]]
    assert sorted(drawn) == sorted(stage.name for stage in STAGES if stage.wanted(campaign))
    assert sorted(name for _, names in FLOW for name in names) == sorted(stage.name for stage in STAGES)


@pytest.mark.slow
def test_the_campaign_page_counts_what_is_there_and_says_what_is_next(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    page = campaign_page(catalogue)
    line = next(line for line in page["datasets"] if line["dataset"] == DATASET)
    assert line["rows"] == len(rows) and line["failing"] == catalogue.ask("SELECT count(*) FROM rows WHERE failing = 'yes'")[0][0]
    stages = {stage["stage"]: stage for step in page["flow"] for stage in step["stages"]}
    assert stages["tokens"]["missing"] > 0 and stages["corpus"]["outdated"] == 1
    assert page["next"][0]["command"] == "eagle3 run" and any(step.get("query") == "failing=yes" for step in page["next"])
