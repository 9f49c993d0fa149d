"""Random campaigns against the stand-in: is ever a dollar spent above the approval, is money left lying?

    python benchmarks/budget.py                       # 200 campaigns, about ten minutes of one core
    python benchmarks/budget.py --first 40 --count 20 # seeds 40 to 59

A seed draws budget, prices, lengths, concurrency, one to four processes on one ledger, faults of every kind, a lagging and jumping
/credits and /key, holds, money that others spend, credit that ends too early, and in some a `kill -9` of one process in the middle
(another one takes its place). The stand-in keeps its own books; what it billed is the truth. For every campaign:

1. true spend <= approval, to the picodollar;
2. at every look at the ledger meanwhile, spent + held <= approval;
3. at the end the ledger holds nothing reserved, and at least what was really spent;
4. where work was left and it was our limit that stopped it, at that moment: spent + ambiguous >= min(97 % of the approval, the
   approval - one hold a process). (What a killed process had in flight is held until its successor has found out what it cost: money
   that comes back after the others have stopped waits for the next run. There the fullest ledger that was seen counts.)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.account import read_totals
from eagle3_assets.collect.money.ledger import PICO, Ledger, to_pico
from eagle3_assets.collect.run.collector import Pace, Servers, ShardJob, collect
from eagle3_assets.collect.servers.openrouter import ApiKey, build_request, most_it_can_cost
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets.errors import BudgetStop, Eagle3Error
from eagle3_assets.prompts.prompt import Prompt

MODEL, DATASETS = "eagle3/kimi-mini", ("b3_magicoder", "b8_sweagent")
PACE = Pace(
    backoff_first=0.002, backoff_most=0.02, retry_after_most=0.03, sync=0.05, progress=0.05, look_up=0.01, money_poll=0.02,
    reconcile=0.05,
)  # fmt: skip
# 401 and 403 end a run by right, and the other kinds of 402 speak of the account: they come from the small credit of some campaigns.
FAULTS = (
    "400", "402_in_flight", "404", "408", "413", "422", "429", "429_bare", "429_date", "429_absurd", "429_platform",
    "429_availability", "500", "502", "503", "504", "524", "529", "html_502", "html_524", "reset_before_headers", "reset",
    "reset_mid_body", "hang", "silence", "slow_drip", "gzip", "truncated", "truncated_length", "truncated_wrong_length",
    "error_in_200", "error_choices_null", "error_choices_empty", "error_string_code", "finish_error", "empty_stop",
    "usage_missing", "usage_null", "usage_zero",
)  # fmt: skip
ANSWER_TOKENS = 60  # of kimi-mini, about
LOOK_EVERY_S = 0.01


@dataclass(frozen=True)
class Case:
    """One campaign, drawn from its seed. Prices in USD per million tokens."""

    seed: int
    budget_usd: float
    caps: dict[str, float]
    prices: tuple[tuple[float, float], ...]
    max_tokens: int
    prompts: int
    processes: int
    in_flight: int
    credit_usd: float
    money: dict[str, Any]
    faults: dict[str, float]
    latency_s: float
    kill_after: int | None


def draw(seed: int) -> Case:
    """The campaign of a seed."""
    chance = random.Random(f"budget {seed}")
    prices = tuple((round(chance.uniform(0.2, 1.0), 2), round(chance.uniform(1.0, 4.0), 2)) for _ in range(chance.randint(1, 3)))
    max_tokens = chance.choice((80, 80, 200, 200, 800))
    afforded = chance.choice((4, 30, 90, 200))
    budget_usd = round(afforded * (50 * prices[0][0] + ANSWER_TOKENS * prices[0][1]) / 1e6 * chance.uniform(0.8, 1.3), 9)
    processes = chance.randint(1, 4)
    names = chance.sample(FAULTS, chance.randint(0, 8))
    money: dict[str, Any] = {
        "credits_stale_s": chance.choice((0.0, 30.0, 300.0)), "credits_nodes": chance.randint(1, 3),
        "credits_need_management_key": chance.random() < 0.5, "key_stale_s": chance.choice((0.0, 60.0)),
    }  # fmt: skip
    if chance.random() < 0.3:
        money |= {"in_flight_share": chance.choice((0.05, 0.3)), "in_flight_retry_after_s": chance.randint(0, 1)}
    if chance.random() < 0.3:
        money |= {"foreign_usd_per_s": budget_usd / 100, "foreign_on_this_key": chance.random() < 0.5}
    return Case(
        seed=seed,
        budget_usd=budget_usd,
        caps={DATASETS[0]: round(budget_usd * chance.uniform(0.2, 0.8), 9)} if chance.random() < 0.3 else {},
        prices=prices,
        max_tokens=max_tokens,
        prompts=max(8, round(afforded * chance.choice((0.5, 1.5, 2.0, 3.0)) / processes)),
        processes=processes,
        in_flight=chance.choice((1, 4, 16, 64)),
        credit_usd=1000.0 if chance.random() < 0.85 else budget_usd * chance.uniform(0.3, 1.5),
        money=money,
        faults={name: round(chance.uniform(0.005, 0.06), 3) for name in names},
        latency_s=chance.choice((0.01, 1.0)),
        kill_after=chance.randint(2, 2 * afforded) if chance.random() < 0.3 else None,
    )


def profiles_of(case: Case) -> str:
    """The stand-in's profiles file. One simulated second is 5 ms."""

    def table(values: dict[str, Any]) -> str:
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())

    head = f"""
[model]
slug = "{MODEL}"
dated_slug = "{MODEL}-0101"
name = "Budget"
created = 1767225600
context_length = 131072
[server]
credit_usd = {case.credit_usd:.12f}
time_scale = 0.005
idle_exit_s = 0
retry_after_s = 0
hang_s = 20.0
generation_delay_s = 2.0
[server.money]
{table(case.money)}
[server.faults]
rates = {{ {", ".join(f'"{name}" = {rate}' for name, rate in case.faults.items())} }}
[source]
kind = "bank"
[engine]
model = "{MODEL}"
"""
    return head + "".join(
        f"""
[[provider]]
name = "P{k}"
tag = "p{k}"
quantization = "int4"
price_prompt = {prompt}
price_completion = {completion}
latency = {{ ttft_median_s = {case.latency_s}, ttft_sigma = 0.5, tokens_per_s = 100.0 }}
"""
        for k, (prompt, completion) in enumerate(case.prices)
    )


def campaign_of(case: Case) -> Campaign:
    """The campaign file that such a user would write."""
    datasets = tuple(
        {"name": name, "backend": "openrouter", "source": {"kind": "jsonl", "path": "rows.jsonl"}, "mapping": {"kind": "prompt"},
         "rows": 10}
        for name in DATASETS
    )  # fmt: skip
    return Campaign.model_validate(
        {
            "campaign": {"name": "budget", "seed": case.seed},
            "target": {"model": MODEL, "profile": "kimi-mini", "weights": "none", "num_hidden_layers": 8, "hidden_size": 64,
                       "vocab_size": 100},
            "server": {"kind": "openrouter"},
            "routing": {"max_price_prompt": 1.0, "max_price_completion": 4.0},
            "budget": {"campaign_usd": case.budget_usd, "pilot_usd": 0.0},
            "collect": {"in_flight": case.in_flight, "attempts": 3, "timeout_s": 0.5, "stop_grace_s": 0.05},
            "sampling": {"max_tokens": case.max_tokens},
            "dataset": datasets,
            "vocab": {"draft_vocab_size": 10},
        }
    )  # fmt: skip


def prompts_of(case: Case, process: int, dataset: str) -> tuple[Prompt, ...]:
    chance = random.Random(f"prompts {case.seed} {process} {dataset}")
    return tuple(
        Prompt(
            sample_id=f"{DATASETS.index(dataset)}{process}{n:030x}", dataset=dataset, turn=0, shard=f"{process:02d}", rank=n,
            messages=({"role": "user", "content": f"{n} " + "word " * chance.randint(1, 40)},), tools=None,
            expected_tokens=chance.randint(10, 100),
        )
        for n in range(case.prompts)
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- one process that spends
def spend(case_json: str, process: int, root: str, base_url: str, key: str, snapshot: dict[str, Any]) -> None:
    """The body of a worker process: collect its own shard of both datasets; says how it ended in a file."""
    logging.disable()  # money of others is told in the outcome
    case = Case(**json.loads(case_json))
    end = asyncio.run(_spend(case, process, Path(root), base_url, key, snapshot))
    Path(root, f"end-{process}.json").write_text(json.dumps(end))


async def _spend(case: Case, process: int, root: Path, base_url: str, key: str, snapshot: dict[str, Any]) -> dict[str, Any]:
    campaign = campaign_of(case)
    routing = resolve(campaign, snapshot)
    jobs = [
        ShardJob(d, f"{process:02d}", prompts_of(case, process, d.name), root / "answers" / d.name / f"{process:02d}")
        for d in campaign.dataset
    ]
    holds = [most_it_can_cost(build_request(campaign, j.dataset, p, routing), routing) for j in jobs for p in j.prompts]
    end: dict[str, Any] = {"hold_usd": max(holds), "stopped": "", "missing": 0}
    try:
        with Ledger(root / "ledger.sqlite", case.budget_usd, caps=case.caps) as ledger:
            try:
                results = await collect(
                    campaign, jobs, servers=Servers(base_url, ApiKey(key)), ledger=ledger, routing=routing, stop=asyncio.Event(),
                    pace=PACE,
                )  # fmt: skip
                end["missing"] = sum(r.missing for r in results)
            finally:
                end["used_usd"] = ledger.totals().total.committed_usd
    except BudgetStop as error:
        end["stopped"] = str(error)
    except Eagle3Error as error:
        end["error"] = str(error)
    return end


# ---------------------------------------------------------------------------------------------------- one campaign
@dataclass
class Outcome:
    """What a campaign came to, in USD. `problems` is empty when every claim held."""

    seed: int
    budget: float
    true_spend: float
    spent: float
    ambiguous: float
    most_committed: float
    foreign: float
    answers: int
    ends: list[dict[str, Any]]
    seconds: float
    problems: list[str]


@contextlib.asynccontextmanager
async def serving(case: Case, folder: Path) -> AsyncIterator[tuple[Any, str]]:
    """The stand-in in this process, as OpenRouter would be elsewhere: (its state, base URL)."""
    from openrouter_standin.profiles import load_profiles
    from openrouter_standin.service.process import build

    file = folder / "profiles.toml"
    file.write_text(profiles_of(case))
    standin = build(folder / "standin", load_profiles(file), seed=case.seed)
    runner = web.AppRunner(standin.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    try:
        yield standin, f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1"
    finally:
        await standin.break_off()
        await runner.cleanup()
        standin.ledger.close()


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eagle3_assets.collect.run.collector", "aiohttp", "eagle3_assets.collect.servers.routing"])
    return context


async def play(case: Case, folder: Path) -> Outcome:
    """Run one campaign in `folder` (empty) and judge it."""
    begun, path = time.monotonic(), folder / "ledger.sqlite"
    async with serving(case, folder) as (standin, base_url):
        async with aiohttp.ClientSession() as session, session.get(
            f"{base_url}/models/{MODEL}/endpoints", headers={"Authorization": f"Bearer {standin.api_key}"}
        ) as response:  # fmt: skip
            snapshot = await response.json()
        context = _context()

        def start(process: int) -> BaseProcess:
            worker = context.Process(
                target=spend, args=(json.dumps(asdict(case)), process, str(folder), base_url, standin.api_key, snapshot)
            )
            worker.start()
            return worker  # type: ignore[no-any-return]

        workers, most, is_killed = [start(k) for k in range(case.processes)], 0.0, False
        while any(w.is_alive() for w in workers):
            await asyncio.sleep(LOOK_EVERY_S)
            if case.kill_after is not None and not is_killed and len(standin.ledger.generations) >= case.kill_after:
                is_killed = True
                workers[0].kill()
                await asyncio.to_thread(workers[0].join)
                workers[0] = start(0)
            if path.exists():
                with contextlib.suppress(Eagle3Error):  # its tables are being made
                    most = max(most, read_totals(path).total.committed_usd)
        await asyncio.sleep(0.05)  # what a fault left behind is billed, refunds come
        true_pico, foreign = standin.ledger.spent_pico, standin.ledger.foreign_pico / PICO
        answers = len(standin.ledger.generations)
    ends = [json.loads(end.read_text()) for end in (folder / f"end-{k}.json" for k in range(case.processes)) if end.exists()]
    with Ledger(path, case.budget_usd) as ledger:
        total = ledger.totals().total
    outcome = Outcome(case.seed, case.budget_usd, true_pico / PICO, total.spent_usd, total.ambiguous_usd, most, foreign, answers, ends,
                      time.monotonic() - begun, [])  # fmt: skip
    outcome.problems = _problems(case, outcome, true_pico, total.reserved_usd)
    return outcome


def _problems(case: Case, o: Outcome, true_pico: int, reserved_usd: float) -> list[str]:
    held, small = o.spent + o.ambiguous, 1e-11
    problems = []
    if true_pico > to_pico(case.budget_usd):
        problems.append(f"{true_pico / PICO:.9f} USD were really spent, {case.budget_usd:.9f} approved")
    if max(o.most_committed, held) > case.budget_usd + small:
        problems.append(f"the ledger held {max(o.most_committed, held):.9f} USD, {case.budget_usd:.9f} approved")
    if o.true_spend > held + small:
        problems.append(f"{o.true_spend:.9f} USD were really spent, the ledger knows {held:.9f}")
    if reserved_usd:
        problems.append(f"{reserved_usd:.9f} USD stayed reserved")
    if len(o.ends) != case.processes or any("error" in end for end in o.ends):
        problems.append(f"a process ended otherwise: {o.ends}")
    # A dataset at its own cap may leave money by right, and so may an account without credit.
    ours = [end["used_usd"] for end in o.ends if "USD in all" in end["stopped"]]
    bound = min(0.97 * case.budget_usd, case.budget_usd - sum(end["hold_usd"] for end in o.ends))
    used = min(ours, default=bound) if case.kill_after is None else max(*ours, o.most_committed, bound if not ours else 0.0)
    if used < bound - small:
        problems.append(f"stopped with {used:.9f} USD used, expected at least {bound:.9f}")
    return problems


def play_seed(seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(play(draw(seed), Path(folder)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    outcomes = []
    for seed in range(arguments.first, arguments.first + arguments.count):
        o = play_seed(seed)
        outcomes.append(o)
        ours = sum("USD in all" in end["stopped"] for end in o.ends)
        print(
            f"{seed:4d}  {len(o.ends)} processes, {o.answers:4d} answers billed: {o.true_spend:.6f} of {o.budget:.6f} USD, ledger "
            f"{o.spent:.6f} + {o.ambiguous:.6f} held, others {o.foreign:.6f}, {ours} stopped on budget, {o.seconds:.1f} s"
            + "".join(f"\n      PROBLEM {problem}" for problem in o.problems),
            flush=True,
        )
    bad = [o.seed for o in outcomes if o.problems]
    full = [(o.spent + o.ambiguous) / o.budget for o in outcomes if any("USD in all" in end["stopped"] for end in o.ends)]
    most = max((o.true_spend / o.budget for o in outcomes), default=0)
    print(
        f"{len(outcomes)} campaigns, {len(full)} of them stopped on budget having used {100 * sum(full) / max(1, len(full)):.2f} % "
        f"of it; most really spent: {most:.4f} of an approval; problems: {bad or 'none'}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
