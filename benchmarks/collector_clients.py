"""The clients that `benchmarks/collector.py` compares, each run in a process of its own; one JSON line comes out.

    python benchmarks/collector_clients.py CLIENT --url http://127.0.0.1:PORT/api/v1 --answers N --in-flight C --latency MS[-MS] --folder DIR

Every client gets the same prompts (1 KB, `delay=MS` inside, which the mock server obeys). `base` is the loop to be measured against
(docs/research/perf-baselines.md#2): aiohttp + orjson + uvloop, check the status, parse, rebuild a record, append, fdatasync in
groups by a thread; no retry, no budget, no checksum. `ours` is `collect()` with all of it on. `openai` and `litellm` are what
people write.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL, PROVIDER = "moonshotai/kimi-k2.5", "Chutes"
FILL = "Prove that the sum of the first n odd numbers is n squared, then write a Python function that checks it for a range. " * 7
KEY = "sk-or-v1-" + "4f1c9b2d" * 8  # as long as a real one: it is looked for in every body
SHARDS = 16
GROUP_S = 0.1  # between two fdatasync, in `base` as in `ours`


@dataclass
class Workload:
    """What is asked. `seen` collects (finished at, unix s; latency measured, s; latency asked for, s)."""

    url: str
    answers: int
    in_flight: int
    latency_ms: tuple[int, int]
    folder: Path
    seen: list[tuple[float, float, float]] = field(default_factory=list)
    rss_mb: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(1)
        self.delays = [chance.randint(*self.latency_ms) for _ in range(self.answers)]

    def text(self, number: int) -> str:
        return f"id={number} delay={self.delays[number]} ;; {FILL}"

    def messages(self, number: int) -> list[dict[str, str]]:
        return [{"role": "system", "content": "You are a careful assistant."}, {"role": "user", "content": self.text(number)}]

    def payload(self, number: int) -> dict[str, Any]:
        return {
            "model": MODEL, "messages": self.messages(number), "temperature": 1.0, "top_p": 0.95, "max_tokens": 16_384,
            "usage": {"include": True}, "reasoning": {"enabled": True},
        }  # fmt: skip

    def begin(self) -> None:
        """Everything is loaded: the clock starts."""
        self.began = time.perf_counter(), used_s()

    def saw(self, number: int, took_s: float) -> None:
        self.seen.append((time.time(), took_s, self.delays[number] / 1e3))


def used_s() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_mb(what: str = "VmRSS") -> float:
    """VmRSS (now) or VmHWM (peak) of this process; `ru_maxrss` would count the parent's pages from before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    return 0.0


# ---------------------------------------------------------------------------------------------------- the loop to measure against
class Sink:
    """Group commit: a thread writes and fdatasyncs what has gathered; a record counts after its fdatasync."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._gathered: list[bytes] = []
        self.durable = 0
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def put(self, line: bytes) -> None:
        self._gathered.append(line)

    def _run(self) -> None:
        while not self._ended or self._gathered:
            batch, self._gathered = self._gathered, []
            if batch:
                rest = memoryview(b"".join(batch))
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
                os.fdatasync(self._fd)
                self.durable += len(batch)
            time.sleep(0 if self._ended else GROUP_S)

    def close(self) -> None:
        self._ended = True
        self._thread.join()


async def in_pool(work: Workload, one: Callable[[int], Awaitable[None]]) -> None:
    numbers: Iterator[int] = iter(range(work.answers))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(work.in_flight, work.answers)):
            group.create_task(worker())


async def base(work: Workload) -> int:
    import aiohttp
    import orjson

    sink, spent = Sink(work.folder / "base.jsonl"), 0.0
    work.begin()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connector, timeout = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:

        async def one(number: int) -> None:
            nonlocal spent
            begun = time.perf_counter()
            async with session.post(f"{work.url}/chat/completions", data=orjson.dumps(work.payload(number))) as response:
                assert response.status == 200
                answer = orjson.loads(await response.read())
            choice = answer["choices"][0]
            message = choice["message"]
            assert message["content"] and message["reasoning"]
            spent += answer["usage"]["cost"]
            record = {
                "id": number, "model": answer["model"], "reasoning": message["reasoning"], "content": message["content"],
                "usage": answer["usage"], "finish": choice["finish_reason"],
            }  # fmt: skip
            sink.put(orjson.dumps(record) + b"\n")
            work.saw(number, time.perf_counter() - begun)

        await in_pool(work, one)
    sink.close()
    return sink.durable


# ---------------------------------------------------------------------------------------------------- ours
def a_campaign(in_flight: int) -> Any:
    from eagle3_assets.campaign import Campaign

    return Campaign.model_validate(
        {
            "campaign": {"name": "bench", "seed": 1},
            "target": {"model": MODEL, "profile": "kimi-k2.5", "weights": "none",
                       "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840},
            "server": {"kind": "openrouter"},
            "routing": {"max_price_completion": 3.0, "quantizations": ("int4",)},
            "budget": {"campaign_usd": 1e6, "pilot_usd": 1.0},
            "collect": {"in_flight": in_flight, "timeout_s": 600.0},
            "sampling": {"max_tokens": 16_384},
            "dataset": ({"name": "b3_magicoder", "backend": "openrouter", "rows": 10, "mapping": {"kind": "prompt"},
                         "source": {"kind": "jsonl", "path": "rows.jsonl"}},),
            "vocab": {"draft_vocab_size": 32_000},
        }
    )  # fmt: skip


SNAPSHOT = {"data": {"id": MODEL, "endpoints": [{
    "name": PROVIDER, "provider_name": PROVIDER, "tag": "chutes/int4", "quantization": "int4", "status": 0, "uptime_last_30m": 99.0,
    "context_length": 262_144, "supported_parameters": ["temperature", "top_p", "max_tokens", "reasoning"],
    "pricing": {"prompt": "0.00000044", "completion": "0.000002", "request": "0"}}]}}  # fmt: skip


async def ours(work: Workload) -> int:
    from eagle3_assets.collect.money.ledger import Ledger
    from eagle3_assets.collect.run import collector
    from eagle3_assets.collect.servers.openrouter import ApiKey
    from eagle3_assets.collect.servers.routing import resolve
    from eagle3_assets.prompts.prompt import Prompt
    from eagle3_assets.wire import journal

    campaign = a_campaign(work.in_flight)
    by_shard: list[list[Prompt]] = [[] for _ in range(SHARDS)]
    for n in range(work.answers):
        shard = f"{n % SHARDS:02d}"
        by_shard[n % SHARDS].append(
            Prompt(f"{n:032x}", "b3_magicoder", 0, shard, n, tuple(work.messages(n)), None, expected_tokens=3_500)
        )
    jobs = [
        collector.ShardJob(campaign.dataset[0], f"{k:02d}", tuple(prompts), work.folder / "answers" / f"{k:02d}")
        for k, prompts in enumerate(by_shard)
    ]

    def note(progress: collector.Progress) -> None:
        work.rss_mb.append((progress.done, memory_mb()))

    work.begin()
    with Ledger(work.folder / "ledger.sqlite", 1e6) as ledger:
        results = await collector.collect(
            campaign,
            jobs,
            servers=collector.Servers(work.url, ApiKey(KEY)),
            ledger=ledger,
            routing=resolve(campaign, SNAPSHOT),
            stop=asyncio.Event(),
            on_progress=note,
        )
    work.finish = lambda: _read_back(work, [job.folder for job in jobs], journal.read)  # type: ignore[attr-defined]
    return sum(result.finished for result in results)


def _read_back(work: Workload, folders: list[Path], read: Callable[[Path], Any]) -> None:
    """What `saw` would have been told; from the journals, after the clock has stopped."""
    for folder in folders:
        for answer in read(folder):
            delay_s = work.delays[int(answer.sample_id, 16)] / 1e3
            work.seen.append((answer.finished_at, answer.finished_at - answer.started_at, delay_s))


# ---------------------------------------------------------------------------------------------------- what people write
async def sdk(work: Workload, create: Callable[[int], Awaitable[Any]]) -> int:
    import orjson

    sink = Sink(work.folder / "sdk.jsonl")
    work.begin()

    async def one(number: int) -> None:
        begun = time.perf_counter()
        answer = await create(number)
        message = answer.choices[0].message
        reasoning = getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None)
        assert message.content and reasoning
        record = {"id": number, "reasoning": reasoning, "content": message.content, "usage": answer.usage.model_dump()}
        sink.put(orjson.dumps(record) + b"\n")
        work.saw(number, time.perf_counter() - begun)

    await in_pool(work, one)
    sink.close()
    return sink.durable


async def openai(work: Workload) -> int:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=work.url, api_key=KEY, timeout=600) as client:

        def create(number: int) -> Any:
            messages: Any = work.messages(number)
            return client.chat.completions.create(model=MODEL, messages=messages, temperature=1.0, top_p=0.95, max_tokens=16_384)

        return await sdk(work, create)


async def litellm(work: Workload) -> int:
    import litellm as library

    def create(number: int) -> Any:
        return library.acompletion(
            model=f"openai/{MODEL}", api_base=work.url, api_key=KEY, messages=work.messages(number), max_tokens=16_384
        )

    return await sdk(work, create)


CLIENTS: dict[str, Callable[[Workload], Any]] = {"base": base, "ours": ours, "openai": openai, "litellm": litellm}
WARM = {
    "base": ["aiohttp", "orjson"],
    "ours": ["eagle3_assets.collect.run.collector"],
    "openai": ["openai"],
    "litellm": ["litellm"],
}


# ---------------------------------------------------------------------------------------------------- one run
def occupancy(seen: list[tuple[float, float, float]], in_flight: int) -> dict[str, float]:
    """How full the server was kept. A request of latency d that ended at t was held by it from t - d to t.

    The ramp ends when 98 % of the slots are first held together, the tail begins with the last request; `share` is the mean
    between the two. Zero when the ramp never ended or there is nothing between.
    """
    begun = min(end - delay for end, _, delay in seen)
    changes = sorted([(end - delay, 1) for end, _, delay in seen] + [(end, -1) for end, _, _ in seen])
    last_start = max(at for at, step in changes if step == 1)
    held, before, area, full_at = 0, begun, 0.0, None
    for at, step in changes:
        if full_at is not None and at <= last_start:
            area += held * (at - before)
        held, before = held + step, at
        if full_at is None and held >= 0.98 * in_flight:
            full_at = at
    between = last_start - full_at if full_at is not None else 0.0
    share = area / (in_flight * between) if between > 0 else 0.0
    return {"share": share, "ramp_s": (full_at or last_start) - begun, "between_s": between}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--latency", default="0")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--profile", type=Path)
    a = parser.parse_args()
    low, high = (int(v) for v in (a.latency.split("-") * 2)[:2])
    work = Workload(a.url, a.answers, a.in_flight, (low, high), a.folder)
    for module in WARM[a.client]:
        __import__(module)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    import uvloop

    started_mb = memory_mb()
    # the SDK and litellm run as their users run them
    run = uvloop.run if a.client in ("base", "ours") else asyncio.run
    if a.profile:
        import cProfile

        with cProfile.Profile() as profile:
            done = run(CLIENTS[a.client](work))
        profile.dump_stats(a.profile)
    else:
        done = run(CLIENTS[a.client](work))
    wall_s, cpu_s = time.perf_counter() - work.began[0], used_s() - work.began[1]
    peak_mb = memory_mb("VmHWM")
    getattr(work, "finish", lambda: None)()
    over_ms = sorted(1e3 * (took - delay) for _, took, delay in work.seen)
    print(
        json.dumps(
            {
                "client": a.client, "done": done, "wall_s": wall_s, "per_s": done / wall_s, "cpu_per_k": 1e3 * cpu_s / max(done, 1),
                "peak_mb": peak_mb, "started_mb": started_mb, "rss_mb": work.rss_mb,
                "over_p50_ms": over_ms[len(over_ms) // 2], "over_p99_ms": over_ms[int(len(over_ms) * 0.99)],
                "occupancy": occupancy(work.seen, a.in_flight) if high else None,
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
