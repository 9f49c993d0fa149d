"""`reports/<ds>.{json,md,html}`: what a person reads in five minutes, and what machines read.

Belongs here: putting figures, verdict and picture together and writing the three files. Does not belong here: counting
(`figures.py`), layout (`page.py`), committing a manifest (the caller).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import SHARDS, Campaign, Dataset
from eagle3_assets.exact.sample_row import SCHEMA, read_table
from eagle3_assets.prompts.set_aside import shown
from eagle3_assets.review.report import figures as count
from eagle3_assets.review.report.page import MAX_MARKDOWN, render_html, render_markdown
from eagle3_assets.review.report.pictures import MAX_BYTES, draw_report
from eagle3_assets.review.report.report_checks import judge_statistics
from eagle3_assets.review.rows.quarantine import rejected, write_rejected
from eagle3_assets.review.verdicts.over_all import over_all
from eagle3_assets.review.verdicts.table import CHECKS, check_named
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.review.verdicts.waivers import read_waivers
from eagle3_assets.store import Store, manifest_path, read_committed, read_manifest, write_bytes, write_json

MAX_TEXT = 400  # characters of one text in a report; messages are one line


@dataclass(frozen=True, slots=True)
class Report:
    """`data` is the content of reports/<ds>.json, `numbers` the scalars worth following over time, `markdown` (below 50 kB,
    picture inside) that of reports/<ds>.md."""

    data: dict[str, Any]
    numbers: dict[str, Any]
    markdown: str


def build_report(
    campaign: Campaign, store: Store, dataset: Dataset | str, verdicts: Mapping[str, Sequence[Verdict]] | None = None
) -> Report:
    """Count, draw and write the report of a dataset. `verdicts` are those of stage `tokens`, by shard.

    Reads one shard at a time. All text that came from outside (providers, reasons, file contents) is made printable and escaped.
    """
    name = dataset if isinstance(dataset, str) else dataset.name
    data = collect_report(campaign, store, name, verdicts or {})
    room = (MAX_MARKDOWN - len(render_markdown(data, b"").encode())) * 3 // 4 - 100  # base64
    png = draw_report(data, min(MAX_BYTES, room))
    markdown = render_markdown(data, png)
    base = store.report(name)
    out = rejected(read_table(store.tokens(name, s)) for s in SHARDS if read_manifest(store.tokens(name, s)) is not None)
    write_rejected(quarantine_path(store, name), out if out is not None else SCHEMA.empty_table())
    write_json(base, data)
    write_bytes(base.with_suffix(".md"), markdown.encode())
    write_bytes(base.with_suffix(".html"), render_html(data, png).encode())
    return Report(data, headline_numbers(data), markdown)


def report_files(store: Store, dataset: str) -> list[Path]:
    """The files of one report, for its manifest."""
    base = store.report(dataset)
    return [base, base.with_suffix(".md"), base.with_suffix(".html"), quarantine_path(store, dataset)]


def quarantine_path(store: Store, dataset: str) -> Path:
    """The rejected rows of a dataset, with their reasons."""
    return store.report(dataset).with_suffix(".quarantine.parquet")


def collect_report(campaign: Campaign, store: Store, dataset: str, verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, Any]:
    """The report as plain JSON; every text in it is printable."""
    figures = count.count_dataset(campaign, store, dataset)
    facts = campaign.dataset_named(dataset)
    funnel = count.funnel_lines(store, dataset, figures)
    judged = over_all("tokens", CHECKS["tokens"], verdicts)
    data = {
        "dataset": dataset,
        "campaign": campaign.name,
        "backend": facts.backend,
        "licence": facts.licence,
        "verdict": {},  # in its place, and filled at the end
        "checks": check_lines(judged, shards=len(verdicts)),
        "totals": dict(figures.totals),
        "grades": count.grade_lines(figures),
        "billing": count.billing_lines(figures),
        "monitor": count.monitor_lines(figures),
        "timeline": figures.timeline.lines(),
        "drift": count.drift_line(store, dataset, figures),
        "waived": [asdict(w) for w in read_waivers(store) if w.dataset == dataset],
        "providers": count.provider_lines(figures),
        "lengths": count.length_lines(figures),
        "funnel": funnel,
        "set_aside": funnel[0]["lost"],
        "reasons": dict(sorted(figures.reasons.items())),
        "round_trip": count.round_trip_line(judged),
        "worst": [line for _, line in figures.worst],
    }
    statistics = judge_statistics(data)
    data["statistics"] = [asdict(v) | {"description": check_named("report", v.check).description} for v in statistics]
    data["changes"] = change_lines(store, figures)
    data["verdict"] = _verdict(figures, judged, statistics, data["changes"])
    return {k: printable(v) for k, v in data.items()}


def change_lines(store: Store, figures: count.Figures) -> list[str]:
    """A sentence for each change of form of the dataset's providers while answers came, as it was learned."""
    from eagle3_assets.exact.providers.drift import changes

    if not manifest_path(store.wire_profiles).exists():
        return []
    found = changes(read_committed(store.wire_profiles, made_by="wire_profiles"))
    again = "; its probes are asked again when answers are next bought"
    return [f"{change.words}{again}." for change in found if change.provider in figures.providers]


def _verdict(
    figures: count.Figures, judged: Sequence[Verdict], statistics: Sequence[Verdict], changed: Sequence[str]
) -> dict[str, Any]:
    """The verdict in plain words, first thing on the page. `statistics` and providers that `changed` warn, they stop nothing."""
    stopping = [v for v in judged if v.stops]
    rows, kept = figures.totals.get("rows", 0), figures.totals.get("trainable_rows", 0)
    words = []
    if not rows:
        words.append("There are no rows yet: no shard of this dataset has tokens.")
    else:
        tokens, usd = figures.totals["trainable_tokens"], figures.totals["cost_usd"]
        words.append(
            f"{kept:,} of {rows:,} rows ({kept / rows:.1%}) may be trained on: {tokens:,} supervised tokens for {usd:,.4f} USD."
        )
        expected = figures.totals["trainable_expected_exact"]
        words.append(f"{expected:,.1f} of these {kept:,} are expected to be exact in every id (sum of their p_exact).")
    words += [f"STOP {v.check}: {v.message}" for v in stopping]
    warned = [v for v in (*judged, *statistics) if not v.passed and not v.stops]
    words += [f"Worth a look: {v.check}: {v.message}" for v in warned]
    words += changed
    if not judged:
        words.append("No check has judged these rows yet.")
    return {"passed": bool(rows) and bool(judged) and not stopping, "words": words}


def check_lines(judged: Sequence[Verdict], *, shards: int) -> list[dict[str, Any]]:
    """One line a check of stage `tokens`, from its verdict over all shards; those that judged nothing say so."""
    by_name = {v.check: v for v in judged}
    lines = []
    for check in CHECKS["tokens"]:
        v = by_name.get(check.name)
        line = {"check": check.name, "severity": check.severity, "description": check.description, "shards": shards if v else 0}
        if v is None:
            line |= {"failed_shards": 0, "passed": False, "message": "not judged", "overall": {}, "examples": []}
        else:
            failed = int(v.numbers.get("failed_partitions", not v.passed))
            line |= {"failed_shards": failed, "passed": v.passed, "message": v.message, "overall": v.numbers}
            line["examples"] = list(v.examples)
        lines.append(line)
    return lines


def headline_numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars for the asset's metadata (plotted over time) and the manifest."""
    totals, billing = data["totals"], data["billing"]
    rows = totals.get("rows", 0)
    return {
        "rows": rows,
        "trainable_rows": totals.get("trainable_rows", 0),
        "trainable_tokens": totals.get("trainable_tokens", 0),
        "cost_usd": totals.get("cost_usd", 0.0),
        "expected_exact": totals.get("expected_exact", 0.0),
        "quarantined": sum(g["rows"] for g in data["grades"] if g["grade"] == "Q"),
        "equal_share": billing["completion"]["equal_share"],
        "equal_share_lower": billing["completion"]["equal_share_lower"],
        "prompt_equal_share": billing["prompt"]["equal_share"],
        "aggregate_difference": billing["aggregate"]["relative_difference"],
        "absolute_difference": billing["aggregate"]["absolute_difference"],
        "round_trip_share": data["round_trip"]["share"],
        "passed": data["verdict"]["passed"],
    }


def printable(value: Any) -> Any:
    """`value` with every text on one line and free of control characters (terminal escapes, direction marks, surrogates)."""
    if isinstance(value, str):
        return shown(value, MAX_TEXT)
    if isinstance(value, Mapping):
        return {printable(str(k)): printable(v) for k, v in value.items()}
    return [printable(v) for v in value] if isinstance(value, list | tuple) else value
