"""The report: figures that add up, a page that loads nothing and runs nothing."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.review import invariants
from eagle3_assets.review.report.campaign_page import write_campaign_page
from eagle3_assets.review.report.page import MAX_MARKDOWN, escape_markdown
from eagle3_assets.review.report.pictures import MAX_BYTES, draw_report
from eagle3_assets.review.report.report import Report, build_report, quarantine_path, report_files
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import Store, commit, read_json
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.review.made_rows import VOCAB, make_row, quarantined, sample_id, tiny_campaign, write_tokens

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202eevil`|![x](http://evil.example/p.png)"


def rows_of_shard(shard: str) -> list[SampleRow]:
    return [
        *(make_row(f"{shard}-{i}", shard=shard, response=100 * (i + 1)) for i in range(6)),
        make_row(f"{shard}-beta", shard=shard, provider="Beta", grade="C1", p_exact=0.96, cost_usd=None),
        make_row(f"{shard}-low", shard=shard, provider="Beta", grade="C1", p_exact=0.5),
        quarantined(f"{shard}-q", "completion_equals_bill: 4 fewer", shard=shard, billed_completion=12),
    ]


def build(campaign: Campaign, store: Store, shards: dict[str, list[SampleRow]]) -> Report:
    verdicts: dict[str, list[Verdict]] = {}
    for shard, rows in shards.items():
        write_tokens(store, "b3_magicoder", shard, rows)
        folder = store.answers("b3_magicoder", shard)
        folder.mkdir(parents=True, exist_ok=True)
        commit(
            folder, files=[], inputs={}, numbers={"selected": len(rows) + 1, "finished": len(rows), "failed": 1, "ambiguous": 0}
        )
        keys = {(r.sample_id, r.turn) for r in rows}
        verdicts[shard] = invariants.judge_tokens(to_table(rows), n_vocab=VOCAB, finished_keys=keys)
    prompts = store.prompts("b3_magicoder")
    prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts.write_bytes(b"x")
    commit(prompts, files=[prompts], inputs={}, numbers={"source_rows": 30, "selected": 20, "set_aside": {"empty": 3, "nul": 1}})
    return build_report(campaign, store, campaign.dataset_named("b3_magicoder"), verdicts)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return build(tiny_campaign(), Store(tmp_path), {s: rows_of_shard(s) for s in ("00", "01")})


@pytest.mark.slow
def test_figures_add_up_over_shards(report: Report, tmp_path: Path) -> None:
    data = report.data
    assert data == read_json(Store(tmp_path).report("b3_magicoder"))
    assert {g["grade"]: g["rows"] for g in data["grades"]} == {"B1": 12, "C1": 4, "Q": 2}
    assert sum(g["share"] for g in data["grades"]) == pytest.approx(1)
    assert data["totals"]["rows"] == 18 and data["totals"]["trainable_rows"] == 14
    assert data["totals"]["trainable_tokens"] == 2 * (sum(100 * (i + 1) for i in range(6)) + 8)
    assert sum(data["lengths"]["response"]["histogram"]) == 18 and data["lengths"]["response"]["longest"] == 600
    steps = {f["step"]: f for f in data["funnel"]}
    assert steps["source rows read"] == {"step": "source rows read", "rows": 30, "lost": {"empty": 3, "nul": 1}}
    assert steps["answers"]["rows"] == 18 and steps["answers"]["lost"] == {"failed": 2}
    assert steps["rows of tokens"]["lost"] == {"below_min_p_exact": 2, "quarantined": 2}
    lost = sum(steps["rows of tokens"]["lost"].values())
    assert steps["trainable rows (before duplicates)"]["rows"] == steps["rows of tokens"]["rows"] - lost
    alpha = next(p for p in data["providers"] if p["provider"] == "Alpha")
    assert alpha["usd_per_million"] == pytest.approx(alpha["cost_usd"] / alpha["response"] * 1e6)
    assert data["reasons"] == {"completion_equals_bill": 2}
    assert (
        report.numbers["rows"] == 18
        and report.numbers["quarantined"] == 2
        and report.numbers["equal_share"] == pytest.approx(16 / 18)
    )


@pytest.mark.slow
def test_the_verdict_comes_first_and_counts_small_shards_together(report: Report) -> None:
    assert not report.data["verdict"]["passed"]  # 2 of 18 rows differ from their bill; no shard alone is large enough to say so
    assert any(w.startswith("STOP completion_equals_bill: 2 of 18") for w in report.data["verdict"]["words"])
    assert report.markdown.startswith("## b3\\_magicoder: STOP")
    check = next(c for c in report.data["checks"] if c["check"] == "completion_equals_bill")
    assert check["failed_shards"] == 0 and not check["passed"] and check["overall"]["bad"] == 2


@pytest.mark.slow
def test_what_failed_is_shown_before_what_passed_and_statistics_have_a_table(report: Report, tmp_path: Path) -> None:
    page = Store(tmp_path).report("b3_magicoder").with_suffix(".html").read_text()
    assert page.index(">completion_equals_bill<") < page.index(">structure<")
    assert report.markdown.index("completion\\_equals\\_bill |") < report.markdown.index("structure |")
    found = {s["check"]: s["passed"] for s in report.data["statistics"]}
    assert found == {"aggregate_billing": False, "length_drift": True, "mismatch_alarm": True, "mismatch_strata": False}
    worth = [w.split(":")[1].strip() for w in report.data["verdict"]["words"] if w.startswith("Worth a look: ")]
    assert {"aggregate_billing", "mismatch_strata"} <= set(worth)
    assert "Over the whole dataset" in page and "over the whole dataset" in report.markdown
    assert "mismatches sit in" in report.markdown and "Over time" not in page  # nothing was bought here


@pytest.mark.slow
def test_the_purchase_over_time_is_told_in_words_and_drawn(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    rows = [make_row(i) for i in range(20)]
    with Journal.open(store.answers("b3_magicoder", "00")) as journal:
        for k, row in enumerate(rows):
            facts = {"request_id": f"r{k}", "sample_id": row.sample_id, "turn": 0, "attempt": 1, "dataset": "b3_magicoder", "shard": "00",
                     "source": "openrouter", "request": {}, "finished_at": 1000.0 + 5 * k}  # fmt: skip
            journal.append(WireAnswer(**facts, status=200, body=b"{}", outcome="finished", cost_usd=0.01, completion_tokens=8))  # type: ignore[arg-type]
        journal.append(WireAnswer(**facts, status=429, body=b"{}", outcome="failed", reason="429"))  # type: ignore[arg-type]
    built = build(campaign, store, {"00": rows})
    assert "Over 95.0 s: 20 answers, 160 tokens, 0.2000 USD; 1 attempts failed, 1 of them with 429." in built.markdown
    assert len(draw_report(built.data)) > len(draw_report({**built.data, "timeline": []}))
    assert "Over time" in store.report("b3_magicoder").with_suffix(".html").read_text()


@pytest.mark.slow
def test_worst_rows_come_with_their_command(report: Report) -> None:
    worst = report.data["worst"]
    assert [w["grade"] for w in worst[:2]] == ["Q", "Q"] and worst[0]["residual"] == -4
    assert worst[0]["command"] == f"eagle3 show {worst[0]['sample_id']}" and worst[0]["sample_id"] in {
        sample_id("00-q"),
        sample_id("01-q"),
    }
    assert [w["p_exact"] for w in worst[2:4]] == [0.5, 0.5]


@pytest.mark.slow
def test_good_rows_may_go_on(tmp_path: Path) -> None:
    rows = [make_row(i) for i in range(20)]
    data = build(tiny_campaign(), Store(tmp_path), {"00": rows}).data
    assert data["verdict"]["passed"] and all(c["passed"] for c in data["checks"])
    html = Store(tmp_path).report("b3_magicoder").with_suffix(".html").read_text()
    assert html.index("May go on") < html.index("Checks") < html.index("Grades")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.slow
def test_text_from_outside_is_shown_and_never_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bad = quarantined("h", f"wire_text: {HOSTILE}", provider=HOSTILE, finish_reason=HOSTILE)
    built = build(tiny_campaign(), store, {"00": [make_row(1), bad]})
    html, base = store.report("b3_magicoder").with_suffix(".html").read_text(), store.report("b3_magicoder")
    tags = Tags()
    tags.feed(html)
    assert not [t for t, _ in tags.found if t in ("script", "iframe", "link", "object")]
    assert [a["href"] for t, a in tags.found if t == "a"] == ["campaign.html"], "the one link is to the page beside it"
    assert "&lt;script&gt;" in html and "alert(1)" in html
    sources = [a["src"] for t, a in tags.found if "src" in a]
    assert sources and all(s is not None and s.startswith("data:image/png;base64,") for s in sources)
    for text in (html, built.markdown, base.read_text()):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "<script" not in built.markdown and "![x]" not in built.markdown
    assert r"\x1b[2J" in json.loads(base.read_bytes())["worst"][0]["provider"]


@pytest.mark.slow
def test_the_picture_is_small_and_the_markdown_fits_an_event(report: Report, tmp_path: Path) -> None:
    png = draw_report(report.data)
    assert png.startswith(b"\x89PNG") and 2_000 < len(png) <= MAX_BYTES
    assert png == draw_report(report.data)
    assert base64.b64encode(png).decode() in report.markdown
    size = len(report.markdown.encode())
    assert size < MAX_MARKDOWN and size == Store(tmp_path).report("b3_magicoder").with_suffix(".md").stat().st_size
    assert all(p.exists() for p in report_files(Store(tmp_path), "b3_magicoder"))


@pytest.mark.slow
def test_a_crowded_report_still_fits(tmp_path: Path) -> None:
    rows = [quarantined(i, f"wire_text: {'x<|' * 300} {i}", provider=f"{HOSTILE} {i}") for i in range(60)]
    built = build(tiny_campaign(), Store(tmp_path), {"00": rows})
    assert len(built.markdown.encode()) < MAX_MARKDOWN and len(built.data["worst"]) == 20


def test_a_dataset_without_rows_has_a_report_that_says_so(tmp_path: Path) -> None:
    campaign = tiny_campaign()
    built = build_report(campaign, Store(tmp_path), "b8_sweagent")
    assert not built.data["verdict"]["passed"] and "no rows yet" in built.data["verdict"]["words"][0]
    assert built.numbers["rows"] == 0
    assert build(campaign, Store(tmp_path / "b"), {"00": []}).data["totals"] == {}


def test_server_ids_report_their_round_trip(tmp_path: Path) -> None:
    rows = [make_row(i, source="import", provider=None, grade="I", billed_completion=None, billed_prompt=None,
                     evidence=json.dumps({"canonical": i != 3})) for i in range(5)]  # fmt: skip
    data = build(tiny_campaign(), Store(tmp_path), {"00": rows}).data
    assert data["round_trip"] == {"asked": 5, "equal": 4, "share": 0.8}
    assert data["billing"]["strata"] == []


def test_markdown_escapes_what_markdown_reads() -> None:
    assert escape_markdown("a|b <i> `c` [d](e) _f_") == r"a\|b &lt;i&gt; \`c\` \[d\](e) \_f\_"


@pytest.mark.slow
def test_the_campaign_page_adds_up_and_names_what_is_missing(report: Report, tmp_path: Path) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    page = write_campaign_page(campaign, store).read_text()
    data = read_json(store.reports / "campaign.json")
    assert data["datasets"][0]["failing"] == [
        "completion_equals_bill", "quarantined_share", "aggregate_billing", "mismatch_strata",
    ]  # fmt: skip
    assert data["rows"] == 18 and data["trainable_rows"] == 14 and data["missing"] == ["b8_sweagent", "a1_deepswekimi"]
    assert (
        not data["passed"] and ">Stop<" in page and 'href="b3_magicoder.html"' in page and "http" not in page.split("</head>")[1]
    )


@pytest.mark.slow
def test_rejected_rows_are_kept_with_their_reasons(report: Report, tmp_path: Path) -> None:
    kept = pq.read_table(quarantine_path(Store(tmp_path), "b3_magicoder")).to_pylist()
    assert [r["reasons"] for r in kept] == [["completion_equals_bill: 4 fewer"]] * 2 and all(r["input_ids"] for r in kept)
    assert quarantine_path(Store(tmp_path), "b3_magicoder") in report_files(Store(tmp_path), "b3_magicoder")


@pytest.mark.slow
def test_the_report_shows_where_mismatches_sit(report: Report, tmp_path: Path) -> None:
    strata = report.data["monitor"]["strata"]
    assert {s["provider"] for s in strata} == {"Alpha", "Beta"} and sum(s["n"] for s in strata) == 18
    alpha = next(s for s in strata if s["provider"] == "Alpha")
    assert alpha["equal"] == 12 and alpha["n"] == 14 and alpha["q"] <= 1 and alpha["reasoning"]["n"] == 0
    page = Store(tmp_path).report("b3_magicoder").with_suffix(".html").read_text()
    assert ("Where mismatches sit" in page and "Benjamini-Hochberg" in page) or "false discoveries" in page


def test_a_provider_that_changed_its_form_is_named_in_the_verdict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    turn = {"reading": "keep keep keep keep|end", "counts_end": True, "extra": 0, "arguments": "as returned"}
    before = {"from": 1_700_000_000.0, "stream": False, "rows": 90, "turns": {"text": turn}}
    behind = {**before, "from": 1_700_090_000.0, "rows": 40, "turns": {"text": {**turn, "counts_end": False}}}
    providers = {"Alpha": {"windows": [before, behind]}, "Elsewhere": {"windows": [before, behind]}}
    store.wire_profiles.parent.mkdir(parents=True, exist_ok=True)
    store.wire_profiles.write_text(json.dumps({"providers": providers}))
    commit(store.wire_profiles, files=[store.wire_profiles], inputs={})
    verdict = build(tiny_campaign(), store, {"00": rows_of_shard("00")}).data["verdict"]
    (named,) = (words for words in verdict["words"] if "changed on" in words)
    assert (
        named.startswith("Alpha changed on 2023-11-15 23:13 UTC") and "bill of texts: end counted, then end not counted" in named
    )
    assert "probes are asked again" in named
