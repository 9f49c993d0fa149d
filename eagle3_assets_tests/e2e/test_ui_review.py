"""Claims about reviewing in the UI: one campaign with a dataset that is fine, one that warns and one that must not go on.

Needs Debian's `chromium`; runs with `make test-browser`. EAGLE3_SCREENSHOTS names a folder that keeps the pictures: with docs/img those of
docs/review.md are made anew.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import CAMPAIGNS_DIR, SHARDS
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.store import read_json, write_json
from eagle3_assets_tests.e2e.conftest import Place, new_place, small_campaign
from eagle3_assets_tests.e2e.test_ui import CHROMIUM, Dev, browser

__all__ = ["browser"]  # the fixture
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"),
]
FINE, WARNS, STOPS = "a1_deepswekimi", "b1_glaive", "b3_magicoder"
# the assets of one stage in the graph, their groups opened
GROUP = "/asset-groups~tag%3A%22stage%22%3D%22tokens%22/?expanded=global%40global%3A3_judge%2Cglobal%40global%3A3_judge%2Ftokens"
RED, ORANGE, GREEN = "accent-red", "accent-yellow", "accent-green"
RUNS = "{ runsOrError(limit: 1) { ... on Runs { results { runId status } } } }"
ENDED = ("SUCCESS", "FAILURE", "CANCELED")


def review_campaign(folder: Path) -> Path:
    """Shards of 25 rows, so that shares can be judged: an engine whose answers are cut too often (a warning), and a provider whose bills are
    off by a few tokens (rows in quarantine, more than is tolerated)."""
    import openrouter_standin as standin

    path = small_campaign(folder, "review", datasets=(FINE, WARNS, STOPS), rows=None)
    text = path.read_text()
    for name, column in ((WARNS, "messages"), (STOPS, "problem")):
        given = [json.loads(line) for line in (CAMPAIGNS_DIR / "demo_data" / f"{name}.jsonl").read_text().splitlines()]
        (folder / f"{name}.jsonl").write_text(
            "".join(f"{json.dumps(_numbered(given[k % len(given)], column, k))}\n" for k in range(480))
        )
        text = text.replace(f"{CAMPAIGNS_DIR}/demo_data/{name}.jsonl", f"{folder}/{name}.jsonl")
        head, tail = text.split(f'name = "{name}"')
        cut = "\nsampling = { temperature = 1.0, top_p = 0.95, max_tokens = 24 }" if name == WARNS else ""
        text = f'{head}name = "{name}"' + re.sub(r"(?m)^rows = \d+", f"rows = 400{cut}", tail, count=1)
    profiles = (Path(standin.__file__).parent / "profiles" / "default.toml").read_text()
    head, tail = profiles.split('name = "Injector"')
    tail = tail.replace('reasoning_tokens = "with_close" }', 'reasoning_tokens = "with_close", count_noise = 0.02 }', 1)
    (folder / "profiles.toml").write_text(f'{head}name = "Injector"{tail}')
    path.write_text(text.replace('kind = "embedded"', f'kind = "embedded"\nstandin_profiles = "{folder}/profiles.toml"', 1))
    return path


def _numbered(row: dict[str, Any], column: str, k: int) -> dict[str, Any]:
    """The row as one of many: its question carries a number."""
    if column != "messages":
        return {**row, column: f"{k}. {row[column]}"}
    *before, last = row["messages"]
    return {"id": f"row-{k}", "messages": [*before, {**last, "content": f"{k}. {last['content']}"}]}


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The campaign, run until a blocking check stopped it; its reports made nonetheless, as a person who wants to look does."""
    here = new_place(tmp_path_factory.mktemp("review"))
    here.env["EAGLE3_CAMPAIGN"] = str(review_campaign(here.folder))
    done = here.run("eagle3", "run", timeout=600)
    assert done.returncode == 1 and "blocking checks failed (tokens/b3_magicoder: completion_equals_bill" in done.stderr, (
        done.stderr
    )
    here.run("dagster", "asset", "materialize", "-m", "eagle3_assets.definitions", "--select", "tag:stage=report", timeout=300)
    assert (here.root("review") / "reports" / f"{STOPS}.html").exists()
    yield here
    here.close()


@pytest.fixture(scope="module")
def dev(reviewed: Place) -> Iterator[Dev]:
    running = Dev(reviewed)
    yield running
    running.close()


def page_of(browser: Any, url: str, *texts: str, height: int = 900) -> Any:
    """An open page on which the texts have appeared."""
    page = browser.new_page(viewport={"width": 1400, "height": height})
    page.goto(url)
    for text in texts:
        page.get_by_text(text, exact=False).first.wait_for(timeout=60_000)
    return page


def keep(page: Any, name: str) -> None:
    """A picture of the page in 256 colours, for people: no claim rests on it."""
    if folder := os.environ.get("EAGLE3_SCREENSHOTS"):
        from PIL import Image

        page.wait_for_timeout(2500)  # let the graph settle
        Path(folder).mkdir(parents=True, exist_ok=True)
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        few = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # small marks keep their colour
        few.save(Path(folder) / f"{name}.png", optimize=True)


def colour_of(page: Any, check: str) -> str:
    """The colour of a check's mark in the list of checks, as the UI names it."""
    line = page.get_by_title(check, exact=True).first.locator("xpath=ancestor::*[.//*[@role='img']][1]")
    return str(line.get_by_role("img").first.get_attribute("style"))


def checks_url(dev: Dev, check: str = "completion_equals_bill") -> str:
    return f"{dev.url}/assets/tokens/{STOPS}?view=checks&checkDetail={check}"


def test_the_graph_is_coloured_by_checks(dev: Dev, browser: Any) -> None:
    every = len(CHECKS["tokens"]) + 1  # and the partitions' own verdict
    page = page_of(browser, dev.url + GROUP, FINE, WARNS, STOPS, f"{every} / {every} Passed", height=1000)
    keep(page, "review-graph")
    shown = page.inner_text("body")
    passed = sorted(int(n) for n in re.findall(rf"(\d+) / {every} Passed", shown))
    assert len(passed) == 3 and passed[-1] == every and passed[1] < every
    marks = [str(m.get_attribute("style")) for m in page.get_by_role("img").all()]
    page.close()
    assert any(RED in m for m in marks) and any(ORANGE in m for m in marks) and any(GREEN in m for m in marks)


def test_all_checks_of_a_dataset_are_executed_from_the_ui_and_judge_the_files(dev: Dev, browser: Any, reviewed: Place) -> None:
    """A filed verdict that says "passed" is not shown for what the files do not bear out."""
    filed = reviewed.root("review") / "verdicts" / "tokens" / STOPS
    for shard in SHARDS:
        raw = read_json(filed / f"{shard}.json")
        write_json(filed / f"{shard}.json", {**raw, "verdicts": [{**v, "passed": True} for v in raw["verdicts"]]})
    page = page_of(browser, checks_url(dev), "Evaluation result", "Execute all")
    before = dev.query(RUNS)["runsOrError"]["results"][0]["runId"]
    page.get_by_role("button", name="Execute all").click()
    run = dev.wait(lambda: (r := dev.query(RUNS)["runsOrError"]["results"][0])["runId"] != before and r["runId"], 60)
    assert (
        dev.wait(lambda: dev.status(run) in ENDED and dev.status(run), 180) == "FAILURE"
    )  # a blocking check failed, as in a run
    page.close()
    page = page_of(browser, checks_url(dev), "partitions pass; partition", "Evaluation result")
    keep(page, "review-checks")
    assert RED in colour_of(page, "completion_equals_bill") and ORANGE in colour_of(page, "quarantined_share")
    assert GREEN in colour_of(page, "loss_mask")
    shown = page.inner_text("body")
    page.close()
    assert (
        "billed rows differ from their completion bill" in shown
        and "the files on disk, anew" in shown
        and "nothing was bought" in shown
    )
    assert any(not v["passed"] for shard in SHARDS for v in read_json(filed / f"{shard}.json")["verdicts"])


def test_a_failed_check_opens_its_examples(dev: Dev, browser: Any, reviewed: Place, tmp_path: Path) -> None:
    page = page_of(browser, checks_url(dev), "[Show Markdown]")
    page.get_by_text("[Show Markdown]").first.click()
    page.get_by_text("eagle3 show").first.wait_for(timeout=10_000)
    keep(page, "review-examples")
    command = re.search(r"eagle3 show ([0-9a-f]{32})", page.inner_text("body"))
    page.close()
    assert command is not None
    done = reviewed.run("eagle3", "show", command[1], "--html", str(tmp_path / "sample.html"))
    assert done.returncode == 0, done.stderr
    page = page_of(browser, (tmp_path / "sample.html").as_uri(), command[1])
    keep(page, "review-sample")
    shown = page.inner_text("body")
    page.close()
    assert "completion_equals_bill" in shown and STOPS in shown


def test_each_shard_has_its_own_result_and_its_history(dev: Dev, browser: Any) -> None:
    page = page_of(browser, checks_url(dev, "verdict"), "Evaluation result")
    page.get_by_text("Partitions", exact=True).last.click()
    page.get_by_text("Missing (0)").first.wait_for(timeout=30_000)
    shown = page.inner_text("body")
    keep(page, "review-shards")
    failed, passed = (int(re.search(rf"(?<!Execution ){word} \((\d+)\)", shown)[1]) for word in ("Failed", "Passed"))  # type: ignore[index]
    assert failed > 0 and failed + passed == len(SHARDS)
    page.get_by_text("Execution history", exact=True).click()
    page.get_by_text("completion_equals_bill: ").first.wait_for(timeout=30_000)
    page.close()
    page = page_of(browser, checks_url(dev), "Evaluation result")
    page.get_by_text("Execution history", exact=True).click()
    page.get_by_text("billed rows differ").first.wait_for(timeout=30_000)
    keep(page, "review-history")
    shown = page.inner_text("body")
    page.close()
    assert "Failed" in shown and "partitions pass; partition" in shown


def test_the_report_opens_in_the_ui_and_as_a_page(dev: Dev, browser: Any, reviewed: Place) -> None:
    page = page_of(browser, f"{dev.url}/assets/report/{STOPS}", "[Show Markdown]")
    page.get_by_text("[Show Markdown]").first.click()
    page.get_by_text("STOP completion_equals_bill").first.wait_for(timeout=10_000)
    keep(page, "review-report-ui")
    assert "over the whole dataset" in page.inner_text("body")
    page.close()
    page = page_of(browser, (reviewed.root("review") / "reports" / f"{STOPS}.html").as_uri(), "Stop", height=1300)
    keep(page, "review-report")
    shown = page.inner_text("body")
    page.close()
    assert re.search(r"Stop\s+[\d,]+ of 400 rows", shown) and "Where mismatches sit, and since when" in shown
    assert re.search(r"mismatch_strata\s+WARN", shown) and re.search(r"completion_equals_bill\s+ERROR", shown)


def test_one_shard_is_checked_again_from_the_terminal(reviewed: Place) -> None:
    done = reviewed.run("eagle3", "recheck", STOPS, "--stage", "tokens", "--json")
    failing = {v["shard"] for v in json.loads(done.stdout) if v["check"] == "completion_equals_bill" and not v["passed"]}
    assert done.returncode == 1 and failing
    one = reviewed.run("eagle3", "recheck", STOPS, "--shard", min(failing))
    assert one.returncode == 1 and f"tokens {STOPS} {min(failing)}: " in one.stdout
    assert re.search(r"STOP completion_equals_bill: .*\n +eagle3 show [0-9a-f]{32}", one.stdout)
