"""Claims about questions to the table: they find what a reader of the rows would find, and values are never code."""

from __future__ import annotations

from collections import Counter

import pytest

from eagle3_assets.errors import UsageError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.view.columns import COLUMNS
from eagle3_assets.view.search import find, neighbours, parse_query
from eagle3_assets_tests.view.small_root import EVIL_NAME


def ids_of(catalogue: Catalogue, *words: tuple[str, str]) -> list[str]:
    return [row["sample_id"] for row in find(catalogue, parse_query([*words, ("limit", "500")]))["rows"]]


@pytest.mark.slow
def test_values_of_one_column_are_or_and_columns_are_and(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    expected = {r.sample_id for r in rows if r.grade in ("Q", "B1") and r.provider == "Joining"}
    assert set(ids_of(catalogue, ("grade", "Q"), ("grade", "B1"), ("provider", "Joining"))) == expected
    assert set(ids_of(catalogue, ("not.provider", "Joining"))) == {r.sample_id for r in rows if r.provider != "Joining"}


@pytest.mark.slow
def test_bounds_belong_to_the_range_and_nothing_is_no_number(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    lengths = sorted(len(r.input_ids) for r in rows)
    low, high = lengths[3], lengths[-4]
    expected = {r.sample_id for r in rows if low <= len(r.input_ids) <= high}
    assert set(ids_of(catalogue, ("length.min", str(low)), ("length.max", str(high)))) == expected
    assert len(ids_of(catalogue, ("mean_logprob.max", "0"))) == 1


@pytest.mark.slow
def test_facets_count_what_another_choice_would_give(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    found = find(catalogue, parse_query([("provider", "Joining"), ("grade", "B1")]))
    assert dict(found["facets"]["grade"]) == Counter(r.grade for r in rows if r.provider == "Joining")
    assert dict(found["facets"]["provider"]) == Counter(r.provider for r in rows if r.grade == "B1")


@pytest.mark.slow
@pytest.mark.parametrize("column", [column.name for column in COLUMNS])
def test_every_column_sorts_both_ways_with_the_unknown_last(catalogue: Catalogue, column: str) -> None:
    for sort in (column, f"-{column}"):
        values = [row[column] for row in find(catalogue, parse_query([("sort", sort), ("limit", "500")]))["rows"]]
        known = [value for value in values if value is not None]
        assert values[: len(known)] == known == sorted(known, reverse=sort.startswith("-"))


@pytest.mark.slow
def test_text_is_found_in_prompts_and_answers_whatever_its_case(
    catalogue: Catalogue, rows: list[SampleRow], mini: Profile
) -> None:
    texts = {
        r.sample_id: (mini.decode(r.input_ids[: r.prompt_len]).lower(), mini.decode(r.input_ids[r.prompt_len :]).lower())
        for r in rows
    }
    for words, place, spot in (("NUMBER 1", "prompt", 0), ("Thought", "answer", 1)):
        expected = {name for name, both in texts.items() if words.lower() in both[spot]}
        assert expected and set(ids_of(catalogue, ("q", words), ("in", place))) == expected
    assert ids_of(catalogue, ("q", "number 1"), ("in", "answer")) == []
    found = find(catalogue, parse_query([("q", "tell me about number 7")]))
    assert all("tell me about number 7" in row["snippet"] for row in found["rows"])


@pytest.mark.slow
def test_text_may_be_whatever_a_person_types(catalogue: Catalogue) -> None:
    for words in ("'; DROP TABLE rows; --", "%", "_", "\\", "\x00", "\u202e", "</script>", "?", "$1", "x" * 10_000):
        find(catalogue, parse_query([("q", words), ("provider", words), ("id", words)]))
    assert find(catalogue, parse_query([]))["total"] > 0
    assert len(ids_of(catalogue, ("q", "</script>"))) == 1


@pytest.mark.slow
def test_a_hostile_name_is_a_value_like_any_other(catalogue: Catalogue) -> None:
    assert len(ids_of(catalogue, ("provider", EVIL_NAME))) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("nothing", "1"),
        ("grade;--", "Q"),
        ("sort", "nothing"),
        ("length.min", "many"),
        ("length.min", "nan"),
        ("in", "everywhere"),
        ("offset", "x"),
    ],
)
def test_what_does_not_exist_is_refused_in_words(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=r"."):
        parse_query([words])


@pytest.mark.slow
def test_next_and_previous_walk_through_the_list_in_its_order(catalogue: Catalogue) -> None:
    query = parse_query([("provider", "Plain"), ("sort", "-length")])
    keys = [row["key"] for row in find(catalogue, query)["rows"]]
    for before, here, behind in zip([None, *keys], keys, [*keys[1:], None], strict=False):
        assert neighbours(catalogue, here, query) == {"previous": before, "next": behind}


@pytest.mark.slow
def test_next_failing_row_is_asked_from_any_row(catalogue: Catalogue) -> None:
    failing = [key for (key,) in catalogue.ask("SELECT key FROM rows WHERE failing = 'yes' ORDER BY n")]
    every = [key for (key,) in catalogue.ask("SELECT key FROM rows ORDER BY n")]
    here = next(key for key in every if key not in failing)
    found = neighbours(catalogue, here, parse_query([("failing", "yes")]))
    later = [key for key in failing if every.index(key) > every.index(here)]
    earlier = [key for key in failing if every.index(key) < every.index(here)]
    assert found == {"previous": earlier[-1] if earlier else None, "next": later[0] if later else None}


@pytest.mark.slow
def test_pages_of_a_list_do_not_overlap(catalogue: Catalogue) -> None:
    whole = ids_of(catalogue)
    pages = [find(catalogue, parse_query([("limit", "7"), ("offset", str(k))]))["rows"] for k in range(0, len(whole), 7)]
    assert [row["sample_id"] for page in pages for row in page] == whole
