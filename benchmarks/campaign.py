"""A whole purchase through `eagle3 run`: 10,000 answers, 2,000 in flight, 1 % faults of every kind; how near it comes to what is possible.

    python benchmarks/campaign.py                       # about three minutes
    python benchmarks/campaign.py --answers 20000 --scale 0.1

The stand-in answers from a replay bank of 3,500 tokens on average, `--scale` real seconds for each simulated one. Measured from outside:
- wall time from the first request to the last answer, beside an event simulation of the same durations in the same order, with as many
  slots and nothing else to do;
- occupancy: the share of the slots that were busy, from the time all were first busy until the last request was sent;
- peak memory of the process that runs the step, and the money: ours beside the server's.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from itertools import chain
from pathlib import Path

from eagle3_assets.campaign import CAMPAIGNS_DIR
from eagle3_assets.collect import journal
from eagle3_assets.standin.faults import ALL, SILENT
from eagle3_assets.standin.profiles import DEFAULT_PROFILES

# what ends a run or a prompt for good is no weather; a hang takes as long as its timeout
SPARED = {"400", "401", "402_weight", "402_afford", "402_credits", "403", "404", "413", "422", "429_absurd", "hang", *SILENT}
FAULTS = [name for name in ALL if name not in SPARED]
DATASET = "b3_magicoder"


def profiles(scale: float) -> str:
    """The built-in endpoints with long answers, plenty of money and all the weather."""
    text = re.sub(r"(?m)^time_scale = .*$", f"time_scale = {scale}", DEFAULT_PROFILES.read_text())
    text = re.sub(r"(?m)^credit_usd = .*$", "credit_usd = 10000.0", text)
    rates = ", ".join(f'"{name}" = {0.01 / len(FAULTS):.6f}' for name in FAULTS)
    text = re.sub(r"(?m)^rates = .*$", f"rates = {{ {rates} }}", text)
    text = re.sub(r"(?m)^shed_rate = .*$", "shed_rate = 0.0", text)
    return re.sub(r'(?m)^kind = "bank".*$', 'kind = "replay"\nreplay = { answers = 2000, tool_answers = 0.0 }', text)


def campaign(folder: Path, answers: int, in_flight: int) -> Path:
    """The demo's file with one large dataset."""
    text = (CAMPAIGNS_DIR / "demo.toml").read_text()
    head, tail = text[: text.index("[[dataset]]")], text[text.index("[corpus]") :]
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"problem": f"Question {k}: write a program and explain it."}) + "\n" for k in range(answers))
    )
    dataset = f"""[[dataset]]
name = "{DATASET}"
backend = "openrouter"
licence = "CC0-1.0"
rows = {answers}
mean_tokens = 3500
source = {{ kind = "jsonl", path = "{rows}" }}
mapping = {{ kind = "prompt", prompt = "problem" }}

"""
    for key, value in {
        "name": '"bench"',
        "answers": '"bank"',
        "campaign_usd": "5000.0",
        "pilot_usd": "50.0",
        "approved_usd": "5000.0",
        "in_flight": str(in_flight),
        "timeout_s": "600.0",
        "max_tokens": "16384",
    }.items():
        head = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", head, count=1)
    head = re.sub(r'(?m)^kind = "embedded".*$', f'kind = "embedded"\nstandin_profiles = "{folder / "profiles.toml"}"', head)
    head = re.sub(r'(?m)^answers = "bank"\n', "", head)
    path = folder / "bench.toml"
    path.write_text(head + dataset + tail)
    return path


def tree(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += chain.from_iterable(tree(int(child)) for child in children.read_text().split())
        except OSError:
            continue
    return found


def peak_mb(pid: int) -> float:
    try:
        return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def ideal_s(durations: list[float], in_flight: int) -> float:
    free = [0.0] * in_flight
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def occupancy(spans: list[tuple[float, float]], in_flight: int) -> float:
    """Share of busy slots between the moment when all were first busy and the last start."""
    events = sorted(chain.from_iterable(((start, 1), (end, -1)) for start, end in spans))
    last_start = max(start for start, _ in spans)
    busy, at, area, since = 0, 0.0, 0.0, None
    for moment, change in events:
        if since is not None:
            area += busy * (min(moment, last_start) - at)
        busy += change
        at = moment
        if since is None and busy >= 0.995 * in_flight:
            since = moment
        if moment >= last_start:
            break
    return area / (in_flight * (last_start - since)) if since is not None and last_start > since else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=textwrap.dedent(__doc__ or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=2_000)
    parser.add_argument("--scale", type=float, default=0.2, help="real seconds per simulated second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "profiles.toml").write_text(profiles(args.scale))
        path = campaign(folder, args.answers, args.in_flight)
        home = folder / "home"
        home.mkdir()
        shutil.copy(Path(__file__).parents[1] / "deploy" / "dagster-home.yaml", home / "dagster.yaml")
        env = {**os.environ, "EAGLE3_CAMPAIGN": str(path), "EAGLE3_DATA": str(folder / "data"), "DAGSTER_HOME": str(home)}
        eagle3 = str(Path(sys.executable).with_name("eagle3"))
        print(f"load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        begun, peak = time.monotonic(), 0.0
        with subprocess.Popen(
            [eagle3, "run", "--until", "answers"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as run:
            while run.poll() is None:
                peak = max([peak, *map(peak_mb, tree(run.pid))])
                time.sleep(0.5)
            errors = run.stderr.read() if run.stderr else ""
        if run.returncode:
            raise SystemExit(f"eagle3 run ended with {run.returncode}: {errors.strip().splitlines()[-1:]}")
        root = folder / "data" / "bench"
        answers = [a for shard in sorted((root / "answers" / DATASET).iterdir()) if shard.is_dir() for a in journal.read(shard)]
        spans = [(a.started_at, a.finished_at) for a in answers]
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        in_order = [a.finished_at - a.started_at for a in sorted(answers, key=lambda a: a.started_at)]
        lines = [json.loads(line) for line in (root / "standin" / "ledger.jsonl").read_text().splitlines()]
        durations = {line["generation_id"]: args.scale * line["duration_s"] for line in lines if "duration_s" in line}
        served = [
            durations.get(a.generation_id or "", a.finished_at - a.started_at)
            for a in sorted(answers, key=lambda a: a.started_at)
        ]
        done = len({a.key for a in answers if a.outcome == "finished"})
        wall, ideal = last - first, ideal_s(served, args.in_flight)
        ours, theirs = sum(a.cost_usd or 0.0 for a in answers), sum(line.get("cost_pico", 0) for line in lines) / 1e12
        print(f"{done:,} of {args.answers:,} finished, {len(answers):,} records; command {time.monotonic() - begun:.0f} s")
        print(f"wall {wall:.1f} s, event simulation {ideal:.1f} s, ratio {wall / ideal:.3f}")
        print(f"an answer took {sum(in_order) / len(in_order):.2f} s here, {sum(served) / len(served):.2f} s of it at the server")
        print(f"occupancy {100 * occupancy(spans, args.in_flight):.1f} %, peak memory of a process {peak:.0f} MB")
        print(f"money: {ours:.4f} USD in the journals, {theirs:.4f} at the server")


if __name__ == "__main__":
    main()
