"""Claims about lists of JSON that are kept as bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.prompts.lazy_json import Packed

VALUES = st.lists(
    st.dictionaries(st.text(max_size=8), st.one_of(st.text(max_size=600), st.integers(-(2**50), 2**50), st.none())), max_size=6
)


@pytest.mark.slow
@given(VALUES)
def test_it_is_the_list_it_was_made_of_however_it_is_looked_at(values: list[dict[str, Any]]) -> None:
    packed = Packed(json.dumps(values).encode())
    assert list(packed) == values and len(packed) == len(values) and bool(packed) == bool(values)
    assert packed == tuple(values) and packed == values and packed[1:] == tuple(values[1:])
    assert (*packed, "more") == (*values, "more")
    if values:
        assert packed[-1] == values[-1] and packed != values[:-1]


def test_what_a_reader_changes_is_not_changed_for_the_next_one() -> None:
    packed = Packed(b'[{"role": "user"}]')
    packed[0]["role"] = "tool"
    assert packed[0]["role"] == "user"


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a JSON array, found dict"):
        Packed(b"{}")


def test_long_histories_take_a_fraction_of_their_text() -> None:
    text = json.dumps([{"role": "user", "content": "the same tool output, again and again. " * 500}]).encode()
    assert len(Packed(text)._data) < len(text) / 20
