"""Claims about what people are told of money: doctor and plan about the key, status about what is missing and what it would cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.cli import doctor, main, status
from eagle3_assets.cli import plan as plan_command
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.money.reconcile import note
from eagle3_assets.collect.servers.openrouter import KeyFacts
from eagle3_assets.errors import WireError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.prompts.file import build_prompts, read_prompts
from eagle3_assets.store import Store, commit
from eagle3_assets.targets.profile_facts import marker_pattern, profile_facts
from eagle3_assets.wire.journal import Journal
from eagle3_assets_tests.collect.samples import an_answer

MARKERS = marker_pattern(profile_facts("kimi-mini"))

KEY = "sk-or-v1-canary-7d1f3e5a9b"
NAME = "b3_magicoder"


# ---------------------------------------------------------------------------------------------------- the key
@pytest.mark.parametrize(
    ("facts", "needed", "level", "words"),
    [
        (KeyFacts(100.0, 100.0, 0.0), 86.0, "ok", "limit 100.00 USD, 100.00 left, 0.00 used so far"),
        (KeyFacts(None, None, 12.5), None, "warn", "no limit, 12.50 used so far"),
        (KeyFacts(500.0, 480.0, 20.0), 86.0, "warn", "limit 500.00 USD, 480.00 left"),
        (KeyFacts(100.0, 20.0, 80.0), 86.0, "fail", "20.00 left, 80.00 used so far"),
        (KeyFacts(None, 3.0, 80.0), 86.0, "fail", "no limit, 3.00 left"),
        (KeyFacts(100.0, 0.5, 99.5), None, "warn", "0.50 left"),
        (KeyFacts(100.0, 0.0, 100.0), 0.0, "ok", "the plan still needs about 0.00"),
    ],
)
def test_doctor_says_what_the_key_may_spend_and_recommends_one_with_the_budget_as_its_limit(
    facts: KeyFacts, needed: float | None, level: str, words: str
) -> None:
    finding = doctor.judge_key(facts, 100.0, needed)
    assert finding.level == level and words in finding.found
    assert "make a dedicated key with a limit of 100.00 USD" in finding.do


def test_the_least_of_limit_and_budgets_is_what_is_left_and_odd_values_are_not_known() -> None:
    assert KeyFacts.of({"limit": 10, "limit_remaining": 9.0, "usage": 1, "effective_budget": {"remaining_usd": 4}}) == KeyFacts(
        10, 4, 1
    )
    assert KeyFacts.of({"limit": None, "limit_remaining": "9", "usage": True, "effective_budget": []}) == KeyFacts(
        None, None, None
    )


@pytest.fixture
def real(store: Store, campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """The demo campaign as if it were bought: a key is set, and a plan is there."""
    bought = campaign.model_copy(
        update={"server": campaign.server.model_copy(update={"kind": "openrouter"}),
                "budget": campaign.budget.model_copy(update={"approved_usd": None, "campaign_usd": 10.0})}
    )  # fmt: skip
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    facts = [planning.DatasetFacts(d, 100, 38_800, 100 * 300_000) for d in campaign.dataset]
    store.root.mkdir(parents=True)
    store.plan.write_text(json.dumps(planning.make_plan(bought, facts, {}, (0.5, 2.0), 10**12)))
    for module in (doctor, plan_command, status):
        monkeypatch.setattr(module, "load_campaign", lambda: bought)
    return bought


def test_plan_tells_that_the_key_does_not_last_and_what_money_can_hold_in_flight(
    real: Campaign, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")

    async def ask(base_url: str, key: object) -> KeyFacts:
        return KeyFacts(10.0, 0.25, 9.75)

    monkeypatch.setattr(doctor, "ask_key", ask)
    assert main.run(["plan", "--approve", "9"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "0.25 left, 9.75 used so far" in shown and "raise the key's limit" in shown and KEY not in shown
    assert "9.00 USD: 0.0000 spent, 0.0000 held, 9.0000 left" in shown
    now = planning.in_flight_possible(9.0, real.sampling.max_tokens * 2.0 / 1e6, real.collect.in_flight)
    assert f"in flight {now:,} now; {real.collect.in_flight:,} asked for" in shown
    assert "if served locally at 90 tokens/s" in shown and "hours if local" in shown


def test_plan_is_a_plan_although_nobody_answers_about_the_key(
    real: Campaign, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(base_url: str, key: object) -> KeyFacts:
        raise WireError("no answer")

    monkeypatch.setattr(doctor, "ask_key", ask)
    assert main.run(["plan"]) == 0
    assert "not known (no answer)" in capsys.readouterr().out
    assert main.run(["plan", "--no-network"]) == 0
    assert "not known" not in capsys.readouterr().out


def test_doctor_fails_when_the_key_has_less_than_the_plan_still_needs(real: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(base_url: str, key: object) -> KeyFacts:
        return KeyFacts(10.0, 0.25, 9.75)

    monkeypatch.setattr(doctor, "ask_key", ask)
    finding = doctor._key(real, True)
    assert finding.level == "fail" and "the plan still needs about" in finding.found
    assert KEY not in f"{finding}"


# ---------------------------------------------------------------------------------------------------- what is missing
def _prompts(campaign: Campaign, store: Store) -> list[Any]:
    numbers = build_prompts(campaign, campaign.dataset_named(NAME), store.prompts(NAME), markers=MARKERS)
    commit(store.prompts(NAME), files=[store.prompts(NAME)], inputs={}, numbers=numbers)
    return read_prompts(store.prompts(NAME))


def _buy(store: Store, prompts: list[Any], finished: int, each: float) -> None:
    with Ledger(store.ledger, 10.0) as ledger:
        for prompt in prompts[:finished]:
            body = b'{"choices":[{"finish_reason":"stop","message":{"content":"x"}}],"usage":{"completion_tokens":4}}'
            answer = an_answer(prompt.rank, body, sample_id=prompt.sample_id, dataset=NAME, shard=prompt.shard, cost_usd=each)
            with Journal.open(store.answers(NAME, prompt.shard)) as opened:
                opened.append(replace(answer, request_id=prompt.sample_id))
            ledger.settle(prompt.sample_id, each, scope=NAME)


def test_status_says_what_is_missing_what_it_would_cost_and_how_much_to_approve(
    real: Campaign, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    prompts = _prompts(real, store)
    _buy(store, prompts, 10, 0.05)
    planning.approve(real, store, 0.6)
    assert main.run(["status", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["missing"] == [{"dataset": NAME, "missing": 70, "finished": 10, "usd": 3.5, "usd_each": 0.05}]
    assert main.run(["status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"prompts without an answer: 70 of {NAME} (about 3.5000 USD); 0.1000 USD are left of 0.60 approved" in shown
    assert "approve about 4.20 with `eagle3 plan --approve`" in shown
    store.closed(NAME).parent.mkdir(parents=True, exist_ok=True)
    store.closed(NAME).write_text("{}")
    assert main.run(["status"]) == 0
    # the campaign's other datasets were never asked: "nothing is missing" would be a word too much
    shown = " ".join(capsys.readouterr().out.split())
    assert "missing every answer of" in shown and "its prompts are not made yet" in shown and f"of {NAME} (" not in shown


def test_status_shows_money_of_others_and_unknown_spend_as_such(
    real: Campaign, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with Ledger(store.ledger, 10.0) as ledger:
        ledger.settle("a", 1.0, scope=NAME)
        ledger.reserve("b", NAME, 0.25)
        ledger.keep("b")
        for usage in (5.0, 9.0):
            note(ledger, "key 0123", int(usage * 1e12), int(1.25e12), int(1e12))
    assert main.run(["status", "--json"]) == 0
    money = json.loads(capsys.readouterr().out)["money"]
    assert (money["spent_usd"], money["ambiguous_usd"], money["unknown_usd"]) == (1.0, 0.25, 0.25)
    assert money["foreign_usd"] == pytest.approx(3.75) and money["lag_usd"] == 0.0
    assert main.run(["status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "0.2500 of it unknown spend" in shown and "3.7500 spent on this key by somebody else" in shown


def test_a_damaged_journal_does_not_hide_the_other_figures(
    real: Campaign, store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = _prompts(real, store)
    _buy(store, prompts, 2, 0.05)
    segment = next(store.answers(NAME, prompts[0].shard).glob("segment-*"))
    segment.write_bytes(segment.read_bytes().replace(b"finished", b"finishes"))
    assert main.run(["status"]) == 0
    shown = capsys.readouterr()
    assert "damage at byte 0" in shown.err and "0.1000 USD spent" in " ".join(shown.out.split())
