"""`last`, `first` and `chain` ask the turn they say, and a chain goes on only while the tool results still fit."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3_assets.campaign import Mapping
from eagle3_assets.prompts.mapping import Conversation, map_row
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.prompts.set_aside import BadRow
from eagle3_assets.prompts.turns import FOR_CALL, Turn, cut_turn, given_answers, given_turn, next_turn


def talk(*messages: dict[str, Any], **columns: Any) -> Conversation:
    mapping = Mapping(kind="messages", output_ids="o" if "o" in columns else None)
    return map_row({"messages": list(messages), **columns}, mapping)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


TWO_TURNS = talk(user("1"), said("a"), user("2"), said("b"))
LOOP = talk(user("w?"), called("w", '{"c": 1}', "call_9"), result("call_9", "4 C"), said("4"), user("thanks"), said("bye"))


def texts(turn: Turn) -> list[str]:
    return [str(m["content"]) for m in turn.history]


def test_last_drops_the_trailing_answer_and_keeps_the_history_as_given() -> None:
    turn = cut_turn(TWO_TURNS, "last")
    assert texts(turn) == ["1", "a", "2"] and turn.number == 1 and turn.follow_ups == ()
    assert turn.own_answer == said("b")


def test_last_of_a_conversation_that_ends_with_the_user_answers_it() -> None:
    turn = cut_turn(talk(user("1"), said("a"), user("2")), "last")
    assert texts(turn) == ["1", "a", "2"] and turn.own_answer is None


def test_last_of_a_tool_loop_ends_in_the_tool_result() -> None:
    turn = cut_turn(talk(*LOOP.messages[:4]), "last")
    assert [m["role"] for m in turn.history] == ["user", "assistant", "tool"] and turn.number == 1


def test_first_asks_the_first_user_turn_only() -> None:
    turn = cut_turn(TWO_TURNS, "first")
    assert texts(turn) == ["1"] and turn.number == 0 and turn.follow_ups == () and turn.own_answer == said("a")
    assert texts(cut_turn(talk(user("1"), user("1b"), said("a")), "first")) == ["1", "1b"]


def test_a_conversation_without_a_user_has_no_first_turn() -> None:
    with pytest.raises(BadRow) as caught:
        cut_turn(talk(said("a")), "first")
    assert caught.value.reason == "ends_wrong"


def test_an_import_takes_the_final_message_or_the_ids_and_nothing_else() -> None:
    turn = cut_turn(TWO_TURNS, "last")
    assert given_answers(TWO_TURNS, turn)[0].message == said("b")
    only_ids = talk(user("1"), o=[5, 6])
    (given,) = given_answers(only_ids, cut_turn(only_ids, "last"))
    assert given.output_ids == (5, 6) and given.message == said("")
    for nothing in (talk(user("1")), talk(user("1"), said(""))):
        with pytest.raises(BadRow) as caught:
            given_answers(nothing, cut_turn(nothing, "last"))
        assert caught.value.reason == "no_answer"


def chain(conversation: Conversation) -> Prompt:
    turn = cut_turn(conversation, "chain")
    return Prompt(
        sample_id="0" * 32,
        dataset="d",
        turn=turn.number,
        shard="00",
        rank=0,
        messages=turn.history,
        tools=None,
        expected_tokens=1,
        follow_ups=turn.follow_ups,
    )


def test_a_chain_asks_every_turn_on_the_models_own_answers() -> None:
    first = chain(TWO_TURNS)
    assert first.messages == (user("1"),) and first.follow_ups == ((user("2"),),)
    second = next_turn(first, {"role": "assistant", "content": "mine", "reasoning": "because", "refusal": None})
    assert second is not None
    assert second.messages == (user("1"), {**said("mine"), "reasoning_content": "because"}, user("2"))
    assert (second.sample_id, second.turn, second.follow_ups) == (first.sample_id, 1, ())
    assert next_turn(second, said("end")) is None


def test_a_chain_carries_the_models_call_ids_into_the_results() -> None:
    first = chain(LOOP)
    own = called("w", '{"c":1}', "functions.w:0")  # equal arguments, other spacing
    own["tool_calls"][0]["index"] = 0
    second = next_turn(first, own)
    assert second is not None
    assert second.messages[-2]["tool_calls"] == [{k: v for k, v in own["tool_calls"][0].items() if k != "index"}]
    assert second.messages[-1] == result("functions.w:0", "4 C")
    third = next_turn(second, said("4"))
    assert third is not None and third.messages[-1] == user("thanks") and third.turn == 2
    assert not any(FOR_CALL in m for m in third.messages)


@pytest.mark.parametrize(
    "own",
    [
        said("no call at all"),
        called("w", '{"c": 2}', "x"),
        called("other", '{"c": 1}', "x"),
        called("w", "{not json", "x"),
        {**called("w", '{"c": 1}', "x"), "tool_calls": called("w", '{"c": 1}', "x")["tool_calls"] * 2},
        {**called("w", '{"c": 1}', ""), "content": ""},
        {**called("w", '{"c": 1}', "x"), "tool_calls": ["w"]},
        {**called("w", '{"c": 1}', "x"), "tool_calls": [{"id": "x", "function": "w"}]},
        {**called("w", '{"c": 1}', "x"), "tool_calls": [{"id": "x", "function": [1]}]},
    ],
)
def test_a_chain_ends_when_the_tool_results_no_longer_match_the_calls(own: dict[str, Any]) -> None:
    assert next_turn(chain(LOOP), own) is None


def test_a_chain_ends_when_the_model_calls_tools_and_the_source_has_no_results() -> None:
    assert next_turn(chain(TWO_TURNS), called("w", "{}", "x")) is None


def test_a_result_without_a_call_in_the_source_never_matches() -> None:
    lost = chain(talk(user("1"), said("a"), result("gone", "4 C"), said("b")))
    assert lost.follow_ups[0][0][FOR_CALL] is None
    assert next_turn(lost, called("w", "{}", "x")) is None


# ---------------------------------------------------------------------------------------------------- every answer of an import
def every(conversation: Conversation) -> list[Prompt]:
    """The turns of a trajectory, one after the other."""
    turn = cut_turn(conversation, "every")
    given, *later = given_answers(conversation, turn)
    prompt: Prompt | None = Prompt(
        sample_id="0" * 32,
        dataset="d",
        turn=turn.number,
        shard="00",
        rank=0,
        messages=turn.history,
        tools=None,
        expected_tokens=7,
        follow_ups=turn.follow_ups,
        given=given,
        given_next=tuple(later),
    )
    prompts = []
    while prompt is not None:
        prompts.append(prompt)
        prompt = given_turn(prompt)
    return prompts


def test_every_turn_of_a_trajectory_is_an_answer_to_all_that_stood_before_it() -> None:
    prompts = every(LOOP)
    messages = LOOP.messages
    assert [(p.turn, len(p.messages)) for p in prompts] == [(0, 1), (1, 3), (2, 5)]
    assert all(tuple(p.messages) == messages[: len(p.messages)] for p in prompts)
    assert [p.given.message for p in prompts if p.given] == [messages[1], messages[3], messages[5]]
    assert sum(p.expected_tokens for p in prompts) == 7


def test_what_follows_the_last_answer_is_dropped_unless_ids_answer_it() -> None:
    assert len(every(talk(*LOOP.messages, user("and?")))) == 3
    answered = every(talk(*LOOP.messages, user("and?"), o=[5, 6]))
    assert len(answered) == 4 and answered[-1].messages[-1] == user("and?")
    assert [p.given.output_ids for p in answered if p.given] == [None, None, None, (5, 6)]
    for nothing in (talk(user("1")), talk(user("1"), said(""), user("2"), said(""))):
        with pytest.raises(BadRow) as caught:
            given_answers(nothing, cut_turn(nothing, "every"))
        assert caught.value.reason == "no_answer"


def test_ids_of_each_answer_stand_in_its_message_or_in_a_column_of_lists() -> None:
    marked = [{**m, "o": [k, k]} if m["role"] == "assistant" else m for k, m in enumerate(LOOP.messages)]
    mapping = Mapping(kind="messages", output_ids="o", finish_reason="f")
    in_messages = map_row({"messages": marked}, mapping)
    in_column = map_row({"messages": list(LOOP.messages), "o": [[1, 1], None, [5, 5]], "f": ["stop", None, "length"]}, mapping)
    assert [p.given.output_ids for p in every(in_messages) if p.given] == [(1, 1), (3, 3), (5, 5)]
    assert [p.given.output_ids for p in every(in_column) if p.given] == [(1, 1), None, (5, 5)]
    assert [p.given.finish_reason for p in every(in_column) if p.given] == ["stop", None, "length"]
    final = given_answers(in_messages, cut_turn(in_messages, "last"))
    assert [g.output_ids for g in final] == [(5, 5)]
    one = map_row(
        {"messages": marked, "o": [9]}, mapping
    )  # one value of the row is the final answer's, and goes over its message's
    assert [p.given.output_ids for p in every(one) if p.given] == [(1, 1), (3, 3), (9,)]
    with pytest.raises(BadRow) as caught:
        map_row({"messages": list(LOOP.messages), "o": [[1], [2]]}, mapping)
    assert caught.value.reason == "bad_ids"
