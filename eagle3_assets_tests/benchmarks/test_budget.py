"""`benchmarks/budget.py`: twenty of its two hundred campaigns, and that it would notice."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # a folder of scripts, no package

import budget  # noqa: E402

SEEDS = range(1000, 1020)  # not those of the benchmark


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_random_campaign_spends_above_its_approval_or_leaves_money_lying(seed: int) -> None:
    outcome = budget.play_seed(seed)
    assert not outcome.problems, outcome


def test_these_campaigns_are_of_every_kind() -> None:
    cases = [budget.draw(seed) for seed in SEEDS]
    assert {case.processes for case in cases} == {1, 2, 3, 4} and any(case.kill_after for case in cases)
    assert any(case.caps for case in cases) and any("in_flight_share" in case.money for case in cases)
    assert any(case.credit_usd < 1000 for case in cases) and any("foreign_usd_per_s" in case.money for case in cases)
    assert len(set().union(*(case.faults for case in cases))) > 25
    assert budget.draw(SEEDS[0]) == cases[0]


def test_a_campaign_that_overspends_or_stops_early_is_a_problem(tmp_path: Path) -> None:
    case = replace(budget.draw(SEEDS[0]), processes=1, kill_after=None)
    good = budget.Outcome(0, case.budget_usd, 0.5 * case.budget_usd, case.budget_usd, 0.0, case.budget_usd, 0.0, 9,
                          [{"hold_usd": 1e-6, "stopped": "limit 1 USD in all", "missing": 3, "used_usd": case.budget_usd}], 1.0, [])  # fmt: skip
    spent = round(good.true_spend * 1e12)
    assert budget._problems(case, good, spent, 0.0) == []
    over = budget._problems(case, good, round(case.budget_usd * 1e12) + 1, 0.0)
    assert len(over) == 1 and "were really spent" in over[0]
    for change, words in (
        ({"most_committed": case.budget_usd + 1e-9}, "the ledger held"),
        ({"spent": 0.4 * case.budget_usd}, "the ledger knows"),
        ({"ends": [{**good.ends[0], "used_usd": 0.6 * case.budget_usd}]}, "stopped with"),
        ({"ends": []}, "a process ended otherwise"),
    ):
        assert any(words in problem for problem in budget._problems(case, replace(good, **change), spent, 0.0)), change
    assert "stayed reserved" in budget._problems(case, good, spent, 1e-6)[0]


@pytest.mark.slow
def test_the_benchmark_sees_a_ledger_that_does_not_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same campaign with a limit ten times the approval in the workers: the stand-in's own books tell."""
    case = replace(
        budget.draw(SEEDS[0]), processes=1, caps={}, faults={}, money={}, credit_usd=1000.0, kill_after=None, prompts=400
    )

    async def spend_too_much() -> budget.Outcome:
        real = budget._problems

        def judged(c: budget.Case, o: budget.Outcome, true_pico: int, reserved: float) -> list[str]:
            return real(replace(c, budget_usd=c.budget_usd / 10), o, true_pico, reserved)

        monkeypatch.setattr(budget, "_problems", judged)
        return await budget.play(case, tmp_path)

    outcome = asyncio.run(spend_too_much())
    assert any("were really spent" in problem for problem in outcome.problems)
