"""The collector beside a bare loop and beside what people write: answers a second, CPU, memory, connections; in one run.

    python benchmarks/collector.py                            # both settings, base and ours in turn, then the SDKs
    python benchmarks/collector.py --answers 2000 --rounds 1 --clients base,ours
    python benchmarks/collector.py --memory --answers 100000  # memory of our client from the first to the last answer

The server is somebody else's: `bench_perf/mock_server.c` of the shared research folder ($EAGLE3_SHARED_RESEARCH, default
`../shared/research` beside the repository), compiled here with gcc: one epoll thread, bodies of about 16 KB, the latency that the
prompt asks for; it counts its connections. Without it nothing is measured, and the line says so.

Each client runs in a process of its own (`collector_clients.py`). A busy machine changes answers a second, much less CPU seconds;
rounds of `base` and `ours` alternate and the medians are compared, so that both meet the same disturbance.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from collector_clients import CLIENTS, MODEL, PROVIDER  # noqa: E402

BODIES = 256
WORDS = [
    "the",
    "number",
    "model",
    "answer",
    "therefore",
    "sum",
    "odd",
    "we",
    "need",
    "check",
    "square",
    "proof",
    "induction",
    "step",
]
# The targets: (answers a second at no latency, at 0.5-2 s, CPU seconds a 1,000 answers) of ours over base; SDK over ours.
LEAST_RATE, LEAST_RATE_SLOW, MOST_CPU, LEAST_SDK, MOST_MB, LEAST_OCCUPANCY = 0.85, 0.97, 1.2, 12.0, 350, 0.98
SDKS = ("openai", "litellm")


def research() -> Path:
    return Path(os.environ.get("EAGLE3_SHARED_RESEARCH") or HERE.parents[1] / "shared" / "research")


def compiled_server(folder: Path) -> Path | None:
    """The independent server, or None with a line that says why not."""
    source = research() / "bench_perf" / "mock_server.c"
    if not source.is_file() or not shutil.which("gcc"):
        missing = (
            f"{source} is not there (EAGLE3_SHARED_RESEARCH names the folder)" if not source.is_file() else "gcc is not there"
        )
        print(f"skipped: everything; {missing}, and the server must be one that nobody here wrote")
        return None
    program = folder / "mock_server"
    subprocess.run(["gcc", "-O2", "-pthread", "-w", "-o", str(program), str(source)], check=True)
    return program


def a_body(number: int, chance: random.Random, scale: float = 1.0) -> bytes:
    """One completion of about 16 KB times `scale` in the shape of docs/research/openrouter-contract.md#1.3."""

    def text(size: int) -> str:
        return "\n\n".join(" ".join(chance.choices(WORDS, k=60)) for _ in range(size // 320))

    tokens = round(chance.randint(2_300, 4_100) * scale)
    message = {"role": "assistant", "content": text(tokens), "reasoning": text(tokens * 7 // 2), "refusal": None}
    body = {
        "id": f"gen-{number:08d}", "object": "chat.completion", "created": 1_767_225_600, "model": f"{MODEL}-0127", "provider": PROVIDER,
        "choices": [{"index": 0, "finish_reason": "stop", "native_finish_reason": "stop", "logprobs": None, "message": message}],
        "usage": {"prompt_tokens": 260, "completion_tokens": tokens, "total_tokens": tokens + 260, "cost": tokens * 2e-6 + 260 * 4.4e-7,
                  "completion_tokens_details": {"reasoning_tokens": tokens * 5 // 6}},
    }  # fmt: skip
    return json.dumps(body, ensure_ascii=False).encode()


def write_bodies(path: Path) -> float:
    """`<length>\\n<body>` one after the other, as the mock server reads them; returns the mean size in bytes."""
    chance = random.Random(7)
    bodies = [a_body(n, chance) for n in range(BODIES)]
    path.write_bytes(b"".join(b"%d\n%b" % (len(body), body) for body in bodies))
    return sum(map(len, bodies)) / len(bodies)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def serving(program: Path, bodies: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(port, what the server counted: filled at the end)."""
    port = free_port()
    counted: dict[str, Any] = {}
    with subprocess.Popen([program, str(port), "1", "0", "0", str(bodies)], stdout=subprocess.PIPE, text=True) as server:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        try:
            yield port, counted
        finally:
            server.send_signal(signal.SIGTERM)
            out, _ = server.communicate(timeout=30)
            counted.update(json.loads(out.splitlines()[-1]))


def measure(client: str, program: Path, bodies: Path, *, answers: int, in_flight: int, latency: str) -> dict[str, Any]:
    """One client, one process, a fresh server and a fresh folder."""
    with tempfile.TemporaryDirectory() as folder, serving(program, bodies) as (port, counted):
        command = [sys.executable, str(HERE / "collector_clients.py"), client, "--url", f"http://127.0.0.1:{port}/api/v1"]
        command += ["--answers", str(answers), "--in-flight", str(in_flight), "--latency", latency, "--folder", folder]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {**json.loads(out.splitlines()[-1]), "server": counted}


def line(found: dict[str, Any]) -> str:
    held = found["occupancy"]
    full = f"   slots {100 * held['share']:5.1f} % full after a ramp of {held['ramp_s']:.2f} s" if held else ""
    return (
        f"{found['client']:8s}{found['per_s']:8.0f} answers/s {found['cpu_per_k']:7.3f} CPU s per 1,000 {found['peak_mb']:6.0f} MB peak "
        f"{found['server']['conns_peak']:6d} connections   overhead p50 {found['over_p50_ms']:7.1f} p99 {found['over_p99_ms']:7.1f} ms{full}"
    )  # fmt: skip


def verdict(name: str, value: float, bound: float, *, at_least: bool) -> str:
    holds = value >= bound if at_least else value <= bound
    return f"  {'holds' if holds else 'MISSES'}  {name}: {value:.3g} (target {'>=' if at_least else '<='} {bound:g})"


def compare(program: Path, bodies: Path, latency: str, clients: list[str], a: argparse.Namespace) -> list[str]:
    """Print every run of one setting; return the verdicts."""
    print(f"\nlatency {latency} ms, {a.answers} answers, {a.in_flight} in flight")
    runs: dict[str, list[dict[str, Any]]] = {client: [] for client in clients}
    paired = [client for client in clients if client not in SDKS]
    for client in [*paired * a.rounds, *(c for c in clients if c in SDKS)]:
        answers = a.sdk_answers if client in SDKS else a.answers
        runs[client].append(measure(client, program, bodies, answers=answers, in_flight=a.in_flight, latency=latency))
        print(line(runs[client][-1]), flush=True)
    if "ours" not in runs:
        return []
    cpu = {client: statistics.median(r["cpu_per_k"] for r in found) for client, found in runs.items()}
    mine = runs["ours"]
    most = min(a.in_flight, a.answers)
    out = [
        verdict("peak memory, MB", max(r["peak_mb"] for r in mine), MOST_MB, at_least=False),
    ]
    if "base" in runs:
        rate = statistics.median(m["per_s"] / b["per_s"] for m, b in zip(mine, runs["base"], strict=True))
        out.append(verdict("answers/s, ours / base", rate, LEAST_RATE if latency == "0" else LEAST_RATE_SLOW, at_least=True))
        out.append(verdict("CPU, ours / base", cpu["ours"] / cpu["base"], MOST_CPU, at_least=False))
    if latency != "0":  # without latency an answer is there before the next connection is open
        out.append(verdict("connections the server saw", min(r["server"]["conns_peak"] for r in mine), most, at_least=True))
        share = statistics.median(r["occupancy"]["share"] for r in mine)
        out.append(verdict("slots in use between ramp and tail", share, LEAST_OCCUPANCY, at_least=True))
    out += [verdict(f"CPU, {c} / ours", cpu[c] / cpu["ours"], LEAST_SDK, at_least=True) for c in clients if c in SDKS]
    return out


def remember(program: Path, bodies: Path, a: argparse.Namespace) -> list[str]:
    """Memory of our client along a long run."""
    print(f"\nmemory of ours, {a.answers} answers, {a.in_flight} in flight, no latency")
    found = measure("ours", program, bodies, answers=a.answers, in_flight=a.in_flight, latency="0")
    print(line(found))
    shown = [min(found["rss_mb"], key=lambda at: abs(at[0] - a.answers * k // 10)) for k in range(11)]
    print("  ".join(f"{done}: {mb:.0f} MB" for done, mb in shown) + f"   (before: {found['started_mb']:.0f} MB)")
    grown = shown[-1][1] - shown[1][1]
    return [
        verdict("peak memory, MB", found["peak_mb"], MOST_MB, at_least=False),
        verdict("grown from a tenth to the end, bytes an answer", grown * 2**20 / (0.9 * a.answers), 1_000, at_least=False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=8_000)
    parser.add_argument("--sdk-answers", type=int, default=1_000)
    parser.add_argument("--in-flight", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", action="append", metavar="MS[-MS]", help="default: 0, then 500-2000")
    parser.add_argument("--clients", default="base,ours,openai,litellm")
    parser.add_argument("--memory", action="store_true", help="only the memory of ours along one long run")
    a = parser.parse_args()
    clients = [client for client in a.clients.split(",") if client in CLIENTS]
    for client in [c for c in clients if c in SDKS and importlib.util.find_spec(c) is None]:
        print(f"skipped: {client}, which is not installed")
        clients.remove(client)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))  # the server's sockets; inherited
    with tempfile.TemporaryDirectory() as name:
        program = compiled_server(Path(name))
        if program is None:
            return
        bodies = Path(name) / "bodies"
        mean = write_bodies(bodies)
        load = ", ".join(f"{v:.1f}" for v in os.getloadavg())
        print(f"bodies of {mean / 1000:.1f} KB; {os.cpu_count()} cores, load {load}; Python {sys.version.split()[0]}")
        verdicts = remember(program, bodies, a) if a.memory else []
        for latency in [] if a.memory else a.latency or ["0", "500-2000"]:
            verdicts += [f"latency {latency} ms:", *compare(program, bodies, latency, clients, a)]
    print("\n" + "\n".join(verdicts))


if __name__ == "__main__":
    main()
