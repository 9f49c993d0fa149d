"""The world's conversations: seeded, split by content, right in themselves, and each one row of ids that a server would make."""

from __future__ import annotations

import json
import re
from collections import Counter
from random import Random

import pytest

from kimi_mini import chat, tokenizer
from kimi_mini_workshop import judge, spelling, toolset, words, world
from kimi_mini_workshop.episode import Episode, count_calls, declarations, prompt_messages
from kimi_mini_workshop.families import FAMILIES

ENCODING = tokenizer.load_encoding()
SOME = [world.training_episode(3, k) for k in range(600)]


def test_the_same_seed_gives_the_same_conversation_and_another_seed_another():
    assert world.training_episode(3, 7) == SOME[7]
    assert [world.training_episode(4, k) for k in range(9)] != SOME[:9]


@pytest.mark.slow
def test_training_never_sees_held_out_content_not_even_in_a_history():
    held = [world.held_out_episode(1, k) for k in range(200)]
    assert not any(episode.held_out for episode in SOME)
    assert all(episode.held_out for episode in held)
    asked = {world.held_out_episode(1, k, kind).user for kind in (*world.EARLIER, "parcel") for k in range(400)}
    earlier = {message["content"] for episode in SOME for message in episode.history if message["role"] == "user"}
    assert len(earlier) > 40 and earlier.isdisjoint(asked)
    contents = {(episode.kind, episode.key) for episode in SOME}
    assert contents.isdisjoint((episode.kind, episode.key) for episode in held)


@pytest.mark.slow
def test_about_a_tenth_of_each_task_types_content_is_held_out():
    for kind, family in FAMILIES.items():
        keys = {(e := family(Random(f"{kind}/{k}"), True)).key: e.held_out for k in range(1_500)}
        share = sum(keys.values()) / len(keys)
        assert 0.01 < share < 0.25, (kind, share, len(keys))


def test_every_task_type_mode_and_form_comes():
    kinds = Counter(episode.kind for episode in SOME)
    assert kinds.keys() == FAMILIES.keys() == world.WEIGHTS.keys()
    assert any(not e.thinking for e in SOME) and any(e.history for e in SOME) and any(e.system for e in SOME)
    assert any(e.json_tools for e in SOME) and any(e.text_steps for e in SOME)
    turns = [step.turn for e in SOME for step in e.steps]
    assert any(t.implicit_end for t in turns) and any(t.reasoning == "" for t in turns)
    assert any(t.calls and t.content for t in turns) and any(len(t.calls) == 2 for t in turns)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_world_itself_is_right_by_its_own_judge(kind: str):
    for k in range(40):
        episode = world.held_out_episode(5, k, kind)
        for number, step in enumerate(episode.steps):
            first_call = count_calls(prompt_messages(episode, number))
            ids = spelling.spell_turn(ENCODING, step.turn, first_call=first_call)
            turn = judge.read_turn(ids, thinking=episode.thinking, first_call=first_call)
            assert judge.is_right(turn, step)
            assert judge.grammar_accepted(ids, thinking=episode.thinking, declared=episode.tools, first_call=first_call)


def test_sums_and_comparisons_are_true():
    sums = 0
    for episode in SOME:
        reasoning = episode.steps[-1].turn.reasoning or ""
        for a, b, total in re.findall(r"(\d+) \+ (\d+) = (\d+)", reasoning):
            assert int(a) + int(b) == int(total)
            sums += 1
        for low, high in re.findall(r"(\d+) is less than (\d+)", reasoning):
            assert int(low) < int(high)
            sums += 1
    assert sums > 40


def test_the_reasoning_holds_what_the_answer_says():
    """Reasoning leads to the answer: what the content must hold stands in the reasoning or in the question, word by word."""
    for episode in SOME:
        if episode.kind in ("pick", "add", "emoji", "compare") and episode.thinking:
            last = episode.steps[-1]
            said = (last.turn.reasoning or "") + episode.user
            if last.turn.reasoning:
                for wanted in last.wanted:
                    assert all(word in said for word in re.findall(r"\w+", wanted)), (episode.kind, wanted)


def test_no_words_are_missing_in_a_language():
    for phrase, languages in words.GREETINGS.items():
        assert len(languages) == 7 and all("{}" in text for text in languages.values()), phrase
    assert all(len(skies) == len(words.SKIES) for skies in words.SKY_WORDS.values())


# ------------------------------------------------------------------------------------------------ rows
def _prompt_text(episode: Episode, step: int) -> str:
    return chat.render_text(
        prompt_messages(episode, step), declarations(episode), thinking=episode.thinking, typescript_tools=not episode.json_tools
    )


def test_a_row_is_what_a_server_would_have_seen_and_sampled_turn_by_turn():
    for episode in SOME[:200]:
        row = world.make_row(episode)
        assert row.spans[-1][1] == len(row.ids)
        for number, (start, end) in enumerate(row.spans, episode.text_steps):
            assert list(row.ids[:start]) == ENCODING.encode(_prompt_text(episode, number), allowed_special="all")
            first_call = count_calls(prompt_messages(episode, number))
            answer = spelling.spell_turn(ENCODING, episode.steps[number].turn, first_call=first_call)
            assert list(row.ids[start:end]) == answer and answer[-1] == spelling.markers().end


def test_a_turn_that_forgets_its_marker_ends_its_row():
    seen = 0
    for episode in (world.training_episode(9, k) for k in range(3_000)):
        early = [k for k, step in enumerate(episode.steps) if step.turn.implicit_end and k >= episode.text_steps]
        if early and early[0] < len(episode.steps) - 1:
            assert len(world.make_row(episode).spans) == early[0] - episode.text_steps + 1
            seen += 1
    assert seen > 3


def test_earlier_exchanges_hold_no_marker_text():
    """In a history it would become a control id: a server encodes the whole prompt with specials on."""
    for episode in SOME:
        for message in episode.history:
            assert not any(name in message["content"] for name in tokenizer.special_tokens())


# ------------------------------------------------------------------------------------------------ tools
def test_json_is_written_spaced_or_compact():
    rng = Random(0)
    assert {toolset.write_json(rng, {"a": "é", "b": "c"}) for _ in range(200)} == {'{"a": "é", "b": "c"}', '{"a":"é","b":"c"}'}


@pytest.mark.parametrize(
    ("name", "arguments", "accepted"),
    [
        ("get_weather", '{"city": "Oslo"}', True),
        ("get_weather", '{"city":"Oslo"}', True),
        ("get_weather", '{"city": 3}', False),
        ("get_weather", '{"town": "Oslo"}', False),
        ("get_weather", '{"city": "Oslo", "x": "y"}', False),
        ("get_weather", '{"city": "Oslo"', False),
        ("get_weather", "[]", False),
        ("get_price", '{"item": "lamp"}', False),  # not declared here
        ("no_such_tool", "{}", False),
    ],
)
def test_only_calls_that_fit_their_declaration_are_accepted(name: str, arguments: str, accepted: bool):
    assert toolset.accepts(name, arguments, frozenset({"get_weather"})) is accepted


def test_declared_tools_are_openai_declarations():
    for name, tool in toolset.DECLARATIONS.items():
        assert tool["type"] == "function" and tool["function"]["name"] == name
        schema = tool["function"]["parameters"]
        assert set(schema["required"]) == schema["properties"].keys()
    json.dumps(toolset.DECLARATIONS)
