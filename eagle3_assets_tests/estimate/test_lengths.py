"""What a cap leaves is that of rows drawn one by one, for known rows, answers behind prompts, and mixtures of both."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.estimate.lengths import RowLengths, buckets, sigma_of


def drawn(lengths: RowLengths, n: int) -> list[tuple[float, float]]:
    """(known, whole) tokens of `n` rows."""
    chance = random.Random(3)
    shares, known = zip(*lengths.fixed, strict=True)
    mu = math.log(lengths.mean) - lengths.sigma**2 / 2 if lengths.mean else 0.0
    starts = chance.choices(known, shares, k=n)
    return [(k, k + (chance.lognormvariate(mu, lengths.sigma) if lengths.mean else 0.0)) for k in starts]


@pytest.mark.parametrize("cap", [300, 1000, 4096, 20_000])
@pytest.mark.parametrize(
    "lengths",
    [
        RowLengths(((1.0, 0.0),), 2513.0, 0.8),
        RowLengths(((0.5, 100.0), (0.3, 900.0), (0.2, 5000.0)), 1500.0, 1.1),
        RowLengths(((0.25, 50.0), (0.5, 1000.0), (0.25, 9000.0))),
    ],
)
def test_a_cap_leaves_what_it_leaves_of_rows_drawn_one_by_one(lengths: RowLengths, cap: int) -> None:
    rows, n = drawn(lengths, 60_000), 60_000
    answered = [
        (k, whole) for k, whole in rows if k < cap or not lengths.mean
    ]  # a prompt as long as the cap leaves nothing to learn
    cut, drop = lengths.under(cap, cut=True), lengths.under(cap)
    tolerance = 0.03 * lengths.tokens
    assert cut.tokens == pytest.approx(sum(min(whole, cap) for _, whole in answered) / n, abs=tolerance)
    assert drop.tokens == pytest.approx(sum(whole for _, whole in answered if whole <= cap) / n, abs=tolerance)
    assert cut.rows == pytest.approx(len(answered) / n, abs=0.01)
    assert drop.rows == pytest.approx(sum(whole <= cap for _, whole in rows) / n, abs=0.01)
    assert cut.over == drop.over == pytest.approx(sum(whole > cap for _, whole in rows) / n, abs=0.01)


@given(
    st.lists(st.floats(0, 1e5), min_size=1, max_size=200),
    st.floats(0, 1e4),
    st.floats(0, 2),
    st.lists(st.integers(2, 300_000), min_size=2, max_size=2).map(sorted),
)
@settings(max_examples=80, deadline=None)
def test_more_room_never_leaves_less_and_no_cap_leaves_everything(
    known: list[float], mean: float, sigma: float, caps: list[int]
) -> None:
    lengths = RowLengths(buckets(known), mean, sigma)
    for cut in (True, False):
        tight, loose, free = (lengths.under(cap, cut=cut) for cap in (*caps, None))
        assert tight.tokens <= loose.tokens + 1e-6 <= free.tokens + 2e-6 and tight.rows <= loose.rows + 1e-9 <= 1 + 2e-9
        assert tight.over >= loose.over - 1e-9 and free.over == 0
        assert tight.tokens <= caps[0] + 1e-6
    assert lengths.under(caps[0]).tokens <= lengths.under(caps[0], cut=True).tokens + 1e-6
    assert free.tokens == pytest.approx(math.fsum(known) / len(known) + mean)


def test_buckets_keep_the_sum_and_quantiles_give_sigma_back() -> None:
    chance = random.Random(1)
    known = [chance.lognormvariate(9, 0.8) for _ in range(2801)]
    found = buckets(known)
    assert len(found) == 64 and math.fsum(s for s, _ in found) == pytest.approx(1)
    assert math.fsum(s * t for s, t in found) * len(known) == pytest.approx(math.fsum(known))
    assert buckets([]) == ((1.0, 0.0),) and buckets([5.0]) == ((1.0, 5.0),)
    ordered = sorted(known)
    assert sigma_of(ordered[1400], ordered[2520]) == pytest.approx(0.8, abs=0.05)
    assert sigma_of(5, 5) == sigma_of(0, 5) == 0.0
    assert RowLengths.of_json(RowLengths(found, 3.0, 0.5).as_json()) == RowLengths(found, 3.0, 0.5)
