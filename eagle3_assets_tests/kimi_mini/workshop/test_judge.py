"""The strict reader of answers agrees with the automaton of the tests, and refuses whatever is out of place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets_tests.kimi_mini.reading import read_completion
from kimi_mini import tokenizer
from kimi_mini_workshop import judge, spelling
from kimi_mini_workshop.episode import Call, Step, Turn

ENCODING = tokenizer.load_encoding()
MARK = spelling.markers()
CALL = Call("get_weather", '{"city": "Oslo"}')


def spell(turn: Turn, first_call: int = 0) -> list[int]:
    return spelling.spell_turn(ENCODING, turn, first_call=first_call)


@pytest.mark.parametrize(
    "turn",
    [
        Turn(" I think.", "Yes."),
        Turn("", "Yes."),
        Turn(None, "Yes."),
        Turn(" a", "", (CALL,)),
        Turn(" a", "Let me look.", (CALL, CALL)),
        Turn(" a", "", (CALL,), implicit_end=True),
        Turn(None, "", (CALL,)),
        Turn(" 🙂", "``` </think> ```"),  # marker text as ordinary ids
    ],
)
def test_a_whole_answer_is_read_back(turn: Turn):
    assert judge.read_turn(spell(turn), thinking=turn.reasoning is not None) == turn


TOKENS = st.one_of(
    st.integers(0, tokenizer.N_BASE - 1),
    st.sampled_from([MARK.end, MARK.close_think, MARK.section_begin, MARK.section_end, MARK.call_begin]),
    st.sampled_from([MARK.argument_begin, MARK.call_end, *ENCODING.encode_ordinary("functions.get_price:0")]),
)
PIECES = st.one_of(st.lists(TOKENS, max_size=12), st.sampled_from([spell(Turn(" a", "b", (CALL,))), spell(Turn(None, "b"))]))


@pytest.mark.slow
@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.lists(PIECES, max_size=3).map(lambda parts: [token for part in parts for token in part]), st.booleans())
def test_what_the_reader_accepts_the_automaton_accepts(ids: list[int], thinking: bool):
    turn = judge.read_turn(ids, thinking=thinking)
    if turn is None:
        return
    said = read_completion(ENCODING, ids, thinking=thinking)
    assert said.ended and (said.reasoning, said.implicit_end) == (turn.reasoning, turn.implicit_end)
    assert (said.content or "") == turn.content
    assert [(name, arguments) for name, _, arguments in said.calls] == [(call.name, call.arguments) for call in turn.calls]


def test_broken_answers_are_refused():
    good = spell(Turn(" a", "b", (CALL, CALL)))
    assert judge.read_turn(good, thinking=True) is not None
    for k in range(len(good)):
        if good[k] == MARK.close_think:
            assert judge.read_turn(good[:k] + good[k + 1 :], thinking=True) == Turn(" ab", "", (CALL, CALL), implicit_end=True)
        elif good[k] >= tokenizer.N_BASE:
            assert judge.read_turn(good[:k] + good[k + 1 :], thinking=True) is None, f"without marker {good[k]}"
    assert judge.read_turn(good[:-1], thinking=True) is None, "no end"
    assert judge.read_turn([], thinking=True) is None
    assert judge.read_turn(spell(Turn(" a", "")), thinking=True) is None, "says nothing"
    assert judge.read_turn(spell(Turn(" a", "b")), thinking=False) is None, "</think> in instant mode"
    assert judge.read_turn(spell(Turn(" a", "", (CALL,)), 1), thinking=True) is None, "numbers its calls wrongly"
    half = ENCODING.encode_ordinary("é")[:1]
    first_byte = [tokenizer.load_ranks()["é".encode()[:1]]]
    assert judge.read_turn([*first_byte, MARK.close_think, *half, MARK.end], thinking=True) is None, "half a character"


def test_right_means_the_same_calls_or_the_wanted_text():
    calls = Step(Turn(" a", "", (CALL,)))
    assert judge.is_right(Turn(" other words", "Well.", (Call("get_weather", '{"city":"Oslo"}'),)), calls)
    assert not judge.is_right(Turn(" a", "", (Call("get_weather", '{"city": "Lima"}'),)), calls)
    assert not judge.is_right(Turn(" a", "", (CALL, CALL)), calls)
    assert not judge.is_right(Turn(" a", "", (Call("get_weather", "{"),)), calls)
    cheaper = Step(Turn(" a", "x"), one_of=("The lamp is cheaper: it costs 1, the ticket 7.", "Take the lamp. It costs only 1."))
    assert judge.is_right(Turn(None, " Take the lamp. It costs only 1.\n"), cheaper)
    for wrong in (
        "The ticket is cheaper: it costs 7, the lamp 1.",
        "The lamp is cheaper: it costs 7, the ticket 1.",
        "Take the lamp.",
    ):
        assert not judge.is_right(Turn(None, wrong), cheaper)
    said = Step(Turn(" a", "It is 7."), wanted=(" 7.",))
    assert judge.is_right(Turn(None, "Surely it is 7."), said)
    assert not judge.is_right(Turn(None, "It is 17"), said) and not judge.is_right(None, said)
    assert not judge.is_right(Turn(" a", "It is 7.", (CALL,)), said), "calls where an answer was wanted"
