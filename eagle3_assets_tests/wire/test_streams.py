"""Claims about streams: harmless oddities of servers change nothing and are noted; contradictions are problems."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.wire.completion import history_message, parse_completion
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.wire.streams import as_bytes, delta, message, piece, read, usage

REASONING, CONTENT = " The user wants a number.", "One, I would say."


@given(st.text("aé🎉𝒳\n", min_size=1, max_size=8), st.data())
@settings(max_examples=200, deadline=None)
def test_a_text_cut_between_halves_of_a_character_is_whole_again(text: str, data: st.DataObject) -> None:
    """eliza#30904, rakazo#416: a server that cuts by UTF-16 code units."""
    units = text.encode("utf-16-le")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units) // 2), max_size=4)))
    parts = [
        units[2 * a : 2 * b].decode("utf-16-le", "surrogatepass")
        for a, b in zip([0, *cuts], [*cuts, len(units) // 2], strict=True)
    ]
    chunks = [delta(reasoning="x"), *(delta(content=part) for part in parts), delta("length")]
    fields = read(*chunks)
    assert fields.content == text and fields.problems == ()
    assert "".join(piece for channel, piece in fields.deltas if channel == "content") == text
    assert all(piece.encode() for _, piece in fields.deltas)
    assert history_message(parse_completion(as_bytes(*chunks), "text/event-stream"))["content"] == text


def test_a_half_without_its_other_half_is_left_for_a_later_stage() -> None:
    fields = read(delta(content="a\ud83d"), delta(content="b"), delta("stop"))
    assert fields.content == "a\ud83db" and "".join(t for _, t in fields.deltas) == "a\ud83db"


def test_calls_and_reasoning_are_joined_as_utf_16_too() -> None:
    fields = read(
        delta(reasoning="\ud83c"), delta(reasoning="\udf89"),
        delta(tool_calls=[piece("c", "f", '{"a": "\ud83c', index=0)]), delta(tool_calls=[piece(None, None, '\udf89"}', index=0)]),
        delta("tool_calls"),
    )  # fmt: skip
    assert fields.reasoning == "🎉" and fields.tool_calls[0].arguments == '{"a": "🎉"}'


# ---------------------------------------------------------------------------------------------------- ends and bills
@pytest.mark.parametrize(
    ("reasons", "has_call", "holds", "is_problem"),
    [
        (("tool_calls", "stop"), True, "tool_calls", False),  # litellm#27139
        (("stop", "tool_calls"), True, "tool_calls", False),
        (("tool_calls", "stop"), False, "stop", False),
        (("stop", "stop"), False, "stop", False),
        (("stop", "length"), False, "length", True),
        (("length", "tool_calls"), True, "tool_calls", True),
    ],
)
def test_a_finish_reason_beside_another(reasons: tuple[str, ...], has_call: bool, holds: str, is_problem: bool) -> None:
    call = [delta(tool_calls=[piece("c", "f", "{}", index=0)])] if has_call else [delta(content="x")]
    fields = read(*call, *(delta(reason) for reason in reasons))
    assert fields.finish_reason == holds and bool(fields.problems) == is_problem


def test_usage_may_stand_in_the_choice_and_that_of_the_chunk_goes_over_it() -> None:
    """Moonshot: pi#2017, AstrBot#6614, go-moonshot#17"""
    billed = {"usage": {"prompt_tokens": 10, "completion_tokens": 7}}
    assert read(delta(content="x"), delta("stop", more=billed)).billed_completion == 7
    assert read(delta(content="x"), delta("stop", more=billed), usage(8)).billed_completion == 8
    assert read(delta(content="x"), usage(8), delta("stop", more=billed)).billed_completion == 8
    whole = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop", **billed}]}
    assert parse_fields(json.dumps(whole).encode()).billed_prompt == 10


@pytest.mark.parametrize(
    ("value", "count"), [(12, 12), (12.0, 12), (0.0, 0), (12.5, None), ("12", None), (-1.0, None), (1e300, None)]
)
def test_a_count_may_be_written_as_a_float(value: Any, count: int | None) -> None:
    fields = read(delta(content="x"), delta("stop"), usage(value))
    assert fields.billed_completion == count and bool(fields.problems) == (count is None)


@pytest.mark.parametrize("index", [0, 0.0, None])
def test_an_index_of_null_is_the_first_choice(index: Any) -> None:
    fields = read(delta(index=index, content="x"), delta("stop", index=index))
    assert (fields.content, fields.finish_reason, fields.problems) == ("x", "stop", ())


def test_two_choices_without_an_index_are_two() -> None:
    two = {"choices": [{"message": {"content": "a"}, "index": None}, {"message": {"content": "b"}}]}
    assert any("2 choices" in problem for problem in parse_fields(json.dumps(two).encode()).problems)


# ---------------------------------------------------------------------------------------------------- a last chunk with everything
@pytest.mark.parametrize("last", [delta, message])
@pytest.mark.parametrize("finish", ["stop", None])
@pytest.mark.parametrize("cut", [1, 4, 40])
def test_a_last_chunk_that_repeats_the_message_is_read_once(last: Any, finish: str | None, cut: int) -> None:
    said = [delta(reasoning=REASONING[k : k + cut]) for k in range(0, len(REASONING), cut)]
    said += [delta(content=CONTENT[k : k + cut]) for k in range(0, len(CONTENT), cut)]
    ends = [] if finish else [delta("stop")]
    fields = read(*said, last(finish, reasoning=REASONING, content=CONTENT), *ends, usage())
    assert (fields.reasoning, fields.content, fields.problems) == (REASONING, CONTENT, ()) and fields.notes
    for channel, text in (("reasoning", REASONING), ("content", CONTENT)):
        assert "".join(piece for name, piece in fields.deltas if name == channel) == text


def test_the_message_may_come_again_with_the_bill_or_beside_an_empty_delta() -> None:
    bill = {"usage": {"prompt_tokens": 10, "completion_tokens": 7}}
    for last in ({**delta(content="Hi!"), **bill}, delta("stop", more={"message": {"role": "assistant", "content": "Hi!"}})):
        fields = read(delta(content="Hi!"), last, delta("stop"))
        assert (fields.content, fields.problems) == ("Hi!", ()) and fields.notes


def test_a_message_that_grows_beside_the_deltas_is_not_read() -> None:
    first = delta(content="Hi ", more={"message": {"content": "Hi "}})
    last = delta("stop", content="there!", more={"message": {"content": "Hi there!"}})
    assert read(first, last).content == "Hi there!"


def test_a_short_word_that_the_model_wrote_twice_stays_twice() -> None:
    fields = read(delta(content="ha"), delta(content="ha"), delta("stop"), usage())
    assert fields.content == "haha" and fields.notes == ()
    running = [{**delta(content="ha"), "usage": {"completion_tokens": k + 1}} for k in range(2)]
    assert read(*running, delta("stop")).content == "haha"
    assert read(delta(content="1"), delta("length", content="1")).content == "11", "a cut turn ends in its last token"


# ---------------------------------------------------------------------------------------------------- ids in part of the chunks
def _with_ids(ids: Any, finish: str | None = None, /, **said: Any) -> dict[str, Any]:
    return delta(finish, more={"token_ids": ids}, **said)


def test_ids_beside_a_part_of_the_text_are_not_those_of_the_turn() -> None:
    """vllm#28246"""
    for holes in (None, []):
        fields = read(_with_ids(holes, reasoning=REASONING), _with_ids([16, 500], content="1"), delta("stop"), usage(9))
        assert fields.output_ids is None and fields.problems == () and "token ids" in fields.notes[0]
    assert read(delta(reasoning="x"), _with_ids([1, 2], content="1"), delta("stop")).output_ids is None


def test_ids_of_the_whole_turn_are_kept_wherever_they_stand() -> None:
    beside = read(_with_ids([1], reasoning="a"), _with_ids([2]), _with_ids([3], content="b"), _with_ids([4], "stop"), usage(4))
    assert beside.output_ids == (1, 2, 3, 4) and beside.notes == ()
    behind = read(delta(reasoning="a"), delta(content="b"), _with_ids([1, 2, 3, 4], "stop"))
    assert behind.output_ids == (1, 2, 3, 4)
    assert read(delta(reasoning="a"), _with_ids([1, 2, 3, 4], content="b"), delta("stop"), usage(4)).output_ids == (1, 2, 3, 4)


def test_an_empty_list_of_ids_beside_text_is_none() -> None:
    choice = {"message": {"content": "x"}, "finish_reason": "stop", "token_ids": []}
    fields = parse_fields(json.dumps({"choices": [choice]}).encode())
    assert fields.output_ids is None and fields.problems == () and fields.notes


def test_ids_that_stand_in_two_places_of_a_chunk_are_read_once() -> None:
    choice = {"message": {"content": "x", "token_ids": [1, 2]}, "finish_reason": "stop", "token_ids": [1, 2]}
    assert parse_fields(json.dumps({"choices": [choice], "output_ids": [1, 2]}).encode()).output_ids == (1, 2)


# ---------------------------------------------------------------------------------------------------- where reasoning stands
@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_several_names(key: str) -> None:
    assert read(delta(**{key: " Hm"}), delta(**{key: "."}), delta("stop", content="x")).reasoning == " Hm."


def test_thinking_parts_of_a_content_list_are_reasoning() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}, {"type": "text", "text": "Yes"}]
    fields = parse_fields(json.dumps({"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}).encode())
    assert (fields.reasoning, fields.content, fields.problems) == ("Hm", "Yes", ())
    hidden = [{"type": "redacted_thinking", "data": "…"}, {"type": "text", "text": "Yes"}]
    fields = parse_fields(json.dumps({"choices": [{"message": {"content": hidden}, "finish_reason": "stop"}]}).encode())
    assert any("hidden" in problem for problem in fields.problems)


def test_an_error_object_under_the_header_of_a_stream_is_read() -> None:
    fields = parse_fields(b'{"error": {"code": 429, "message": "slow"}}', "text/event-stream")
    assert fields.problems == ("server error 429: slow",)
