"""Claims about the hypothesis space: what is in it, that its shortcuts change nothing, and that whatever a server does can be undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.hypotheses import enumerate_prompts
from eagle3_assets.exact.search.edges import BREAKS, JOIN, KEEP, RUNS, FieldText, Mechanism
from eagle3_assets.exact.search.frames import STYLES, enumerate_frames, respelled
from eagle3_assets.exact.search.readings import RULES, Billing, Reading, reading_of, ways_of
from eagle3_assets.targets.grammar import assemble, check
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.fields import Fields, ToolCall

SHARES = tuple((run, 1 / len(RUNS)) for run in RUNS)
STRIP, TRIM = Mechanism("strip", SHARES), Mechanism("trim", tuple((run, 1 / 3) for run in BREAKS))
MECHANISMS = (KEEP, JOIN, STRIP, TRIM)
WHITESPACE = st.text(" \n", max_size=3)
SENTENCES = st.text("abcXYZ .,'\n1é你。", max_size=400)
PIECES = ["a", " ", "\n", "\r\n", "\x00", "\u200d", "👩‍👩‍👧", "ก็", "한국", "{", "</think>", "x" * 300, "\ud800"]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


def fields(**changes: Any) -> Fields:
    return Fields(**{"reasoning": None, "content": None, "tool_calls": (), "finish_reason": "stop", **changes})


def frames(profile: Profile, answer: Fields, prior_calls: int = 0, **more: Any) -> list[Any]:
    return enumerate_frames(profile, answer, thinking=True, prior_calls=prior_calls, **more)


def bent(mechanism: Mechanism, run: str, *, lead: bool) -> str:
    """What a server with this mechanism makes of the model's run, in a line of its own."""
    return {"keep": run, "join": " " + run if lead else run + " ", "strip": ""}.get(mechanism.kind) if mechanism.kind != "trim" else (
        run.lstrip("\n") if lead else run.rstrip("\n")
    )  # fmt: skip


@given(st.sampled_from(MECHANISMS), st.sampled_from(RUNS), st.booleans())
def test_what_a_server_does_at_an_edge_is_among_what_is_undone(mechanism: Mechanism, run: str, lead: bool) -> None:
    assert run in dict(mechanism.runs(bent(mechanism, run, lead=lead), lead=lead, joins=True))


@given(st.sampled_from(MECHANISMS), WHITESPACE, st.booleans())
def test_every_run_behind_a_wires_run_bends_to_it_again(mechanism: Mechanism, wire: str, lead: bool) -> None:
    for run, share in mechanism.runs(wire, lead=lead, joins=True):
        assert bent(mechanism, run, lead=lead) == wire and 0 < share <= 1


def test_a_text_without_a_space_in_front_was_not_joined_and_one_with_it_was_not_stripped() -> None:
    assert JOIN.runs("", lead=True, joins=True) == () and JOIN.runs("  ", lead=True, joins=True) == ((" ", 1.0),)
    assert STRIP.runs(" ", lead=True, joins=True) == () and TRIM.runs("\n", lead=True, joins=True) == ()
    assert JOIN.runs("", lead=False, joins=False) == (("", 1.0),), "where no marker stands nothing is joined"


@pytest.mark.slow
@given(WHITESPACE, SENTENCES, WHITESPACE, st.sampled_from(RUNS), st.sampled_from(RUNS))
@settings(max_examples=400, deadline=None)
def test_the_shared_middle_of_a_text_never_changes_its_ids(front: str, text: str, back: str, lead: str, trail: str) -> None:
    profile = load_profile("kimi-mini")
    field = FieldText(profile, front + text + back)
    assert field.lead + field.core + field.trail == front + text + back
    assert list(field.ids(field.lead, field.trail)) == profile.encode(front + text + back)
    assert list(field.ids(lead, trail)) == profile.encode(lead + field.core + trail)
    assert field.count(lead, trail) == len(field.ids(lead, trail))


def test_the_shared_middle_is_right_on_kimis_own_vocabulary(k25: Profile, recorded: list[dict[str, Any]]) -> None:
    chinese = "用户想知道天气，所以我先查一下。" * 40
    for text in [chinese, *(row["response_body"][:5000] for row in recorded)]:
        field = FieldText(k25, text)
        for front in RUNS:
            assert list(field.ids(front, "\n")) == k25.encode(front + field.core + "\n")


@pytest.mark.slow
@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(["stop", "length", "tool_calls"]))
@settings(max_examples=200, deadline=None)
def test_hostile_text_is_read_in_ways_that_spell_it_or_refused_with_a_reason(a: str, b: str, c: str, finish: str) -> None:
    profile = load_profile("kimi-mini")
    calls = (ToolCall("call_1", "f", c),) if finish == "tool_calls" else ()
    answer = fields(reasoning=a, content=b, tool_calls=calls, finish_reason=finish)
    try:
        found = frames(profile, answer)
        ways = ways_of(found, [Reading((KEEP, KEEP, KEEP, KEEP))], truncated=finish == "length")
        first = assemble(profile, ways[0].frame.filled(ways[0].reasoning, ways[0].content))
    except ExactError as error:
        assert "surrogate" in str(error)
        return
    assert ways[0].billed == len(first)
    if a and b:
        assert a in profile.decode(first) and b in profile.decode(first)


@pytest.mark.slow
@given(
    st.text(max_size=30).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)),
    st.sampled_from(["<|im_end|>", "</think>", "<|tool_call_begin|>", "[EOS]", "<|reserved_token_4104|>"]),
    st.sampled_from(["stop", "length"]),
)
@settings(max_examples=200, deadline=None)
def test_marker_text_in_any_field_stays_ordinary_text(text: str, marker: str, finish: str) -> None:
    profile = load_profile("kimi-mini")
    quoted = text + marker + text
    answer = fields(reasoning=quoted, content=quoted, tool_calls=(ToolCall("functions.f:0", "f", quoted),), finish_reason=finish)
    for way in ways_of(frames(profile, answer), [Reading((KEEP, KEEP, KEEP, KEEP))], truncated=finish == "length"):
        parts = way.frame.filled(way.reasoning, way.content)
        ids = assemble(profile, parts)
        assert check(profile, ids, truncated=finish == "length") is None and not way.frame.leaked
        assert ids.count(profile.end_id) == (0 if finish == "length" else 1)
        assert profile.decode(parts.content) == quoted


@pytest.mark.parametrize("spaced", [False, True])
def test_markers_that_no_parser_found_are_read_back_beside_the_text_as_it_stands(mini: Profile, spaced: bool) -> None:
    gap = " " if spaced else ""
    section = gap.join(["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>", '{"a": 1}',
                        "<|tool_call_end|>", "<|tool_calls_section_end|>"])  # fmt: skip
    found = frames(mini, fields(reasoning=" r", content=f" c{section}"))
    leaked = [frame for frame in found if frame.leaked]
    assert not found[0].leaked and [mini.decode(call.head) for call in leaked[0].parts.calls] == ["functions.f:0"]
    assert mini.decode(leaked[0].parts.calls[0].arguments or ()) == '{"a": 1}' and leaked[0].content.text == " c"
    assert not any(frame.leaked for frame in frames(mini, fields(content=section.replace("section_end", "section_"))))


def test_a_closing_marker_in_the_content_ends_the_reasoning_where_there_is_none(mini: Profile) -> None:
    leaked = [frame for frame in frames(mini, fields(content=" so</think> yes")) if frame.leaked]
    assert [(frame.reasoning.text, frame.content.text) for frame in leaked] == [(" so", " yes")]


def test_reasoning_may_end_with_the_tool_section_instead_of_its_marker(mini: Profile) -> None:
    found = frames(mini, fields(reasoning=" r", tool_calls=(ToolCall("functions.f:0", "f", "{}"),), finish_reason="tool_calls"))
    assert {frame.parts.closed for frame in found} == {True, False}
    assert {frame.parts.closed for frame in frames(mini, fields(reasoning=" r", content="c"))} == {True}


def test_foreign_tool_ids_are_rebuilt_from_the_conversations_counter(mini: Profile) -> None:
    calls = (ToolCall("call_9f", "f", "{}"), ToolCall("call_a0", "g.h", "{}"))
    found = frames(mini, fields(tool_calls=calls, finish_reason="tool_calls"), 2)
    heads = {frame.tool_ids: [mini.decode(call.head) for call in frame.parts.calls] for frame in found}
    assert heads["rebuilt"] == ["functions.f:2", "functions.g.h:3"]
    assert heads["wire"] == ["call_9f", "call_a0"], "models do write odd ids: the bill decides"


def test_native_tool_ids_with_the_conversations_next_number_are_the_only_hypothesis(mini: Profile) -> None:
    answer = fields(tool_calls=(ToolCall("functions.f:7", "f", "{}"),), finish_reason="tool_calls")
    assert {frame.tool_ids for frame in frames(mini, answer, 7)} == {"wire"}


def test_a_native_id_with_another_number_leaves_two_sequences_of_one_length(mini: Profile) -> None:
    """The server may have renumbered it, or the model may have miscounted: no bill can tell, what is known of the provider can."""
    answer = fields(tool_calls=(ToolCall("functions.f:7", "f", "{}"),), finish_reason="tool_calls")
    found = [frame for frame in frames(mini, answer) if frame.parts.closed]
    assert found[0].tool_ids == "wire", "the first is the text as it stands"
    assert {frame.tool_ids for frame in found} == {"wire", "rebuilt"} and len({frame.size for frame in found}) == 1
    shares = {
        n: {f.tool_ids: f.share for f in frames(mini, answer, numbering=n) if f.parts.closed} for n in ("local", "verbatim")
    }
    assert shares["local"]["rebuilt"] > shares["local"]["wire"] and shares["verbatim"]["wire"] > shares["verbatim"]["rebuilt"]


def test_arguments_that_a_server_may_have_written_anew_are_spelled_in_every_style(mini: Profile) -> None:
    answer = fields(tool_calls=(ToolCall("functions.f:0", "f", '{"a":"é","b":[1,2]}'),), finish_reason="tool_calls")
    found = [frame for frame in frames(mini, answer, anew=1.0) if frame.parts.closed]
    texts = {mini.decode(frame.parts.calls[0].arguments or ()) for frame in found}
    assert texts == {respelled('{"a":"é","b":[1,2]}', style) for style in STYLES} and len(texts) == 4
    assert sum(frame.share for frame in found) == pytest.approx(0.95)
    broken = fields(tool_calls=(ToolCall("functions.f:0", "f", '{"a": NaN'),), finish_reason="tool_calls")
    assert {frame.arguments for frame in frames(mini, broken, anew=1.0)} == {"wire"}


@given(
    st.builds(Billing, st.sampled_from(RULES), st.sampled_from(RULES)),
    st.lists(st.sampled_from(MECHANISMS), min_size=4, max_size=4),
)
def test_a_reading_survives_the_json_of_a_wire_profile(billing: tuple[bool, int], edges: list[Mechanism]) -> None:
    a, b, c, d = edges
    reading = Reading((a, b, c, d), billing, 0.25)
    assert reading_of(reading.as_json()) == reading


def test_a_declared_tool_opens_the_forms_of_its_declaration(tokenizers: Path, recorded: list[dict[str, Any]]) -> None:
    profile = load_profile("kimi-k2.5", tokenizers)
    row = next(row for row in recorded if row["id"].endswith("kimi/tool#1") and "OpenRouter" in row["id"])
    candidates = enumerate_prompts(profile, row["request"], thinking=True)
    names = {form for candidate in candidates for form in candidate.forms}
    assert candidates[0].forms[0] == "typescript/reasoning_kept/arguments_as_sent"
    assert {
        "compact_json+typed/reasoning_dropped/arguments_compact",
        "spaced_json+strict/reasoning_kept/arguments_as_sent",
        "typescript/reasoning_kept/arguments_compact",
    } <= names
