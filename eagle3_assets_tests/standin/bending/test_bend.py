"""Laws of taking apart, of pieces, and of the built-in profiles, for any token sequence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets_tests.standin.bending_oracle import V, completions
from eagle3_assets_tests.standin.bending_oracle import decode as whole
from openrouter_standin.bending.bend import Bent, bend_answer
from openrouter_standin.bending.bend_calls import rewrite
from openrouter_standin.bending.bend_deltas import Deltas
from openrouter_standin.bending.bend_pieces import add_space, strip
from openrouter_standin.profiles import load_profiles
from openrouter_standin.schema.bending import Text, TextRules
from openrouter_standin.vocabulary import Parts, take_apart

PROVIDERS = {p.name: p for p in load_profiles().provider}


def bend(
    ids: tuple[int, ...], thinking: bool = True, text: Text | None = None, *, streamed: bool = False, salt: str = "s"
) -> Bent:
    return bend_answer(ids, take_apart(ids, thinking, V), text or Text(), V, salt=salt, thinking=thinking, streamed=streamed)


def call(header: str, arguments: str) -> tuple[int, ...]:
    return (V.call_begin, *V.encode_text(header), V.argument_begin, *V.encode_text(arguments), V.call_end)


def answer(reasoning: str, content: str, *calls: tuple[int, ...], closed: bool = True, ended: bool = True) -> tuple[int, ...]:
    section = (V.section_begin, *(i for c in calls for i in c), V.section_end) if calls else ()
    close = (V.close_think,) * closed
    return (*V.encode_text(reasoning), *close, *V.encode_text(content), *section, *(V.im_end,) * ended)


def put_together(parts: Parts) -> list[int]:
    ids = [*parts.reasoning, *[V.close_think] * parts.closed, *parts.content]
    if parts.section:
        ids.append(V.section_begin)
        for c in parts.calls:
            ids += [V.call_begin, *c.header, V.argument_begin, *c.arguments, V.call_end]
    return ids


@given(completions())
@settings(max_examples=150, deadline=None)
def test_taking_apart_loses_no_id(sample: tuple[tuple[int, ...], bool]) -> None:
    ids, thinking = sample
    parts = take_apart(ids, thinking, V)
    ended = ids[-1] == V.im_end
    body = ids[: len(ids) - ended]
    known = put_together(parts)
    assert list(body[: len(known)]) == known
    assert [i for i in body[len(known) :] if i != V.section_end] == list(parts.stray)
    assert parts.ended == ended


@given(completions())
@settings(max_examples=150, deadline=None)
def test_verbatim_returns_the_text_of_the_ids(sample: tuple[tuple[int, ...], bool]) -> None:
    parts = take_apart(*sample, V)
    bent = bend(*sample, PROVIDERS["Verbatim"].text)
    assert (bent.reasoning_text or "") == whole(parts.reasoning)
    assert (bent.content_text or "") == whole(parts.content)
    assert [(c.id, "".join(c.arguments)) for c in bent.calls] == [(whole(c.header), whole(c.arguments)) for c in parts.calls]
    assert bent.edits in ((), ("dropped:stray_tool_text",))


@given(completions())
@settings(max_examples=150, deadline=None)
def test_injector_adds_exactly_one_space_at_its_three_boundaries(sample: tuple[tuple[int, ...], bool]) -> None:
    parts = take_apart(*sample, V)
    bent = bend(*sample, PROVIDERS["Injector"].text)
    reasoning, content = whole(parts.reasoning), whole(parts.content)
    behind = " " if parts.closed or parts.section else ""
    assert bent.reasoning_text == (f" {reasoning}{behind}" if reasoning else None)
    assert bent.content_text == (f" {content}" if content else None)
    assert [c.id for c in bent.calls] == [whole(c.header) for c in parts.calls]


@given(completions())
@settings(max_examples=150, deadline=None)
def test_stripper_strips_both_sides_and_rewrites_every_tool_id(sample: tuple[tuple[int, ...], bool]) -> None:
    parts = take_apart(*sample, V)
    bent = bend(*sample, PROVIDERS["Stripper"].text)
    assert bent.reasoning_text == (whole(parts.reasoning).strip() or None)
    assert bent.content_text == (whole(parts.content).strip() or None)
    ids = [c.id for c in bent.calls]
    assert len(set(ids)) == len(ids)
    for call_id in ids:
        assert call_id.startswith("call_") and len(call_id) == 29 and int(call_id[5:], 16) >= 0
    assert ["".join(c.arguments) for c in bent.calls] == [whole(c.arguments).strip() for c in parts.calls]


pieces_of_text = st.lists(st.text(alphabet=" \n\tab\u00a0é", max_size=4), max_size=8)


@given(pieces_of_text, st.sampled_from(["none", "left", "right", "both"]), st.sampled_from([None, "\r\n"]))
@settings(max_examples=300, deadline=None)
def test_stripping_pieces_is_stripping_their_text(pieces: list[str], side: str, characters: str | None) -> None:
    text, work = "".join(pieces), list(pieces)
    left, right = strip(work, side, characters)  # type: ignore[arg-type]
    want = {"none": text, "left": text.lstrip(characters), "right": text.rstrip(characters), "both": text.strip(characters)}[side]
    assert "".join(work) == want and len(work) == len(pieces)
    assert left + right == len(text) - len(want) and text[left : len(text) - right] == want


@pytest.mark.slow
@given(pieces_of_text, st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_space_is_added_to_text_only(pieces: list[str], leading: bool, trailing: bool) -> None:
    text, work = "".join(pieces), list(pieces)
    added = add_space(work, leading=leading, trailing=trailing)
    assert "".join(work) == (" " * leading + text + " " * trailing if text else "")
    assert added == ((leading, trailing) if text else (False, False))


@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 9), st.text(max_size=3))
def test_deltas_partition_a_run_in_sizes_of_their_law(ids: int, low: int, more: int, salt: str) -> None:
    spans = list(Deltas(low, low + more, salt).spans("content", ids))
    assert [k for begin, end in spans for k in range(begin, end)] == list(range(ids))
    assert all(low <= end - begin <= low + more for begin, end in spans[:-1])
    assert spans == list(Deltas(low, low + more, salt).spans("content", ids))


def test_delta_sizes_are_drawn_from_the_whole_law() -> None:
    sizes = {end - begin for begin, end in list(Deltas(2, 5, "s").spans("content", 400))[:-1]}
    assert sizes == {2, 3, 4, 5}
    assert list(Deltas(2, 5, "s").spans("content", 400)) != list(Deltas(2, 5, "t").spans("content", 400))


def test_finish_reason_follows_the_ids() -> None:
    stop = answer(" r", "c")
    finishes = [bend(ids).finish_reason for ids in (stop, stop[:-1], answer("", "", call("functions.f:0", "{}")))]
    assert finishes == ["stop", "length", "tool_calls"]


def test_a_dotted_tool_name_keeps_its_dots_unless_the_parser_cuts_it() -> None:
    ids = answer("", "", call("functions.a.b:7", ""))
    assert [c.name for c in bend(ids).calls] == ["a.b"]
    cut = bend(ids, text=Text(tool_name="last_segment"))
    assert [c.name for c in cut.calls] == ["b"] and cut.edits == ("tool_name:last_segment",)


def test_what_the_detokenizer_adds_the_parser_takes_away_and_no_edit_is_left() -> None:
    """Injected spaces are in the text before the parser strips it: not on the wire behind the strip."""
    text = Text(inject_reasoning_leading=True, inject_reasoning_trailing=True, strip_reasoning="right")
    bent = bend(answer("Hm", "c"), text=text)
    assert (bent.reasoning_text, bent.edits) == (" Hm", ("inject_leading:reasoning",))
    lossy = bend(answer("Hm\n", "c"), text=text)
    assert (lossy.reasoning_text, lossy.edits) == (" Hm", ("strip:reasoning", "inject_leading:reasoning"))


SPACED = Text(
    inject_reasoning_leading=True,
    inject_reasoning_trailing=True,
    inject_content_leading=True,
    inject_content_trailing=True,
    inject_between_markers=True,
    leak_rate=1.0,
)
LEAKED = (
    "<|tool_calls_section_begin|> <|tool_call_begin|> functions.weather:0 <|tool_call_argument_begin|> {} <|tool_call_end|> "
    "<|tool_calls_section_end|>"
)


def test_a_leaked_section_reads_as_the_slow_detokenizer_joins_it() -> None:
    """As transformers 4.57.6 decodes it (docs/research/openrouter-contract.md#0.2); without </think> it stands in the
    reasoning."""
    weather = call("functions.weather:0", "{}")
    said = bend(answer("The user wants.", "Oi!", weather), text=SPACED)
    assert (said.reasoning_text, said.content_text) == (" The user wants. ", f" Oi! {LEAKED}")
    assert (said.calls, said.finish_reason) == ((), "stop")
    assert bend(answer("Hm", "", weather), text=SPACED).content_text == f" {LEAKED}"
    implicit = bend(answer("Hm", "", weather, closed=False), text=SPACED)
    assert (implicit.reasoning_text, implicit.content_text) == (f" Hm {LEAKED}", None)
    assert bend(answer("", "", weather, closed=False), text=SPACED).reasoning_text == f" {LEAKED}"
    plain = bend(answer("Hm", "c", weather), text=Text(leak_rate=1.0))
    assert plain.content_text == "c" + LEAKED.replace(" ", "")


def test_without_a_reasoning_parser_everything_stands_in_content() -> None:
    text = SPACED.model_copy(update={"reasoning_parser": False, "leak_rate": 0.0})
    bent = bend(answer("Hm.", "Oi!"), text=text)
    assert (bent.reasoning_text, bent.content_text, bent.content_at) == (None, " Hm. </think> Oi!", 0)
    assert bend(answer("", "Oi!")[1:], False, text).content_text == " Oi!"


def test_multi_line_arguments_and_hyphenated_names_make_a_call_vanish() -> None:
    calls = [call("functions.f:0", '{"a":\n1}'), call("functions.get-it:1", "{}"), call("functions.g:2", '{"a": 1}')]
    bent = bend(answer("", "", *calls), text=Text(narrow_call_pattern=True, tool_ids="renumbered"))
    assert [(c.id, c.name) for c in bent.calls] == [("functions.g:0", "g")] and "lost:call" in bent.edits
    none = bend(answer("", "", calls[0]), text=Text(narrow_call_pattern=True))
    assert (none.calls, none.finish_reason) == ((), "tool_calls")


def test_a_call_that_the_limit_cut_is_shown_in_a_stream_and_called_complete() -> None:
    """vllm#53269."""
    text = Text(stream=TextRules(cut_calls="partial", finish_of_cut_calls="tool_calls"))
    ids = answer("", "", call("functions.f:0", "{}"), call("functions.g:1", '{"a": 1}'), ended=False)[:-3]
    whole_body, stream = bend(ids, text=text), bend(ids, text=text, streamed=True)
    assert (len(whole_body.calls), whole_body.finish_reason) == (1, "length")
    assert "dropped:stray_tool_text" in whole_body.edits and "dropped:stray_tool_text" not in stream.edits
    assert [(c.id, c.name) for c in stream.calls] == [("functions.f:0", "f"), ("functions.g:1", "g")]
    shown = "".join(stream.calls[1].arguments)
    assert shown and '{"a": 1}'.startswith(shown) and shown != '{"a": 1}'
    assert stream.finish_reason == "tool_calls" and "finish_reason:tool_calls" in stream.edits


@pytest.mark.parametrize(
    ("style", "want"),
    [
        ("compact", '{"b":"é你","a":[1,2.5,null]}'),
        ("spaced", '{"b": "é你", "a": [1, 2.5, null]}'),
        ("ascii", '{"b": "\\u00e9\\u4f60", "a": [1, 2.5, null]}'),
        ("sorted", '{"a": [1, 2.5, null], "b": "é你"}'),
    ],
)
def test_arguments_written_anew(style: str, want: str) -> None:
    raw = '{ "b":"é\\u4f60" ,"a":[1, 2.50,null] }'
    assert rewrite(raw, style) == want
    ids = answer("", "", call("functions.f:0", raw), call("functions.f:1", "{not json"))
    bent = bend(ids, text=Text(arguments=style))
    assert ["".join(c.arguments) for c in bent.calls] == [want, "{not json"]
    assert bent.edits == (f"arguments:{style}",)


@pytest.mark.parametrize("raw", ["", "{", '{"a": NaN}', "[" * 100_000, "Infinity", "{'a': 1}"])
def test_what_is_no_json_is_not_written_anew(raw: str) -> None:
    assert rewrite(raw, "compact") == raw


@pytest.mark.parametrize(("value", "told"), [("null", None), ("", ""), (" ", " "), ("(no content)", "(no content)")])
def test_no_content_of_a_tool_turn_is_told_in_the_providers_way(value: str, told: str | None) -> None:
    text = Text(empty_content=value)
    assert bend(answer("r", "", call("functions.f:0", "{}")), text=text).content_text == told
    assert bend(answer("r", ""), text=text).content_text is None
    assert bend(answer("r", "c", call("functions.f:0", "{}")), text=text).content_text == "c"


def test_a_native_id_loses_its_outer_whitespace_with_its_arguments() -> None:
    ids = answer("", "", call(" functions.f:0\n", " {} "))
    assert [(c.id, "".join(c.arguments)) for c in bend(ids).calls] == [(" functions.f:0\n", " {} ")]
    assert [(c.id, "".join(c.arguments)) for c in bend(ids, text=Text(strip_arguments=True)).calls] == [("functions.f:0", "{}")]


def test_a_cut_calls_arguments_lose_no_whitespace_that_more_text_could_follow() -> None:
    ids = answer("", "", call("functions.f:0", ' {"a": '), ended=False)[:-2]
    (shown,) = bend(ids, text=Text(cut_calls="partial", strip_arguments=True, empty_arguments="{}", arguments="compact")).calls
    assert "".join(shown.arguments) == '{"a": '
    (nothing,) = bend(
        answer("", "", call("functions.f:0", ""), ended=False)[:-2], text=Text(cut_calls="partial", empty_arguments="{}")
    ).calls
    assert "".join(nothing.arguments) == ""


def test_ids_counted_anew_have_the_whole_name_also_where_the_name_is_cut() -> None:
    ids = answer("", "", call("functions.a.b:7", "{}"), call("functions.c:8", "{}"))
    bent = bend(ids, text=Text(tool_ids="local", tool_name="last_segment"))
    assert [(c.id, c.name) for c in bent.calls] == [("functions.a.b:0", "b"), ("functions.c:1", "c")]
