"""Statistics over strata: chance is not called a fault, a fault is found, and when it began."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3_assets.review.report.monitor import (
    Billed,
    benjamini_hochberg,
    cusum_alarm,
    length_drift,
    length_slope,
    mismatch_p,
    monitored,
)

NAN = float("nan")


def billed(d: np.ndarray, strata: list[tuple[str, str, bool, str]], **more: np.ndarray) -> Billed:
    n = len(d)
    facts = {
        "billed": np.full(n, 100),
        "reasoning": np.zeros(n),
        "cost": np.full(n, 1e-4),
        "price": np.full(n, 1e-4),
        "time": np.arange(n, dtype=float),
    }
    return Billed(strata, d, **{**facts, **more})


def test_the_binomial_tail_is_that_of_a_plain_sum() -> None:
    from math import comb

    for k, n in ((1, 10), (3, 200), (16, 200)):
        plain = 1 - sum(comb(n, j) * 0.01**j * 0.99 ** (n - j) for j in range(k))
        assert mismatch_p(k, n) == pytest.approx(plain, rel=1e-6)
    assert mismatch_p(0, 50) == 1.0


def test_benjamini_hochberg_gives_the_textbook_values() -> None:
    # Benjamini and Hochberg 1995, 15 p values: four are discoveries at 5 %
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert sum(q <= 0.05 for q in benjamini_hochberg(p)) == 4
    assert benjamini_hochberg(p[::-1]) == benjamini_hochberg(p)[::-1] and benjamini_hochberg([]) == []


def test_an_upgrade_of_a_server_raises_the_alarm_soon_and_luck_does_not() -> None:
    chance = np.random.default_rng(5)
    calm = chance.random(4000) < 0.01
    assert cusum_alarm(calm) is None
    at = cusum_alarm(np.concatenate([calm[:1000], chance.random(300) < 0.5]))
    assert at is not None and 1000 <= at < 1030


def test_a_shift_to_one_in_ten_is_found_after_a_hundred_rows_or_so() -> None:
    calm, shifted = np.zeros(500, dtype=bool), np.arange(400) % 10 == 0
    at = cusum_alarm(np.concatenate([calm, shifted]))
    assert at is not None and 550 <= at < 700
    assert cusum_alarm(np.concatenate([calm, [True] * 4, calm])) is None  # four in a row are bad luck, five are not
    assert cusum_alarm(np.concatenate([calm, [True] * 5, calm])) == 504


def test_a_slope_tells_a_quirk_from_what_grows_with_length() -> None:
    n = np.arange(100, 1100)
    assert length_slope(np.ones(1000, dtype=bool), n)["per_1000"] == pytest.approx(0, abs=1e-9)
    grows = length_slope(np.random.default_rng(1).random(1000) < n / 2000, n)
    assert grows["per_1000"] == pytest.approx(0.5, abs=0.15)
    assert length_slope(np.zeros(2, dtype=bool), n[:2]) == {"intercept": None, "per_1000": None}


def test_the_bad_stratum_is_flagged_among_many_and_its_errors_need_not_add_up() -> None:
    strata, d = [], []
    for k in range(20):
        strata += [(f"P{k:02d}", "m", False, "stop")] * 200
        wrong = np.zeros(200, dtype=np.int64)
        wrong[: 16 if k == 7 else 2] = 1
        d.append(wrong * np.where(np.arange(200) % 2, 5, -5))
    found = monitored(billed(np.concatenate(d), strata))
    assert found["flagged"] == ["P07, stop"]
    line = next(s for s in found["strata"] if s["provider"] == "P07")
    assert line["abs_sum"] == 0 and line["sum_abs"] == 80 and line["cancels"] and line["equal_share"] == 0.92
    assert line["cusum_alarm"]["row"] < 16 and [w["n"] for w in line["windows"]] == [50] * 4
    assert line["windows"][0]["equal_share"] == pytest.approx(0.68) and line["windows"][3]["equal_share"] == 1.0


def test_rows_are_looked_at_in_order_of_time_whatever_their_order_in_the_file() -> None:
    wrong = (np.arange(300) < 40).astype(np.int64)
    late = billed(wrong, [("P", "m", False, "stop")] * 300, time=np.arange(300, dtype=float)[::-1])
    line = monitored(late)["strata"][0]
    assert line["cusum_alarm"] == {"row": 264, "time": 264.0} and line["windows"][0]["equal_share"] == 1.0
    unknown = billed(wrong, [("P", "m", False, "stop")] * 300, time=np.full(300, NAN))
    assert monitored(unknown)["strata"][0]["cusum_alarm"] == {"row": 4, "time": None}


def test_cost_and_reasoning_are_compared_only_where_they_are_known() -> None:
    n = 10
    cost, reasoning = np.full(n, 1e-4), np.zeros(n)
    cost[0], cost[1], cost[4], cost[5], reasoning[2], reasoning[3] = (
        2e-4,
        NAN,
        1.02e-4,
        1.001e-4,
        1,
        NAN,
    )  # rounding is no difference
    line = monitored(billed(np.zeros(n, dtype=np.int64), [("P", "m", True, "stop")] * n, cost=cost, reasoning=reasoning))[
        "strata"
    ][0]
    assert line["cost"] == {"n": 9, "equal_share": pytest.approx(7 / 9)}
    assert line["reasoning"] == {"n": 9, "equal_share": pytest.approx(8 / 9)}


def test_drift_is_measured_against_the_pilot() -> None:
    rows = np.random.default_rng(3).integers(50, 150, 400)
    same, longer = length_drift(rows, {"n": 40, "mean": 100.0}), length_drift(rows * 3, {"n": 40, "mean": 100.0})
    assert same is not None and abs(same["z"]) < 2 and longer is not None and longer["z"] > 10 and longer["ratio"] > 2.5
    assert length_drift(rows, None) is None and length_drift(rows[:1], {"n": 3, "mean": 9.0}) is None
