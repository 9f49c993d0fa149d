"""Claims about the UI: a real `dagster dev`, a real (headless) Chromium.

Needs Debian's `chromium`; runs with `make test-browser`. EAGLE3_SCREENSHOTS names a folder that keeps the pictures.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import CAMPAIGNS_DIR, SHARDS
from eagle3_assets.wire import journal
from eagle3_assets_tests.e2e.conftest import BIN, Place

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"),
]

LAUNCH = """mutation Launch($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } ... on InvalidSubsetError { message } } }"""
TERMINATE = """mutation Stop($id: String!) { terminateRun(runId: $id) { __typename } }"""
STATUS = """query Status($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""


class Dev:
    """A running `dagster dev`."""

    def __init__(self, place: Place, **env: str) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = (place.folder / "dev.log").open("w")
        self.process = subprocess.Popen(
            [str(BIN / "dagster"), "dev", "--port", str(self.port)],
            cwd=place.folder, env=place.environment(**env), stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        self.wait(lambda: self.query("{ repositoriesOrError { __typename ... on RepositoryConnection { nodes { name } } } }"
                                     )["repositoriesOrError"].get("nodes"), 120)  # fmt: skip

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                answer: dict[str, Any] = json.load(response)
        except OSError:
            return {"repositoriesOrError": {}}
        assert "errors" not in answer, answer["errors"]
        found: dict[str, Any] = answer["data"]
        return found

    def wait(self, condition: Any, patience_s: float) -> Any:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.25)
        raise AssertionError(f"not within {patience_s} s")

    def materialize(self, *keys: str, tags: dict[str, str]) -> str:
        """Launch a run as the UI's Materialize button does; returns the run id."""
        selector = {
            "repositoryName": "__repository__", "repositoryLocationName": "eagle3_assets.definitions", "pipelineName": "__ASSET_JOB",
            "assetSelection": [{"path": k.split("/")} for k in keys],
        }  # fmt: skip
        params = {
            "selector": selector,
            "mode": "default",
            "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in tags.items()]},
        }
        found = self.query(LAUNCH, p=params)["launchPipelineExecution"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return str(found["run"]["runId"])

    def status(self, run: str) -> str:
        return str(self.query(STATUS, id=run)["runOrError"]["status"])

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()


@pytest.fixture(scope="module")
def dev(demo: Place) -> Iterator[Dev]:
    running = Dev(demo)
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        chrome = p.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                  "--disable-component-update", "--disable-sync"],
        )  # fmt: skip
        yield chrome
        chrome.close()


def _look(browser: Any, url: str, name: str, *texts: str, height: int = 1000, click: str | None = None) -> str:
    """Open a page, wait for the texts, keep a picture; returns the page's text."""
    page = browser.new_page(viewport={"width": 1600, "height": height})
    page.goto(url)
    for text in texts:
        page.get_by_text(text, exact=False).first.wait_for(timeout=60_000)
    if click:
        page.get_by_text(click, exact=False).first.click()
        page.wait_for_timeout(1500)
    folder = os.environ.get("EAGLE3_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(2500)  # a picture, not a claim: let the graph settle
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"))
    shown = str(page.inner_text("body"))
    page.close()
    return shown


def test_the_graph_shows_the_flow(dev: Dev, browser: Any) -> None:
    intents = ["1_prepare", "2_collect", "3_judge", "4_merge", "5_extract", "6_handoff", "7_train"]
    shown = _look(browser, f"{dev.url}/asset-groups", "asset-graph", *intents)
    places = [shown.index(name) for name in intents]
    assert places == sorted(places)  # readable as it stands, from the first to the last


def test_partitions_of_answers_are_all_there(dev: Dev, browser: Any) -> None:
    shown = _look(browser, f"{dev.url}/assets/answers/b3_magicoder?view=partitions", "partitions", "Materialized", "16")
    assert "Missing" in shown


def test_checks_of_a_dataset_are_shown_with_their_names(dev: Dev, browser: Any) -> None:
    shown = _look(browser, f"{dev.url}/assets/tokens/b3_magicoder?view=checks", "checks", "completion_equals_bill")
    for name in ("structure", "lineage", "grammar", "wire_text", "prompt_equals_bill", "quarantined_share"):
        assert name in shown


def test_the_report_opens_in_the_ui_and_as_a_page(dev: Dev, browser: Any, demo: Place) -> None:
    shown = _look(
        browser, f"{dev.url}/assets/report/b3_magicoder", "report", "report", "[Show Markdown]", click="[Show Markdown]"
    )
    assert "Grades" in shown or "grade" in shown
    page = (demo.root("demo") / "reports" / "b3_magicoder.html").as_uri()
    assert "b3_magicoder" in _look(browser, page, "report-page", "b3_magicoder", height=1800)


def test_materialize_and_check_from_the_ui(dev: Dev) -> None:
    run = dev.materialize("answers/b8_sweagent", tags={"dagster/partition": "03"})
    assert dev.wait(lambda: dev.status(run) in ("SUCCESS", "FAILURE", "CANCELED") and dev.status(run), 120) == "SUCCESS"


def test_terminate_ends_as_canceled_and_resume_completes(place: Place) -> None:
    from eagle3_assets_tests.e2e.test_failures import _answers, _slow_campaign, _wait_for_answers

    campaign = _slow_campaign(place, "terminated", stop_grace_s="1.0")
    env = {"EAGLE3_CAMPAIGN": str(campaign)}
    assert place.run("eagle3", "run", "--until", "plan", **env).returncode == 0
    running = Dev(place, **env)
    whole = {"dagster/asset_partition_range_start": "00", "dagster/asset_partition_range_end": "15"}
    try:
        run = running.materialize("answers/b3_magicoder", tags=whole)
        _wait_for_answers(place, "terminated", 6)
        assert running.query(TERMINATE, id=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"
        assert (
            running.wait(lambda: running.status(run) in ("SUCCESS", "FAILURE", "CANCELED") and running.status(run), 60)
            == "CANCELED"
        )
        before = _answers(place, "terminated")
        again = running.materialize("answers/b3_magicoder", tags=whole)
        assert (
            running.wait(lambda: running.status(again) in ("SUCCESS", "FAILURE", "CANCELED") and running.status(again), 180)
            == "SUCCESS"
        )
    finally:
        running.close()
    after = _answers(place, "terminated")
    assert len(after) == 48 and before.items() <= after.items()
    assert sum(1 for s in SHARDS for _ in journal.read(place.root("terminated") / "answers" / "b3_magicoder" / s)) >= 48


def test_what_status_calls_outdated_the_ui_calls_unsynced_and_nothing_else(demo: Place, tmp_path: Path, browser: Any) -> None:
    """A setting of the corpus changes in the campaign file: the corpus (and the plan) would be made again, what is behind it not yet."""
    here = Place(tmp_path / "changed")
    shutil.copytree(demo.folder, here.folder, symlinks=True, ignore=shutil.ignore_patterns("standin"))
    changed = here.folder / "demo.toml"
    (here.folder / "demo_data").symlink_to(CAMPAIGNS_DIR / "demo_data")
    text = (CAMPAIGNS_DIR / "demo.toml").read_text()
    changed.write_text(text.replace("min_p_exact = 0.95", "min_p_exact = 0.97"))
    here.env["EAGLE3_CAMPAIGN"] = str(changed)
    stages = json.loads(here.run("eagle3", "status", "--json").stdout)["stages"]
    open_ = {name: counts for name, counts in stages.items() if set(counts) != {"current"}}
    assert open_ == {"plan": {"outdated": 1}, "corpus": {"outdated": 1}}
    running = Dev(here)
    try:
        for name in ("plan", "corpus"):
            assert "Unsynced" in _look(browser, f"{running.url}/assets/{name}?view=overview", f"outdated-{name}", "Unsynced (1)")
        for name in ("vocab_map", "wire_profiles", "handoff/tokens"):
            page = f"{running.url}/assets/{name}?view=overview"
            assert "Unsynced" not in _look(browser, page, f"current-{name.replace('/', '-')}", "Latest check results", "digest")
    finally:
        running.close()
