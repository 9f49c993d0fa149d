"""What a plan knows of prompts: every turn is counted with the history it is asked with, and known rows are not guessed."""

from __future__ import annotations

import dataclasses

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.estimate import plan as planning
from eagle3_assets.estimate.assumptions import stated
from eagle3_assets.estimate.facts import facts_of_prompts
from eagle3_assets.prompts.prompt import Given, Prompt

PER_TOKEN = stated("chars_per_token")


def prompt(**more: object) -> Prompt:
    fields = {
        "sample_id": "0" * 32, "dataset": "d", "turn": 0, "shard": "00", "rank": 0, "messages": ({"role": "user", "content": "u" * 388},),
        "tools": None, "expected_tokens": 50,
    }  # fmt: skip
    return Prompt(**{**fields, **more})  # type: ignore[arg-type]


def said(chars: int, **more: object) -> Given:
    return Given({"role": "assistant", "content": "a" * chars}, **more)  # type: ignore[arg-type]


def test_prompts_count_texts_reasoning_calls_and_tools(campaign: Campaign) -> None:
    call = {"id": "i" * 3, "type": "function", "function": {"name": "f", "arguments": "x" * 5}}
    history = (
        {"role": "user", "content": "u" * 100},
        {"role": "assistant", "content": None, "reasoning_content": "r" * 20, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "i", "content": "t" * 40},
    )
    tools = ({"type": "function", "function": {"name": "f"}},)
    facts = facts_of_prompts(campaign.dataset_named("b3_magicoder"), [prompt(messages=history, tools=tools), prompt()])
    assert facts.rows == 2 and facts.expected_tokens == 100 and not facts.whole and not facts.conversations
    assert facts.prompt_chars == 100 + 20 + 8 + 40 + len(str(list(tools))) + 388
    assert list(facts.known) == pytest.approx([(facts.prompt_chars - 388) / PER_TOKEN, 100])


def test_an_import_is_known_as_a_whole_and_ids_are_counted(campaign: Campaign) -> None:
    rows = [prompt(given=said(388)), prompt(given=said(9, output_ids=tuple(range(70)), prompt_ids=tuple(range(30))))]
    facts = facts_of_prompts(campaign.dataset_named("a1_deepswekimi"), rows)
    assert list(facts.known) == pytest.approx([200, 100]) and facts.whole and facts.prompt_tokens == 130
    plan = planning.make_plan(campaign, [facts], {}, (0.5, 2.0), 10**12)
    assert plan["kept"] == {"rows": 2, "tokens": 300, "rows_over": 0, "tokens_lost": 0}
    assert planning.what_if(campaign, plan, ["max_length=150"])["kept"] == {
        "rows": 1, "tokens": 100, "rows_over": 1, "tokens_lost": 200
    }  # fmt: skip
    assert plan["datasets"][0]["output_tokens_interval"] == [100, 100]  # nothing about it is a guess


def test_a_trajectory_is_a_row_a_turn_or_one_row_and_the_plan_knows_what_each_takes(campaign: Campaign) -> None:
    """Three turns over a growing history: 200 + 400 + 600 tokens as rows of their own, 600 as one."""
    dataset = campaign.dataset_named("a1_deepswekimi").model_copy(update={"turns": "every"})
    follow = ({"role": "user", "content": "v" * 388},)
    trajectory = prompt(given=said(388), given_next=(said(388), said(388)), follow_ups=(follow, follow), expected_tokens=300)
    facts = facts_of_prompts(dataset, [trajectory, dataclasses.replace(trajectory, sample_id="1" * 32)])
    assert facts.rows == 6 and list(facts.conversations) == pytest.approx([600, 600]) and sum(facts.known) == pytest.approx(2400)
    plan = planning.make_plan(campaign, [facts], {}, (0.5, 2.0), 10**12)
    turn = planning.what_if(campaign, plan, ["join_turns=no"])["kept"]
    joined = planning.what_if(campaign, plan, ["join_turns=yes"])["kept"]
    assert (turn["rows"], turn["tokens"]) == (6, 2400) and (joined["rows"], joined["tokens"]) == (2, 1200)
    assert any(case["settings"][0].startswith("join_turns") for case in plan["what_if"])
