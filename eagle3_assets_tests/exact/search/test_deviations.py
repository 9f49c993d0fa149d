"""Claims about what may meet a bill beside a right reading, and what is made of it: how likely it is, and the grade that is left."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.deviations import PRIOR_CHANGES, Deviations, damage_of, same_count, shares_of_changes
from eagle3_assets.exact.search.frames import enumerate_frames
from eagle3_assets.exact.search.key_order import key_order, kind_of, orders_of, sorted_anew
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

N = 60


# ---------------------------------------------------------------------------------------------------- rates
def test_the_chance_of_a_deviation_is_shared_out_over_the_bills_that_it_may_meet() -> None:
    given = Deviations(odd=0.1, damaged=0.2, same=0.25, changes=shares_of_changes({}))
    assert sum(given.met(by) for by in range(-12, 13)) == pytest.approx(0.3, abs=0.04)
    assert sum(given.hits(by) for by in range(-40, 41)) == pytest.approx(1.0, abs=0.001)
    assert given.met(0) == pytest.approx(0.1 * PRIOR_CHANGES[0] + 0.2 * 0.25) and given.neither == pytest.approx(0.72)


def test_changes_of_count_are_as_counted() -> None:
    counted = shares_of_changes({1: 160, 0: 40})
    assert counted[0] == pytest.approx(0.2, abs=0.01) and counted[1] == pytest.approx(0.79, abs=0.02)
    assert (
        same_count("keys", sorts=True) == 0.465
        and same_count("keys", sorts=False) == 0.2
        and same_count("calls", sorts=True) == 0.15
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_damage_is_estimated_with_the_part_of_it_that_keeps_the_count(share: float) -> None:
    """Of damaged rows a quarter meets its bill all the same; what is seen missing is three quarters of the damage."""
    chance = random.Random(f"damage {share}")
    given, rows = Deviations(0.0, 0.0, 0.25, {}), []
    for _ in range(2000):
        damaged = chance.random() < share
        by = 0 if not damaged or chance.random() < 0.25 else 1
        rows.append((1.0 if by == 0 else 0.0, 0.0, given.hits(by)))
    assert damage_of(rows) == pytest.approx(share, abs=0.03)


# ---------------------------------------------------------------------------------------------------- arguments
SCHEMA = {"f": {"properties": {"b": {"properties": {"y": {}, "x": {}}}, "a": {}, "c": {}}}}


def told(name: str, *texts: str) -> list[tuple[bool, bool] | None]:
    """(whether the schema lists the keys sorted, whether they are)"""
    found = [key_order(ToolCall("x", name, text), SCHEMA) for text in texts]
    return [None if order is None else (order.listed, order.is_sorted) for order in found]


def test_sorted_keys_say_more_where_the_schema_lists_them_otherwise() -> None:
    against, as_listed = [(False, True), (False, False)], [(True, True), (True, False)]
    assert told("f", '{"a": 1, "b": 2}', '{"b": 1, "a": 2}') == against
    assert told("f", '{"a": 1, "c": 2}', '{"c": 1, "a": 2}') == as_listed
    assert told("f", '{"b": {"x": 1, "y": 2}}', '{"b": {"y": 1, "x": 2}}') == against
    assert told("g", '{"a": 1, "b": 2}', '{"b": 1, "a": 2}') == against, "keys of a tool that nobody declared have no usual order"
    assert told("f", '{"a": 1}', "[") == [None, None]


def test_calls_say_what_may_have_been_changed_in_them() -> None:
    texts = ("{}", '{"b": 1, "a": 2}', '{"a": 1, "b": 2}', '{"a": 1, "c": 2}', "no JSON")
    kinds = [kind_of([ToolCall("x", "f", text)], SCHEMA) for text in texts]
    assert kinds == ["calls", "calls", "keys", "listed", "calls"] and kind_of([], SCHEMA) == "text"


def test_a_sorter_changed_what_the_model_does_not_sort_by_itself() -> None:
    calls = [ToolCall("x", "f", text) for text in ('{"a": 1, "b": 2}', '{"a": 1, "c": 2}', '{"b": 1, "a": 2}')]
    orders = orders_of(calls, SCHEMA)
    assert sorted_anew(orders, {"keys": 0.1, "listed": 0.8}) == pytest.approx(1 - 0.1 * 0.8)
    assert sorted_anew(orders, {"keys": 0.1, "listed": 0.8, "by_call": {"f(a,c)": 0.5}}) == pytest.approx(1 - 0.1 * 0.5)
    assert sorted_anew(orders[2:], {"keys": 0.1}) == 0.0, "keys that came in another order were not sorted"


def test_two_calls_may_each_have_been_spelled_in_a_style_of_their_own(mini: Profile) -> None:
    calls = (ToolCall("functions.f:0", "f", '{"a":1}'), ToolCall("functions.g:1", "g", '{"b":2}'))
    answer = parse_fields(b'{"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"content": null}}]}')
    answer = dataclasses.replace(answer, tool_calls=calls)
    found = enumerate_frames(mini, answer, thinking=True, prior_calls=0, anew=1.0)
    spelled = {tuple(mini.decode(call.arguments or ()) for call in frame.parts.calls) for frame in found}
    assert ('{"a": 1}', '{"b":2}') in spelled and ('{"a":1}', '{\n  "b": 2\n}') in spelled
    assert {frame.arguments for frame in found if frame.parts.closed} >= {"wire", "spaced", "mixed"}


# ---------------------------------------------------------------------------------------------------- providers
@pytest.fixture(scope="module")
def texts(mini: Profile) -> list[str]:
    return sentences(mini, 2 * N, neutral=None)


@pytest.fixture(scope="module")
def engine(mini: Profile, texts: list[str]) -> Provider:
    out = Provider(mini, name="(engine)")
    for k in range(N):
        out.answer(Truth(" " + texts[2 * k], " " + texts[2 * k + 1]), with_ids=True, source="engine", provider=None)
    return out


def graded(profile: Profile, provider: Provider, learned: dict[str, Any], **bill: int) -> list[tuple[str, float, bool]]:
    out = []
    for answer, truth in zip(provider.answers, provider.truths, strict=True):
        fields = parse_fields(answer.body, answer.content_type)
        if bill:
            fields = dataclasses.replace(fields, billed_completion=(fields.billed_completion or 0) + bill["moved"])
        found = reconstruct(
            profile, answer.request, fields, entry_of(learned, provider.name), source="openrouter", at=answer.finished_at or None
        )
        out.append((found.grade, found.p_exact, found.input_ids == truth))
    return out


def test_a_provider_that_starts_to_inject_at_half_time_is_cut_there_and_no_row_is_wrong(
    mini: Profile, engine: Provider, texts: list[str]
) -> None:
    """Half of its answers begin with two spaces, which no verbatim provider shows: that must not speak for the other half."""
    provider = Provider(mini)
    for k in range(N):
        provider.bends = "verbatim" if k < N // 2 else "injects"
        provider.answer(Truth(" " + texts[2 * k], " " + texts[2 * k + 1]), finished_at=1000.0 + k)
    learned = learn(mini, [*provider.answers, *engine.answers])
    assert [w["spacing"] for w in learned["providers"]["P"]["windows"]] == ["verbatim", "injected"]
    assert {(grade, right) for grade, _, right in graded(mini, provider, learned)} == {("B1", True)}


def test_a_space_joined_in_front_of_tools_is_found_though_most_answers_have_no_tools(mini: Profile, texts: list[str]) -> None:
    provider = Provider(mini, bends="injects")
    for k in range(N):
        calls = (("f", '{"a": 1}'),) if k % 6 == 0 else ()
        provider.answer(Truth(" " + texts[2 * k], " " + texts[2 * k + 1], calls=calls, finish="tool_calls" if calls else "stop"))
    learned = learn(mini, provider.answers)
    assert learned["providers"]["P"]["edges"]["content_trail"]["mechanism"] == "join"
    assert {(grade, right) for grade, _, right in graded(mini, provider, learned)} == {("B1", True)}


@pytest.mark.parametrize("left_alone", [0, 1])
def test_a_provider_that_sorts_keys_is_named_and_its_calls_with_several_keys_are_doubted(
    mini: Profile, engine: Provider, texts: list[str], left_alone: int
) -> None:
    """`left_alone`: calls that it returns as they were, for whatever reason."""
    provider, other = Provider(mini), Provider(mini, name="other")
    for k in range(N):
        shown = json.dumps({"unit": texts[k][:4], "city": texts[k + 1][:4]} if k % 2 else {"city": k})
        for who, arguments in ((other, shown), (provider, json.dumps(json.loads(shown), sort_keys=k >= 2 * left_alone))):
            truth = Truth(" " + texts[2 * k], "", calls=(("f", shown),), finish="tool_calls")
            who.answer(truth)
            body = json.loads(who.answers[-1].body)
            body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
            who.answers[-1] = dataclasses.replace(who.answers[-1], body=json.dumps(body).encode())
    learned = learn(mini, [*provider.answers, *other.answers, *engine.answers])
    entry = learned["providers"]["P"]
    assert entry["sorts_keys"] and not learned["providers"]["other"]["sorts_keys"]
    assert entry["damage"]["keys"] > 0.8 and entry["damage"]["calls"] < 0.1
    rows = graded(mini, provider, learned)
    assert all(p < 0.5 for grade, p, right in rows if not right and grade != "Q")
    assert {grade for grade, _, right in rows if right} == {"B1"}, "calls with one key are as sure as ever"


@pytest.mark.slow
def test_a_wrong_bill_is_never_believed(mini: Profile, engine: Provider, texts: list[str]) -> None:
    """The model writes a line break behind one reasoning in six: a wrong bill that this meets is C1 with what it is worth, all others Q."""
    provider = Provider(mini, bends="strips")
    ids = Provider(mini, name="(engine)")
    for k in range(N):
        truth = Truth(" " + texts[2 * k] + ("\n" if k % 6 == 0 else ""), " " + texts[2 * k + 1])
        provider.answer(truth)
        ids.answer(truth, with_ids=True, source="engine", provider=None)
    learned = learn(mini, [*provider.answers, *ids.answers])
    assert learned["providers"]["P"]["decided"]
    assert all(
        p < 0.95
        for moved in (-3, -2, -1, 1, 2, 3)
        for grade, p, _ in graded(mini, provider, learned, moved=moved)
        if grade != "Q"
    )
    far = [grade for moved in (-4, 4) for grade, _, _ in graded(mini, provider, learned, moved=moved)]
    assert far.count("Q") == len(far)


def test_the_form_of_a_prompt_is_known_in_conversations_where_it_changes_nothing(
    mini: Profile, engine: Provider, texts: list[str]
) -> None:
    """A provider that drops the reasoning of earlier turns rules out the form that keeps it, whose name a first turn goes by."""
    from eagle3_assets.exact.prompt_side.render import PromptForm

    provider = Provider(mini, form=PromptForm("typescript", history_reasoning="dropped"))
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    loop: list[dict[str, Any]] = [
        {"role": "assistant", "reasoning": "long thought", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "done"},
    ]
    for k in range(N):
        messages = [{"role": "user", "content": f"question {k}"}, *(loop if k % 2 else [])]
        provider.answer(Truth(" " + texts[2 * k], " " + texts[2 * k + 1]), messages=messages)
    learned = learn(mini, [*provider.answers, *engine.answers])
    assert any("reasoning_kept" in name for name in learned["providers"]["P"]["strata"]["no_tools"]["prompt"]["ruled_out"])
    assert {(grade, right) for grade, _, right in graded(mini, provider, learned)} == {("B1", True)}
