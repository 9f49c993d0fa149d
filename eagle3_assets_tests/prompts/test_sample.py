"""The sample depends on the set of prompts and the seed only; more rows never change the rows already drawn."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.prompts.sample import Candidate, Sampler, expected_tokens, order_key, sample_id


def candidate(text: str, row: str = "", tie: bytes = b"") -> Candidate:
    return Candidate(sample_id("d", [{"role": "user", "content": text}], None), {"text": text}, row or text, tie)


def draw(texts: list[str], k: int, seed: int = 1) -> list[str]:
    sampler = Sampler(seed=seed, dataset="d", k=k)
    for i, text in enumerate(texts):
        sampler.offer(candidate(text, f"row {i}"))
    return [c.payload["text"] for c in sampler.drawn()]


TEXTS = st.lists(st.text(alphabet="abcdef", max_size=3), max_size=60)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts=TEXTS, k=st.integers(1, 20), shuffle=st.randoms(use_true_random=False))
def test_the_order_of_the_source_does_not_matter(texts: list[str], k: int, shuffle: random.Random) -> None:
    mixed = list(texts)
    shuffle.shuffle(mixed)
    assert draw(mixed, k) == draw(texts, k)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts=TEXTS, k=st.integers(1, 20), more=st.integers(0, 20))
def test_a_larger_sample_begins_with_the_smaller(texts: list[str], k: int, more: int) -> None:
    assert draw(texts, k + more)[:k] == draw(texts, k)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts=TEXTS, k=st.integers(1, 20))
def test_the_sample_is_the_k_smallest_keys_of_the_distinct_prompts(texts: list[str], k: int) -> None:
    by_key = sorted(set(texts), key=lambda t: order_key(1, "d", candidate(t).sample_id))
    assert draw(texts, k) == by_key[:k]


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts=TEXTS, k=st.integers(1, 20), shuffle=st.randoms(use_true_random=False))
def test_merged_rows_are_counted_for_drawn_prompts_whatever_the_order(texts: list[str], k: int, shuffle: random.Random) -> None:
    mixed = list(texts)
    shuffle.shuffle(mixed)
    for order in (texts, mixed):
        sampler = Sampler(seed=1, dataset="d", k=k)
        for text in order:
            sampler.offer(candidate(text))
        drawn = {c.sample_id: c.payload["text"] for c in sampler.drawn()}
        assert {drawn[i]: len(rows) + 1 for i, rows in sampler.merged.items()} == {
            t: texts.count(t) for t in drawn.values() if texts.count(t) > 1
        }


def test_memory_is_bounded_by_the_sample_not_by_the_stream() -> None:
    sampler = Sampler(seed=1, dataset="d", k=7)
    for i in range(5000):
        sampler.offer(candidate(str(i % 3000)))
        assert len(sampler._held) == len(sampler._heap) <= 7
        assert set(sampler.merged) <= set(sampler._held)


def test_the_seed_and_the_dataset_choose_another_sample() -> None:
    texts = [str(i) for i in range(200)]
    assert draw(texts, 20, seed=1) != draw(texts, 20, seed=2)
    id_ = candidate("x").sample_id
    assert order_key(1, "d", id_) != order_key(1, "e", id_)


def test_rows_with_equal_prompts_keep_the_same_one_in_any_order() -> None:
    pair = [candidate("x", "row a", tie=b"2"), candidate("x", "row b", tie=b"1")]
    for order in (pair, pair[::-1]):
        sampler = Sampler(seed=1, dataset="d", k=3)
        for c in order:
            sampler.offer(c)
        assert [c.source_row for c in sampler.drawn()] == ["row b"]
        assert list(sampler.merged.values()) == [["row a"]]


def test_sample_ids_are_stable_over_releases_and_see_content_only() -> None:
    message = {"role": "user", "content": "héllo"}
    assert sample_id("b3_magicoder", [message], None) == "1f697c9c7594d676054a616afcb3c0cb"
    assert sample_id("b3_magicoder", [{"content": "héllo", "role": "user"}], []) == sample_id("b3_magicoder", [message], None)
    other = [
        sample_id("b8_sweagent", [message], None),
        sample_id("b3_magicoder", [message, message], None),
        sample_id("b3_magicoder", [message], [{"type": "function"}]),
        sample_id("b3_magicoder", [{"role": "user", "content": "he\u0301llo"}], None),
    ]
    assert len({*other, "1f697c9c7594d676054a616afcb3c0cb"}) == 5


def test_expected_tokens_follow_the_sources_own_answers_and_keep_the_mean() -> None:
    assert expected_tokens([0, 0, 0], mean_tokens=300, max_tokens=1000) == [300, 300, 300]
    got = expected_tokens([100, 400, 1600, 0], mean_tokens=300, max_tokens=10_000)
    assert got[0] < got[1] < got[2] and abs(sum(got) / 4 - 300) < 1
    assert got[2] <= 4 * got[0]  # a factor of two either way
    assert max(expected_tokens([1, 10**9], mean_tokens=300, max_tokens=350)) == 350
    assert expected_tokens([], mean_tokens=300, max_tokens=1) == []


@pytest.mark.parametrize("k", [1, 5, 50])
def test_every_row_has_the_same_chance(k: int) -> None:
    """Each of 50 prompts is drawn about k/50 of the time over 400 seeds (six standard deviations)."""
    texts = [str(i) for i in range(50)]
    counts = dict.fromkeys(texts, 0)
    for seed in range(400):
        for text in draw(texts, k, seed):
            counts[text] += 1
    p = k / 50
    assert all(abs(c - 400 * p) <= 6 * (400 * p * (1 - p)) ** 0.5 for c in counts.values())
