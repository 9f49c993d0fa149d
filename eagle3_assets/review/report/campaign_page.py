"""`reports/campaign.{html,json}`: one page over all datasets, and the way to each one's own report.

Belongs here: adding up what the datasets' reports say. Does not belong here: counting rows (`figures.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.review.report.style import STYLE
from eagle3_assets.store import Store, read_json, write_bytes, write_json

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ r.campaign }}: report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{{ style }}</style></head><body>
<h1>{{ r.campaign }}</h1>
<h2 class="{{ 'pass' if r.passed else 'stop' }}">{{ 'May go on' if r.passed else 'Stop' }}</h2>
<p>{{ '{:,}'.format(r.trainable_rows) }} of {{ '{:,}'.format(r.rows) }} rows may be trained on: {{ '{:,}'.format(r.trainable_tokens) }} supervised
tokens for {{ '{:,.4f}'.format(r.cost_usd) }} USD.{% if r.missing %} Without a report yet: {{ r.missing | join(', ') }}.{% endif %}</p>
<section><table><tr><th>dataset</th><th>verdict</th><th>rows</th><th>trainable</th><th>tokens</th><th>USD</th><th>USD per million trainable</th>
<th>equal to bill</th><th>what to look at</th></tr>
{% for d in r.datasets %}<tr><td><a href="{{ d.dataset }}.html">{{ d.dataset }}</a></td>
<td class="{{ 'stop' if not d.passed else ('warn' if d.failing else 'pass') }}" style="white-space: nowrap">
{{ 'STOP' if not d.passed else ('look' if d.failing else 'may go on') }}</td>
<td class="n">{{ '{:,}'.format(d.rows) }}</td>
<td class="n">{{ '{:,}'.format(d.trainable_rows) }}</td>
<td class="n">{{ '{:,}'.format(d.trainable_tokens) }}</td><td class="n">{{ '{:,.4f}'.format(d.cost_usd) }}</td>
<td class="n">{{ '–' if d.usd_per_million_trainable is none else '{:,.4f}'.format(d.usd_per_million_trainable) }}</td>
<td class="n">{{ '–' if d.equal_share is none else '{:.2%}'.format(d.equal_share) }}</td>
<td>{{ d.failing | join(', ') }}</td></tr>{% endfor %}</table></section>
<p class="note">may go on: no check failed ·
look: warnings only, they stop nothing · STOP: a blocking check failed.
Every row: <code>eagle3 view</code></p>
</body></html>
"""


def write_campaign_page(campaign: Campaign, store: Store) -> Path:
    """Write both files from the datasets' reports that are there; returns the page. It is a view: no stage reads it."""
    import jinja2
    from markupsafe import Markup

    data = collect_campaign(campaign, store)
    page = (
        jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        .from_string(_PAGE)
        .render(r=data, style=Markup(STYLE))
    )
    path = store.reports / "campaign.html"
    write_json(path.with_suffix(".json"), data)
    write_bytes(path, page.encode())
    return path


def collect_campaign(campaign: Campaign, store: Store) -> dict[str, Any]:
    """Sums over datasets as plain JSON; `passed` when every dataset has a report and each may go on."""
    lines, missing = [], []
    for dataset in campaign.dataset:
        try:
            lines.append(_line(read_json(store.report(dataset.name))))
        except (StoreError, KeyError, TypeError):
            missing.append(dataset.name)
    sums = {name: sum(line[name] for line in lines) for name in ("rows", "trainable_rows", "trainable_tokens", "cost_usd")}
    passed = bool(lines) and not missing and all(line["passed"] for line in lines)
    return {"campaign": campaign.name, "passed": passed, **sums, "missing": missing, "datasets": lines}


def _line(report: dict[str, Any]) -> dict[str, Any]:
    totals = report["totals"]
    kept, usd = totals.get("trainable_tokens", 0), totals.get("cost_usd", 0.0)
    return {
        "dataset": report["dataset"],
        "passed": report["verdict"]["passed"],
        "rows": totals.get("rows", 0),
        "trainable_rows": totals.get("trainable_rows", 0),
        "trainable_tokens": kept,
        "cost_usd": usd,
        "usd_per_million_trainable": usd / kept * 1e6 if kept else None,
        "equal_share": report["billing"]["completion"]["equal_share"],
        "failing": [c["check"] for c in report["checks"] if c["shards"] and not c["passed"]]
        + [s["check"] for s in report["statistics"] if not s["passed"]],
    }
