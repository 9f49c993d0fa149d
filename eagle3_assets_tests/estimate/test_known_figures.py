"""The figures that people quote of this corpus, each with the assumption that gives it. docs/plan.md explains them in words."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.estimate import plan as planning
from eagle3_assets.estimate.facts import DatasetFacts
from eagle3_assets.estimate.page import size_text

A1, A1_TOKENS, A1_ROWS = "a1_deepswekimi", 44_900_000, 2_800
ALL_TOKENS, ALL_ROWS = 138_400_000, 40_000


@pytest.fixture(scope="module")
def real() -> Campaign:
    return load_campaign("kimi-k2.5")


@pytest.fixture(scope="module")
def corpus(real: Campaign) -> dict[str, Any]:
    """The corpus as it was: A1 (2,800 rows, mean 16 K) and eight datasets that share the rest evenly, lengths log-normal (0.8)."""
    others = [d for d in real.dataset if d.name != A1]
    rows, tokens = (ALL_ROWS - A1_ROWS) // len(others), (ALL_TOKENS - A1_TOKENS) // len(others)
    facts = [DatasetFacts(real.dataset_named(A1), A1_ROWS, 0, A1_TOKENS), *(DatasetFacts(d, rows, 0, tokens) for d in others)]
    return planning.make_plan(real, facts, {}, (0.60, 2.60), 6 * 10**12)


def case(real: Campaign, plan: dict[str, Any], *settings: str) -> dict[str, Any]:
    return planning.what_if(real, plan, settings)


def test_ten_million_tokens_a_dataset_at_2_20_are_132_dollars_and_seven_million_92_40(real: Campaign) -> None:
    """Output only: six rented datasets. Prompts come on top, and are printed beside it."""
    plan = planning.outline_plan(real, 10**13)
    ten = case(real, plan, "tokens_a_dataset=10M", "price=2.20")["usd"]
    assert ten["output"] == pytest.approx(132.0) and not ten["fits"] and ten["budget"] == 100.0
    assert ten["share_bought"] == pytest.approx(100.0 / ten["expected"], abs=1e-6) and ten["share_bought"] < 0.76
    seven = case(real, plan, "tokens_a_dataset=7M", "price=2.20")["usd"]
    assert seven["share_bought"] == 1.0
    assert seven["output"] == pytest.approx(92.40) and seven["prompt"] == pytest.approx(6 * 2000 * 1008 * 0.60 / 1e6)
    assert seven["expected"] == seven["output"] + seven["prompt"] and seven["fits"]
    assert not case(real, plan, "price=2.20", "budget=50")["usd"]["fits"] and case(real, plan, "budget=150")["usd"]["fits"]


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (("layers=3",), "5.95 TB (5.41 TiB)"),  # quoted as 5.5 TB: three layers, counted in TiB
        (("layers=3+1",), "7.94 TB (7.22 TiB)"),  # what both trainers need
        (("layers=3+1", "lossless=yes"), "5.50 TB (5.00 TiB)"),
        (("layers=3", f"without={A1}"), "4.02 TB (3.66 TiB)"),
        (("layers=3", f"without={A1}", "max_length=8192", "too_long=cut"), "3.85 TB (3.50 TiB)"),  # quoted as 3.5 TB
        (("layers=3+1", f"without={A1}", "max_length=8192", "too_long=cut"), "5.14 TB (4.67 TiB)"),
    ],
)
def test_states_of_the_corpus_in_both_units(
    real: Campaign, corpus: dict[str, Any], settings: tuple[str, ...], shown: str
) -> None:
    assert size_text(case(real, corpus, *settings)["states"]["bytes"]) == shown


def test_91_hours_are_422_tokens_a_second(real: Campaign, corpus: dict[str, Any]) -> None:
    assert corpus["tokens"]["total"] == ALL_TOKENS and sum(d["kept_rows"] for d in corpus["datasets"]) == ALL_ROWS
    assert corpus["hours"]["extraction"] == pytest.approx(91.1, abs=0.05)
    assert corpus["hours"]["states_bytes_per_s"] == pytest.approx(24.2e6, rel=0.01)
    faster = case(real, corpus, "tokens_per_s=2000")["hours"]
    assert faster["extraction"] == pytest.approx(19.2, abs=0.05) and faster["extraction_limit"] == "GPUs"
    disk = case(real, corpus, "tokens_per_s=20000")["hours"]  # 1.15 GB/s would have to be written
    assert disk["extraction_limit"] == "disk" and disk["extraction"] == pytest.approx(7.937e12 / 1e9 / 3600, abs=0.01)


def test_72_hours_without_a1_need_time_a_row_besides_time_a_token(real: Campaign, corpus: dict[str, Any]) -> None:
    """At 422 tokens/s the 93.5 M tokens without A1 take 61.5 h, and the 109.8 M of a corpus cut at 8,192 take 72 with A1 in it.

    91 h and 72 h for rows without A1 together say 774 tokens/s and 3.7 s a row (862 and 4.2 where the 72 h are those of cut rows).
    """
    without = (f"without={A1}",)
    all_cut = case(real, corpus, "max_length=8192", "too_long=cut")
    assert all_cut["hours"]["extraction"] == pytest.approx(72.2, abs=0.1) and all_cut["kept"]["tokens"] == pytest.approx(
        109.8e6, rel=0.001
    )
    assert case(real, corpus, *without)["hours"]["extraction"] == pytest.approx(61.5, abs=0.1)
    for rate, row, cut in ((774.0, 3.70, ()), (862.0, 4.18, ("max_length=8192", "too_long=cut"))):
        both = (f"tokens_per_s={rate:g}", f"seconds_per_row={row:g}")
        assert case(real, corpus, *both)["hours"]["extraction"] == pytest.approx(91, abs=0.3)
        assert case(real, corpus, *without, *both, *cut)["hours"]["extraction"] == pytest.approx(72, abs=0.3)


def test_an_8192_cap_takes_half_of_a1_or_nine_tenths_of_it(real: Campaign, corpus: dict[str, Any]) -> None:
    """Two thirds of its rows are longer. The mean alone says 22.9 M (every row at the cap): more than any distribution leaves."""
    others = tuple(f"without={d['dataset']}" for d in corpus["datasets"] if d["dataset"] != A1)
    cut = case(real, corpus, *others, "max_length=8192", "too_long=cut")["kept"]
    drop = case(real, corpus, *others, "max_length=8192", "too_long=drop")["kept"]
    assert cut["rows"] == A1_ROWS and cut["rows_over"] == drop["rows_over"] == pytest.approx(0.67 * A1_ROWS, rel=0.01)
    assert cut["tokens"] == pytest.approx(20.2e6, rel=0.01) and cut["tokens"] < A1_ROWS * 8192
    assert drop["tokens"] == pytest.approx(4.8e6, rel=0.01) and drop["rows"] == A1_ROWS - drop["rows_over"]
    assert cut["tokens_lost"] == A1_TOKENS - cut["tokens"]
    rest = case(real, corpus, f"without={A1}", "max_length=8192", "too_long=cut")["kept"]
    assert rest["tokens"] == pytest.approx(89.6e6, rel=0.001) and rest["rows_over"] / 37_200 == pytest.approx(0.030, abs=0.001)


def test_a_local_server_takes_the_quoted_30_hours_for_ten_million_tokens(real: Campaign) -> None:
    plan = planning.outline_plan(real, 10**13)
    local = case(real, plan, "served=local", "tokens_a_dataset=10M")
    assert local["hours"]["answers_served_locally"] == pytest.approx(6 * 30.9, abs=0.5)
    assert local["usd"]["expected"] == 0.0 and local["minutes"]["answers"] == 0.0


def test_a_disk_sized_from_the_quoted_five_and_a_half_terabytes_does_not_fit(real: Campaign, corpus: dict[str, Any]) -> None:
    disk = corpus["disk"]
    assert disk["items"]["hidden_states"] == 7_936_409_600_000 and disk["items"]["handoff_files"] == 0
    assert disk["needed"] == sum(disk["items"].values()) and not disk["fits"] and disk["free"] == 6 * 10**12
    assert case(real, corpus, "layers=3")["disk"]["fits"]
    files = case(real, corpus, "handoff_files=both")["disk"]
    assert files["items"]["handoff_files"] == 2 * 7_936_409_600_000
