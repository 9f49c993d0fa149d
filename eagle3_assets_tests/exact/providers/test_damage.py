"""Claims about damage that no single row shows: answers that have something to rewrite are doubted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

N = 90


@pytest.fixture(scope="module")
def texts(mini: Profile) -> list[str]:
    return sentences(mini, 4 * N, neutral=None)


def engine(mini: Profile, texts: list[str], rows: int = N) -> Provider:
    out = Provider(mini, name="(engine)")
    for k in range(rows):
        truth = Truth(" " + texts[2 * (k % N)], " " + texts[2 * (k % N) + 1])
        out.answer(truth, with_ids=True, source="engine", provider=None)
    return out


def rebuilt(mini: Profile, provider: Provider, learned: dict[str, Any]) -> list[Reconstruction]:
    return [
        reconstruct(
            mini, a.request, parse_fields(a.body), entry_of(learned, provider.name), source="openrouter", at=a.finished_at or None
        )
        for a in provider.answers
    ]


def sent_as(provider: Provider, change: Any) -> None:
    """The last answer with its message changed on the way."""
    body = json.loads(provider.answers[-1].body)
    change(body["choices"][0]["message"])
    provider.answers[-1] = dataclasses.replace(provider.answers[-1], body=json.dumps(body).encode())


def test_answers_that_have_what_is_rewritten_are_doubted_more_than_the_others(mini: Profile, texts: list[str]) -> None:
    """Quotes are rewritten: some such bills are met all the same, and nothing in those rows shows it."""
    provider, other = Provider(mini), Provider(mini, name="other")
    for k in range(N):
        quoted = k % 8 == 0
        content = f' {texts[2 * k + 1]} "so"' if quoted else f" {texts[2 * k + 1]}"
        for who in (provider, other):
            who.answer(Truth(f" {texts[2 * k]}", content), bill_shift=2 if quoted and k % 16 and who is provider else 0)
    learned = learn(mini, [*provider.answers, *other.answers, *engine(mini, texts).answers])
    (window,) = learned["providers"]["P"]["windows"]
    assert sum(part["weight"] for part in window["damage_parts"] if '"' in part["fact"]) > 0.3, window["damage_parts"]
    rows = rebuilt(mini, provider, learned)
    met = [row for k, row in enumerate(rows) if k % 16 == 0]
    assert {row.grade for row in met} == {"C1"} and all(row.p_exact < 0.75 for row in met)
    assert all(row.p_exact > 0.9 for k, row in enumerate(rows) if k % 8)
    assert {row.grade for row in rebuilt(mini, other, learned)} == {"B1"}, "the same texts of another provider"


def test_text_for_numbers_is_doubted_where_others_write_numbers(mini: Profile, texts: list[str]) -> None:
    """`"5"` has as many ids as ` 5`: no bill tells, the tool's schema does."""
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        }
    ]
    provider, other = Provider(mini), Provider(mini, name="other")
    for k in range(N):
        calls = (("f", f'{{"n": {k}}}'),) if k % 4 == 0 else ()
        truth = Truth(" " + texts[2 * k], " " + texts[2 * k + 1], calls, "tool_calls" if calls else "stop")
        for who in (provider, other):
            who.answer(truth, tools=tools)
        if calls:  # billed as it came, so that nothing shows in the count
            as_text = Truth(truth.reasoning, truth.content, (("f", f'{{"n": "{k}"}}'),), truth.finish)
            provider.answers.pop(), provider.truths.pop()
            provider.answer(as_text, tools=tools)
    learned = learn(mini, [*provider.answers, *other.answers, *engine(mini, texts).answers])
    assert {row.grade for k, row in enumerate(rebuilt(mini, provider, learned)) if k % 4 == 0} == {"C1"}
    assert {row.grade for row in rebuilt(mini, other, learned)} == {"B1"}


def test_whitespace_that_one_provider_alone_shows_is_no_habit_of_the_model(mini: Profile, texts: list[str]) -> None:
    """A line break in front of some texts, where 400 with ids have none: it is that server's, whatever its own rows say."""
    provider = Provider(mini)
    for k in range(N):
        provider.answer(Truth(" " + texts[2 * k], ("\n" if k % 9 == 0 else " ") + texts[2 * k + 1]))
    learned = learn(mini, [*provider.answers, *engine(mini, texts, 400).answers])
    assert learned["providers"]["P"]["windows"][0]["unheard_of"] == {"content_lead": {"\n": N // 9}}
    rows = rebuilt(mini, provider, learned)
    assert {row.grade for k, row in enumerate(rows) if k % 9 == 0} == {"C1"}
    assert max(row.p_exact for k, row in enumerate(rows) if k % 9 == 0) <= 0.5
    assert {row.grade for k, row in enumerate(rows) if k % 9} == {"B1"}


def test_whitespace_seen_once_among_many_answers_is_the_tail_of_the_models_habit(mini: Profile, texts: list[str]) -> None:
    """It proves nothing, so the row is C1; but it is likelier the model's than a server's that does so once in a hundred answers."""
    provider = Provider(mini)
    for k in range(N):
        provider.answer(Truth(" " + texts[2 * k], ("\n" if k == N // 2 else " ") + texts[2 * k + 1]))
        provider.answers[-1] = dataclasses.replace(provider.answers[-1], finished_at=1000.0 + k)
    learned = learn(mini, [*provider.answers, *engine(mini, texts, 400).answers])
    [row] = [row for k, row in enumerate(rebuilt(mini, provider, learned)) if k == N // 2]
    assert row.grade == "C1" and 0.8 < row.p_exact < 0.95
