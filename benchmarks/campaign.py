"""A whole purchase through `eagle3 run`: 10,000 answers, 2,000 in flight, 1 % faults of every kind; how near it comes to what is possible.

    python benchmarks/campaign.py                       # about three minutes
    python benchmarks/campaign.py --answers 20000 --scale 0.1

The stand-in answers from a replay bank of 3,500 tokens on average, `--scale` real seconds for each simulated one. Measured from outside:
- wall time from the first request to the last answer, beside an event simulation of the same durations in the same order, with as many
  slots and nothing else to do;
- occupancy: the share of the slots that were busy, from the time all were first busy until 99 % of the requests were sent;
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
from dataclasses import replace
from itertools import chain
from pathlib import Path

from eagle3_assets.campaign import CAMPAIGNS_DIR
from eagle3_assets.wire import journal
from eagle3_assets.wire.wire_answer import WireAnswer
from openrouter_standin.openrouter.faults import ALL, SILENT
from openrouter_standin.profiles import DEFAULT_PROFILES

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


def ideal_s(records: list[WireAnswer], served_s: list[float], in_flight: int) -> float:
    """The end of an event simulation: `in_flight` slots take the records in their order, each for as long as the server took; a
    further attempt cannot begin before the one before it has failed.
    """
    free, ended = [0.0] * in_flight, dict[tuple[str, int], float]()
    for record, took in zip(records, served_s, strict=True):
        begin = max(free[0], ended.get(record.key, 0.0))
        ended[record.key] = begin + took
        heapq.heapreplace(free, begin + took)
    return max(free)


def occupancy(records: list[WireAnswer], in_flight: int) -> float:
    """Share of busy slots between the moment when all were first busy and the tail: the last hundredth of the starts, most of them
    second attempts after a pause.
    """
    events = sorted(chain.from_iterable(((a.started_at, 1), (a.finished_at, -1)) for a in records))
    tail = records[len(records) * 99 // 100].started_at
    busy, at, area, since = 0, 0.0, 0.0, None
    for moment, change in events:
        if since is not None:
            area += busy * (min(moment, tail) - at)
        busy += change
        at = moment
        if since is None and busy >= 0.99 * in_flight:
            since = moment
        if moment >= tail:
            break
    return area / (in_flight * (tail - since)) if since is not None and tail > since else 0.0


def timeline(records: list[WireAnswer], points: int = 20) -> str:
    """Requests in flight at equal distances of time."""
    first, last = records[0].started_at, max(a.finished_at for a in records)
    times = [first + (last - first) * (k + 0.5) / points for k in range(points)]
    return " ".join(str(sum(a.started_at <= at < a.finished_at for a in records)) for at in times)


class Bench:
    """The campaign in a folder of its own."""

    def __init__(self, folder: Path, answers: int, in_flight: int, scale: float) -> None:
        self.answers, self.in_flight, self.scale = answers, in_flight, scale
        (folder / "profiles.toml").write_text(profiles(scale))
        path = campaign(folder, answers, in_flight)
        self.home, self.root = folder / "home", folder / "data" / "bench"
        self.home.mkdir()
        shutil.copy(Path(__file__).parents[1] / "deploy" / "dagster-home.yaml", self.home / "dagster.yaml")
        self.env = {
            **os.environ, "EAGLE3_CAMPAIGN": str(path), "EAGLE3_DATA": str(folder / "data"), "DAGSTER_HOME": str(self.home),
        }  # fmt: skip

    def run(self, until: str) -> float:
        """`eagle3 run --until`; returns the peak memory of the largest of its processes, MB."""
        eagle3, peak = str(Path(sys.executable).with_name("eagle3")), 0.0
        with subprocess.Popen(
            [eagle3, "run", "--until", until], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as run:
            while run.poll() is None:
                peak = max([peak, *map(peak_mb, tree(run.pid))])
                time.sleep(0.5)
            errors = run.stderr.read() if run.stderr else ""
        if run.returncode:
            raise SystemExit(f"eagle3 run ended with {run.returncode}: {errors.strip().splitlines()[-1:]}")
        return peak

    def records(self) -> list[WireAnswer]:
        """Every record without its bytes, in order of sending."""
        shards = [shard for shard in sorted((self.root / "answers" / DATASET).iterdir()) if shard.is_dir()]
        light = (replace(a, body=b"", request={}) for shard in shards for a in journal.read(shard))
        return sorted(light, key=lambda a: a.started_at)

    def report(self, records: list[WireAnswer]) -> None:
        """The figures of one uninterrupted run."""
        first, last = records[0].started_at, max(a.finished_at for a in records)
        here = [a.finished_at - a.started_at for a in records]
        lines = [json.loads(line) for line in (self.root / "standin" / "ledger.jsonl").read_text().splitlines()]
        durations = {line["generation_id"]: self.scale * line["duration_s"] for line in lines if "duration_s" in line}
        served = [durations.get(a.generation_id or "", took) for a, took in zip(records, here, strict=True)]
        done = len({a.key for a in records if a.outcome == "finished"})
        wall, ideal = last - first, ideal_s(records, served, self.in_flight)
        ours, theirs = sum(a.cost_usd or 0.0 for a in records), sum(line.get("cost_pico", 0) for line in lines) / 1e12
        print(f"{done:,} of {self.answers:,} finished, {len(records):,} records")
        print(f"wall {wall:.1f} s, event simulation {ideal:.1f} s, ratio {wall / ideal:.3f}")
        print(f"an answer took {sum(here) / len(here):.2f} s here, {sum(served) / len(served):.2f} s of it at the server")
        print(f"occupancy {100 * occupancy(records, self.in_flight):.1f} % between ramp and tail; in flight: {timeline(records)}")
        print(f"money: {ours:.4f} USD in the journals, {theirs:.4f} at the server")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=textwrap.dedent(__doc__ or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=2_000)
    parser.add_argument("--scale", type=float, default=0.2, help="real seconds per simulated second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), args.answers, args.in_flight, args.scale)
        print(f"load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        begun = time.monotonic()
        peak = bench.run("answers")
        bench.report(bench.records())
        print(f"peak memory of a process {peak:.0f} MB; command {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
