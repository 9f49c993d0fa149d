"""Laws of bending and billing, for any token sequence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.kimi_mini.tokenizer import load_encoding
from eagle3_assets.standin.bend import bend_answer, make_bill, strip_pieces
from eagle3_assets.standin.profiles import load_profiles
from eagle3_assets.standin.schema.provider import Provider
from eagle3_assets.standin.vocabulary import Parts, Vocabulary, take_apart

V = Vocabulary.of(load_encoding())
PROVIDERS = {p.name: p for p in load_profiles().provider}
ordinary = st.integers(0, V.im_end - 3)  # below every special id
texts = st.one_of(st.text(max_size=12), st.sampled_from(["", " ", "  ", "\n\n", " a ", "\u3000x\u2009", "👩‍👩‍👧"])).map(
    V.encode_text
)
field = st.one_of(texts, st.lists(ordinary, max_size=12).map(tuple))  # text as encoded, and splits that no encoder would choose
call = st.tuples(st.sampled_from(["functions.f:0", "functions.a.b:12", "call00003", "functions.f:x"]).map(V.encode_text), field)


@st.composite
def completions(draw: Any) -> tuple[tuple[int, ...], bool]:
    """(ids, thinking), in the grammar, perhaps cut anywhere."""
    thinking = draw(st.booleans())
    calls = draw(st.lists(call, max_size=3))
    ids: list[int] = []
    if thinking:
        ids += draw(field)
        if not calls or draw(st.booleans()):
            ids.append(V.close_think)
    ids += draw(field) if not thinking or V.close_think in ids else ()
    if calls:
        ids.append(V.section_begin)
        for header, arguments in calls:
            ids += [V.call_begin, *header, V.argument_begin, *arguments, V.call_end]
        ids.append(V.section_end)
    ids.append(V.im_end)
    if draw(st.booleans()):
        ids = ids[: draw(st.integers(1, len(ids)))]
    return tuple(ids), thinking


def whole(ids: tuple[int, ...]) -> str:
    """Text by another way than the stand-in's incremental one."""
    return V.encoding.decode_bytes(list(ids)).decode("utf-8", errors="replace")


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
    bent = bend_answer(parts, PROVIDERS["Verbatim"].text, V, salt="s")
    assert (bent.reasoning_text or "") == whole(parts.reasoning)
    assert (bent.content_text or "") == whole(parts.content)
    assert [(c.id, "".join(c.arguments)) for c in bent.calls] == [(whole(c.header), whole(c.arguments)) for c in parts.calls]
    assert bent.edits in ((), ("dropped:stray_tool_text",))


@given(completions())
@settings(max_examples=150, deadline=None)
def test_injector_adds_exactly_one_space_at_its_three_boundaries(sample: tuple[tuple[int, ...], bool]) -> None:
    parts = take_apart(*sample, V)
    bent = bend_answer(parts, PROVIDERS["Injector"].text, V, salt="s")
    reasoning, content = whole(parts.reasoning), whole(parts.content)
    behind = " " if parts.closed or parts.section else ""
    assert bent.reasoning_text == (f" {reasoning}{behind}" if reasoning else None)
    assert bent.content_text == (f" {content}" if content else None)
    assert [c.id for c in bent.calls] == [whole(c.header) for c in parts.calls]


@given(completions())
@settings(max_examples=150, deadline=None)
def test_stripper_strips_both_sides_and_rewrites_every_tool_id(sample: tuple[tuple[int, ...], bool]) -> None:
    parts = take_apart(*sample, V)
    bent = bend_answer(parts, PROVIDERS["Stripper"].text, V, salt="s")
    assert bent.reasoning_text == (whole(parts.reasoning).strip() or None)
    assert bent.content_text == (whole(parts.content).strip() or None)
    ids = [c.id for c in bent.calls]
    assert len(set(ids)) == len(ids)
    for call_id in ids:
        assert call_id.startswith("call_") and len(call_id) == 29 and int(call_id[5:], 16) >= 0
    assert ["".join(c.arguments) for c in bent.calls] == [whole(c.arguments).strip() for c in parts.calls]


@pytest.mark.parametrize("name", sorted(PROVIDERS))
@given(sample=completions(), prompt=st.lists(ordinary, min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_bill_is_the_convention_applied_to_the_true_ids(
    name: str, sample: tuple[tuple[int, ...], bool], prompt: list[int]
) -> None:
    provider: Provider = PROVIDERS[name]
    ids, thinking = sample
    parts = take_apart(ids, thinking, V)
    bent = bend_answer(parts, provider.text, V, salt="s")
    bill = make_bill(tuple(prompt), ids, parts, bent, provider)
    uncounted = [V.im_end] if not provider.billing.counts_end else []
    assert bill.prompt_tokens == len(prompt)
    assert bill.completion_tokens == sum(i not in uncounted for i in ids)
    thought = next((k + 1 for k, i in enumerate(ids) if i == V.close_think), None) if thinking else 0
    if name in ("Verbatim", "Injector") and thought is not None:
        assert bill.reasoning_tokens == thought  # R + 1
    if name == "Stripper":
        assert bill.reasoning_tokens == -(-len(bent.reasoning_text or "") // 4)
    assert bill.total_pico == bill.prompt_tokens * provider.prompt_pico + bill.completion_tokens * provider.completion_pico


@given(st.lists(st.text(alphabet=" \n\tab\u00a0é", max_size=4), max_size=8))
@settings(max_examples=200, deadline=None)
def test_stripping_pieces_is_stripping_their_text(pieces: list[str]) -> None:
    assert "".join(strip_pieces(pieces)) == "".join(pieces).strip()


def test_finish_reason_follows_the_ids() -> None:
    stop = (*V.encode_text(" r"), V.close_think, *V.encode_text("c"), V.im_end)
    cut = stop[:-1]
    header, arguments = V.encode_text("functions.f:0"), V.encode_text("{}")
    calls = (
        V.close_think,
        V.section_begin,
        V.call_begin,
        *header,
        V.argument_begin,
        *arguments,
        V.call_end,
        V.section_end,
        V.im_end,
    )
    finishes = [
        bend_answer(take_apart(ids, True, V), PROVIDERS["Verbatim"].text, V, salt="").finish_reason for ids in (stop, cut, calls)
    ]
    assert finishes == ["stop", "length", "tool_calls"]


def test_a_dotted_tool_name_keeps_its_dots() -> None:
    ids = (
        V.close_think,
        V.section_begin,
        V.call_begin,
        *V.encode_text("functions.a.b:7"),
        V.argument_begin,
        V.call_end,
        V.im_end,
    )
    (bent,) = bend_answer(take_apart(ids, True, V), PROVIDERS["Stripper"].text, V, salt="").calls
    assert bent.name == "a.b"
