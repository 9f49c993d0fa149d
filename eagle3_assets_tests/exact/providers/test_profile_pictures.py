"""Claims about how wire profiles are shown: every window in the table, one picture that fits into an event."""

from __future__ import annotations

import base64
import copy
import re
from typing import Any

import pytest

from eagle3_assets.exact.providers.profile_pictures import MAX_BYTES, as_markdown, convention, draw_profiles, standing
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences


@pytest.fixture(scope="module")
def learned(mini: Profile) -> dict[str, Any]:
    texts, made = sentences(mini, 60, neutral=None), []
    for name, bends, counts_end in (("A|b", "injects", True), ("plain", "verbatim", False)):
        provider = Provider(mini, name=name, bends=bends, counts_end=counts_end)
        made += [provider.answer(Truth(" " + text, " " + text), finished_at=1000.0 + k) for k, text in enumerate(texts)]
    return learn(mini, made)


@pytest.mark.slow
def test_the_table_says_what_was_learned_of_every_window(learned: dict[str, Any]) -> None:
    text = as_markdown(learned)
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 2 and all(len(re.split(r"(?<!\\)\|", row)) == 11 for row in rows), "a bar in a name ends no cell"
    assert "A\\|b" in rows[0] and "injected" in rows[0] and "decided" in rows[0] and "no end" in rows[1]
    assert "100.0%" in rows[0] and "no_tools" in rows[0] and "1970-01-01" in rows[0]


@pytest.mark.slow
def test_the_picture_fits_into_an_event_however_many_providers_there_are(learned: dict[str, Any]) -> None:
    many = copy.deepcopy(learned)
    many["providers"] |= {f"provider number {k}": learned["providers"]["plain"] for k in range(40)}
    png = draw_profiles(many)
    assert png.startswith(b"\x89PNG") and len(png) <= MAX_BYTES and png == draw_profiles(many)
    shown = re.search(r"base64,([A-Za-z0-9+/=]+)\)", as_markdown(learned))
    assert shown and base64.b64decode(shown[1]).startswith(b"\x89PNG")


def test_nothing_learned_has_a_table_and_no_picture(mini: Profile) -> None:
    assert "base64" not in as_markdown(learn(mini, []))


def test_words_for_standing_and_for_what_is_counted() -> None:
    assert standing({"decided": True, "cannot_be_exact": "estimates"}) == "cannot be exact"
    assert [standing({"decided": d}) for d in (True, False)] == ["decided", "not decided"]
    assert convention({"counts_end": True, "extra": 1, "reasoning_count": None}) == "end +1"
    assert convention({"counts_end": False, "extra": 0, "reasoning_count": -1}) == "no end, reasoning -1"
