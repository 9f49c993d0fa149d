"""Claims about tool calls in pieces: whatever a server cuts, numbers or repeats, the calls are those that the model wrote; and collector
and `exact` never disagree about them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.wire.completion import history_message, parse_completion
from eagle3_assets.wire.declared import with_declared_names
from eagle3_assets.wire.fields import Fields, ToolCall
from eagle3_assets.wire.parse import fields_of, parse_fields
from eagle3_assets_tests.wire.streams import as_bytes, delta, message, piece, read

OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'
A, B = ToolCall("call_a", "get_weather", OSLO), ToolCall("call_b", "get_weather", ROME)
NAMES = ["python", "get_weather", "read_file", "bash"]


def calls_of(*pieces: dict[str, Any]) -> tuple[ToolCall, ...]:
    return read(*(delta(tool_calls=[p]) for p in pieces), delta("tool_calls")).tool_calls


@pytest.mark.parametrize("index", [{"index": 0}, {"index": None}, {}])
def test_a_new_id_opens_a_call_at_an_equal_or_a_missing_index(index: dict[str, Any]) -> None:
    """plexus#691, dynamo#4723, LibreChat agents#260, gcli2api#406, hass_local_openai_llm#92"""
    whole = [piece(call.id, call.name, call.arguments, **index) for call in (A, B)]
    assert calls_of(*whole) == (A, B)
    begun = [piece(A.id, A.name, "", **index), piece(None, None, OSLO, **index)]
    assert calls_of(*begun, piece(B.id, B.name, "", **index), piece(None, None, ROME, **index)) == (A, B)
    assert read(delta(tool_calls=whole), delta("tool_calls")).tool_calls == (A, B)


def test_two_calls_of_a_whole_body_are_never_merged() -> None:
    for ids in (("call_a", "call_b"), ("call_a", "call_a"), (None, None)):
        entries = [piece(id_, "get_weather", args, index=0) for id_, args in zip(ids, (OSLO, ROME), strict=True)]
        found = fields_of({"choices": [{"message": {"tool_calls": entries}}]})
        assert [(c.id, c.arguments) for c in found.tool_calls] == [(ids[0] or "", OSLO), (ids[1] or "", ROME)]


def test_a_name_behind_finished_arguments_opens_a_call() -> None:
    first, second = piece(None, "get_weather", OSLO, index=0), piece(None, "get_weather", ROME, index=0)
    assert [c.arguments for c in calls_of(first, second)] == [OSLO, ROME]
    assert [c.arguments for c in calls_of(first, piece(None, "get_weather", "", index=0), piece(None, None, ROME, index=0))] == [
        OSLO,
        ROME,
    ]


@pytest.mark.parametrize(
    "names",
    [["python"], ["py", "thon"], ["p", "y", "thon"], ["py", "python"], ["python", "python", "python"], ["py", "pyth", "python"]],
)
def test_a_name_may_come_in_fragments_again_or_growing(names: list[str]) -> None:
    """NVIDIA Switchyard#785"""
    pieces = [piece("call_a" if not k else None, name, "", index=0) for k, name in enumerate(names)]
    assert calls_of(*pieces, piece(None, None, '{"c": 1}', index=0)) == (ToolCall("call_a", "python", '{"c": 1}'),)


def test_a_name_in_every_chunk_is_the_name_once() -> None:
    cut = ['{"c', '": {"d": 1}', "}"]
    for id_ in ("call_a", None):
        assert [(c.name, c.arguments) for c in calls_of(*(piece(id_, "python", text, index=0) for text in cut))] == [
            ("python", '{"c": {"d": 1}}')
        ]
    again = calls_of(piece("call_a", "python", '{"c": 1}', index=0), piece(None, "python", "", index=0))
    assert again == (ToolCall("call_a", "python", '{"c": 1}'),)


def test_a_name_may_come_behind_the_arguments() -> None:
    assert calls_of(piece("call_a", None, '{"c": 1}', index=0), piece(None, "python", "", index=0)) == (
        ToolCall("call_a", "python", '{"c": 1}'),
    )


def test_pieces_under_ever_new_ids_are_one_call() -> None:
    found = read(
        delta(tool_calls=[piece("chatcmpl-tool-1", "python", "", index=0)]),
        delta(tool_calls=[piece("chatcmpl-tool-2", None, '{"c"', index=0)]),
        delta("tool_calls", tool_calls=[piece("chatcmpl-tool-3", None, ": 1}", index=0)]),
    )
    assert found.tool_calls == (ToolCall("chatcmpl-tool-1", "python", '{"c": 1}'),) and found.problems == () and found.notes


def test_a_last_chunk_with_the_whole_calls_is_read_once() -> None:
    pieces = [delta(tool_calls=[piece(c.id, c.name, c.arguments, index=k)]) for k, c in enumerate((A, B))]
    whole = {"content": None, "tool_calls": [piece(c.id, c.name, c.arguments, index=k) for k, c in enumerate((A, B))]}
    for last in (delta("tool_calls", **whole), message("tool_calls", **whole)):
        found = read(*pieces, last)
        assert found.tool_calls == (A, B) and found.problems == () and found.notes


def test_the_order_is_that_of_the_indices_where_they_tell_calls_apart() -> None:
    found = calls_of(piece(B.id, B.name, ROME, index=1), piece(A.id, A.name, OSLO, index=0))
    assert found == (A, B)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_however_calls_are_cut_they_come_back(data: st.DataObject) -> None:
    """Random calls, cut and numbered as servers do; the collector's history holds the same."""
    n = data.draw(st.integers(1, 3), label="calls")
    index = data.draw(st.sampled_from(["own", "zero", "none"]), label="index")
    once = data.draw(st.booleans(), label="id in the first piece only")
    name_style = data.draw(st.sampled_from(["first", "fragments", "every"]), label="name")
    truth, pieces = [], []
    for k in range(n):
        name = data.draw(st.sampled_from(NAMES))
        arguments = json.dumps(
            {"k": k, **data.draw(st.dictionaries(st.text('ab"{}\\é🎉', max_size=3), st.text('}{"xé', max_size=4), max_size=2))}
        )
        truth.append(ToolCall(f"call_{k}", name, arguments))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
        texts = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        at = data.draw(st.integers(1, len(name))) if name_style == "fragments" else len(name)
        made = [("", part) for part in (name[:at], name[at:]) if part]
        made += [(text, name if name_style == "every" else None) for text in texts]
        for j, (arguments_piece, name_piece) in enumerate(made):
            place = {"own": {"index": k}, "zero": {"index": 0}, "none": {}}[index]
            pieces.append(piece(f"call_{k}" if not j or not once else None, name_piece, arguments_piece, **place))
    body = as_bytes(*(delta(tool_calls=[p]) for p in pieces), delta("tool_calls"))
    fields = parse_fields(body, "text/event-stream")
    assert fields.tool_calls == tuple(truth) and fields.problems == ()
    told = history_message(parse_completion(body, "text/event-stream"))["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in told] == [
        (c.id, c.name, c.arguments) for c in truth
    ]


# ---------------------------------------------------------------------------------------------------- declared names
def _declared(call: ToolCall, finish: str = "tool_calls", **request: Any) -> tuple[str, ...]:
    tools = [{"type": "function", "function": {"name": name}} for name in NAMES]
    fields = Fields(None, None, (call,), finish)
    return with_declared_names(fields, {"tools": tools, **request}).problems


def test_a_name_that_the_request_does_not_declare_is_a_problem_with_both_named() -> None:
    (problem,) = _declared(ToolCall("", "py", "{}"))
    assert "'py'" in problem and "python" in problem
    assert _declared(ToolCall("", "python", "{}")) == ()
    assert _declared(ToolCall("", "py", "{}"), tools=None) == () == _declared(ToolCall("", "py", "{}"), tools=[])
    assert _declared(ToolCall("", "py", "{}"), tools=[{"name": "py"}]) == (), "an unwrapped tool declares its name, too"


def test_a_turn_that_was_cut_may_end_inside_a_name() -> None:
    assert _declared(ToolCall("", "py", ""), "length") == () and _declared(ToolCall("", "px", ""), "length") != ()
