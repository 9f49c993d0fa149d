"""The bank answers a prompt that it was sampled on with that prompt's own answers, at the nearest temperature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import TOOL, FakeAnswer, spell
from kimi_mini import bank
from kimi_mini_workshop import demo_data
from openrouter_standin.answers.load import load_source
from openrouter_standin.answers.source import Bank
from openrouter_standin.profiles import answering, load_profiles
from openrouter_standin.request import ChatRequest, read_request
from openrouter_standin.schema.source import Source
from openrouter_standin.vocabulary import Vocabulary

MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
OWN = bank.prompt_key(MESSAGES, [TOOL], thinking=True)


def ask(**more: Any) -> ChatRequest:
    return read_request(json.dumps({"model": "m", "messages": MESSAGES, "tools": [TOOL], **more}).encode())


@pytest.fixture
def source(vocabulary: Vocabulary) -> Bank:
    v = vocabulary
    call = ("functions.get_weather:0", '{"city": "Oslo"}')
    answers = (
        FakeAnswer(spell(v, " a", "someone else's")),
        FakeAnswer(spell(v, " b", "", call), tool_names=("get_weather",), prompt=OWN, temperature=0.6),
        FakeAnswer(spell(v, " c", "", call), tool_names=("get_weather",), prompt=OWN, temperature=1.0),
        FakeAnswer(spell(v, " d", "no call"), prompt=OWN, temperature=1.3),
    )
    return Bank(answers, v, Source())


@pytest.mark.parametrize(("temperature", "reasoning"), [(0.0, " b"), (0.7, " b"), (0.9, " c"), (None, " c"), (1.9, " d")])
def test_its_own_answer_of_the_nearest_temperature(source: Bank, temperature: float | None, reasoning: str) -> None:
    request = ask(**({} if temperature is None else {"temperature": temperature}))
    for attempt in range(5):
        ids = source.choose(request, seed="0", attempt=attempt, limit=99).ids
        assert source.vocabulary.text(ids[: ids.index(source.vocabulary.close_think)]) == reasoning


def test_a_tool_choice_rules_answers_out_and_another_prompt_has_none_of_its_own(source: Bank) -> None:
    v = source.vocabulary
    assert v.section_begin not in source.choose(ask(tool_choice="none"), seed="0", attempt=0, limit=99).ids
    assert v.section_begin in source.choose(ask(tool_choice="required", temperature=1.3), seed="0", attempt=0, limit=99).ids
    other = source.choose(ask(messages=[{"role": "user", "content": "Who?"}], tools=None), seed="0", attempt=0, limit=99).ids
    assert v.text(other[: other.index(v.close_think)]) in (" a", " d")
    assert len(source.choose(ask(), seed="0", attempt=0, limit=2).ids) == 2


@pytest.mark.slow
def test_the_committed_bank_has_an_answer_of_its_own_for_every_prompt_of_the_demo() -> None:
    source, _ = load_source(Source(kind="bank"))
    assert isinstance(source, Bank)
    seen = 0
    answers: dict[str, set[tuple[int, ...]]] = {}
    for answer in bank.load_bank():
        answers.setdefault(answer.prompt, set()).add(answer.ids)
    for messages, tools in demo_data.demo_requests():
        body = {"model": "m", "messages": messages, "temperature": 1.0, **({"tools": tools} if tools else {})}
        request = read_request(json.dumps(body).encode())
        own = answers.get(bank.prompt_key(messages, tools, thinking=True), set())
        seen += source.choose(request, seed="0", attempt=0, limit=9_999).ids in own
    assert seen >= 0.97 * len(demo_data.demo_requests()), "but for answers that no client can read"


def test_an_answer_that_is_served_unchanged_is_the_same_object_and_has_its_number(source: Bank) -> None:
    whole = source.choose(ask(temperature=1.3), seed="0", attempt=0, limit=99)
    assert whole.key == 3 and whole.ids is source.choose(ask(temperature=1.3), seed="1", attempt=4, limit=99).ids
    cut = source.choose(ask(temperature=1.3), seed="0", attempt=0, limit=len(whole.ids) - 1)
    assert cut.key is None and cut.ids == whole.ids[:-1]
    assert source.choose(ask(temperature=1.3), seed="0", attempt=0, limit=len(whole.ids)) == whole


def test_calls_are_numbered_on_from_the_history_and_then_it_is_another_answer(source: Bank) -> None:
    v = source.vocabulary
    call = {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    history = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call] * 2}, {"role": "tool", "content": "12"}]
    later = source.choose(ask(messages=history, tool_choice="required"), seed="0", attempt=0, limit=99)
    assert "functions.get_weather:2" in v.text(later.ids) and later.key is None
    first = source.choose(
        ask(messages=[{"role": "user", "content": "Who?"}], tool_choice="required"), seed="0", attempt=0, limit=99
    )
    assert "functions.get_weather:0" in v.text(first.ids) and first.key in (1, 2)


@pytest.mark.parametrize("headers", [(), ("functions.a:0",), ("functions.a:3", "odd", "functions.b.c:9"), ("7", "functions.a:1")])
def test_only_headers_of_the_native_form_change(vocabulary: Vocabulary, headers: tuple[str, ...]) -> None:
    v = vocabulary
    ids = spell(v, " r", "c", *((header, '{"functions.a:0": 1}') for header in headers))
    bank = Bank([FakeAnswer(ids, tool_names=("a", "b.c"))], v, Source(), renames=True)
    request = ask(tools=[{**TOOL, "function": {"name": "z"}}], messages=[{"role": "user", "content": "Who?"}])
    expected = [f"functions.z:{k}" if h.startswith("functions.") else h for k, h in enumerate(headers)]
    got = bank.choose(request, seed="0", attempt=0, limit=999).ids
    assert got == spell(v, " r", "c", *((header, '{"functions.a:0": 1}') for header in expected))


def test_answers_can_be_chosen_against_the_profiles() -> None:
    profiles = load_profiles()
    assert answering(profiles, None) is profiles and profiles.source.kind == "bank"
    assert answering(profiles, "live").source.kind == "live"
    assert answering(profiles, "live").sha256 == profiles.sha256
