"""Turns that continue each other become one row; turns that do not, or may not, stay rows of their own, with a reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.corpus.joined_turns import APART, GRADES, Joined, join_turns
from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets_tests.review.made_rows import make_row


def session(*turns: tuple[int, int, bool], name: str = "s", **of_turn: dict[int, Any]) -> list[SampleRow]:
    """Rows of one sample. A turn is (new prompt ids, answer ids, whether its prompt begins with all that was before)."""
    rows: list[SampleRow] = []
    before: tuple[int, ...] = ()
    for k, (prompt, answer, continues) in enumerate(turns):
        own = make_row(f"{name} {k}", prompt=prompt, response=answer).input_ids
        history = before if continues else (*before[:1], 499, *before[2:])
        ids, start = (*history, *own), len(history) + prompt
        changes = {key: values[k] for key, values in of_turn.items() if k in values}
        rows.append(
            make_row(
                f"{name} {k}",
                **{
                    "sample_id": make_row(name).sample_id,
                    "turn": k,
                    "input_ids": ids,
                    "prompt_len": start,
                    "loss_spans": ((start, len(ids)),),
                    **changes,
                },
            )
        )
        before = ids
    return rows


def joined(rows: list[SampleRow], out: set[int] | None = None, max_length: int | None = None) -> Joined:
    return join_turns(to_table(rows), np.array([k not in (out or ()) for k in range(len(rows))]), max_length=max_length)


def shown(table: pa.Table) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """(turns, spans) of each row that is kept."""
    return [(r["turns"], [(s["start"], s["end"]) for s in r["loss_spans"]]) for r in table.to_pylist()]


def test_a_session_whose_prompts_continue_each_other_is_one_row_with_a_span_for_each_answer() -> None:
    rows = session((5, 4, True), (3, 2, True), (1, 6, True))
    found = joined(rows)
    assert shown(found.kept) == [([0, 1, 2], [(5, 9), (12, 14), (15, 21)])]
    (row,) = found.kept.to_pylist()
    assert tuple(row["input_ids"]) == rows[2].input_ids and row["turn"] == 2 and row["prompt_len"] == 5
    supervised = [i for s in row["loss_spans"] for i in row["input_ids"][s["start"] : s["end"]]]
    assert supervised == [i for r in rows for i in r.input_ids[r.prompt_len :]]  # what was a target is one, and nothing else
    assert found.absorbed.tolist() == [True, True, False] and found.apart == [None, None, None]


def test_a_history_that_was_rewritten_begins_a_new_row_and_says_so() -> None:
    found = joined(session((5, 4, True), (3, 2, True), (1, 6, False), (2, 2, True)))
    assert [turns for turns, _ in shown(found.kept)] == [[0, 1], [2, 3]]
    assert found.apart == [None, None, "history_rewritten", None]


def test_a_prompt_that_begins_with_half_of_the_answer_does_not_continue_it() -> None:
    first, second = session((5, 4, True), (3, 2, True))
    cut = dataclasses.replace(second, prompt_len=8, loss_spans=((8, 14),))
    assert joined([first, cut]).apart == [None, "history_rewritten"]


def test_a_turn_that_is_out_parts_nobody_and_is_supervised_nowhere() -> None:
    rows = session((5, 4, True), (3, 2, True), (1, 6, True))
    found = joined(rows, out={1})
    assert shown(found.kept) == [([1], [(12, 14)]), ([0, 2], [(5, 9), (15, 21)])]
    assert found.absorbed.tolist() == [True, False, False]


@pytest.mark.parametrize("changes", [{"grade": {1: "C1"}}, {"survivors": {1: ((1, 2, 3),)}}])
def test_a_row_that_the_model_must_judge_stays_alone(changes: dict[str, Any]) -> None:
    found = joined(session((5, 4, True), (3, 2, True), (1, 6, True), **changes))
    assert [turns for turns, _ in shown(found.kept)] == [[1], [0, 2]]
    assert found.apart == [None, "needs_the_model", None] and set(found.apart) - {None} <= set(APART)


def test_nothing_longer_than_the_corpus_takes_is_joined() -> None:
    found = joined(session((5, 4, True), (3, 2, True), (1, 6, True), (1, 1, True)), max_length=14)
    assert [turns for turns, _ in shown(found.kept)] == [[0, 1], [2], [3]]
    assert found.apart == [None, None, "too_long", "too_long"]


def test_a_joined_row_is_as_good_as_its_weakest_turn_and_an_import_is_doubted_once() -> None:
    turns = [(5, 4, True), (3, 2, True), (1, 6, True)]
    bought = joined(session(*turns, grade={0: "A0", 1: "B1", 2: "A0"}, p_exact={0: 0.99, 1: 0.97, 2: 0.99}))
    (row,) = bought.kept.to_pylist()
    assert row["grade"] == "B1" and row["p_exact"] == pytest.approx(0.99 * 0.97 * 0.99)
    imported = joined(session(*turns, grade=dict.fromkeys(range(3), "I"), p_exact=dict.fromkeys(range(3), 0.95)))
    (row,) = imported.kept.to_pylist()
    assert row["grade"] == "I" and row["p_exact"] == 0.95
    mixed = session(*turns, grade={0: "I", 1: "I", 2: "A0"}, p_exact={0: 0.95, 1: 0.95, 2: 0.9995})
    (row,) = join_turns(to_table(mixed), np.ones(3, dtype=bool), min_p_exact=0.95).kept.to_pylist()
    assert row["grade"] == "I" and row["p_exact"] == 0.95  # ids of the last turn alone do not part it from the others


def test_a_long_session_is_parted_before_policy_would_refuse_it_as_one_row() -> None:
    turns, p = [(2, 2, True)] * 7, dict.fromkeys(range(7), 0.98)
    rows = to_table(session(*turns, p_exact=p))
    found = join_turns(rows, np.ones(7, dtype=bool), min_p_exact=0.95)
    assert [row["turns"] for row in found.kept.to_pylist()] == [[0, 1], [2, 3], [4, 5], [6]]
    assert [found.apart[k] for k in (2, 4, 6)] == ["too_doubtful"] * 3
    assert all(row["p_exact"] >= 0.95 for row in found.kept.to_pylist())


def test_samples_are_not_mixed_and_single_turns_come_back_as_they_went_in() -> None:
    plain = [make_row(k) for k in range(3)]
    rows = [*session((5, 4, True), (3, 2, True), name="a"), *plain, *session((5, 4, True), (3, 2, True), name="b")]
    found = joined(rows)
    assert [turns for turns, _ in shown(found.kept)] == [[0, 1], [0], [0], [0], [0, 1]]
    alone = joined(plain)
    assert alone.table.drop_columns(["turns"]).equals(to_table(plain)) and not alone.absorbed.any()
    nothing = join_turns(to_table([]), np.zeros(0, dtype=bool))
    assert nothing.kept.num_rows == 0 and "turns" in nothing.kept.schema.names


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.booleans()), min_size=1, max_size=7),
    st.data(),
    st.none() | st.integers(2, 40),
)
@settings(max_examples=60, deadline=None)
def test_every_answer_is_supervised_exactly_once_whatever_joins(
    turns: list[tuple[int, int, bool]], data: st.DataObject, max_length: int | None
) -> None:
    grades = dict(enumerate(data.draw(st.lists(st.sampled_from([*GRADES, "C1"]), min_size=len(turns), max_size=len(turns)))))
    rows = session(*turns, grade=grades)
    out = set(data.draw(st.lists(st.integers(0, len(turns) - 1), unique=True)))
    found = joined(rows, out=out, max_length=max_length)
    assert sorted(t for turns_of, _ in shown(found.kept) for t in turns_of) == list(range(len(turns)))
    for row in found.kept.to_pylist():
        answers = [tuple(row["input_ids"][s["start"] : s["end"]]) for s in row["loss_spans"]]
        assert answers == [rows[t].input_ids[rows[t].prompt_len :] for t in row["turns"]]
        assert row["loss_spans"][0]["start"] == row["prompt_len"]
        if len(row["turns"]) > 1:
            assert max_length is None or len(row["input_ids"]) <= max_length
            assert not out & set(row["turns"]) and all(grades[t] != "C1" for t in row["turns"])
