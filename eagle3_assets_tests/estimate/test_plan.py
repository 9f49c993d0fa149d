"""Claims about the arithmetic and the approval."""

from __future__ import annotations

import json
import random

import pytest

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.store import Store


def test_states_of_the_seeds_corpus_are_7_94_terabytes() -> None:
    full = planning.state_bytes(138_400_000, 7168)
    assert full == 138_400_000 * 57_344  # 57,344 bytes a token (docs/research/hidden-states.md#5)
    assert round(full / 1e12, 2) == 7.94 and round(full / 2**40, 2) == 7.22
    assert round(planning.state_bytes(138_400_000, 7168, layers=3) / 1e12, 2) == 5.95


def _plan(campaign: Campaign, **pilot: object) -> dict[str, object]:
    facts = [planning.DatasetFacts(d, 100, 38_800, 100 * 300) for d in campaign.dataset]
    return planning.make_plan(campaign, facts, pilot, (0.5, 2.0), 10**12)


def test_only_rented_datasets_cost_money(campaign: Campaign) -> None:
    plan = _plan(campaign)
    cost = {row["dataset"]: row["usd_expected"] for row in plan["datasets"]}  # type: ignore[index, attr-defined]
    expected = (10_000 * 0.5 + 30_000 * 2.0) / 1e6
    assert cost == {"a1_deepswekimi": 0.0, "b1_glaive": 0.0, "b3_magicoder": expected, "b8_sweagent": expected}


def test_the_pilots_lengths_replace_the_campaigns_guess(campaign: Campaign) -> None:
    plan = _plan(campaign, lengths={"b3_magicoder": {"mean": 900.0}}, spent_usd=0.01, mean_seconds=2.0)
    rows = {row["dataset"]: row["output_tokens"] for row in plan["datasets"]}  # type: ignore[index, attr-defined]
    assert rows["b3_magicoder"] == 90_000 and rows["b8_sweagent"] == 30_000
    said = {a["name"]: a for a in plan["assumptions"]}  # type: ignore[index, attr-defined]
    assert said["mean_length of b3_magicoder"]["value"] == 900.0 and said["seconds_per_answer"]["source"] == "pilot"


def test_two_thousand_in_flight_at_16k_hold_106_dollars() -> None:
    """Issue arithmetic: 2,000 x 16,384 x 3.25 USD/M = 106 USD, so 100 USD bend the curve."""
    real = load_campaign("kimi-k2.5")
    plan = planning.make_plan(real, [], {}, (0.55, 3.25), 10**15)
    assert round(plan["in_flight"]["hold_usd"] * 2000, 1) == 106.5
    assert plan["in_flight"]["money_allows_at_start"] < 2000


def test_without_approval_answers_may_not_spend(store: Store) -> None:
    real = load_campaign("kimi-k2.5")
    with pytest.raises(GateError, match=r"nothing is approved.*eagle3 plan --approve USD"):
        planning.approved_usd(real, store)


def test_an_approval_holds_until_the_campaign_or_a_price_rises(store: Store) -> None:
    real = load_campaign("kimi-k2.5")
    planning.approve(real, store, 40.0)
    assert planning.approved_usd(real, store) == 40.0
    cheaper = real.routing.model_copy(update={"max_price_completion": real.routing.max_price_completion / 2})
    assert planning.approved_usd(real.model_copy(update={"routing": cheaper}), store) == 40.0
    dearer = real.routing.model_copy(update={"max_price_completion": real.routing.max_price_completion * 2})
    with pytest.raises(GateError, match=r"was given for routing\.max_price_completion"):
        planning.approved_usd(real.model_copy(update={"routing": dearer}), store)
    other = real.campaign.model_copy(update={"seed": real.campaign.seed + 1})
    with pytest.raises(GateError, match="another version of"):
        planning.approved_usd(real.model_copy(update={"campaign": other}), store)


@pytest.mark.parametrize("usd", [0.0, -1.0, 1e6, float("nan")])
def test_an_amount_the_budget_does_not_cover_is_refused(store: Store, usd: float) -> None:
    with pytest.raises(GateError, match="cannot approve"):
        planning.approve(load_campaign("kimi-k2.5"), store, usd)
    assert not store.approval.exists()


def test_a_cap_of_a_dataset_wins_over_the_default(campaign: Campaign) -> None:
    dataset = campaign.dataset[0]
    budget = campaign.budget.model_copy(update={"dataset_usd": 3.0})
    capped = campaign.model_copy(update={"budget": budget})
    assert planning.dataset_cap(capped, dataset) == 3.0
    assert planning.dataset_cap(capped, dataset.model_copy(update={"usd": 1.0})) == 1.0


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", "{}", '{"fingerprint": 1, "usd": 1}', '{"fingerprint": "x"}',
                                  '{"fingerprint": "x", "usd": "40"}', '{"fingerprint": "x", "usd": true}',
                                  '{"fingerprint": "x", "usd": NaN, "max_price_prompt": null, "max_price_completion": 1}',
                                  '{"fingerprint": "x", "usd": 4, "max_price_prompt": [], "max_price_completion": 1}'])  # fmt: skip
def test_an_approval_that_is_not_one_approves_nothing_in_one_line(store: Store, text: str) -> None:
    real = load_campaign("kimi-k2.5")
    store.root.mkdir(parents=True)
    store.approval.write_text(text.replace('"x"', f'"{real.fingerprint}"'))
    with pytest.raises(GateError, match=r"approval\.json: .*nothing is approved by it; .*eagle3 plan --approve USD") as caught:
        planning.approved_usd(real, store)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "{}"])
def test_a_plan_that_is_not_one_is_one_line(store: Store, text: str) -> None:
    store.root.mkdir(parents=True)
    store.plan.write_text(text)
    with pytest.raises(StoreError, match=r"plan\.json: .* remove it and run"):
        planning.read_plan(store)


def test_an_amount_is_shown_as_it_is() -> None:
    shown = {0.035: "0.035", 0.04: "0.04", 1.0: "1.00", 86.0: "86.00", 1234.5: "1,234.50", 0.0: "0.00", 0.1 + 0.2: "0.30"}
    assert {usd: planning.usd_text(usd) for usd in shown} == shown


# ---------------------------------------------------------------------------------------------------- intervals, money in flight
LENGTHS = {"n": 30, "mean": 3500.0, "p50": 3000.0, "p90": 6500.0, "max": 9000.0}


def test_an_interval_of_tokens_holds_the_truth_about_95_times_in_100() -> None:
    chance = random.Random(5)
    hits, runs = 0, 400
    for _ in range(runs):
        pilot = sorted(chance.lognormvariate(8.0, 0.6) for _ in range(30))
        lengths = {"n": 30, "mean": sum(pilot) / 30, "p50": pilot[14], "p90": pilot[26]}
        low, high = planning.token_interval(500, 500 * lengths["mean"], lengths)
        hits += low <= sum(chance.lognormvariate(8.0, 0.6) for _ in range(500)) <= high
    assert 0.88 <= hits / runs <= 0.99, hits / runs


def test_more_pilot_answers_make_the_interval_narrower_and_none_make_it_half_to_double() -> None:
    widths = [high - low for low, high in (planning.token_interval(2000, 7e6, {**LENGTHS, "n": n}) for n in (3, 10, 30, 300))]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.2 * widths[0]
    assert planning.token_interval(2000, 7e6, None) == (3.5e6, 14e6)
    low, high = planning.token_interval(2000, 7e6, {**LENGTHS, "sd": 0.0})
    assert low == high == 7e6


def test_the_interval_of_dollars_goes_from_the_cheapest_to_the_dearest_endpoint(campaign: Campaign) -> None:
    facts = [planning.DatasetFacts(d, 100, 38_800, 100 * 300) for d in campaign.dataset]
    pilot = {"lengths": {d.name: {**LENGTHS, "mean": 300.0, "p50": 300.0, "p90": 300.0} for d in campaign.dataset}}
    plan = planning.make_plan(campaign, facts, pilot, (1.0, 4.0), 10**12, listed=[(0.4, 1.0), (0.6, 3.0)])
    prompts, tokens = 2 * 10_000, 2 * 30_000
    assert plan["usd"]["low"] == pytest.approx((prompts * 0.4 + tokens * 1.0) / 1e6)
    assert plan["usd"]["expected"] == pytest.approx((prompts * 0.5 + tokens * 2.0) / 1e6)
    assert plan["usd"]["high"] == pytest.approx((prompts * 0.6 + tokens * 3.0) / 1e6)
    assert plan["in_flight"]["hold_usd"] == pytest.approx(campaign.sampling.max_tokens * 4.0 / 1e6)  # holds: the bound
    wide = planning.make_plan(campaign, facts, {}, (1.0, 4.0), 10**12, listed=[(0.4, 1.0), (0.6, 3.0)])
    assert wide["usd"]["low"] < plan["usd"]["low"] and wide["usd"]["high"] > plan["usd"]["high"]
    free = [row for row in plan["datasets"] if row["backend"] != "openrouter"]
    assert free and all(row["usd_interval"] == [0.0, 0.0] for row in free)


def test_money_left_bends_the_number_in_flight() -> None:
    hold = 16_384 * 3.25 / 1e6
    assert hold * 2000 == pytest.approx(106.5, abs=0.01)
    assert [planning.in_flight_possible(left, hold, 2000) for left in (220, 100, 50, 0.01)] == [2000, 1878, 939, 0]


def test_the_time_of_a_run_is_that_of_a_simulation_that_pays_answer_by_answer() -> None:
    hold, each, rows, seconds, asked = 0.05, 0.0075, 12_000, 60.0, 2000
    for left in (100.0, 220.0, 95.0):
        now, spent, simulated = 0.0, 0.0, 0.0
        for _ in range(rows):
            if left - spent < hold:
                break
            now += seconds / max(1.0, min(asked, (left - spent) / hold))
            spent += each
        simulated = now
        assert planning.answer_seconds(rows, rows * each, left, hold, asked, seconds) == pytest.approx(simulated, rel=0.01), left
    assert planning.answer_seconds(rows, rows * each, 220.0, hold, asked, seconds) == pytest.approx(
        rows * seconds / asked, rel=0.2
    )
    assert planning.answer_seconds(0, 0.0, 1.0, hold, asked, seconds) == 0.0


def test_what_is_still_needed_shrinks_as_money_is_spent(campaign: Campaign) -> None:
    plan = _plan(campaign, spent_usd=0.01)
    assert planning.still_needed_usd(plan, 0.01) == pytest.approx(plan["usd"]["expected"])  # type: ignore[index, call-overload]
    assert planning.still_needed_usd(plan, 1e9) == 0.0


def test_a_plan_of_an_earlier_version_is_one_line(store: Store, campaign: Campaign) -> None:
    plan = _plan(campaign)
    del plan["what_if"]
    store.root.mkdir(parents=True)
    store.plan.write_text(json.dumps(plan))
    with pytest.raises(StoreError, match="remove it and run"):
        planning.read_plan(store)
