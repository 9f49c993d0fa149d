"""Claims about the pages in a real browser: each shows its rows, is usable by keyboard, by everybody (axe), on a telephone, in the dark; and no
text of a row is ever run.

Needs Debian's `chromium`; axe comes with `make viewer`. EAGLE3_SCREENSHOTS names a folder that keeps the pictures.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect, sync_playwright

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.store import Store
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.view.export import write_export
from eagle3_assets.view.library import Library
from eagle3_assets.view.roots import roots_of
from eagle3_assets_tests.conftest import REPOSITORY
from eagle3_assets_tests.exact.synthetic import Provider, Truth
from eagle3_assets_tests.view.serving import served
from eagle3_assets_tests.view.small_root import DATASET, EVIL_NAME, SHARD, answers_of, make_root, write_journal, write_tokens

CHROMIUM = shutil.which("chromium")
AXE = REPOSITORY / "viewer" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"),
]
HUGE = 5_000_000  # bytes of one answer
QUERIES = [
    "grade=B1&grade=Q&sort=-length",
    "not.provider=Plain&p_exact.min=0.9",
    "length.max=60&sort=provider",
    "id=0000000000000000000000000000001",
]


class Viewer:
    """A served viewer, its export, and a browser."""

    def __init__(self, url: str, folder: Path, browser: Any, keys: dict[str, str]) -> None:
        self.url, self.folder, self.browser, self.keys = url, folder, browser, keys

    def row(self, name: str, **query: str) -> str:
        words = "&".join(f"{k}={quote(v, safe='')}" for k, v in query.items())
        return f"#/row/{'/'.join(quote(part, safe='') for part in self.keys[name].split('/'))}" + (f"?{words}" if words else "")


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory, mini: Profile) -> Iterator[Viewer]:
    data = tmp_path_factory.mktemp("view")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLE3_DATA", str(data))
        campaign = load_campaign("demo")
        keys = write_root(campaign, Store.of(campaign), mini)
        library = Library(roots_of(campaign))
        library.reader().wait()
        write_export(library, data / "export", most_rows=500, on_progress=lambda words: None)
        with served(library) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM)
            yield Viewer(server.url, data / "export", browser, keys)
            browser.close()


def write_root(campaign: Campaign, store: Store, profile: Profile) -> dict[str, str]:
    """The small campaign, with one answer of five megabytes; {what a row is: its key}."""
    make_root(campaign, store, profile)
    answers = answers_of(profile)
    huge = Provider(profile, "Plain").answer(Truth(" long", "word " * (HUGE // 5)), sample_id="f" * 32, attempt=1)
    everything = [*answers, huge]
    shutil.rmtree(store.answers(DATASET, SHARD))
    write_journal(store, everything)
    rows = build_rows(profile, campaign, campaign.dataset_named(DATASET), everything, learn(profile, answers))
    write_tokens(store, rows)
    wanted = {
        "plain": lambda r: r.provider == "Plain" and r.grade == "B1", "joined": lambda r: r.provider == "Joining" and r.grade == "B1",
        "evil": lambda r: r.provider == EVIL_NAME and r.finish_reason == "stop" and not r.reasons[0].startswith("wire_text"),
        "lost": lambda r: "U+FFFD" in "".join(r.reasons), "open": lambda r: bool(r.survivors), "huge": lambda r: r.sample_id == "f" * 32,
        "out": lambda r: r.grade == "Q",
    }  # fmt: skip
    found = {}
    for name, test in wanted.items():
        row = next(row for row in rows if test(row))
        found[name] = f"{row.dataset}/{row.sample_id}/{row.turn}"
    return found


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Page:
    """A page whose errors are kept. `axe` needs to be put in from outside, which the page's own policy forbids: hence `open_for_axe`."""

    def __init__(self, viewer: Viewer, *, theme: str = "light", width: int = 1400, bypass: bool = False, base: str = "") -> None:
        context = viewer.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=bypass)
        context.set_default_timeout(20_000)
        self.page, self.base, self.errors, self.asked = context.new_page(), base or viewer.url, [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, address: str, wanted: str) -> Any:
        """Go there and wait until `wanted` (a selector or text=…) is seen."""
        self.page.goto(self.base + address)
        self.page.wait_for_selector(wanted)
        return self.page

    def picture(self, name: str) -> None:
        if folder := os.environ.get("EAGLE3_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"view-{name}.png", full_page=True)


def addresses(viewer: Viewer) -> dict[str, tuple[str, str]]:
    return {
        "campaign": ("#/", "text=What to do next"),
        "rows": ("#/rows", "table.rows tbody tr"),
        "search": ("#/rows?q=thought", "tr.snippet"),
        "row": (viewer.row("joined"), ".tokens .chip"),
        "survivors": (viewer.row("open"), ".survivor"),
        "quarantine": (viewer.row("out"), ".tokens .chip"),
        "evil": (viewer.row("evil"), ".tokens .chip"),
        "providers": ("#/providers", ".chart"),
        "compare": ("#/compare?left.provider=Plain&right.provider=Joining", ".pairs li"),
    }


NAMES = ["campaign", "rows", "search", "row", "survivors", "quarantine", "evil", "providers", "compare"]


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("name", NAMES)
def test_every_page_is_for_everybody_in_light_and_dark_on_wide_and_narrow_screens(
    viewer: Viewer, name: str, width: int, theme: str
) -> None:
    if not AXE.exists():
        pytest.skip("needs axe-core: run `make viewer` once")
    here = Page(viewer, theme=theme, width=width, bypass=True)
    page = here.open(*addresses(viewer)[name])
    page.evaluate("document.querySelectorAll('main details').forEach(box => box.open = true)")
    page.wait_for_load_state("networkidle")
    here.picture(f"{name}-{theme}-{width}")
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run()")
    violations = [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"]) for v in found["violations"]]
    assert violations == [] and len(found["passes"]) > 15
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert here.errors == []


@pytest.mark.parametrize("name", NAMES)
def test_no_page_asks_anybody_else_and_none_breaks_its_policy(viewer: Viewer, name: str) -> None:
    here = Page(viewer)
    page = here.open(*addresses(viewer)[name])
    page.wait_for_load_state("networkidle")
    assert here.errors == [] and all(url.startswith((viewer.url, "data:")) for url in here.asked)


def test_tokens_say_their_id_and_the_keyboard_walks_over_them(viewer: Viewer, mini: Profile) -> None:
    page = Page(viewer).open(viewer.row("plain"), ".tokens .chip")
    chip = page.locator(".tokens .chip").nth(4)
    token = int(re.search(r"id (\d+)", chip.get_attribute("title") or "")[1])  # type: ignore[index]
    assert mini.decode([token]).strip() == (chip.text_content() or "").strip()
    page.locator(".tokens").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".held")).to_contain_text(f"position 4 · id {token}")
    page.locator(".tokens .chip").nth(2).hover()
    expect(page.locator(".held")).to_contain_text("position 2")


def test_every_edit_is_marked_and_whitespace_is_seen(viewer: Viewer) -> None:
    page = Page(viewer).open(viewer.row("joined"), ".tokens .chip")
    section = page.locator("details", has_text="Wire text beside ids")
    gone = section.locator(".text del").all_text_contents()
    assert gone and all(text == "␣" for text in gone)


def test_keys_lead_through_the_failing_rows_and_back(viewer: Viewer) -> None:
    page = Page(viewer).open("#/rows", "table.rows tbody tr")
    page.keyboard.press("f")
    expect(page).to_have_url(re.compile("failing=yes"))
    expect(page.locator("table.rows tbody td.n").first).to_be_visible()
    expect(page.locator("table.rows tbody tr", has_text=re.compile(r"A0|B1"))).to_have_count(0)
    page.keyboard.press("j")
    expect(page.locator("table.rows tbody a").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".tokens .chip").first).to_be_visible()
    first = page.url
    expect(page.locator("button", has_text="next failing")).to_be_enabled()
    page.keyboard.press("n")
    expect(page).not_to_have_url(first)
    expect(page).to_have_url(re.compile("#/row/"))
    expect(page.locator("button", has_text="previous failing")).to_be_enabled()
    page.keyboard.press("p")
    expect(page).to_have_url(first)
    page.keyboard.press("u")
    expect(page).to_have_url(re.compile("#/rows.failing=yes"))
    expect(page.locator("table.rows tbody tr").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()


def test_what_a_person_types_is_found(viewer: Viewer) -> None:
    page = Page(viewer).open("#/rows", "table.rows tbody tr")
    page.fill("#q", "tell me about NUMBER 7")
    page.keyboard.press("Enter")
    expect(page.locator("tr.snippet mark").first).to_have_text("tell me about number 7")
    expect(page.locator(".main [role=status]")).to_have_text("2 rows with these words")


@pytest.mark.parametrize("address", ["row", "rows", "providers", "compare", "search"])
def test_hostile_text_is_shown_and_never_run(viewer: Viewer, address: str) -> None:
    where, wanted = {
        "row": (viewer.row("evil"), ".tokens .chip"),
        "rows": ("#/rows?sort=provider", "table.rows tbody tr"),
        "providers": ("#/providers/" + quote(EVIL_NAME, safe=""), ".window"),
        "compare": (f"#/compare?left.provider={quote(EVIL_NAME, safe='')}&right.provider=Plain", "text=All rows of each"),
        "search": ("#/rows?q=" + quote("</script>", safe=""), "tr.snippet"),
    }[address]
    here = Page(viewer, bypass=True)  # without the policy, which would hide a mistake
    page = here.open(where, wanted)
    page.evaluate("document.querySelectorAll('main details').forEach(box => box.open = true)")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.owned") is None and here.errors == []
    assert (
        page.evaluate("document.querySelectorAll('main script, main img, main iframe, [onerror], a[href^=javascript]').length")
        == 0
    )
    text = page.inner_text("main")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x00]", text)
    assert "\\u202e" in text
    if address == "row":
        assert "<script>window.owned" in text and "\\x1b" in text


def test_lost_bytes_are_seen(viewer: Viewer) -> None:
    page = Page(viewer).open(viewer.row("lost"), ".tokens .chip")
    assert "U+FFFD" in page.inner_text(".reasons") and "\ufffd" in page.inner_text("main")


def test_five_megabytes_are_a_page_like_any_other(viewer: Viewer) -> None:
    here = Page(viewer)
    page = here.open(viewer.row("huge"), ".tokens .chip")
    assert page.locator(".tokens .chip").count() == 1000
    page.click("text=to the end")
    expect(page.locator(".tokens .chip").last).to_have_text("<|im_end|>")
    assert page.locator(".tokens .chip").count() <= 1000
    page.click("summary:has-text('Raw bytes')")
    page.wait_for_selector("pre.text")
    assert len(page.inner_text("pre.text")) <= 70_000 and "5.0 MB" in page.inner_text("main")
    page.click("nav[aria-label='pages of bytes'] >> text=later")
    expect(page.locator("nav[aria-label='pages of bytes'] span")).to_contain_text("65,536–")
    assert here.errors == []


def test_the_theme_is_a_choice_that_is_kept(viewer: Viewer) -> None:
    page = Page(viewer).open("#/", "text=What to do next")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("body")).not_to_have_css("background-color", light)
    page.reload()
    page.wait_for_selector("text=What to do next")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


# ---------------------------------------------------------------------------------------------------- the export, from the disk
@pytest.mark.parametrize("name", NAMES)
def test_the_export_shows_the_same_from_the_disk(viewer: Viewer, name: str) -> None:
    address, wanted = addresses(viewer)[name]
    alive = Page(viewer).open(address, wanted)
    alive.wait_for_load_state("networkidle")
    here = Page(viewer, base=f"file://{viewer.folder}/index.html")
    page = here.open(address, wanted)
    page.wait_for_load_state("networkidle")
    here.picture(f"export-{name}")
    assert here.errors == [] and all(url.startswith("file://") for url in here.asked)
    if name in ("rows", "search"):
        rows = "[...document.querySelectorAll('table.rows tbody tr')].map(row => row.textContent)"
        assert page.evaluate(rows) == alive.evaluate(rows)
        assert page.locator("fieldset .count").all_text_contents() == alive.locator("fieldset .count").all_text_contents()
    if name in ("row", "evil", "survivors"):
        assert page.inner_text(".tokens") == alive.inner_text(".tokens")
        assert page.evaluate("window.owned") is None


@pytest.mark.parametrize("query", QUERIES)
def test_the_export_filters_as_the_server_does(viewer: Viewer, query: str) -> None:
    rows = "[...document.querySelectorAll('table.rows tbody tr')].map(row => row.textContent)"
    alive = Page(viewer).open(f"#/rows?{query}", "table.rows tbody tr")
    page = Page(viewer, base=f"file://{viewer.folder}/index.html").open(f"#/rows?{query}", "table.rows tbody tr")
    assert page.evaluate(rows) == alive.evaluate(rows) != []
