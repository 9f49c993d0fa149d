"""The purchase of `campaign.py` as a backfill of a real `dagster dev`: Terminate with everything in flight, then resume to the end.

    python benchmarks/backfill.py
    python benchmarks/backfill.py --answers 4000 --scale 0.1

Printed: how long after Terminate the run was CANCELED (beside the grace period), what was in flight then, and for the second
backfill, which has to complete the rest, the peak memory of its step and what was bought twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))

from campaign import DATASET, Bench, peak_mb, tree

from eagle3_assets.campaign import SHARDS

BACKFILL = """mutation Backfill($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
RUNS = """query Runs($tag: String!) { runsOrError(filter: {tags: [{key: "dagster/backfill", value: $tag}]}) {
  ... on Runs { results { runId status } } } }"""
TERMINATE = """mutation Stop($id: String!) { terminateRun(runId: $id) { __typename } }"""
ENDED = ("SUCCESS", "FAILURE", "CANCELED")


class Dev:
    """A running `dagster dev` of a bench."""

    def __init__(self, bench: Bench) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/graphql"
        self.log = (bench.home / "dev.log").open("w")
        command = [str(Path(sys.executable).with_name("dagster")), "dev", "--port", str(port), "-m", "eagle3_assets.definitions"]
        self.process = subprocess.Popen(
            command, cwd=bench.home, env=bench.env, stdout=self.log, stderr=self.log, start_new_session=True
        )
        self.wait(lambda: self.query("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"), 120)

    def query(self, text: str, **variables: Any) -> Any:
        body = json.dumps({"query": text, "variables": variables}).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url, body, {"Content-Type": "application/json"}), timeout=60
            ) as response:
                answer = json.load(response)
        except OSError:
            return None
        if "errors" in answer:
            raise SystemExit(f"the web server answered {answer['errors']}")
        return next(iter(answer["data"].values()))

    def wait(self, condition: Callable[[], Any], patience_s: float) -> Any:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.1)
        raise SystemExit(f"not within {patience_s:.0f} s; {self.log.name} says why")

    def backfill(self) -> str:
        """All shards of the dataset; returns the id of the one run that does them."""
        asset = {"path": ["answers", DATASET]}
        found = self.query(BACKFILL, p={"assetSelection": [asset], "partitionNames": list(SHARDS)})
        if found["__typename"] != "LaunchBackfillSuccess":
            raise SystemExit(f"no backfill: {found}")
        runs: list[dict[str, str]] = self.wait(lambda: self.query(RUNS, tag=found["backfillId"])["results"], 120)
        if len(runs) != 1:
            raise SystemExit(f"one run was expected for all shards, found {len(runs)}")
        self.of = found["backfillId"]
        return runs[0]["runId"]

    def status(self) -> str:
        return str(self.query(RUNS, tag=self.of)["results"][0]["status"])

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()


def connections(port: int) -> int:
    """Established connections to a local port, as the kernel counts them."""
    wanted = f":{port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(row[2].endswith(wanted) and row[3] == "01" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=2_000)
    parser.add_argument("--scale", type=float, default=0.2, help="real seconds per simulated second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), args.answers, args.in_flight, args.scale)
        print(f"load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        bench.run("plan")
        port = urlsplit(json.loads((bench.root / "standin" / "server.json").read_text())["origin"]).port
        dev = Dev(bench)
        try:
            first = dev.backfill()
            dev.wait(lambda: connections(int(port or 0)) >= 0.99 * args.in_flight, 300)
            in_flight, begun = connections(int(port or 0)), time.monotonic()
            dev.query(TERMINATE, id=first)
            ended = dev.wait(lambda: dev.status() in ENDED and dev.status(), 300)
            print(f"Terminate with {in_flight:,} connections: {ended} after {time.monotonic() - begun:.1f} s", flush=True)
            before = Counter((a.key, a.outcome) for a in bench.records())
            finished = {key for key, outcome in before if outcome == "finished"}
            print(f"  {len(finished):,} finished, {sum(n for (_, o), n in before.items() if o == 'ambiguous'):,} ambiguous")
            begun, peak = time.monotonic(), 0.0
            dev.backfill()
            while (status := dev.status()) not in ENDED:
                peak = max([peak, *map(peak_mb, tree(dev.process.pid))])
                time.sleep(0.5)
            print(f"second backfill: {status} after {time.monotonic() - begun:.0f} s, peak memory of a process {peak:.0f} MB")
        finally:
            dev.close()
        after = Counter(a.key for a in bench.records() if a.outcome == "finished")
        twice = sum(n > 1 for n in after.values())
        print(
            f"{len(after):,} of {args.answers:,} finished, {twice} bought twice, {len(finished - set(after))} of the first run lost"
        )


if __name__ == "__main__":
    main()
