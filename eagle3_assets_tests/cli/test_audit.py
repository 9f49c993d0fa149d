"""Claims about `eagle3 audit`: it counts what has ids, and asks for more under the approval, never twice, on the one ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.cli import audit
from eagle3_assets.cli.main import run
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.recount import recount
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets.store import Store
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire import journal
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.collect.samples import a_campaign, a_dataset, a_prompt
from eagle3_assets_tests.exact.synthetic import Provider, Truth
from eagle3_assets_tests.standin.conftest import KEY, SLUG, MakeStandin, connected, settings
from eagle3_assets_tests.standin.conftest import answers as answers
from eagle3_assets_tests.standin.conftest import make_standin as make_standin
from eagle3_assets_tests.standin.conftest import vocabulary as vocabulary
from openrouter_standin.profiles import Profiles
from openrouter_standin.vocabulary import Vocabulary


@pytest.fixture
def mini() -> Profile:
    return load_profile("kimi-mini")


def written(folder: Path, records: Iterable[WireAnswer]) -> None:
    folder.mkdir(parents=True)
    with Journal.open(folder) as made:
        for record in records:
            made.append(record)


def engine_answers(mini: Profile, n: int, **changes: Any) -> list[WireAnswer]:
    provider = Provider(mini, name="vllm")
    for k in range(n):
        provider.answer(Truth(content=f"Answer {k}."), with_ids=True, source="engine", dataset="b1_glaive", **changes)
    return provider.answers


# ---------------------------------------------------------------------------------------------------- what is there
def test_answers_with_ids_are_counted_and_written_down(
    mini: Profile, campaign: Campaign, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    written(store.answers("b1_glaive", "00"), engine_answers(mini, 32))
    written(store.answers("b3_magicoder", "00"), [Provider(mini).answer(Truth())])  # text alone says nothing
    assert run(["audit"]) == 0
    out = capsys.readouterr().out
    assert "b1_glaive" in out and "b3_magicoder" not in out and "C1: 32 of 32 exact" in out
    from eagle3_assets.exact.second_opinion.audit import read

    found = read(store.audit)
    assert found is not None and found.pooled.rows == 32
    rates = found.rates("vllm", "b1_glaive", False)
    assert rates is not None and (rates.q.events, rates.q.n) == (0, 32)
    assert run(["audit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["truth"] == {"server_ids": 32, "logprob_bytes": 0, "unknown": 0}


def test_a_campaign_without_any_ids_is_told_how_to_get_some(
    mini: Profile, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    written(store.answers("b3_magicoder", "00"), [Provider(mini).answer(Truth())])
    assert run(["audit"]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "eagle3 audit --buy" in line and not (store.audit).exists()


def test_nothing_is_bought_before_an_approval_or_an_endpoints_snapshot(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--buy", "3"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not store.ledger.exists()


# ---------------------------------------------------------------------------------------------------- asking again
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CAMPAIGN = a_campaign(
    a_dataset(),
    target={"model": SLUG, "profile": "kimi-mini", "thinking": True, "vocab_size": 2304},
    routing={"quantizations": ("int4", "fp8", "bf16")},
)
PROMPTS = {
    "b3_magicoder": [
        *(a_prompt(f"question {n}", n, reserve=n >= 6) for n in range(9)),
        *(a_prompt(f"tool {n}", 100 + n, tools=(TOOL,)) for n in range(6)),
    ]
}


def habits() -> Profiles:
    """One of the three servers gives log-probabilities."""
    profiles = settings()
    verbatim, *others = profiles.provider
    source = profiles.source.model_copy(update={"synthetic_logprobs": True})
    return profiles.model_copy(update={"provider": (verbatim.model_copy(update={"logprobs": True}), *others), "source": source})


def test_the_sample_is_drawn_by_stratum_and_bought_once_under_a_scope_of_its_own(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    store, standin = Store.of(CAMPAIGN), make_standin(habits(), folder=tmp_path / "server")
    folder = store.answers(audit.SCOPE, "00")

    async def story() -> list[int]:
        async with connected(standin) as client:
            _, snapshot = await client.get(f"/api/v1/models/{SLUG}/endpoints")
            routing = resolve(CAMPAIGN, snapshot)
            endpoints = audit.telling_endpoints(routing, {})
            assert [e.tag for e in endpoints] == ["verbatim/int4"]
            assert audit.telling_endpoints(routing, {"probes": {"verbatim/int4": {"logprobs": {"given": False}}}}) == []
            bought = []
            for count in (2, 2, 3):
                jobs = audit.audit_jobs(CAMPAIGN, store, routing, endpoints, PROMPTS, count)
                with Ledger(store.ledger, 1.0) as ledger:
                    results = await audit.ask_again(
                        CAMPAIGN, jobs, Servers(f"{client.origin}/api/v1", ApiKey(KEY)), ledger, routing
                    )
                    spent = ledger.totals().scopes[audit.SCOPE].spent_usd
                assert [r.finished for r in results] == [2 * count] and spent == pytest.approx(results[0].cost_usd)
                bought.append(len(list(journal.read(folder))))
            return bought

    store.root.mkdir(parents=True)
    assert asyncio.run(asyncio.wait_for(story(), 60)) == [4, 4, 6], "the same command asks for nothing twice"
    records = list(journal.read(folder))
    assert {(bool(r.request.get("tools")), r.request["logprobs"]) for r in records} == {(False, True), (True, True)}
    ids = {prompt.sample_id for prompt in PROMPTS["b3_magicoder"]}
    assert not ids & {r.sample_id for r in records}, "no answer of the audit is taken for one of the dataset"
    summary = audit.audit_answers(CAMPAIGN, store)
    assert summary["truth"] == {"server_ids": 0, "logprob_bytes": 6, "unknown": 0}
    assert [(s["provider"], s["dataset"], s["tools"], s["rows"]) for s in summary["strata"]] == [
        ("Verbatim", "b3_magicoder", False, 3),
        ("Verbatim", "b3_magicoder", True, 3),
    ]
    # a lost ledger is counted again from the audit's journal, too
    store.ledger.unlink()
    with Ledger(store.ledger, 1.0) as ledger:
        recount(ledger, pilot=store.pilot_dir, pilot_figures=store.pilot, answers=store.root / "answers")
        assert ledger.totals().scopes[audit.SCOPE].spent_usd == pytest.approx(sum(r.cost_usd or 0 for r in records))


def test_reserve_prompts_are_not_asked_and_tools_only_where_they_are_taken(tmp_path: Path) -> None:
    from eagle3_assets.collect.servers.endpoint import read_endpoint
    from eagle3_assets_tests.collect.samples import an_endpoint

    names = ["temperature", "top_p", "max_tokens", "reasoning", "logprobs"]
    plain, tools = (
        read_endpoint(an_endpoint("C", tag, supported_parameters=[*names, *more]))[0]
        for tag, more in (("a", []), ("b", ["tools"]))
    )
    snapshot = {"data": {"endpoints": [an_endpoint("C", "b", supported_parameters=[*names, "tools"])]}}
    routing = resolve(CAMPAIGN, snapshot)
    jobs = audit.audit_jobs(CAMPAIGN, Store(tmp_path), routing, [plain, tools], PROMPTS, 50)
    assert [sum(bool(p.tools) for p in job.prompts) for job in jobs] == [0, 6] and [len(job.prompts) for job in jobs] == [6, 12]
    assert not {p.sample_id for p in jobs[0].prompts} & {p.sample_id for p in jobs[1].prompts}
    assert all(not p.reserve for job in jobs for p in job.prompts)
