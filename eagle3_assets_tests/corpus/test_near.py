"""Near duplicates: found by sketches, proved by the Jaccard index, and the strongest of each cluster stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.corpus import near
from eagle3_assets.corpus.near import MIN_SHINGLES, SHINGLE, find_near_duplicates, jaccard, shingles_of, sketch_rows
from eagle3_assets.review.rows.columns import Ragged

Rows = list[list[int]]


def ragged(rows: Rows) -> Ragged:
    return Ragged(np.array([i for r in rows for i in r], dtype=np.uint32), np.cumsum([0, *map(len, rows)]))


def whole(rows: Rows) -> tuple[Ragged, Ragged]:
    """One loss span a row: all of it."""
    at = np.arange(len(rows) + 1)
    return Ragged(np.zeros(len(rows), dtype=np.int64), at), Ragged(np.array([len(r) for r in rows]), at)


def found(rows: Rows, conversation: list[int] | None = None, threshold: float = 0.8) -> dict[int, int]:
    ids, (start, end) = ragged(rows), whole(rows)
    names = np.arange(len(rows)) if conversation is None else np.array(conversation)

    def shingles(i: int) -> npt.NDArray[np.uint64]:
        return shingles_of(ids.row(i), start.row(i), end.row(i))

    return find_near_duplicates(range(len(rows)), sketch_rows(ids, start, end), names, shingles, threshold)


def by_definition(a: list[int], b: list[int]) -> float:
    sets = [{tuple(r[i : i + SHINGLE]) for i in range(len(r) - SHINGLE + 1)} for r in (a, b)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def answer(seed: int, length: int = 400) -> list[int]:
    return np.random.default_rng(seed).integers(0, 150_000, length).tolist()


def edited(row: list[int], every: int) -> list[int]:
    return [i + 1 if k % every == every // 2 else i for k, i in enumerate(row)]


@given(st.lists(st.integers(0, 3), min_size=5, max_size=60), st.lists(st.integers(0, 3), min_size=5, max_size=60))
def test_the_index_is_that_of_sets_of_five_ids(a: list[int], b: list[int]) -> None:
    sets = [shingles_of(np.array(r, dtype=np.uint32), np.array([0]), np.array([len(r)])) for r in (a, b)]
    assert jaccard(*sets) == pytest.approx(by_definition(a, b))
    assert all((np.diff(s) > 0).all() for s in sets if len(s) > 1)


def test_shingles_lie_inside_spans_and_never_across_them() -> None:
    ids = np.arange(40, dtype=np.uint32)
    spans = shingles_of(ids, np.array([10, 30]), np.array([18, 33]))
    assert len(spans) == 4 and set(spans) < set(shingles_of(ids, np.array([0]), np.array([40])))  # the second span is too short
    assert not len(shingles_of(ids, np.array([0, 20]), np.array([3, 24])))  # both too short, the first one at the very beginning
    assert not len(shingles_of(ids[:3], np.array([0]), np.array([3]))) and not len(shingles_of(ids, np.array([]), np.array([])))


def test_an_edited_answer_goes_and_another_answer_stays() -> None:
    rows = [answer(1), answer(2), edited(answer(1), 60), edited(answer(1), 6), answer(3)]
    assert by_definition(rows[0], rows[2]) > 0.8 > by_definition(rows[0], rows[3])
    assert found(rows) == {2: 0}
    assert found(rows[::-1]) == {4: 2}  # whoever is named first is the stronger one
    assert found(rows, threshold=0.95) == {}


@pytest.mark.parametrize("length", [60, 130, 400, 5_000])
def test_no_pair_above_the_threshold_is_missed(length: int) -> None:
    """The sketch may propose too much, never too little: 60 pairs each, a little above 0.8."""
    rows = [answer(i, length) for i in range(60)]
    changed = max(1, round(length * 0.02))
    pairs = rows + [[*(i + 1 for i in r[:changed]), *r[changed:]] for r in rows]
    assert all(0.8 <= by_definition(pairs[k], pairs[60 + k]) < 0.99 for k in range(0, 60, 20))
    assert found(pairs) == {60 + k: k for k in range(60)}


def test_what_is_dropped_is_close_to_a_row_that_stays() -> None:
    """A chain of small edits: neighbours are alike, the ends are not; no row goes for being like one that went."""
    chain = [answer(7, 600)]
    for k in range(8):
        step = chain[-1].copy()
        step[20 + 60 * k : 20 + 60 * k + 25] = answer(100 + k, 25)
        chain.append(step)
    gone = found(chain)
    assert 0 not in gone and 0 < len(gone) < len(chain) - 1
    assert all(kept not in gone and by_definition(chain[i], chain[kept]) >= 0.8 for i, kept in gone.items())
    stay = [i for i in range(len(chain)) if i not in gone]
    assert all(by_definition(chain[a], chain[b]) < 0.8 for a in stay for b in stay if a < b)


def test_turns_of_one_conversation_do_not_kill_each_other() -> None:
    rows = [answer(1), edited(answer(1), 80), edited(answer(1), 90)]
    assert found(rows) == {1: 0, 2: 0}
    assert found(rows, conversation=[5, 5, 6]) == {2: 0}


def test_short_answers_are_left_to_the_exact_rule() -> None:
    short = answer(1, MIN_SHINGLES + SHINGLE - 2)
    assert found([short, short]) == {}
    assert found([[*short, 1], [*short, 1]]) == {1: 0}
    assert found([[], [1], short]) == {}


def test_a_thousand_copies_are_compared_with_one_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    real: Callable[..., float] = jaccard

    def counting(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> float:
        nonlocal compared
        compared += 1
        return real(a, b)

    monkeypatch.setattr(near, "jaccard", counting)
    assert found([answer(1, 200)] * 1000) == dict.fromkeys(range(1, 1000), 0)
    assert compared == 999


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 3))
def test_the_outcome_depends_on_strength_and_not_on_the_order_read(order: list[int], seed: int) -> None:
    base = [answer(10 * seed + k // 3, 150) for k in range(12)]
    rows = [edited(r, 140 - 20 * (k % 3)) if k % 3 else r for k, r in enumerate(base)]
    ids, (start, end) = ragged([rows[k] for k in order]), whole([rows[k] for k in order])

    def shingles(i: int) -> npt.NDArray[np.uint64]:
        return shingles_of(ids.row(i), start.row(i), end.row(i))

    ranked = [order.index(k) for k in range(12)]
    gone = find_near_duplicates(ranked, sketch_rows(ids, start, end), np.arange(12), shingles, 0.8)
    assert {order[i]: order[kept] for i, kept in gone.items()} == found(rows) != {}
