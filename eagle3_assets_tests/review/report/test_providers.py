"""Claims about what each provider gave: every dollar and every failure is in the row of whose it is."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from eagle3_assets.exact.sample_row import to_table
from eagle3_assets.review.report.figures import Figures, add_table
from eagle3_assets.review.report.providers import NOBODY, merge_providers, provider_statistics
from eagle3_assets_tests.collect.samples import an_answer
from eagle3_assets_tests.review.made_rows import make_row, tiny_campaign


def body(tokens: int, provider: str = "Alpha") -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
    return json.dumps({"provider": provider, "choices": [choice], "usage": {"completion_tokens": tokens}}).encode()


def finished(number: int, tokens: int, usd: float | None, provider: str = "Alpha", seconds: float = 2.0) -> Any:
    times = {"started_at": 100.0, "finished_at": 100.0 + seconds}
    return an_answer(number, body(tokens, provider), provider=provider, cost_usd=usd, **times)


def failed(number: int, reason: str, **more: Any) -> Any:
    return an_answer(number, b"", outcome="failed", reason=reason, retry_class="transient", **{"cost_usd": 0.0, **more})


def figures_of(*rows: Any) -> Figures:
    figures = Figures()
    table: pa.Table = to_table(rows)
    add_table(tiny_campaign(), figures, table)
    return figures


def test_answers_money_errors_and_speed_are_those_of_the_provider() -> None:
    records = [
        finished(1, 100, 0.002),
        finished(2, 300, None, seconds=6.0),
        failed(3, "empty", provider="Alpha", cost_usd=0.001),
        failed(4, "rate_limited", provider=None),
        an_answer(5, b"", outcome="ambiguous", reason="timeout", provider=None, cost_usd=None),
        finished(6, 50, 0.5, provider="Beta", seconds=0.0),
    ]
    nobody, alpha, beta = provider_statistics(records, {})
    assert (nobody["provider"], nobody["answers"], nobody["errors"]) == (NOBODY, 0, {"rate_limited": 1, "timeout": 1})
    assert (alpha["answers"], alpha["tokens"], alpha["errors"]) == (2, 400, {"empty": 1})
    assert alpha["usd"] == pytest.approx(0.003) and alpha["tokens_per_s"] == 50.0
    assert alpha["usd_per_million"] == pytest.approx(7.5)
    assert (beta["tokens_per_s"], beta["exact_share"], beta["usd_per_million_trainable"]) == (None, None, None)
    json.dumps([nobody, alpha, beta], allow_nan=False)


def test_a_dollar_a_trainable_token_counts_the_rows_that_the_corpus_refuses_too() -> None:
    good = [make_row(n, prompt=5, response=10, cost_usd=0.001, p_exact=1.0) for n in range(3)]
    bad = make_row("bad", prompt=5, response=10, cost_usd=0.001, grade="Q", p_exact=0.0)
    (row,) = provider_statistics([], merge_providers([figures_of(*good), figures_of(bad)]))
    assert (row["provider"], row["rows"], row["trainable_tokens"], row["answers"]) == ("Alpha", 4, 30, 0)
    assert row["usd_per_million_trainable"] == pytest.approx(0.004 / 30 * 1e6)
    assert row["exact_share"] == pytest.approx(0.75)


def test_a_provider_with_tokens_and_one_with_answers_are_both_rows() -> None:
    rows = provider_statistics([finished(1, 10, 0.1, provider="Beta")], merge_providers([figures_of(make_row(1))]))
    assert [(r["provider"], r["answers"], r["rows"]) for r in rows] == [("Alpha", 0, 1), ("Beta", 1, 0)]


def test_figures_of_several_datasets_are_added_and_not_changed() -> None:
    one, two = figures_of(make_row(1)), figures_of(make_row(2), make_row(3))
    before = dict(one.providers["Alpha"])
    assert merge_providers([one, two])["Alpha"]["rows"] == 3 and one.providers["Alpha"] == before
    assert merge_providers([]) == {}
