"""The world's text: seeded, complete, right in its sums, with habits that can be set."""

from __future__ import annotations

import itertools
import re
from random import Random

import pytest

from eagle3_assets.kimi_mini import prose, toolset, world


def turns(mixture: world.Mixture, count: int = 400) -> list[world.Turn]:
    made = []
    for k in range(count):
        rng = Random(f"test/{k}")
        made.append(world.write_answer(rng, world.make_task(rng, mixture), mixture))
    return made


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    assert list(world.training_fields(3, 20)) == list(world.training_fields(3, 20))
    assert list(world.training_fields(3, 20)) != list(world.training_fields(4, 20))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_of_leading_spaces_is_settable(share: float):
    habits = world.Habits(reasoning_space=share)
    reasoning = [turn.reasoning for turn in turns(world.Mixture(habits=habits, empty_reasoning=0.0)) if turn.reasoning]
    spaced = sum(text.startswith(" ") for text in reasoning) / len(reasoning)
    assert abs(spaced - share) < 0.08


@pytest.mark.parametrize("language", prose.languages())
def test_no_slot_stays_open_and_every_sum_is_right(language: str):
    rng, checked = Random(language), 0
    for kind in ("asks", "thoughts", "statements", "closers"):
        for template in prose.lexicon(language).sentences[kind]:
            text = prose.fill(rng, language, template)
            assert "{" not in text and "}" not in text
            slots = re.findall(r"\{(n|m|total)\}", template)
            if {"n", "m", "total"} <= set(slots):
                value = dict(zip(slots, map(int, re.findall(r"\d+", text)), strict=True))
                assert value["n"] + value["m"] == value["total"]
                checked += 1
    assert checked, "every language has a sum"


def test_no_sentence_comes_twice_in_a_row():
    for language in prose.languages():
        deck = prose.templates(Random(7), language, "thoughts")
        drawn = [next(deck) for _ in range(200)]
        assert all(a != b for a, b in itertools.pairwise(drawn))


def test_shares_of_modes_and_tools_follow_the_mixture():
    every = turns(world.Mixture(instant=1.0, tools=0.0))
    assert all(turn.reasoning is None and not turn.calls for turn in every)
    loud = turns(world.Mixture(instant=0.0, tools=1.0, implicit_end=1.0, empty_reasoning=0.0))
    assert all(turn.implicit_end == bool(turn.calls) for turn in loud)
    assert all(turn.content == "" for turn in loud if turn.implicit_end), "text before a section without </think> is reasoning"
    assert 0.6 < sum(bool(turn.calls) for turn in loud) / len(loud) < 0.8


def test_a_submit_is_the_last_call_of_its_turn():
    for turn in turns(world.Mixture(tools=1.0)):
        names = [call.name for call in turn.calls]
        assert "submit" not in names[:-1]


def test_json_is_written_spaced_compact_escaped_and_indented():
    rng = Random(0)
    forms = {toolset.write_json(rng, {"a": "é", "b": [1, 2]}) for _ in range(400)}
    assert forms == {
        '{"a": "é", "b": [1, 2]}',
        '{"a":"é","b":[1,2]}',
        '{"a": "\\u00e9", "b": [1, 2]}',
        '{\n  "a": "é",\n  "b": [\n    1,\n    2\n  ]\n}',
    }
