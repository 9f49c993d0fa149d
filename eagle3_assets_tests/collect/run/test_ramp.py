"""Claims about the first rise, the cycle collector during a run, and the counts that every answer asks for."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from eagle3_assets.collect.run import shard_work
from eagle3_assets.collect.run.cycle_collector import THRESHOLDS, rarely_collected
from eagle3_assets.collect.run.ramp import AT_ONCE, PER_S, Ramp
from eagle3_assets.collect.run.shard_work import ShardJob, ShardWork
from eagle3_assets_tests.collect.samples import a_campaign, a_dataset, a_prompt, an_answer, first_dataset


def rise(ramp: Ramp, most: int, every_s: float) -> list[int]:
    """Requests in flight after each look at the ramp, none of them ending; looks are `every_s` apart."""
    in_flight, now_s, seen = 0, 0.0, []
    while in_flight < most:
        while in_flight < most and ramp.wait_s(in_flight, now_s) == 0.0:
            in_flight += 1
        seen.append(in_flight)
        now_s += every_s
    return seen


def test_two_thousand_connections_are_opened_in_steps_over_four_tenths_of_a_second() -> None:
    seen = rise(Ramp(), 2_000, 0.01)
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) <= 51
    assert len(seen) * 0.01 == pytest.approx(2_000 / PER_S, abs=0.03)


def test_a_busy_loop_catches_up_and_still_opens_no_burst() -> None:
    seen = rise(Ramp(), 2_000, 1.0)
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) == AT_ONCE


def test_requests_that_find_a_connection_are_not_held_up() -> None:
    ramp = Ramp()
    rise(ramp, 500, 0.01)
    assert all(ramp.wait_s(in_flight, 1.0) == 0.0 for in_flight in (499, 498, 0, 250) for _ in range(1_000))


def test_the_cycle_collector_has_its_settings_back_after_a_run_that_failed() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), rarely_collected():
        assert gc.get_threshold() == THRESHOLDS and gc.get_freeze_count() > frozen
        raise ZeroDivisionError
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0


@pytest.mark.parametrize("turns", ["last", "chain"])
def test_the_count_of_missing_turns_is_the_sum_over_what_is_pending(tmp_path: Path, turns: str) -> None:
    campaign = a_campaign(a_dataset(turns=turns))
    follow_ups = (({"role": "user", "content": "more"},),)
    prompts = tuple(a_prompt(f"q{n}", n, follow_ups=follow_ups if n % 2 else ()) for n in range(6))
    work = ShardWork(ShardJob(first_dataset(campaign), "00", prompts, tmp_path), 3)
    work.start()
    whole = 9 if turns == "chain" else 6
    assert work.missing == whole and len(work.start()) == 6
    assert work.missing == whole  # asked twice what is left
    body = b'{"choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"x"}}],"usage":{"completion_tokens":4}}'
    work.note(an_answer(1, body))
    following = work.settle(prompts[1])
    assert work.missing == whole - 1 and (following is not None) == (turns == "chain")
    work.settle(prompts[1])  # settled twice
    assert work.missing == whole - 1 == work.result().missing


def test_a_resume_reads_billed_tokens_from_the_record_and_parses_no_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("parsed")

    work = ShardWork(ShardJob(first_dataset(a_campaign()), "00", (a_prompt(number=1),), tmp_path), 3)
    monkeypatch.setattr(shard_work, "parse_completion", refuse)
    work.note(an_answer(1, completion_tokens=7))
    work.start()
    assert work.result().completion_tokens == 7
    with pytest.raises(AssertionError, match="parsed"):  # a record of an earlier version says nothing
        work.note(an_answer(2))
