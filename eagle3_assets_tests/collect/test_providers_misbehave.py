"""Claims about a campaign among bad providers: an error that names a provider is about that provider, and `/key` has the last word on
the key. The bodies are those of public reports (docs/research/real-campaign.md#5: ai-sdk-provider#24, OmniRoute#3044,
Roo-Code#6459)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.collect.run.collector import Pace
from eagle3_assets.collect.run.filing import PROVIDERS
from eagle3_assets.errors import BudgetStop, WireError
from eagle3_assets_tests.collect.fake_openrouter import _NAMED, _PAGES, COST, FakeOpenRouter
from eagle3_assets_tests.collect.run.test_collector import Desk, prompts, run
from eagle3_assets_tests.collect.samples import a_campaign, a_snapshot, an_endpoint

TWO = a_snapshot(an_endpoint(), an_endpoint("Novita", "novita/int4"))


@pytest.mark.parametrize("fault", sorted(_NAMED))
def test_a_row_that_one_provider_refuses_is_answered_by_another(tmp_path: Path, fault: str) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.snapshot, server.scripts = TWO, {"q0": [f"{fault}@Novita"]}
        server.key_says = [(401, b'{"error":{"code":401}}', "application/json")] * 99  # who doubted the key would stop
        (result,) = await d.collect(server, d.job(prompts(3)))
        assert result.finished == 3 and result.complete and server.asked["q0"] == 2
        again = [r for r in server.requests if r["messages"][-1]["content"] == "q0"][1]
        assert again["provider"]["only"] == ["chutes/int4"]
        assert all(a.outcome == "finished" for a in d.answers()), "a refusal that cost nothing leaves no record"
        assert d.totals.spent_usd == pytest.approx(server.spent)

    run(tmp_path, story)


@pytest.mark.parametrize("fault", ["named_400", "named_400_in_200"])
def test_a_row_that_every_provider_refuses_is_given_up_once_for_all(tmp_path: Path, fault: str) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.snapshot, server.scripts = TWO, {"q0": [f"{fault}@Novita", f"{fault}@Chutes"]}
        (result,) = await d.collect(server, d.job(prompts(3)))
        assert (result.finished, result.failed, result.complete) == (2, 1, True) and result.reasons == {"bad_request": 1}
        await d.collect(server, d.job(prompts(3)))
        assert server.asked["q0"] == 2

    run(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["named_401", "named_402_in_200", "named_403"])
def test_the_only_provider_there_is_is_waited_for(tmp_path: Path, fault: str) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {f"q{n}": [f"{fault}@Chutes"] for n in range(12)}
        (result,) = await d.collect(server, d.job(prompts(40)))
        assert result.complete and result.finished == 40
        lines = [json.loads(line) for line in (d.folder().parent / PROVIDERS).read_bytes().splitlines()]
        assert lines[0]["after"] == "open" and lines[-1]["after"] == "closed"
        assert all(line["provider"] == "Chutes" and line["why"] for line in lines)

    run(tmp_path, story, pace=_patient())


@pytest.mark.slow
def test_when_no_provider_comes_back_the_run_ends_and_says_why_each_is_left_out(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.default = "named_401@Chutes"
        with pytest.raises(WireError, match=r"no eligible provider takes requests .*Chutes \(provider_refused: Chutes: Provider"):
            await d.collect(server, d.job(prompts(40)))
        assert d.totals.committed_usd == 0 and d.answers() == []
        server.default = "ok"
        (result,) = await d.collect(server, d.job(prompts(40)))
        assert result.complete

    run(tmp_path, story)


@pytest.mark.parametrize("fault", ["401", "402_bare", "403", *sorted(set(_PAGES) - {"page_520"})])
def test_a_refusal_that_key_contradicts_stops_nothing(tmp_path: Path, fault: str) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {f"q{n}": [fault] for n in range(0, 60, 6)}
        (result,) = await d.collect(server, d.job(prompts(60)))
        assert result.complete and result.finished == 60 and server.looks["key"] >= 1
        assert d.totals.spent_usd == pytest.approx(60 * COST) and len(d.answers()) == 60

    run(tmp_path, story)


def test_a_page_of_an_edge_server_at_key_is_no_word_about_the_key(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["page_403"]}
        server.key_says = [(403, b"<html>Just a moment...</html>", "text/html")] * 5 + [(503, b"", "text/plain")]
        (result,) = await d.collect(server, d.job(prompts(10)))
        assert result.complete

    run(tmp_path, story)


def test_one_refusal_at_key_is_asked_again(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["401"]}
        server.key_says = [(401, b'{"error":{"code":401,"message":"No auth credentials found"}}', "application/json")]
        (result,) = await d.collect(server, d.job(prompts(10)))
        assert result.complete

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("403", WireError, "HTTP 403.*forbidden region"),
        ("402_bare", BudgetStop, "refuses further spending .Insufficient balance"),
        ("line_1010", WireError, "HTTP 403.*error code: 1010"),
    ],
)
def test_a_run_that_is_never_answered_ends_although_key_says_yes(
    tmp_path: Path, fault: str, error: type[Exception], words: str
) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.default, server.key_follows = fault, False
        with pytest.raises(error, match=words):
            await d.collect(server, d.job(prompts(40)))
        assert d.totals.committed_usd == 0

    run(tmp_path, story)


def test_a_key_without_money_left_is_a_budget_stop(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.default = "402_bare"
        server.key_says = [(200, b'{"data":{"limit":10,"limit_remaining":0,"usage":10}}', "application/json")] * 20
        with pytest.raises(BudgetStop, match=r"/key says that 0\.0000 USD are left"):
            await d.collect(server, d.job(prompts(40)))

    run(tmp_path, story)


def test_requests_say_who_asks(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        await d.collect(server, d.job(prompts(1)))
        (headers,) = server.headers
        assert headers["User-Agent"].startswith("eagle3-assets/") and headers["HTTP-Referer"] == "https://example.org/drafters"
        assert headers["X-OpenRouter-Title"] == "Drafters of ours"

    ours: dict[str, Any] = {"title": "Drafters of ours", "url": "https://example.org/drafters"}
    run(tmp_path, story, campaign=a_campaign(campaign=ours))


def _patient() -> Pace:
    from dataclasses import replace

    from eagle3_assets_tests.collect.samples import QUICK

    return replace(QUICK, outage_most=20.0)
