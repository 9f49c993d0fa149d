"""Answers a second of one stand-in process, and how many sockets it holds at once; load by `wrk`, a tool that nobody here wrote.

    python benchmarks/standin.py                        # kimi-mini's tokenizer
    python benchmarks/standin.py --tokenizer DIR        # Kimi's real files
    python benchmarks/standin.py --seconds 20 --connections 2000 --connections 10000

1. Throughput: a replay bank of 3,500-token answers, no waiting (`time_scale = 0`), whole bodies. The server has one core, `wrk` the
   others. Beside it, in the same run, the same load on a bare aiohttp handler that returns a constant body of the same size: the ratio
   says what the stand-in's own work (routing, bending, bill, truth and ledger on disk) costs.
2. Sockets: N connections, each with one request in flight all the time; answers take simulated seconds. The server's own
   `most_in_flight` says how many were really there at once.

3. Simulated time: the same campaign (N answers, M in flight) at two time scales, each against an event simulation of the same
   durations in the same order. Both should take as many simulated seconds as the simulation says; the slower the clock, the nearer.

Needs `wrk` (Debian: apt-get install wrk). Figures of a busy machine mean little: the load is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ANSWERS, MEAN_TOKENS = 500, 3_500
PROFILES = """
[model]
slug = "eagle3/bench"
dated_slug = "eagle3/bench-0101"
name = "Benchmark"
created = 1767225600
context_length = 262144

[server]
credit_usd = 1e6
time_scale = {scale}
idle_exit_s = 0

[source]
kind = "replay"
tool_share_after_user = 0.0

[source.replay]
answers = {answers}
tokenizer = "{tokenizer}"
mean_tokens = {mean}
sigma = {sigma}
instant = 0.0
tool_answers = 0.0

[engine]
model = "eagle3/bench"

[[provider]]
name = "Reference"
tag = "reference"
price_prompt = 0.44
price_completion = 2.00
latency = {{ ttft_median_s = 1.0, ttft_sigma = 0.5, tokens_per_s = 60.0 }}

[[provider]]
name = "Injector"
tag = "injector"
price_prompt = 0.44
price_completion = 2.00
latency = {{ ttft_median_s = 1.0, ttft_sigma = 0.5, tokens_per_s = 60.0 }}
text = {{ inject_reasoning_leading = true, inject_content_leading = true }}
"""
# every request is another one: the answers, and what is written down, differ
LUA = """
math.randomseed(os.time())
local n = math.random(1000000000)
function request()
  n = n + 1
  local body = string.format('{"model":"eagle3/bench","max_tokens":65536,"messages":[{"role":"user","content":"Question %d"}]}', n)
  return wrk.format("POST", nil, {["Authorization"] = "Bearer KEY", ["Content-Type"] = "application/json"}, body)
end
"""
BARE = """
import asyncio, sys
from aiohttp import web
import uvloop
body = b"x" * int(sys.argv[1])
async def handle(request):
    await request.read()
    return web.Response(body=body, content_type="application/json")
async def main():
    app = web.Application()
    app.router.add_post("/api/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(sys.argv[2]))
    await site.start()
    print("ready", flush=True)
    await asyncio.Event().wait()
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)] if shutil.which("taskset") and (os.cpu_count() or 1) > 1 else []


@contextlib.contextmanager
def serving(
    folder: Path, port: int, *, scale: float, tokenizer: str, sigma: float, mean: int
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The stand-in in a process of its own, on core 0; its key."""
    profiles = folder / "profiles.toml"
    profiles.write_text(PROFILES.format(scale=scale, answers=ANSWERS, tokenizer=tokenizer, sigma=sigma, mean=mean))
    command = [str(Path(sys.executable).with_name("eagle3")), "standin", "serve", "--port", str(port)]
    command += ["--standin-profiles", str(profiles), "--folder", str(folder / "state")]
    with subprocess.Popen([*pinned(0), *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            lines: list[str] = []
            while not any(line.startswith("try ") for line in lines):
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line:
                    raise SystemExit("the stand-in ended at its start: " + " ".join(lines))
                lines.append(line)
            yield process, (folder / "state" / "api.key").read_text().strip()
        finally:
            process.terminate()
            process.wait(30)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def load(port: int, key: str, folder: Path, *, connections: int, seconds: int) -> tuple[float, float, str]:
    """(answers a second, bytes an answer, wrk's words about errors)."""
    script = folder / "load.lua"
    script.write_text(LUA.replace("KEY", key))
    command = [*pinned(1), "wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "120s", "-s", str(script)]
    out = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/api/v1/chat/completions"], capture_output=True, text=True, check=True
    )
    found = re.search(r"(\d+) requests in ([\d.]+)(m?)s, ([\d.]+)([KMG]?B) read", out.stdout)
    if not found:
        raise SystemExit(out.stdout + out.stderr)
    requests, took_s = int(found[1]), float(found[2])
    read = float(found[4]) * {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}[found[5]]
    rate = re.search(r"Requests/sec:\s+([\d.]+)", out.stdout)
    errors = " ".join(line.strip() for line in out.stdout.splitlines() if "errors" in line or "Non-2xx" in line)
    return float(rate[1]) if rate else requests / took_s, read / max(requests, 1), errors or "none"


def health(port: int) -> dict[str, int]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/health", timeout=60) as response:
        return dict(json.loads(response.read()))


def throughput(port: int, tokenizer: str, seconds: int) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), port, scale=0.0, tokenizer=tokenizer, sigma=0.0, mean=MEAN_TOKENS) as (process, key),
    ):
        load(port, key, Path(name), connections=64, seconds=3)  # warm
        before = cpu_s(process.pid)
        rate, size, errors = load(port, key, Path(name), connections=64, seconds=seconds)
        busy = cpu_s(process.pid) - before
        print(f"stand-in     {rate:8.0f} answers/s   {size:7.0f} bytes each   {1000 * busy / (rate * seconds):5.2f} CPU s per 1,000   "
              f"peak {peak_mb(process.pid):4.0f} MB   errors: {errors}")  # fmt: skip
    with subprocess.Popen(
        [*pinned(0), sys.executable, "-c", BARE, str(round(size)), str(port)], stdout=subprocess.PIPE, text=True
    ) as bare:
        assert bare.stdout is not None
        bare.stdout.readline()
        with tempfile.TemporaryDirectory() as name:
            base, _, _ = load(port, "none", Path(name), connections=64, seconds=seconds)
        bare.terminate()
    print(f"bare aiohttp {base:8.0f} answers/s   {size:7.0f} bytes each   (a constant body, nothing decided or written)")
    print(f"ratio        {rate / base:8.2f}")


def sockets(port: int, tokenizer: str, connections: int, seconds: int) -> None:
    """Latencies of some 60 simulated seconds are scaled so that each request is in flight for a few real ones."""
    scale = max(0.05, connections / 10_000)
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), port, scale=scale, tokenizer=tokenizer, sigma=0.8, mean=MEAN_TOKENS) as (process, key),
    ):
        begun = time.monotonic()
        rate, _, errors = load(port, key, Path(name), connections=connections, seconds=seconds)
        seen = health(port)
        print(f"{connections:6d} sockets: {seen['most_in_flight']} requests in flight at once, {rate:.0f} answers/s, {seen['answers']} answers in "
              f"{time.monotonic() - begun:.0f} s, peak {peak_mb(process.pid):.0f} MB, errors: {errors}")  # fmt: skip


async def campaign(port: int, key: str, answers: int, in_flight: int) -> float:
    """Real seconds for `answers` requests, never more than `in_flight` at once."""
    import aiohttp

    todo, url = iter(range(answers)), f"http://127.0.0.1:{port}/api/v1/chat/completions"

    async def worker(session: aiohttp.ClientSession) -> None:
        for k in todo:
            body = {"model": "eagle3/bench", "max_tokens": 65_536, "messages": [{"role": "user", "content": f"Question {k}"}]}
            async with session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as response:
                await response.read()

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        begun = time.monotonic()
        await asyncio.gather(*(worker(session) for _ in range(in_flight)))
        return time.monotonic() - begun


def ideal_s(durations: list[float], in_flight: int) -> float:
    """Simulated seconds of the same work without any overhead."""
    free = [0.0] * in_flight
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def simulated_time(port: int, tokenizer: str, answers: int, in_flight: int) -> None:
    for scale in (0.1, 0.03):
        with (
            tempfile.TemporaryDirectory() as name,
            serving(Path(name), port, scale=scale, tokenizer=tokenizer, sigma=0.8, mean=MEAN_TOKENS) as (_, key),
        ):
            real_s = asyncio.run(campaign(port, key, answers, in_flight))
            ledger = [json.loads(line) for line in (Path(name) / "state" / "ledger.jsonl").read_text().splitlines()]
        ideal = ideal_s([line["duration_s"] for line in ledger], in_flight)
        took_s = real_s / scale
        print(f"time scale {scale:4.2f}: {answers} answers, {in_flight} in flight: {real_s:.1f} real s = {took_s:.0f} simulated s; "
              f"event simulation {ideal:.0f} s; ratio {took_s / ideal:.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=textwrap.dedent(__doc__ or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", default="kimi-mini", help="kimi-mini, or a folder with Kimi's files")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--connections", type=int, action="append", help="of part 2; default 2000 and 10000")
    parser.add_argument("--port", type=int, default=8399)
    args = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is missing; on Debian: apt-get install wrk")
    tokenizer = args.tokenizer if args.tokenizer == "kimi-mini" else str(Path(args.tokenizer).resolve())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(
        f"load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; tokenizer {Path(tokenizer).name}; open files {soft} -> {hard}"
    )
    throughput(args.port, tokenizer, args.seconds)
    for connections in args.connections or (2_000, 10_000):
        sockets(args.port, tokenizer, connections, max(2 * args.seconds, connections // 200))
    simulated_time(args.port, tokenizer, 2_000, 200)


if __name__ == "__main__":
    main()
