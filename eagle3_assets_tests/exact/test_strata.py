"""Claims about what differs between kinds of turns: bills of texts and of calls, checks of a reading against parts of the answers, modes."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.providers.predictive import by_length, clears, contradiction
from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.modes import modes_of
from eagle3_assets.exact.search.observations import Observation
from eagle3_assets.exact.search.readings import RULES, Billing, Rule
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.intervals import at_least
from eagle3_assets.targets.grammar import split
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.conftest import needs, shared_data
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

N = 40


def test_a_provider_that_bills_the_end_of_texts_and_not_of_calls_is_read_so_and_nothing_is_invented(mini: Profile) -> None:
    """Moonshot AI: 193 of 193 texts with the end, 209 of 209 calls without it; one rule for both invented a line break."""
    texts, provider = sentences(mini, 4 * N, neutral=None), Provider(mini)
    for k in range(2 * N):
        calls = (("f", '{"a": 1}'),) if k % 3 == 0 else ()
        truth = Truth(" " + texts[2 * k], " " + texts[2 * k + 1], calls=calls, finish="tool_calls" if calls else "stop")
        provider.answer(truth, bill_shift=-1 if calls else 0)
    turns = learn(mini, provider.answers)["providers"]["P"]["windows"][0]["turns"]
    assert turns["text"]["reading"] == turns["calls"]["reading"] == "keep keep keep keep|end calls_no_end"
    assert (turns["text"]["counts_end"], turns["calls"]["counts_end"]) == (True, False)


def test_a_rule_says_what_a_bill_has_more_than_the_ids() -> None:
    assert [Rule(False).constant(ended) for ended in (True, False)] == [-1, 0] and Rule(True, 1).constant(True) == 1
    split = Billing(RULES[0], RULES[1])
    assert (split.rule(False), split.rule(True), split.name) == (RULES[0], RULES[1], "end calls_no_end")


def test_few_missed_bills_clear_a_kind_of_turn_only_where_there_are_many_answers() -> None:
    assert at_least(0, 5, 0.5) == 1.0 and at_least(5, 5, 0.5) == pytest.approx(1 / 32)
    assert clears([False] * 100) and not clears([False] * 20) and not clears([True] * 5 + [False] * 95)


def test_an_answer_without_reasoning_is_likelier_an_instant_one_whatever_was_asked(k25: Profile, tokenizers: Path) -> None:
    silent = Fields(reasoning=None, content="Hi.", tool_calls=(), finish_reason="stop", billed_completion=3)
    spoken = Fields(reasoning=" Say hi.", content="Hi.", tool_calls=(), finish_reason="stop", billed_completion=7)
    first, second = modes_of(k25, {"messages": []}, silent)[0], modes_of(k25, {"messages": []}, spoken)[0]
    assert (first.prompt, first.turn) == (False, False) and (second.prompt, second.turn, second.prefill) == (True, True, 0)
    assert sum(mode.prior for mode in modes_of(k25, {"messages": []}, spoken)) == pytest.approx(1.0)


@pytest.mark.parametrize("provider", ["Moonshot AI", "Novita", "Chutes"])
def test_recorded_texts_of_k2_get_no_character_that_is_not_on_the_wire(tokenizers: Path, provider: str) -> None:
    profile, answers = load_profile("kimi-k2-instruct", tokenizers), []
    with gzip.open(needs(shared_data() / "wire" / "recorded-k2-0905.jsonl.gz"), "rt", encoding="utf-8") as lines:
        recorded = [row for row in map(json.loads, lines) if row.get("provider") == provider]
    for k, row in enumerate(recorded):
        more = {"headers": {"content-type": row["content_type"]}, "provider": provider, "request": row["request"]}
        body = row["response_body"].encode("utf-8", "surrogatepass")
        answers.append(
            WireAnswer(f"r{k}", f"s{k}", 0, 1, "d", "00", "openrouter", status=200, body=body, outcome="finished", **more)
        )
    entry = entry_of(learn(profile, answers), provider)
    for answer in answers:
        fields = parse_fields(answer.body, answer.content_type)
        found = reconstruct(profile, answer.request, fields, entry, source="openrouter")
        assert found.residual["completion"] == 0 and not found.grade.startswith(("A", "B")), found.reasons
        if not fields.tool_calls:
            assert not found.evidence["edits"] and found.evidence["counts_end"]


def _azure() -> list[WireAnswer]:
    """The recorded K2.5 answers of Azure."""
    with gzip.open(needs(shared_data() / "wire" / "recorded-2.jsonl.gz"), "rt", encoding="utf-8") as lines:
        recorded = [row for row in map(json.loads, lines) if "azure" in row["provider"].lower()]
    answers = []
    for k, row in enumerate(recorded):
        more = {"headers": {"content-type": row["content_type"]}, "provider": "Azure", "request": row["request"]}
        body = row["response_body"].encode("utf-8", "surrogatepass")
        answers.append(
            WireAnswer(f"r{k}", f"s{k}", 0, 1, "d", "00", "openrouter", status=200, body=body, outcome="finished", **more)
        )
    return answers


@pytest.mark.parametrize("learns", [True, False])
def test_recorded_completions_of_azure_meet_their_bills_and_no_joined_space_is_claimed_as_the_models(
    tokenizers: Path, learns: bool
) -> None:
    """By hand: a space is joined in front of each control token, so at the end of each text; a row that keeps it is wrong."""
    profile, answers = load_profile("kimi-k2.5", tokenizers), _azure()
    entry = entry_of(learn(profile, answers), "Azure") if learns else None
    assert len(answers) == 26
    for answer in answers:
        found = reconstruct(profile, answer.request, parse_fields(answer.body, answer.content_type), entry, source="openrouter")
        assert found.residual["completion"] == 0, found.reasons
        if found.grade[0] in "ABR":
            parts = split(profile, found.input_ids[found.prompt_len :], thinking=found.evidence["thinking"], truncated=False)
            texts = [profile.decode(ids) for ids in (parts.reasoning, parts.content) if ids]
            assert not any(text.endswith(" ") for text in texts), (found.grade, found.p_exact, texts)


# ---------------------------------------------------------------------------------------------------- what learning sees
def _answered(mini: Profile, n: int) -> tuple[Provider, Provider, list[Truth]]:
    """(a provider and an engine with ids that gave the same answers, the answers)"""
    texts, provider, engine = sentences(mini, 2 * n, neutral=None), Provider(mini), Provider(mini, name="(engine)")
    truths = [Truth(" " + texts[2 * k], " " + texts[2 * k + 1]) for k in range(n)]
    for truth in truths:
        engine.answer(truth, with_ids=True, source="engine", provider=None)
        provider.answer(truth)
    return provider, engine, truths


def test_a_provider_that_bills_its_prefilled_think_is_decided_beside_answers_without_thinking(mini: Profile) -> None:
    """One token of the prompt is billed as output; in an answer without thinking nothing was prefilled."""
    provider, engine, truths = _answered(mini, 3 * N)
    for k, truth in enumerate(truths):
        answer, body = provider.answers[k], json.loads(provider.answers[k].body)
        request, usage = answer.request, body["usage"]
        if k % 6:
            usage = {"prompt_tokens": usage["prompt_tokens"] - 1, "completion_tokens": usage["completion_tokens"] + 1}
        else:
            request = {**request, "reasoning": {"enabled": False}}
            prompt = render_prompt(mini, request["messages"], None, thinking=False)
            ids = (*mini.encode(truth.content), mini.special("<|im_end|>"))
            body["choices"][0]["message"]["reasoning"] = None
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
            provider.truths[k] = (*prompt, *ids)
        provider.answers[k] = replace(answer, request=request, body=json.dumps({**body, "usage": usage}).encode())
    learned = learn(mini, [*provider.answers, *engine.answers])
    (window,) = learned["providers"]["P"]["windows"]
    assert window["decided"] and window["prefill_billed"] and window["extra"] == 1, window["why"]
    for answer, true_ids in zip(provider.answers, provider.truths, strict=True):
        found = reconstruct(mini, answer.request, parse_fields(answer.body), entry_of(learned, "P"), source="openrouter")
        assert found.grade == "B1" and found.input_ids == true_ids and found.residual["prompt"] == 0, found.reasons


def test_a_provider_that_leaks_every_turn_s_markers_is_learned_from_its_leaks(mini: Profile) -> None:
    provider, engine, truths = _answered(mini, 3 * N)
    for k, truth in enumerate(truths):
        body = json.loads(provider.answers[k].body)
        body["choices"][0]["message"] = {"role": "assistant", "content": f"<think>{truth.reasoning}</think>{truth.content}"}
        provider.answers[k] = replace(provider.answers[k], body=json.dumps(body).encode())
    learned = learn(mini, [*provider.answers, *engine.answers])
    entry = learned["providers"]["P"]
    assert entry["decided"] and entry["explained"] == 3 * N
    for answer, true_ids in zip(provider.answers, provider.truths, strict=True):
        found = reconstruct(mini, answer.request, parse_fields(answer.body), entry_of(learned, "P"), source="openrouter")
        assert found.grade == "R" and found.input_ids == true_ids, found.reasons


def test_misses_that_grow_with_the_length_are_no_contradiction_where_no_ids_are_known() -> None:
    """Answers of 3,500 tokens are spelled otherwise than the encoder does in one of four; that is no other bill of long answers."""
    chance = Random("length")
    lengths = [chance.randint(200, 7000) for _ in range(300)]
    reasoning = SimpleNamespace(text="x")
    rows = [
        cast(Observation, SimpleNamespace(billed=n, truncated=False, reasoning=reasoning, tools=False, at=0.0)) for n in lengths
    ]
    missed, steep = [chance.random() < 1 - math.exp(-8e-5 * n) for n in lengths], [n > 3500 for n in lengths]
    usual = [1e-5 * n for n in lengths]
    assert contradiction(rows, missed, usual) is not None
    assert contradiction(rows, missed, by_length(rows, missed, usual)) is None
    assert contradiction(rows, steep, by_length(rows, steep, usual)) is not None, "a bill that counts long answers otherwise"
