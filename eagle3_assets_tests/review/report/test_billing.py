"""Billing statistics: bounds against published values, and what cancels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.exact.sample_row import to_table
from eagle3_assets.intervals import beta_quantile, lower_bound, regularized_beta, upper_bound
from eagle3_assets.review.report.billing import BUCKETS, aggregate, billing_statistics, describe_residuals, strata_of
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets_tests.review.made_rows import evidence, make_row


@pytest.mark.parametrize(("mismatches", "percent"), [(0, 0.18), (1, 0.29), (5, 0.64), (16, 1.48), (82, 5.99)])
def test_upper_bounds_are_those_of_the_research_note(mismatches: int, percent: float) -> None:
    assert round(100 * upper_bound(mismatches, 1637), 2) == percent  # docs/research/exactness.md#3
    assert round(100 * (1 - lower_bound(1637 - mismatches, 1637)), 2) == percent


def test_no_error_in_n_bounds_the_rate_by_about_three_over_n() -> None:
    assert upper_bound(0, 299) < 0.01 < upper_bound(0, 297)
    assert upper_bound(0, 2995) < 0.001


def test_incomplete_beta_has_its_closed_forms() -> None:
    for x in (0.01, 0.3, 0.77):
        assert regularized_beta(x, 1, 1) == pytest.approx(x, rel=1e-12)
        assert regularized_beta(x, 5, 1) == pytest.approx(x**5, rel=1e-12)
        assert regularized_beta(x, 2, 3) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4, rel=1e-12)
    assert regularized_beta(0, 2, 3) == 0 and regularized_beta(1, 2, 3) == 1


@given(st.integers(1, 3000), st.data())
def test_a_lower_bound_is_where_the_tail_is_five_percent(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    bound = lower_bound(k, n)
    assert 0 <= bound <= k / n
    if k:
        assert regularized_beta(bound, k, n - k + 1) == pytest.approx(0.05, abs=1e-9)
        assert beta_quantile(0.05, k, n - k + 1) == pytest.approx(bound, rel=1e-9)
    assert lower_bound(k, n, 0.99) <= bound


def test_a_bound_of_nothing_is_no_assurance() -> None:
    assert lower_bound(0, 0) == 0.0 and upper_bound(0, 0) == 1.0
    with pytest.raises(ValueError, match="expected 0 <= successes <= n"):
        lower_bound(4, 3)


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=200))
def test_histogram_and_sums_agree_with_a_plain_count(d: list[int]) -> None:
    found = describe_residuals(np.array(d, dtype=np.int64))
    assert sum(found["histogram"].values()) == len(d) and list(found["histogram"]) == list(BUCKETS)
    assert found["histogram"]["0"] == found["equal"] == d.count(0)
    assert found["histogram"][">=3"] == sum(x >= 3 for x in d) and found["histogram"]["<=-3"] == sum(x <= -3 for x in d)
    assert found["sum_abs"] == sum(map(abs, d)) and found["abs_sum"] == abs(sum(d))
    assert found["cancels"] == (found["sum_abs"] > found["abs_sum"])
    if found["cancellation"] is not None:
        assert found["cancellation"] >= 1


def test_errors_of_opposite_sign_vanish_in_the_aggregate_only() -> None:
    d = np.array([40, -40] * 500)
    figures = aggregate(d, billed=2_500_000)
    assert figures["relative_difference"] == 0.0 and figures["absolute_difference"] == pytest.approx(0.016)
    assert "proves nothing about any single row" in figures["not_proved"]
    described = describe_residuals(d)
    assert described["equal_share"] == 0.0 and described["cancels"] and described["cancellation"] is None


def test_strata_separate_providers_tools_and_finish_reasons() -> None:
    rows = [
        *(make_row(f"a{i}") for i in range(4)),
        make_row("b", provider="Beta", billed_completion=9),
        make_row("t", finish_reason="tool_calls"),
        make_row("u", finish_reason="stop", evidence=evidence(tools=True)),
        make_row("l", finish_reason="length"),
        make_row("i", source="import", provider=None, billed_completion=None, billed_prompt=None, grade="I"),
    ]
    found = billing_statistics(strata_of(Columns(to_table(rows))))
    keys = {(s["provider"], s["tools"], s["finish_reason"]): s["completion"]["n"] for s in found["strata"]}
    assert keys == {
        ("Alpha", False, "stop"): 4,
        ("Beta", False, "stop"): 1,
        ("Alpha", True, "tool_calls"): 1,
        ("Alpha", True, "stop"): 1,
        ("Alpha", False, "length"): 1,
    }  # imports bill nothing and are no stratum
    assert found["completion"]["n"] == 8 and found["completion"]["equal"] == 7 and found["completion"]["abs_sum"] == 1
    assert found["aggregate"]["billed"] == 7 * 8 + 9


def test_merging_shards_equals_counting_them_at_once() -> None:
    rows = [make_row(i, billed_completion=8 + i % 3 - 1, provider="AB"[i % 2]) for i in range(30)]
    whole = billing_statistics(strata_of(Columns(to_table(rows))))
    halves = [s for part in (rows[:11], rows[11:]) for s in strata_of(Columns(to_table(part)))]
    assert billing_statistics(halves) == whole


def test_a_learned_convention_is_not_a_residual() -> None:
    no_end = evidence(convention={"completion": -1, "prompt": 2})
    columns = Columns(
        to_table([make_row(1, billed_completion=7, billed_prompt=7, evidence=no_end), make_row(2, billed_completion=7)])
    )
    assert columns.residual("completion").d.tolist() == [0, 1]
    assert columns.residual("prompt").d.tolist() == [0, 0]


def test_a_row_without_a_response_counts_for_its_prompt_alone() -> None:
    """Its completion bill is nobody's: nothing was rebuilt to compare with, and the aggregate must not be diluted by it."""
    empty = make_row(
        1, input_ids=(1, 2, 3), prompt_len=3, loss_spans=(), billed_prompt=4, billed_completion=900, grade="Q", p_exact=0.0
    )
    found = billing_statistics(strata_of(Columns(to_table([empty, make_row(2)]))))
    assert found["prompt"]["n"] == 2 and found["prompt"]["sum_abs"] == 1
    assert found["completion"]["n"] == 1 and found["aggregate"]["billed"] == 8
    alone = billing_statistics(strata_of(Columns(to_table([empty]))))
    assert alone["prompt"]["n"] == 1 and alone["aggregate"] == {**alone["aggregate"], "billed": 0, "relative_difference": 0.0}
