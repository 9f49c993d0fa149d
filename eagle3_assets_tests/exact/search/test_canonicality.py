"""Claims about canonicity: regions are counted where they stand, and rates are calibrated from few rows on."""

from __future__ import annotations

import json
import math
import random

import pytest

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.search.canonicality import (
    PRIOR_RATE,
    Canonicality,
    Count,
    Drawn,
    count_regions,
    drawn_of,
    lengths_of,
    share_inside_characters,
)
from eagle3_assets.exact.search.offpath import offpath_arguments
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.targets.grammar import CallParts, Ids, Parts
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth


def cut_in_two(profile: Profile, text: str, word: str) -> Ids:
    """The text with one word's token sampled as its first letter and the rest."""
    at = text.index(word) + 1
    return (*profile.encode(text[:at]), *profile.encode(text[at:]))


PROSE, CODE = "The market of the river. ", "```\nthe market = river\n```\n"


def test_regions_are_counted_by_the_kind_of_text_they_stand_in(mini: Profile) -> None:
    plain, fenced = tuple(mini.encode(PROSE)), tuple(mini.encode(PROSE + CODE + PROSE))
    clean = count_regions(mini, Parts(plain, fenced, (CallParts((), tuple(mini.encode('{"a":"b"}'))),)))
    assert [clean[kind].regions for kind in ("prose", "code", "arguments")] == [0, 0, 0]
    assert {kind: count.ids for kind, count in clean.items()} == lengths_of(
        mini, Parts(plain, fenced, (CallParts((), tuple(mini.encode('{"a":"b"}'))),))
    )
    assert clean["code"].ids > 0 and clean["prose"].ids > clean["code"].ids
    odd_prose = cut_in_two(mini, PROSE + CODE, "market")
    odd_code = (*mini.encode(PROSE + "```\nthe mark"), *mini.encode("et = river\n```\n"))
    arguments = '{"who": "the market"}'
    odd = count_regions(mini, Parts(odd_prose, odd_code, (CallParts((), cut_in_two(mini, arguments, "market")),)))
    assert [odd[kind].regions for kind in ("prose", "code", "arguments")] == [1, 1, 1]


def test_nothing_known_is_the_prior_and_a_few_hundred_rows_move_it() -> None:
    model = Canonicality()
    assert model.rate(1.0, 0.95, "prose") == pytest.approx(PRIOR_RATE["prose"])
    assert model.odd_share({"prose": 500}, 1.0, 0.95) < model.odd_share({"prose": 16_000}, 1.0, 0.95) < 0.5
    k2, small = Canonicality(), Canonicality()
    k2.add_counts({"prose": Count(12_502, 0)}, 0.6, 0.95)
    assert k2.rate(0.6, 0.95, "prose") < 1e-5
    small.add_counts({"prose": Count(200 * 120, round(200 * 120 * 7.2e-3))}, 1.0, 1.0)
    assert small.rate(1.0, 1.0, "prose") == pytest.approx(7.2e-3, rel=0.15)


def test_a_stratum_without_rows_takes_after_its_nearest_relative() -> None:
    model = Canonicality()
    model.add_counts({"prose": Count(40_000, 288)}, 1.0, 1.0)
    model.add_counts({"prose": Count(40_000, 66)}, 0.7, 1.0)
    hot, cool, unseen = model.rate(1.0, 0.9, "prose"), model.rate(0.7, 0.9, "prose"), model.rate(0.0, 1.0, "prose")
    assert cool < unseen < hot, "top_p of the same temperature is nearer than any other temperature"
    assert model.rate(None, None, "prose") == model.rate(1.0, 1.0, "prose")
    assert model.rate(1.0, 1.0, "arguments") == pytest.approx(PRIOR_RATE["arguments"]), "prose says nothing of arguments"


def test_order_of_rows_does_not_matter_and_counts_go_through_json(mini: Profile) -> None:
    rows = [
        (Parts(cut_in_two(mini, PROSE, "market")), 1.0, 1.0),
        (Parts(tuple(mini.encode(PROSE))), 0.7, None),
        (Parts(), None, 0.9),
    ]
    one, other = Canonicality(), Canonicality()
    for parts, temperature, top_p in rows:
        one.add(mini, parts, temperature, top_p)
    for parts, temperature, top_p in reversed(rows):
        other.add(mini, parts, temperature, top_p)
    assert one == other == Canonicality.from_json(json.loads(json.dumps(one.as_json())))
    for damaged in (
        {},
        {"version": 0, "strata": []},
        {"version": 2, "strata": [{"kind": "verse"}]},
        {"version": 2, "strata": []},
    ):
        with pytest.raises(ExactError, match="learn it again"):
            Canonicality.from_json(damaged)


@pytest.mark.parametrize("pieces", [1, 2])
def test_an_answer_that_was_cut_inside_a_character_is_named(mini: Profile, pieces: int) -> None:
    """The server leaves out what is no whole character; its bill counts the ids."""
    smile = mini.encode("😀")
    assert len(smile) > pieces
    provider = Provider(mini)
    text = "So 😀 it 😀 is 😀"
    made = provider.answer(Truth(" hm", text, finish="length"), bill_shift=pieces)
    truth = (*provider.truths[0], *smile[:pieces])
    found = reconstruct(mini, made.request, parse_fields(made.body), None, source="openrouter")
    assert found.input_ids != truth and found.p_exact < 0.9
    assert found.grade in ("Q", "C1") and any("inside a character" in reason for reason in found.reasons), found.reasons
    assert (
        share_inside_characters(mini, tuple(mini.encode(text))) > 0.2
        and share_inside_characters(mini, tuple(mini.encode("So it is"))) == 0
    )


def test_spellings_that_are_tried_for_every_answer_are_no_regions(mini: Profile) -> None:
    arguments = '{"a":"b","c":"d"}'
    spelled = [other.ids for other in offpath_arguments(mini, arguments)]
    for ids in spelled:
        assert count_regions(mini, Parts((), (), (CallParts((), ids),)))["arguments"].regions == 0
    odd = cut_in_two(mini, '{"who": "the market"}', "market")
    assert count_regions(mini, Parts((), (), (CallParts((), odd),)))["arguments"].regions == 1


def test_a_text_is_counted_up_to_its_first_region(mini: Profile) -> None:
    """Regions come in clusters: what is asked is how likely a text has none."""
    one, many = (count_regions(mini, Parts((), cut_everywhere(mini, "market", n))) for n in (1, 6))
    assert one["prose"].regions == many["prose"].regions == 1 and one["prose"].ids == many["prose"].ids


def cut_everywhere(profile: Profile, word: str, times: int) -> Ids:
    """PROSE, with the word cut in two in so many copies of the sentence."""
    clean, odd = tuple(profile.encode(PROSE)), cut_in_two(profile, PROSE, word)
    return tuple(token for k in range(6) for token in (odd if k < times else clean))


def test_drawn_says_of_a_text_what_counting_its_ids_would() -> None:
    request = {"temperature": 0.7, "top_p": True}
    drawn = drawn_of(request, ("x" * 30, "y" * 40 + "```" + "z" * 24 + "```"), 50)
    assert drawn == Drawn(0.7, None, 0.3, 50) and drawn.lengths(150) == {"prose": 70, "code": 30, "arguments": 50}
    assert drawn.lengths(20) == {"prose": 0, "code": 0, "arguments": 20}


@pytest.mark.parametrize("rows", [20, 300])
def test_what_is_said_of_an_answer_is_how_often_it_is_so(rows: int) -> None:
    """Models with rates over three orders of magnitude, each known from a few rows: among all answers the mean of P(not canonical) is the
    share of those that are not."""
    rng = random.Random(17 + rows)
    said, true = 0.0, 0.0
    for _ in range(1_500):
        rate = 10 ** rng.uniform(-5, -2)
        lengths = [rng.randint(50, 800) for _ in range(rows)]
        ids = sum(lengths)
        model = Canonicality()
        model.add_counts({"prose": Count(ids, poisson(rng, rate * ids))}, 1.0, 1.0)
        asked = rng.randint(50, 800)
        said += model.odd_share({"prose": asked}, 1.0, 1.0)
        true += -math.expm1(-rate * asked)
    assert said == pytest.approx(true, rel=0.12 if rows < 100 else 0.04)


def poisson(rng: random.Random, mean: float) -> int:
    """Knuth's for small means, the normal's for great ones."""
    if mean > 50:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, k, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        k += 1
        product *= rng.random()
    return k
