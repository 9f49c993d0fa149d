"""Claims about differences: they are complete, and long texts cost little."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.view.edits import edits

TEXTS = st.text(alphabet=" \nabé", max_size=40)


@given(TEXTS, TEXTS)
def test_each_side_is_what_stands_in_both_and_what_stands_only_in_it(a: str, b: str) -> None:
    found = edits(a, b)
    assert "".join(a[e.a_start : e.a_end] for e in found if e.op != "new") == a
    assert "".join(b[e.b_start : e.b_end] for e in found if e.op != "gone") == b
    assert all(a[e.a_start : e.a_end] == b[e.b_start : e.b_end] for e in found if e.op == "same")


@given(TEXTS)
def test_equal_texts_have_no_difference(text: str) -> None:
    assert [e.op for e in edits(text, text)] == (["same"] if text else [])


def test_a_joined_space_is_the_only_edit() -> None:
    (gone, same) = (
        edits("  Hello", " Hello")[0:2] if edits("  Hello", " Hello")[0].op == "gone" else edits("  Hello", " Hello")[1:3]
    )
    assert (gone.op, gone.a_end - gone.a_start, same.op) == ("gone", 1, "same")


def test_an_id_that_was_written_anew_is_one_replacement() -> None:
    assert [e.op for e in edits("call_9f3ab1c2d4", "functions.add:0")] == ["gone", "new"]


def test_five_megabytes_with_one_change_take_no_time() -> None:
    text = "word " * 1_000_000
    started = time.perf_counter()
    found = edits(text, text[:2_500_000] + "X" + text[2_500_000:])
    assert [e.op for e in found] == ["same", "new", "same"]
    assert time.perf_counter() - started < 2.0
