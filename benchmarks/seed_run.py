"""The campaign that this project was made for, in simulated time: six datasets of 7 M output tokens, 2,000 requests in flight.

    python benchmarks/seed_run.py                        # 100 and 220 USD, one after the other, about two minutes
    python benchmarks/seed_run.py --scale 0.2            # slower clock, nearer to the truth of a busy machine

The person who had the idea paid 86 USD and waited 33 minutes. Assumptions: 2,000 prompts a dataset, answers of 3,500 tokens on average
(log-normal, up to 16,384), `max_tokens` 16,384, the three endpoints and prices recorded in April 2026 (0.44/2.00, 0.44/2.20, 0.55/3.25
USD per million), 60 tokens a second each after a second or so, 1 % of requests refused with 429 or 502. The stand-in answers in a
process of its own, `time_scale` real seconds for each simulated one; the collector is the real one (budget, journal, retries, fsync).

A request is only sent when the most it can cost fits into what is left, so money bounds the requests in flight: at 3.25 USD per million
2,000 requests of 16,384 tokens hold 106 USD. With 100 USD the curve bends, with 220 it does not; both are drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.run.collector import Progress, Servers, ShardJob, collect
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets.errors import BudgetStop
from eagle3_assets.prompts.prompt import Prompt

MODEL, ROWS, MEAN_TOKENS, MAX_TOKENS, IN_FLIGHT = "moonshotai/kimi-k2.5", 2_000, 3_500, 16_384, 2_000
DATASETS = ("b3_magicoder", "b4_mixtureofthoughts", "b5_openthoughts", "b6_ultrachat", "b7_sharegpt", "b8_sweagent")
PROFILES = """
[model]
slug = "moonshotai/kimi-k2.5"
dated_slug = "moonshotai/kimi-k2.5-0127"
name = "MoonshotAI: Kimi K2.5 (stand-in)"
created = 1769472000
context_length = 262144

[server]
credit_usd = 1000.0
time_scale = {scale}
idle_exit_s = 0
[server.faults]
rates = {{ 429 = 0.005, 502 = 0.005 }}

[source]
kind = "replay"
tool_share_after_user = 0.0
[source.replay]
answers = 2000
mean_tokens = {mean}
max_tokens = {longest}
tokenizer = "{tokenizer}"

[engine]
model = "none/none"
"""
PROVIDER = """
[[provider]]
name = "{name}"
tag = "{tag}"
quantization = "int4"
price_prompt = {prompt}
price_completion = {completion}
latency = {{ ttft_median_s = 1.2, ttft_sigma = 0.5, tokens_per_s = 60.0 }}
"""
ENDPOINTS = (
    ("Chutes", "chutes/int4", 0.44, 2.00),
    ("Inceptron", "inceptron/int4", 0.44, 2.20),
    ("ModelRun", "modelrun/int4", 0.55, 3.25),
)
BLOCKS = " ▁▂▃▄▅▆▇█"


def campaign() -> Campaign:
    dataset = {
        "backend": "openrouter",
        "source": {"kind": "jsonl", "path": "rows.jsonl"},
        "mapping": {"kind": "prompt"},
        "rows": ROWS,
    }
    raw: dict[str, Any] = {
        "campaign": {"name": "seed", "seed": 1},
        "target": {"model": MODEL, "profile": "kimi-k2.5", "weights": "none", "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840},
        "server": {"kind": "openrouter"},
        "routing": {"max_price_completion": 3.25, "max_price_prompt": 0.55},
        "budget": {"campaign_usd": 1000.0, "pilot_usd": 1.0},
        "collect": {"in_flight": IN_FLIGHT, "attempts": 5, "timeout_s": 900.0, "stop_grace_s": 5.0},
        "sampling": {"max_tokens": MAX_TOKENS},
        "dataset": tuple({"name": name, **dataset} for name in DATASETS),
        "vocab": {"draft_vocab_size": 32_000},
    }  # fmt: skip
    return Campaign.model_validate(raw)


def jobs(made: Campaign, root: Path, rows: int) -> list[ShardJob]:
    out = []
    for number, dataset in enumerate(made.dataset):
        prompts = tuple(
            Prompt(
                sample_id=f"{number:08x}{k:024x}",
                dataset=dataset.name,
                turn=0,
                shard="00",
                rank=k,
                messages=({"role": "user", "content": f"{dataset.name} question {k}: explain it step by step."},),
                tools=None,
                expected_tokens=MEAN_TOKENS,
            )
            for k in range(rows)
        )
        out.append(ShardJob(dataset, "00", prompts, root / "answers" / dataset.name / "00"))
    return out


def drawn(curve: Sequence[tuple[float, int]], width: int = 60) -> str:
    """Requests in flight over the run's time, as blocks."""
    end = curve[-1][0] or 1.0
    cells: list[list[int]] = [[] for _ in range(width)]
    for at, count in curve:
        cells[min(width - 1, int(width * at / end))].append(count)
    values, last = [], 0.0
    for cell in cells:
        last = sum(cell) / len(cell) if cell else last
        values.append(last)
    return "".join(BLOCKS[min(8, round(8 * value / IN_FLIGHT))] for value in values)


async def run(
    base_url: str, key: str, root: Path, limit_usd: float, rows: int
) -> tuple[float, list[tuple[float, int]], Progress, bool]:
    """(real seconds, in flight over time, the last progress, stopped on budget)."""
    import aiohttp

    made = campaign()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base_url}/models/{MODEL}/endpoints", headers={"Authorization": f"Bearer {key}"}) as response:
            snapshot = await response.json()
    curve: list[tuple[float, int]] = []
    seen: list[Progress] = []
    begun = time.monotonic()

    def told(progress: Progress) -> None:
        curve.append((time.monotonic() - begun, progress.in_flight))
        seen[:] = [progress]

    stopped = False
    with Ledger(root / "ledger.sqlite", limit_usd) as ledger:
        try:
            await collect(made, jobs(made, root, rows), servers=Servers(base_url, ApiKey(key)), ledger=ledger,
                          routing=resolve(made, snapshot), stop=asyncio.Event(), on_progress=told)  # fmt: skip
        except BudgetStop:
            stopped = True
    return time.monotonic() - begun, curve, seen[0], stopped


def one(limit_usd: float, scale: float, tokenizer: str, rows: int, port: int) -> None:
    import uvloop

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        text = PROFILES.format(scale=scale, mean=MEAN_TOKENS, longest=MAX_TOKENS, tokenizer=tokenizer)
        text += "".join(PROVIDER.format(name=n, tag=t, prompt=p, completion=c) for n, t, p, c in ENDPOINTS)
        (root / "profiles.toml").write_text(text)
        command = [str(Path(sys.executable).with_name("eagle3")), "standin", "serve", "--port", str(port)]
        command += ["--standin-profiles", str(root / "profiles.toml"), "--folder", str(root / "standin")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                for line in server.stdout:
                    if line.startswith("try "):
                        break
                key = (root / "standin" / "api.key").read_text().strip()
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    real_s, curve, last, stopped = runner.run(run(f"http://127.0.0.1:{port}/api/v1", key, root, limit_usd, rows))
                lines = (root / "standin" / "ledger.jsonl").read_text().splitlines()
                true_usd = sum(json.loads(line).get("cost_pico", 0) for line in lines) / 1e12
            finally:
                server.terminate()
                server.wait(30)
    whole = "stopped on budget, " if stopped else ""
    minutes = real_s / scale / 60
    print(f"{limit_usd:5.0f} USD: {whole}{last.done:,} of {last.total:,} answers in {minutes:.1f} simulated minutes ({real_s:.0f} real s), "
          f"{last.spent_usd:.2f} USD spent by our ledger, {true_usd:.2f} by the server's")  # fmt: skip
    print(f"          in flight over time, full height {IN_FLIGHT:,}: {drawn(curve)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=textwrap.dedent(__doc__ or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--usd", type=float, action="append", help="approvals to run with; default 100 and 220")
    parser.add_argument("--scale", type=float, default=0.1, help="real seconds per simulated second")
    parser.add_argument("--rows", type=int, default=ROWS, help="prompts of each dataset")
    parser.add_argument("--tokenizer", default="kimi-mini", help="kimi-mini, or a folder with Kimi's files")
    parser.add_argument("--port", type=int, default=8398)
    args = parser.parse_args()
    tokenizer = args.tokenizer if args.tokenizer == "kimi-mini" else str(Path(args.tokenizer).resolve())
    print(f"load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; for comparison: 33 minutes, 86 USD")
    for limit_usd in args.usd or (100.0, 220.0):
        one(limit_usd, args.scale, tokenizer, args.rows, args.port)


if __name__ == "__main__":
    main()
