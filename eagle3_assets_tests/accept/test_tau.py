"""Acceptance length out of counts: the plain mean where nothing is censored, Kaplan and Meier's where something is, intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.accept.drafts import Hits
from eagle3_assets.accept.tau import acceptance_length, summarise
from eagle3_assets.accept.walk import walk_drawn, walk_greedy, walk_text

BITS = st.integers(1, 4).flatmap(
    lambda steps: st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=1, max_size=30)
)


def nested(rows: list[list[bool]]) -> np.ndarray:
    """Hits as a chain has them: no draft behind a miss, none behind the end of the answer."""
    hits = np.array(rows).cumprod(1).astype(bool)
    starts, steps = hits.shape
    return hits & (np.arange(starts)[:, None] + np.arange(steps) < starts)


def by_hand(hits: np.ndarray) -> list[int]:
    """Accepted drafts of each verification, one after the other."""
    at, accepted = 0, []
    while at < len(hits):
        accepted.append(int(hits[at].sum()))
        at += accepted[-1] + 1
    return accepted


@pytest.mark.slow
@given(BITS)
def test_the_walk_goes_on_behind_what_was_accepted_and_its_own_id(rows: list[list[bool]]) -> None:
    hits = nested(rows)
    found = walk_text(Hits(hits, hits))
    assert [int(n) for n in found.accepted.sum(1)[found.tested[:, 0] > 0]] == by_hand(hits)
    tau = float(acceptance_length(found.tested.sum(0), found.accepted.sum(0)))
    assert tau == pytest.approx(1 + np.mean(by_hand(hits)))


@pytest.mark.slow
@given(BITS)
def test_drawn_drafts_that_are_sure_are_the_walk_itself(rows: list[list[bool]]) -> None:
    hits = nested(rows)
    sure, plain = walk_drawn(hits.astype(np.float32)), walk_text(Hits(hits, hits))
    assert np.array_equal(sure.accepted, plain.accepted) and np.array_equal(sure.tested, plain.tested)


@given(BITS)
def test_a_greedy_answer_that_is_the_stored_one_is_never_censored(rows: list[list[bool]]) -> None:
    hits = nested(rows)
    greedy, plain = walk_greedy(Hits(hits, hits), np.ones(len(hits), bool)), walk_text(Hits(hits, hits))
    assert np.array_equal(greedy.accepted, plain.accepted) and np.array_equal(greedy.tested, plain.tested)


def test_the_expectation_over_drawn_drafts_is_the_mean_of_many_draws() -> None:
    rng = np.random.default_rng(0)
    share = rng.uniform(0, 1, (12, 3)).astype(np.float32)
    found, draws, seen = walk_drawn(share), 20_000, np.zeros((2, 12, 3))
    for _ in range(draws):
        at = 0
        while at < 12:
            k = 0
            while k < 3:
                seen[0, at, k] += 1
                if at + k >= 12 or rng.random() >= share[at, k]:
                    break
                seen[1, at, k] += 1
                k += 1
            at += k + 1
    assert found.tested == pytest.approx(seen[0] / draws, abs=0.015)
    assert found.accepted == pytest.approx(seen[1] / draws, abs=0.015)


def test_where_the_target_would_have_left_the_text_the_rest_of_a_verification_is_unknown() -> None:
    # the first draft is the target's choice, but the stored answer went on with another id
    text, greedy = np.array([[0, 0], [0, 0], [0, 0]], bool), np.array([[1, 0], [1, 1], [0, 0]], bool)
    found = walk_greedy(Hits(text, greedy), np.array([False, True, True]))
    assert found.tested[0].tolist() == [1, 0] and found.accepted[0].tolist() == [1, 0]  # no test of the second draft
    assert found.tested[1].tolist() == [1, 1] and found.accepted[1].tolist() == [1, 1]  # its verification reaches the end


def test_censored_verifications_do_not_pull_the_estimate_down() -> None:
    """A drafter that is right 80 times of 100, drafts independent; of half of the verifications only the first draft is known."""
    rng = np.random.default_rng(1)
    right = rng.random((40_000, 3)) < 0.8
    accepted = right.cumprod(1).astype(float)
    tested = np.concatenate([np.ones((len(right), 1)), accepted[:, :2]], 1)
    known = np.where(rng.random((len(right), 1)) < 0.5, [[1, 0, 0]], [[1, 1, 1]])
    truth = 1 + 0.8 + 0.8**2 + 0.8**3
    assert float(acceptance_length((tested * known).sum(0), (accepted * known).sum(0))) == pytest.approx(truth, abs=0.03)


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says_and_knows_conversations() -> None:
    """Conversations differ: an interval over verifications alone would be far too narrow."""
    rng = np.random.default_rng(2)
    truth, covered, runs = 1 + 0.5, 0, 200
    for run in range(runs):
        rates = rng.uniform(0.2, 0.8, 60)
        accepted = rng.binomial(40, rates)[:, None].astype(float)
        found = summarise(np.full((60, 1), 40.0), accepted, seed=run)
        assert found is not None
        covered += found["low"] <= truth <= found["high"]
    assert 0.88 <= covered / runs <= 0.99


def test_one_conversation_has_a_figure_and_no_interval_and_none_has_nothing() -> None:
    found = summarise(np.array([[4.0, 2.0]]), np.array([[2.0, 1.0]]))
    assert found is not None and found["tau"] == 1.75 and found["low"] is None and found["rates"] == [0.5, 0.5]
    assert summarise(np.zeros((3, 2)), np.zeros((3, 2))) is None
