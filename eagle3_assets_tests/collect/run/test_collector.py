"""Claims about a run: everything asked is answered once, whatever the server does; stops are clean; the key is written
nowhere.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.run import collector
from eagle3_assets.collect.run.collector import Pace, Progress, Servers, ShardJob, ShardResult, collect
from eagle3_assets.collect.run.outcomes import TABLE
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import Routing, resolve
from eagle3_assets.errors import BudgetStop, LockedError, StoreError, WireError
from eagle3_assets.prompts.prompt import Given, Prompt
from eagle3_assets.wire import journal
from eagle3_assets.wire.journal import Journal
from eagle3_assets_tests.collect.fake_openrouter import COST, MODEL, FakeOpenRouter
from eagle3_assets_tests.collect.samples import (
    KEY,
    QUICK,
    a_campaign,
    a_dataset,
    a_prompt,
    a_snapshot,
    an_answer,
    an_endpoint,
    everything_written,
)


@dataclass
class Desk:
    """One campaign folder and what it takes to run `collect` on it."""

    root: Path
    campaign: Campaign = field(default_factory=a_campaign)
    limit_usd: float = 10.0
    caps: dict[str, float] = field(default_factory=dict)
    done: list[ShardResult] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    shown: str = ""
    pace: Pace = QUICK

    def folder(self, dataset: str = "b3_magicoder", shard: str = "00") -> Path:
        return self.root / "answers" / dataset / shard

    def job(self, prompts: list[Prompt], shard: str = "00", dataset: str = "b3_magicoder", **more: Any) -> ShardJob:
        return ShardJob(self.campaign.dataset_named(dataset), shard, tuple(prompts), self.folder(dataset, shard), **more)

    async def collect(self, server: FakeOpenRouter, *jobs: ShardJob, **more: Any) -> list[ShardResult]:
        routing: Routing = resolve(self.campaign, server.snapshot)
        with Ledger(self.root / "ledger.sqlite", self.limit_usd, caps=self.caps) as self.ledger:
            try:
                return await collect(
                    self.campaign,
                    jobs,
                    servers=Servers(server.base_url, ApiKey(KEY), (f"{server.root}/engine/v1",)),
                    ledger=self.ledger,
                    routing=routing,
                    stop=self.stop,
                    on_progress=self.progress.append,
                    on_shard_done=self.done.append,
                    pace=self.pace,
                    **more,
                )
            except BaseException as error:
                self.shown += "".join(traceback.format_exception(error)) + repr(error)
                raise
            finally:
                self.totals = self.ledger.totals().total

    def answers(self, shard: str = "00", dataset: str = "b3_magicoder") -> list[Any]:
        return list(journal.read(self.folder(dataset, shard)))


def run(tmp_path: Path, story: Callable[[Desk, FakeOpenRouter], Any], **desk: Any) -> Desk:
    async def play() -> Desk:
        async with FakeOpenRouter() as server:
            d = Desk(tmp_path, **desk)
            await asyncio.wait_for(story(d, server), 30)
            assert KEY not in d.shown and KEY.encode() not in everything_written(tmp_path)
            return d

    return asyncio.run(play())


def prompts(count: int, text: str = "q", **more: Any) -> list[Prompt]:
    return [a_prompt(f"{text}{n}", n, **more) for n in range(count)]


# ---------------------------------------------------------------------------------------------------- the plain case
def test_every_prompt_is_answered_once_and_its_bytes_and_money_are_kept(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q3": ["ok_after_keep_alive"], "q4": ["stream"]}
        (result,) = await d.collect(server, d.job(prompts(10)))
        assert (result.selected, result.finished, result.missing, result.failed, result.complete) == (10, 10, 0, 0, True)
        assert result.completion_tokens == 120 and result.cost_usd == pytest.approx(10 * COST) and result.reasons == {}
        assert d.done == [result]
        answers = d.answers()
        assert sorted(a.sample_id for a in answers) == [f"{n:032x}" for n in range(10)]
        assert any(a.body.startswith(b"\n         \n\n") for a in answers)  # keep-alive whitespace is part of the bytes
        for a in answers:
            assert (a.source, a.status, a.attempt, a.cost_usd, a.provider) == ("openrouter", 200, 1, COST, "Chutes")
            assert a.generation_id is not None and a.finished_at >= a.started_at > 0 and a.request["max_tokens"] == 1000
        assert d.totals.spent_usd == pytest.approx(server.spent) and d.totals.reserved_usd == d.totals.ambiguous_usd == 0
        assert all(h["Authorization"] == f"Bearer {KEY}" for h in server.headers)

    run(tmp_path, story)


def test_what_is_finished_is_never_asked_again(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        (first,) = await d.collect(server, d.job(prompts(5)))
        (second,) = await d.collect(server, d.job(prompts(8)))
        (third,) = await d.collect(server, d.job(prompts(8)))
        assert max(server.asked.values()) == 1 and len(server.requests) == 8
        assert (first.finished, second.finished) == (5, 8) and third == second  # cumulative, not per run
        assert d.totals.spent_usd == pytest.approx(8 * COST)

    run(tmp_path, story)


def test_any_selection_of_datasets_and_shards_is_one_run_and_a_shard_ends_when_it_is_done(tmp_path: Path) -> None:
    campaign = a_campaign(
        a_dataset(),
        a_dataset("b8_sweagent"),
        a_dataset("b1_glaive", "engine"),
        a_dataset("a1_deepswekimi", "import"),
        engine=({"kind": "vllm", "base_url": "embedded"},),
    )

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        given = Given({"role": "assistant", "content": "x"}, output_ids=(1, 2, 3))
        results = await d.collect(
            server,
            d.job(prompts(4), "00"),
            d.job(prompts(4, "w"), "01", "b8_sweagent"),
            d.job(prompts(3, "e", dataset="b1_glaive"), "00", "b1_glaive"),
            d.job(prompts(3, "i", dataset="a1_deepswekimi", given=given), "00", "a1_deepswekimi"),
            d.job([], "15"),
        )
        assert [(r.dataset, r.shard, r.finished, r.complete) for r in results] == [
            ("b3_magicoder", "00", 4, True),
            ("b8_sweagent", "01", 4, True),
            ("b1_glaive", "00", 3, True),
            ("a1_deepswekimi", "00", 3, True),
            ("b3_magicoder", "15", 0, True),
        ]
        assert len(d.done) == 5
        assert json.loads(d.answers("00", "b1_glaive")[0].body)["choices"][0]["token_ids"] == [7, 8, 9]
        assert [a.source for a in d.answers("00", "a1_deepswekimi")] == ["import"] * 3
        assert results[3].completion_tokens == 9 and d.totals.spent_usd == pytest.approx(8 * COST)
        engine_headers = [h for h, r in zip(server.headers, server.requests, strict=True) if r.get("return_token_ids")]
        assert len(engine_headers) == 3 and not any("Authorization" in h for h in engine_headers)  # the key is OpenRouter's alone
        again = await d.collect(
            server, *(d.job(list(p), s, n) for n, s, p in [("a1_deepswekimi", "00", prompts(3, given=given))])
        )
        assert again[0].finished == 3 and len(d.answers("00", "a1_deepswekimi")) == 3

    run(tmp_path, story, campaign=campaign)


def test_the_longest_expected_prompts_are_sent_first(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        many = [a_prompt(f"q{n}", n, expected_tokens=(n * 7) % 10) for n in range(10)]
        await d.collect(server, d.job(many))
        assert [int(r["messages"][0]["content"][1:]) for r in server.requests] == sorted(range(10), key=lambda n: -((n * 7) % 10))

    run(tmp_path, story, campaign=a_campaign(collect={"in_flight": 1}))


def test_three_hundred_requests_are_in_flight_together(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.barrier = 300  # nobody is answered before 300 wait together
        (result,) = await d.collect(server, d.job(prompts(320)))
        assert server.peak == 300 and result.finished == 320
        assert d.progress[-1].done == d.progress[-1].total == 320 and d.progress[-1].in_flight == 0
        assert max(p.in_flight for p in d.progress) <= 300 and d.progress[-1].limit_usd == 10.0

    run(tmp_path, story, campaign=a_campaign(collect={"in_flight": 300}))


def test_reserve_prompts_are_not_asked_and_a_closed_dataset_asks_nothing(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        (first,) = await d.collect(server, d.job([*prompts(2), a_prompt("reserve", 7, reserve=True)]))
        assert (first.selected, first.finished) == (2, 2)
        (second,) = await d.collect(server, d.job(prompts(6), closed=True))
        assert (second.selected, second.finished, second.missing, second.complete) == (6, 2, 4, True)
        assert len(server.requests) == 2 and second.reasons == {"not_asked": 4}

    run(tmp_path, story)


# ---------------------------------------------------------------------------------------------------- faults
TRANSIENT = [
    "429",
    "429_absurd",
    "429_date",
    "402_in_flight",
    "408",
    "500",
    "502",
    "503",
    "504",
    "524",
    "529",
    "404",
    "html_502",
    "error_in_200",
    "error_in_200_with_empty_choices",
    "error_in_200_as_text",
    "error_finish",
    "empty",
    "no_choices",
    "content_filter",
    "no_finish_reason",
    "wrong_provider",
    "wrong_model",
    "garbage_types",
    "reset_before_headers",
    "reset_mid_body",
    "cut",
    "cut_with_wrong_length",
]


def test_after_every_kind_of_fault_the_prompt_is_answered_in_the_end(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {f"q{n}": [fault] for n, fault in enumerate(TRANSIENT)}
        (result,) = await d.collect(server, d.job(prompts(len(TRANSIENT))))
        assert result.finished == len(TRANSIENT) and result.complete
        assert all(server.asked[f"q{n}"] == 2 for n in range(len(TRANSIENT)))
        best = journal.best(d.answers())
        for n, fault in enumerate(TRANSIENT):
            records = [a for a in d.answers() if a.sample_id == f"{n:032x}"]
            rows = [TABLE[a.reason] for a in records if a.reason]
            billed_or_lost = fault not in FREE
            assert len(rows) == billed_or_lost, fault  # a refusal that cost nothing leaves no record
            assert best[f"{n:032x}", 0].attempt == len(records)
        assert d.totals.reserved_usd == 0 and d.totals.committed_usd >= server.spent

    run(tmp_path, story)


FREE = {
    "429",
    "429_absurd",
    "429_date",
    "402_in_flight",
    "500",
    "502",
    "503",
    "529",
    "404",
    "error_in_200",
    "error_in_200_with_empty_choices",
    "error_in_200_as_text",
    "error_finish",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "outcome", "retry_class"),
    [
        ("reset_before_headers", "ambiguous", "transient"),
        ("reset_mid_body", "ambiguous", "transient"),
        ("cut", "ambiguous", "transient"),
        ("cut_with_wrong_length", "ambiguous", "transient"),
        ("html_502", "ambiguous", "transient"),
        ("504", "ambiguous", "transient"),
        ("no_choices", "ambiguous", "transient"),
        ("500", "failed", "transient"),
        ("404", "failed", "transient"),
        ("error_finish", "failed", "transient"),
        ("400", "failed", "permanent"),
        ("413", "failed", "permanent"),
        ("422", "failed", "permanent"),
        ("403_moderated", "failed", "permanent"),
        ("empty", "failed", "content"),
        ("wrong_provider", "failed", "content"),
        ("wrong_model", "failed", "content"),
        ("content_filter", "failed", "content"),
    ],
)
def test_a_fault_that_does_not_go_away_ends_as_its_class_says(tmp_path: Path, fault: str, outcome: str, retry_class: str) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q1": [fault] * 50}
        (result,) = await d.collect(server, d.job(prompts(3)))
        lost = [a for a in d.answers() if a.sample_id == f"{1:032x}"]
        assert {(a.outcome, a.retry_class) for a in lost} == {(outcome, retry_class)}
        assert result.finished == 2 and sum(result.reasons.values()) == 1
        asked = server.asked["q1"]
        assert asked == (1 if retry_class == "permanent" else 3)
        assert (result.failed, result.missing, result.complete) == ((0, 1, False) if retry_class == "transient" else (1, 0, True))
        assert result.ambiguous == (3 if outcome == "ambiguous" else 0)
        await d.collect(server, d.job(prompts(3)))  # only what may still be answered is asked again
        assert server.asked["q1"] == asked + (3 if retry_class == "transient" else 0) and server.asked["q0"] == 1

    run(tmp_path, story)


def test_a_refusal_for_load_lowers_the_number_in_flight_and_does_not_use_up_attempts(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {f"q{n}": ["429"] * 5 + ["503"] * 5 for n in range(4)}
        (result,) = await d.collect(server, d.job(prompts(4)))
        assert result.finished == 4 and all(n == 11 for n in server.asked.values())
        assert d.progress[-1].retries_429 == 40

    run(tmp_path, story)


def test_lost_answers_are_looked_up_and_settled_and_the_unknown_ones_stay_reserved(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["cut"], "q1": ["reset_before_headers"]}
        server.generations = {f"gen-{n}": 0.0007 for n in range(1, 9)}
        (result,) = await d.collect(server, d.job(prompts(2)))
        assert result.finished == 2 and result.ambiguous == 2
        assert d.totals.spent_usd == pytest.approx(2 * COST + 0.0007)  # the cut one was looked up by its id
        assert d.totals.ambiguous_usd > 0.002  # the other one never had an id
        assert result.cost_usd == pytest.approx(2 * COST + 0.0007)

    run(tmp_path, story)


def test_an_answer_without_a_price_is_kept_and_its_reservation_too(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["no_usage"]}
        (result,) = await d.collect(server, d.job(prompts(1)))
        assert result.finished == 1 and d.answers()[0].cost_usd is None
        assert d.totals.spent_usd == 0 and d.totals.ambiguous_usd > 0.002

    run(tmp_path, story)


def test_an_answer_that_claims_to_be_free_against_the_price_list_is_looked_up(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["claims_free"]}
        server.generations = {f"gen-{n}": 0.0007 for n in range(9)}
        (result,) = await d.collect(server, d.job(prompts(1)))
        assert result.finished == 1 and d.answers()[0].cost_usd is None
        assert d.totals.spent_usd == pytest.approx(0.0007) and d.totals.ambiguous_usd == 0

    run(tmp_path, story)


def test_answers_of_a_provider_or_model_that_was_not_asked_for_are_recorded_and_not_used(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["wrong_provider"], "q1": ["wrong_model"]}
        await d.collect(server, d.job(prompts(2)))
        wrong = {a.reason: a for a in d.answers() if a.outcome == "failed"}
        assert wrong["wrong_provider"].provider == "BaseTen" and wrong["wrong_model"].model == "moonshotai/kimi-k2"
        assert all(a.retry_class == "content" and a.cost_usd == COST for a in wrong.values())
        assert all(a.provider == "Chutes" for a in journal.best(d.answers()).values())

    run(tmp_path, story)


# ---------------------------------------------------------------------------------------------------- what ends a run
def test_a_stop_for_another_model_names_both(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.default = "wrong_model"
        with pytest.raises(WireError, match=r"wrong_model \(asked for moonshotai/kimi-k2\.5, answered by moonshotai/kimi-k2\)"):
            await d.collect(server, d.job(prompts(20)))

    run(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("401", WireError, "refused the key .HTTP 401.; check OPENROUTER_API_KEY"),
        ("401_in_200", WireError, "refused the key"),
        ("403", WireError, "HTTP 403.*forbidden region"),
        ("redirect", WireError, "redirects .HTTP 302., which is never followed"),
        ("402", BudgetStop, "refuses further spending .Insufficient credits"),
        ("402_too_big", BudgetStop, "refuses further spending"),
        ("403_budget", BudgetStop, "refuses further spending"),
    ],
)
def test_a_refused_key_or_empty_account_stops_the_run_at_once(
    tmp_path: Path, fault: str, error: type[Exception], words: str
) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.default = fault
        with pytest.raises(error, match=words) as caught:
            await d.collect(server, d.job(prompts(100)))
        assert len(server.requests) <= 16 and "\n" not in str(caught.value)  # in_flight
        assert d.totals.committed_usd == 0 and d.answers() == []
        assert [(r.missing, r.complete) for r in d.done] == [(100, False)]
        server.default = "ok"
        (result,) = await d.collect(server, d.job(prompts(100)))
        assert result.complete

    run(tmp_path, story)


def test_answers_in_flight_when_the_run_is_ended_by_the_server_are_kept(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.gate = asyncio.Event()
        server.scripts = {"q0": ["402"]}
        task = asyncio.create_task(d.collect(server, d.job(prompts(40))))
        await server.wait_until(lambda: server.in_flight == 16)
        server.gate.set()
        with pytest.raises(BudgetStop):
            await task
        assert len(d.answers()) == 15 and d.totals.spent_usd == pytest.approx(15 * COST)

    run(tmp_path, story)


@pytest.mark.parametrize("fault", ["404", "wrong_provider", "400"])
def test_settings_that_cannot_work_stop_early(tmp_path: Path, fault: str) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.default = fault
        with pytest.raises(WireError, match=r"b3_magicoder: 8 requests in a row ended with .*; check \[target\] and \[routing\]"):
            await d.collect(server, d.job(prompts(100)))
        assert len(server.requests) <= 8 + 16

    run(tmp_path, story)


def test_a_key_that_a_server_echoes_is_blotted_out(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["echo_key"]}
        await d.collect(server, d.job(prompts(1)))
        assert b"[key hidden]" in d.answers()[0].body

    run(tmp_path, story)  # run() looks for the key in everything written


def test_nobody_eligible_or_a_host_in_the_clear_sends_nothing(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.snapshot = a_snapshot(an_endpoint("BaseTen", "baseten"))
        with pytest.raises(WireError, match="no endpoint is eligible"):
            await d.collect(server, d.job(prompts(1)))
        server.snapshot = a_snapshot()
        server.base_url = "http://openrouter.example/api/v1"
        with pytest.raises(WireError, match="not sent in the clear"):
            await d.collect(server, d.job(prompts(1)))
        assert server.requests == []

    run(tmp_path, story)


def test_two_runs_on_one_shard_the_second_names_the_owner_and_sends_nothing(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        with (
            Journal.open(d.folder(shard="01")),
            pytest.raises(LockedError, match="answers/b3_magicoder shard 01 is in use by pid"),
        ):
            await d.collect(server, d.job(prompts(3), "00"), d.job(prompts(3), "01"))
        assert server.requests == []
        results = await d.collect(server, d.job(prompts(3), "00"), d.job(prompts(3), "01"))  # shard 00 was given back
        assert [r.complete for r in results] == [True, True]

    run(tmp_path, story)


def test_a_torn_journal_is_mended_and_its_prompt_asked_again(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        await d.collect(server, d.job(prompts(3)))
        (segment,) = journal.segments(d.folder())
        segment.write_bytes(segment.read_bytes()[:-30])
        lost = 3 - len(d.answers())
        (result,) = await d.collect(server, d.job(prompts(3)))
        assert lost == 1 and result.finished == 3 and len(server.requests) == 4

    run(tmp_path, story)


def test_a_full_disk_ends_the_run_with_one_line_and_answers_already_paid_are_saved_when_room_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = Journal.append, [3]

    def append(self: Journal, answer: Any) -> None:
        if (
            room[0] == 0
            and threading.current_thread() is threading.main_thread()
            and "save_unsaved" not in str(traceback.extract_stack())
        ):
            raise StoreError("disk: no space left on the disk")
        room[0] -= room[0] > 0
        real(self, answer)

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        monkeypatch.setattr(Journal, "append", append)
        with pytest.raises(StoreError, match="no space left"):
            await d.collect(server, d.job(prompts(50)))
        assert len(server.requests) < 50
        assert len(d.answers()) == len(server.requests)  # nothing paid for is lost
        assert d.totals.spent_usd == pytest.approx(server.spent)

    run(tmp_path, story)


def test_no_request_is_sent_that_the_disk_could_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.gate = gate = asyncio.Event()
        real = collector._Run.fail

        def fail(run: collector._Run, error: BaseException) -> None:
            real(run, error)
            gate.set()  # the answers come after the look that finds no room

        monkeypatch.setattr(collector._Run, "fail", fail)
        task = asyncio.create_task(d.collect(server, d.job(prompts(50))))
        await server.wait_until(lambda: server.in_flight == 16)
        monkeypatch.setattr(journal, "ANSWER_BYTES", 1 << 60)
        with pytest.raises(StoreError, match="answers in flight may need"):
            await task
        assert len(server.requests) == 16 == len(d.answers())

    run(tmp_path, story)


# ---------------------------------------------------------------------------------------------------- stop and budget
def test_stop_sends_nothing_new_waits_and_records_the_rest_as_ambiguous(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {f"q{n}": ["hang"] for n in range(100)}
        task = asyncio.create_task(d.collect(server, d.job(prompts(100))))
        await server.wait_until(lambda: server.in_flight == 16)
        d.stop.set()
        (result,) = await task
        assert len(server.requests) == 16 and result.ambiguous == 16 and result.missing == 100 and not result.complete
        assert {(a.outcome, a.reason) for a in d.answers()} == {("ambiguous", "cancelled")}
        assert d.totals.ambiguous_usd > 16 * 0.002 and d.totals.reserved_usd == 0 and d.done == [result]
        server.scripts, d.stop = {}, asyncio.Event()
        (result,) = await d.collect(server, d.job(prompts(100)))
        assert result.finished == 100 and result.ambiguous == 16

    run(tmp_path, story)


def test_answers_that_arrive_within_the_grace_period_are_kept(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.gate = asyncio.Event()
        task = asyncio.create_task(d.collect(server, d.job(prompts(100))))
        await server.wait_until(lambda: server.in_flight == 16)
        d.stop.set()
        await asyncio.sleep(0)
        server.gate.set()
        (result,) = await task
        assert result.finished == 16 == len(server.requests) and result.ambiguous == 0

    run(tmp_path, story, campaign=a_campaign(collect={"stop_grace_s": 20.0}))


def test_a_cancelled_run_records_what_was_in_flight(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.gate = asyncio.Event()
        task = asyncio.create_task(d.collect(server, d.job(prompts(30))))
        await server.wait_until(lambda: server.in_flight == 16)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(d.answers()) == 16 and d.totals.ambiguous_usd > 0 and d.totals.reserved_usd == 0
        Journal.open(d.folder()).close()  # the lock is free

    run(tmp_path, story)


def test_a_budget_stop_keeps_everything_paid_and_never_passes_the_limit(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        with pytest.raises(
            BudgetStop, match=r"stopped on budget: 0\.0\d+ USD spent.*limit 0\.02 USD in all; \d+ prompts of b3_magicoder"
        ) as e:
            await d.collect(server, d.job(prompts(100)))
        assert e.value.exit_code == 3
        paid = len(d.answers())
        assert d.totals.committed_usd <= 0.02 and d.totals.spent_usd == pytest.approx(paid * COST) == pytest.approx(server.spent)
        assert d.totals.spent_usd > 0.02 - 0.0025 - COST  # it goes on until one more reservation does not fit
        assert [(r.finished, r.missing, r.complete) for r in d.done] == [(paid, 100 - paid, False)]
        d.limit_usd = 10.0
        (result,) = await d.collect(server, d.job(prompts(100)))
        assert result.complete and max(server.asked.values()) == 1

    run(tmp_path, story, limit_usd=0.02)


def test_one_dataset_at_its_cap_does_not_stop_another(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        with pytest.raises(BudgetStop, match=r"limit 0\.01 USD for b3_magicoder; \d+ prompts of b3_magicoder are missing"):
            await d.collect(server, d.job(prompts(40)), d.job(prompts(40, "w", dataset="b8_sweagent"), "00", "b8_sweagent"))
        by_dataset = {r.dataset: r for r in d.done}
        assert by_dataset["b8_sweagent"].complete and 0 < by_dataset["b3_magicoder"].finished < 40
        assert by_dataset["b3_magicoder"].cost_usd <= 0.01

    run(tmp_path, story, campaign=a_campaign(a_dataset(), a_dataset("b8_sweagent")), caps={"b3_magicoder": 0.01})


def test_with_faults_of_every_kind_the_true_spend_stays_below_the_limit(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        lossy = [f for f in TRANSIENT if f != "404"]
        server.scripts = {f"q{n}": [lossy[n % len(lossy)]] for n in range(0, 200, 3)}
        with pytest.raises(BudgetStop):
            await d.collect(server, d.job(prompts(200)))
        assert server.spent <= d.totals.committed_usd <= 0.05

    run(tmp_path, story, limit_usd=0.05)


def test_a_killed_runs_answers_are_settled_from_the_journal(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        with Journal.open(d.folder()) as opened:  # appended, and killed before the ledger heard of it
            body = b'{"choices":[{"finish_reason":"stop","message":{"content":"x"}}],"usage":{"completion_tokens":4,"cost":0.25}}'
            opened.append(an_answer(0, body, cost_usd=0.25))
        (result,) = await d.collect(server, d.job(prompts(1)))
        assert result.finished == 1 and result.completion_tokens == 4 and server.requests == []
        assert d.totals.spent_usd == 0.25

    run(tmp_path, story)


# ---------------------------------------------------------------------------------------------------- chains
def test_a_chain_answers_every_turn_on_the_models_own_answers_and_resumes_in_the_middle(tmp_path: Path) -> None:
    follow_ups = (({"role": "user", "content": "second"},), ({"role": "user", "content": "third"},))

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"third": ["400"] * 9}
        chain = a_prompt("first", 1, follow_ups=follow_ups)
        (result,) = await d.collect(server, d.job([chain]))
        assert (result.selected, result.finished, result.failed, result.complete) == (3, 2, 1, True)
        assert [a.turn for a in d.answers()] == [0, 1, 2]
        second = d.answers()[1].request["messages"]
        assert [m["role"] for m in second] == ["user", "assistant", "user"] and second[1]["reasoning"] == " The user wants."
        assert second[1]["content"].startswith(" Oi ")
        assert (await d.collect(server, d.job([chain])))[0] == result and len(server.requests) == 3

    run(tmp_path, story, campaign=a_campaign(a_dataset(turns="chain")))


def _calling(*pieces: dict[str, Any]) -> bytes:
    chunks = [{"model": MODEL, "provider": "Chutes", "choices": [{"delta": {"tool_calls": [piece]}}]} for piece in pieces]
    chunks.append({"usage": {"cost": COST}, "choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


@pytest.mark.parametrize(
    ("pieces", "finished", "reasons"),
    [
        # NVIDIA Switchyard#785: the name in every chunk, the name in fragments
        ([{"name": "look", "arguments": '{"q"'}, {"name": "look", "arguments": ": 1}"}], 2, {}),
        ([{"name": "lo", "arguments": ""}, {"name": "ok", "arguments": '{"q": 1}'}], 2, {}),
        ([{"name": "lo", "arguments": '{"q": 1}'}], 1, {"undeclared_tool": 1}),
        ([{"name": "look", "arguments": '{"q": 2}'}], 1, {"chain_ended": 1}),
    ],
)
def test_a_chain_goes_on_behind_a_call_in_pieces_and_says_where_it_ends(
    tmp_path: Path, pieces: list[dict[str, Any]], finished: int, reasons: dict[str, int]
) -> None:
    result_of_call = {"role": "tool", "content": "1", "for_call": {"name": "look", "arguments": '{"q": 1}'}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        body = _calling(*({"index": 0, "id": "functions.look:0", "function": piece} for piece in pieces))
        server.raw, server.scripts = {"calls": (200, body, {"Content-Type": "text/event-stream"})}, {"first": ["calls"]}
        chain = dataclasses.replace(a_prompt("first", 1, follow_ups=((result_of_call,),)), tools=tools)
        (result,) = await d.collect(server, d.job([chain]))
        assert (result.finished, result.missing, result.reasons) == (finished, 0, reasons)

    run(tmp_path, story, campaign=a_campaign(a_dataset(turns="chain")))


def test_an_import_of_every_turn_files_one_answer_a_turn_and_a_second_run_files_none(tmp_path: Path) -> None:
    answers = [Given({"role": "assistant", "content": text}, output_ids=(k,)) for k, text in enumerate(("a", "b", "c"))]
    follow_ups = (({"role": "user", "content": "second"},), ({"role": "user", "content": "third"},))

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        trajectories = [
            a_prompt("first", n, follow_ups=follow_ups, given=answers[0], given_next=tuple(answers[1:])) for n in (0, 16)
        ]
        (result,) = await d.collect(server, d.job(trajectories))
        assert (result.selected, result.finished, result.failed, result.complete) == (6, 6, 0, True)
        assert [(int(a.sample_id, 16), a.turn, len(a.request["messages"])) for a in d.answers()] == [
            (n, k, 2 * k + 1) for n in (0, 16) for k in range(3)
        ]
        assert d.answers()[2].request["messages"][1:4:2] == [answers[0].message, answers[1].message]
        assert [json.loads(a.body)["choices"][0]["token_ids"] for a in d.answers()[:3]] == [[0], [1], [2]]
        assert (await d.collect(server, d.job(trajectories)))[0] == result
        assert len(d.answers()) == 6 and server.requests == []

    run(tmp_path, story, campaign=a_campaign(a_dataset(backend="import", turns="every")))


def test_the_default_pace_bounds_an_absurd_retry_after() -> None:
    assert collector.DEFAULT_PACE.retry_after_most <= 300


def test_an_answer_dearer_than_max_price_allows_ends_the_run_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reservation bounds spending only while no server bills more than max_price: the first that does is the last."""
    monkeypatch.setattr("eagle3_assets.collect.run.collector.most_it_can_cost", lambda request, routing: COST / 2)

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        with pytest.raises(BudgetStop, match="more than max_price allows; nothing more is sent"):
            await d.collect(server, d.job(prompts(1)))
        assert len(d.answers()) == 1 and d.totals.spent_usd == pytest.approx(COST)

    run(tmp_path, story, limit_usd=1.0)
