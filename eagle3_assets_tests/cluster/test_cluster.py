"""Claims about several machines: two hosts, one PostgreSQL, one data root, one approval.

`make test-cluster` (root, Debian's postgresql; dagster-postgres in an environment of its own). Each host has its own DAGSTER_HOME and its own
user-code server; host a has the daemon and the webserver too. EAGLE3_SCREENSHOTS names a folder that keeps a picture of the runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import SHARDS
from eagle3_assets.wire import journal
from eagle3_assets_tests.cluster import hosts as machines
from eagle3_assets_tests.cluster.hosts import OUTSIDE, Host, wait_for
from eagle3_assets_tests.conftest import REPOSITORY
from eagle3_assets_tests.e2e.conftest import KEYLESS, small_campaign

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(machines.missing()), reason=machines.missing() or "-")]

DATASETS = ("b3_magicoder", "b8_sweagent")
APPROVED_USD = 0.6
FORWARD = str(Path(__file__).with_name("forward.py"))
LAUNCH = """mutation Launch($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } ... on InvalidSubsetError { message } } }"""
END = """mutation End($id: String!) { terminateRun(runId: $id, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename } }"""
EVENTS = """query Events($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events { ... on MessageEvent { message }
  ... on ExecutionStepFailureEvent { error { message } } } } } }"""
DONE = ("SUCCESS", "FAILURE", "CANCELED")
HOLD = """import signal, sys
from pathlib import Path
from eagle3_assets.wire.journal import Journal
with Journal.open(Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""
STATUS = """query Status($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
WORKSPACE = """load_from:
  - grpc_server: { host: HOST_A, port: 4000, location_name: host-a }
  - grpc_server: { host: HOST_B, port: 4000, location_name: host-b }
"""


@dataclass
class Cluster:
    """Two hosts under one Dagster; `env` is what a shell on either has."""

    a: Host
    b: Host
    url: str
    campaign: Path
    data: Path
    standin: Path
    hosts_folder: Path

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
        assert "errors" not in answer, answer["errors"]
        found: dict[str, Any] = answer["data"]
        return found

    def materialize(self, host: Host, stage: str, first: str, last: str) -> str:
        """Queue one run over shards `first` to `last` on `host`; returns its id."""
        params = {
            "selector": {
                "repositoryName": "__repository__", "repositoryLocationName": f"host-{host.name}", "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": [stage, dataset]} for dataset in DATASETS],
            },
            "mode": "default",
            "executionMetadata": {"tags": [
                {"key": "dagster/asset_partition_range_start", "value": first}, {"key": "dagster/asset_partition_range_end", "value": last},
                {"key": "eagle3/host", "value": host.name},
            ]},
        }  # fmt: skip
        found = self.query(LAUNCH, p=params)["launchPipelineExecution"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return str(found["run"]["runId"])

    def status(self, run: str) -> str:
        return str(self.query(STATUS, id=run)["runOrError"]["status"])

    def events(self, run: str) -> str:
        return json.dumps(self.query(EVENTS, id=run))

    def answers(self) -> Counter[tuple[str, str, tuple[str, int]]]:
        """(dataset, shard, key) -> how often it was answered whole, from the journals."""
        return Counter(
            (dataset, shard, answer.key)
            for dataset in DATASETS
            for shard in SHARDS
            for answer in journal.read(self.data / "answers" / dataset / shard)
            if answer.outcome == "finished"
        )

    def answered(self, shards: tuple[str, ...]) -> int:
        return sum(1 for _, shard, _ in self.answers() if shard in shards)

    def logs(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for h in (self.a, self.b) for path in h.logs)


def _home(host: Host, workspace: str) -> None:
    """Its DAGSTER_HOME, from the file that deploy/ ships, and the checkout's working folder."""
    home = host.folder / "dagster-home"
    home.mkdir()
    text = (REPOSITORY / "deploy/dagster-postgres.yaml").read_text()
    (home / "dagster.yaml").write_text(text.replace("poll_interval_seconds: 120", "poll_interval_seconds: 2"))
    (host.folder / "workspace.yaml").write_text(workspace)
    (host.folder / "deploy").symlink_to(REPOSITORY / "deploy")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    data = folder / "shared"
    campaign = small_campaign(
        folder, "two-hosts", datasets=DATASETS, rows=None, real=True, in_flight="4", campaign_usd=str(APPROVED_USD),
    )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "openrouter_standin.cli", "--port", "0", "--folder", str(folder / "served"), "--bank"],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    shown = ""
    assert server.stdout is not None
    while "key" not in shown and (line := server.stdout.readline()):
        shown += line
    port = re.search(r"http://127\.0\.0\.1:(\d+)", shown)
    key = re.search(r"(?m)^key +(\S+)", shown)
    assert port and key, shown
    env = {k: v for k, v in os.environ.items() if k not in KEYLESS} | {
        "EAGLE3_CAMPAIGN": str(campaign), "EAGLE3_DATA": str(data), "OPENROUTER_BASE_URL": "http://127.0.0.1:8080/api/v1",
        "OPENROUTER_API_KEY": key[1], "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "COLUMNS": "200",
        "PYTHONPATH": os.pathsep.join(str(REPOSITORY / p) for p in ("", "standin", "workshop")),
    }  # fmt: skip
    try:
        with machines.hosts(("a", "b"), folder, env) as made, machines.postgres(folder) as pg:
            bridge = subprocess.Popen(
                [sys.executable, FORWARD, f"{OUTSIDE}:8080", f"127.0.0.1:{port[1]}"], stdout=subprocess.DEVNULL
            )
            workspace = WORKSPACE.replace("HOST_A", made["a"].address).replace("HOST_B", made["b"].address)
            for host in made.values():
                _home(host, workspace)
                host.env = {**host.env, **pg, "DAGSTER_HOME": str(host.folder / "dagster-home")}
                host.start("forward", sys.executable, FORWARD, "127.0.0.1:8080", f"{OUTSIDE}:8080")
            here = Cluster(
                made["a"], made["b"], f"http://{made['a'].address}:3000", campaign, data / "two-hosts", folder / "served", folder
            )
            try:
                yield here
            finally:
                if os.environ.get("EAGLE3_CLUSTER_LOGS"):
                    Path(os.environ["EAGLE3_CLUSTER_LOGS"]).write_text(here.logs())
                bridge.kill()
    finally:
        server.terminate()
        server.wait()


def _serve_code(host: Host) -> None:
    host.start("code", "dagster", "api", "grpc", "-h", host.address, "-p", "4000", "-m", "eagle3_assets.definitions")


@pytest.fixture(scope="module")
def started(cluster: Cluster) -> Cluster:
    """Host a bought the pilot and approved the plan; code servers, daemon and webserver are up."""
    first = cluster.a.run("eagle3", "run", "--until", "plan")
    assert first.returncode == 0, first.stderr
    approved = cluster.b.run("eagle3", "plan", "--approve", str(APPROVED_USD))  # anybody with the data root may
    assert approved.returncode == 0, approved.stderr
    for host in (cluster.a, cluster.b):
        _serve_code(host)
    cluster.a.start("daemon", "dagster-daemon", "run", "-w", "workspace.yaml")
    cluster.a.start("webserver", "dagster-webserver", "-h", cluster.a.address, "-p", "3000", "-w", "workspace.yaml")

    def locations() -> bool:
        try:
            found = cluster.query(
                "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus locationOrLoadError { __typename } } } } }"
            )
        except OSError:
            return False
        entries = found["workspaceOrError"]["locationEntries"]
        return len(entries) == 2 and all(
            e["loadStatus"] == "LOADED" and e["locationOrLoadError"]["__typename"] == "RepositoryLocation" for e in entries
        )

    wait_for(locations, "both locations are loaded: " + cluster.logs(), 120)
    return cluster


def test_a_shard_that_another_host_holds_is_refused_by_its_name(started: Cluster) -> None:
    """The kernel's file lock is the guard over hosts, not Dagster's queue: it is gone with whoever held it."""
    started.b.start("hold", sys.executable, "-c", HOLD, str(started.data / "answers" / DATASETS[0] / SHARDS[0]))
    wait_for(lambda: "held" in (started.b.folder / "hold.log").read_text(), "host b holds the shard")
    run = started.materialize(started.a, "answers", SHARDS[0], SHARDS[0])
    wait_for(lambda: started.status(run) in DONE, "host a's run ends", 120)
    assert started.status(run) == "FAILURE"
    assert f"{DATASETS[0]} shard {SHARDS[0]} is in use by pid" in started.events(run) and " on b since " in started.events(run)
    started.b.run("pkill", "-9", "-f", "signal.pause")
    assert started.answered(SHARDS[:1]) == 0


def test_a_host_that_dies_costs_its_open_requests_and_nothing_else(started: Cluster) -> None:
    """Two hosts buy at once under one approval; one loses its power; the other does its shards. All claims from files and the server."""
    on_a = started.materialize(started.a, "answers", SHARDS[0], SHARDS[7])
    on_b = started.materialize(started.b, "answers", SHARDS[8], SHARDS[15])
    wait_for(lambda: started.answered(SHARDS[:8]) >= 5 and started.answered(SHARDS[8:]) >= 5, "both hosts have answers", 120)
    started.b.kill()
    before = started.answers()
    wait_for(lambda: started.status(on_a) == "SUCCESS", "host a ends its run beside the dead host", 240)
    # Nobody tells Dagster that the host is gone: its run stays open until a person ends it. Nothing waits for it.
    assert started.status(on_b) == "STARTED"
    assert started.query(END, id=on_b)["terminateRun"]["__typename"] == "TerminateRunSuccess"
    assert started.status(on_b) == "CANCELED"
    again = started.materialize(started.a, "answers", SHARDS[8], SHARDS[15])
    wait_for(lambda: started.status(again) in DONE, "host a does the dead host's shards", 240)
    assert started.status(again) == "SUCCESS", started.events(again)

    after = started.answers()
    assert set(before) <= set(after) and set(after.values()) == {1}, "an answer was lost, or bought twice"
    status = json.loads(started.a.run("eagle3", "status", "--json").stdout)
    assert len(after) == sum(d["prompts"] for d in status["datasets"])
    assert all(d["complete_shards"] == len(SHARDS) for d in status["datasets"])
    money = status["money"]
    billed = [json.loads(line) for line in (started.standin / "ledger.jsonl").read_text().splitlines()]
    theirs = sum(line["cost_pico"] for line in billed) / 1e12
    assert theirs <= money["spent_usd"] + money["ambiguous_usd"] + 1e-9 <= APPROVED_USD
    assert money["reserved_usd"] == 0.0
    doubt = f"{money['ambiguous_usd']:.6f} in doubt"
    print(
        f"{len(after)} answers, {len(before)} when host b died; billed {theirs:.6f} USD, ours {money['spent_usd']:.6f} and {doubt}"
    )
    _picture(f"{started.url}/runs", "cluster-runs", on_a[:8], on_b[:8])


def test_what_two_hosts_bought_goes_on_as_one_campaign(started: Cluster) -> None:
    done = started.a.run("eagle3", "run", "--until", "report")
    assert done.returncode == 0, done.stderr


def _picture(url: str, name: str, *texts: str) -> None:
    """Only for whoever asks for pictures: the claims are above."""
    folder, chromium = os.environ.get("EAGLE3_SCREENSHOTS"), shutil.which("chromium")
    if not folder or chromium is None:
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.goto(url)
        for text in texts:
            page.get_by_text(text, exact=False).first.wait_for(timeout=60_000)
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"))
        browser.close()
