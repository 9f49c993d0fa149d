"""Claims about what differs between kinds of turns: bills of texts and of calls, checks of a reading against parts of the answers, modes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from eagle3_assets.exact.providers.predictive import at_least, clears
from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.modes import modes_of
from eagle3_assets.exact.search.readings import RULES, Billing, Rule
from eagle3_assets.exact.search.reconstruct import reconstruct
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
