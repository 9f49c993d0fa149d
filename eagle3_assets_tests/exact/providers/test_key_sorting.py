"""Claims about servers that sort keys: one habit of the model is looked for, beside which few providers have to sort."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from eagle3_assets.exact.providers.key_sorting import natural_order, sorts_keys
from eagle3_assets.exact.search.key_order import KeyOrder
from eagle3_assets.exact.search.observations import Observation


def calls(n: int, is_sorted: int, *, listed: bool, of: str = "f(a,b)") -> list[Observation]:
    """n answers with a call each, so many of them with sorted keys."""
    return [cast(Observation, SimpleNamespace(ordered=(KeyOrder(listed, k < is_sorted, of),))) for k in range(n)]


def test_a_provider_whose_keys_are_sorted_against_the_schema_sorts() -> None:
    windows = [calls(30, 0, listed=False), calls(30, 1, listed=False), calls(30, 30, listed=False)]
    natural = natural_order(windows)
    assert natural["keys"] == pytest.approx(1 / 63, abs=0.02)
    assert [sorts_keys(window, natural) for window in windows] == [False, False, True]


def test_where_all_tools_are_listed_sorted_and_all_providers_show_it_nobody_sorts() -> None:
    """A world whose tools are all sorted: it is the model that follows them."""
    windows = [calls(25, 25, listed=True) for _ in range(4)]
    natural = natural_order(windows)
    assert natural["listed"] > 0.9 and not any(sorts_keys(window, natural) for window in windows)


def test_one_provider_alone_is_not_suspected_for_tools_that_are_listed_sorted() -> None:
    window = calls(40, 40, listed=True)
    assert not sorts_keys(window, natural_order([window]))


def test_a_model_that_often_leaves_the_schemas_order_shows_who_sorts() -> None:
    """Recorded of Kimi: 175 of 309 calls whose schema lists the keys sorted have them so."""
    windows: list[Any] = [calls(40, 22, listed=True), calls(40, 24, listed=True), calls(40, 40, listed=True)]
    natural = natural_order(windows)
    assert natural["listed"] == pytest.approx(46 / 80, abs=0.05)
    assert [sorts_keys(window, natural) for window in windows] == [False, False, True]


def test_each_tool_with_its_keys_has_an_order_of_its_own() -> None:
    rows = calls(40, 38, listed=True, of="weather(city,days)") + calls(40, 4, listed=True, of="weather(city,days,unit)")
    told = natural_order([rows])["by_call"]
    assert told["weather(city,days)"] > 0.85 and told["weather(city,days,unit)"] < 0.2


def test_few_calls_accuse_nobody() -> None:
    other = calls(60, 0, listed=False)
    natural = natural_order([other, calls(2, 2, listed=False)])
    assert not sorts_keys(calls(2, 2, listed=False), natural) and sorts_keys(calls(3, 3, listed=False), natural)
