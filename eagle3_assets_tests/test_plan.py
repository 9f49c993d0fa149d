"""Claims about the arithmetic and the approval."""

from __future__ import annotations

import pytest

from eagle3_assets import plan as planning
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.store import Store


def test_states_of_the_seeds_corpus_are_7_94_terabytes() -> None:
    full = planning.state_bytes(138_400_000, 7168)
    assert full == 138_400_000 * 57_344  # 57,344 bytes a token (hidden-states.md section 5)
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
    assert plan["assumptions"]["lengths_from"] == "pilot"  # type: ignore[index]


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
