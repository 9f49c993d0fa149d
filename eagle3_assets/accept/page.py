"""The acceptance document for people: one self-contained HTML page, a markdown table for the Dagster UI, a picture.

Belongs here: layout, words, drawing. Does not belong here: figures (`acceptance.py`), verdicts (`report.py`). The page loads nothing from anywhere.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.accept.acceptance import FACETS, MEANINGS, WAYS
from eagle3_assets.review.report.page import escape_markdown

MAX_BYTES = 28_000  # in base64 with the text around it below the 50 kB that one Dagster event should hold

_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ d.campaign }}: acceptance</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.pass { color: #17692f } .stop { color: #b3261e } .warn { color: #9a6700 } code { background: #f4f4f4 } img { max-width: 100% }
.figure { font-size: 2.2rem; margin: .2rem 0 }
</style></head><body>
<h1>Acceptance length <small>{{ d.campaign }}, {{ d.target }}</small></h1>
<p class="figure">&tau; = {{ main.tau | fixed }}{% if main.low is not none %}
<small>({{ main.low | fixed }} to {{ main.high | fixed }})</small>{% endif %}</p>
<p>Ids that the target gets out of one verification, over {{ d.rows }} {{ d.split }} rows: {{ ways[d.headline] }}, {{ d.chain }} drafts.
An untrained drafter of the same shape: {{ d.untrained.tau | fixed }}. Drafter: <code>{{ d.checkpoint.name }}</code> ({{ d.checkpoint.made_by }}).
Intervals: 95 %, conversations drawn again.</p>
<table>{% for c in checks %}<tr><td>{{ c.check }}</td><td class="{{ 'pass' if c.passed else ('stop' if c.severity == 'ERROR' else 'warn') }}">
{{ 'passes' if c.passed else 'fails' }}</td><td>{{ c.message }}</td></tr>{% endfor %}</table>
<img alt="Acceptance length by way of decoding, dataset, position and context" src="data:image/png;base64,{{ png }}">
<h2>Ways of decoding</h2>
<table><tr><th>way</th><th>&tau;</th><th>95 %</th><th>drafts accepted, each if those before are</th><th>verifications</th><th>conversations</th></tr>
{% for name, f in d.ways.items() %}{{ row(ways[name], f.all) }}{% endfor %}</table>
{% for name, f in d.ways.items() %}<h2>{{ ways[name] }}</h2><p>{{ meanings[name] }}.</p>
{% for facet in facets %}<h3>By {{ facet }}</h3>
<table><tr><th>{{ facet }}</th><th>&tau;</th><th>95 %</th><th>drafts accepted</th><th>verifications</th><th>conversations</th></tr>
{% for value, g in f.groups[facet].items() %}{{ row(value, g) }}{% endfor %}</table>{% endfor %}{% endfor %}
<h2>How to read this</h2>
<p>A verification gives one id of the target and every draft before it that was accepted. The figures are computed from stored states: a draft is
fed on only while it is right, so each verification sees what a server would see
(docs/acceptance.md says which way is exact and which is estimated). Of
{{ d.stored_ids.compared }} stored ids {{ d.stored_ids.most_probable }} are the target's most probable ones. The end of an answer ends its last
verification. Seconds are no part of this: a higher &tau; is a faster server only where a draft costs little.</p>
</body></html>
"""

_ROW = """<tr><td>{name}</td><td class="n">{tau}</td><td class="n">{interval}</td><td class="n">{rates}</td>
<td class="n">{verifications}</td><td class="n">{conversations}</td></tr>"""


def render_html(document: Mapping[str, Any], checks: Sequence[Mapping[str, Any]], png: bytes) -> str:
    """`checks`: check, passed, severity, message of each verdict."""
    import jinja2
    from markupsafe import Markup

    def row(name: str, group: Mapping[str, Any]) -> Markup:
        return Markup(_ROW).format(name=name, **_cells(group))

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["fixed"] = lambda value: f"{value:.2f}"
    return environment.from_string(_HTML).render(
        d=document, main=document["ways"][document["headline"]]["all"], ways=WAYS,
        meanings=MEANINGS, facets=FACETS, checks=checks, row=row,
        png=base64.b64encode(png).decode(),
    )  # fmt: skip


def _cells(group: Mapping[str, Any]) -> dict[str, str]:
    return {
        "tau": f"{group['tau']:.2f}",
        "interval": "" if group["low"] is None else f"{group['low']:.2f} to {group['high']:.2f}",
        "rates": ", ".join(f"{rate:.0%}" for rate in group["rates"]),
        "verifications": f"{group['verifications']:,.0f}",
        "conversations": f"{group['conversations']:,}",
    }


def render_markdown(document: Mapping[str, Any]) -> str:
    """Every way, then the datasets of the headline's way."""
    columns = ("", "τ", "95 %", "drafts accepted", "verifications", "conversations")
    lines = ["| " + " | ".join(columns) + " |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    lines += [_line(WAYS[way], found["all"]) for way, found in document["ways"].items()]
    lines += [
        _line(f"dataset {name}", group) for name, group in document["ways"][document["headline"]]["groups"]["dataset"].items()
    ]
    return "\n".join([*lines, _line("an untrained drafter", document["untrained"])]) + "\n"


def _line(name: str, group: Mapping[str, Any]) -> str:
    return "| " + " | ".join([escape_markdown(name), *_cells(group).values()]) + " |"


def draw(document: Mapping[str, Any], dpi: int = 72) -> bytes:
    """PNG: ways of decoding, then the headline's way by dataset, position and context. Equal documents give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 3.0), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    left, *others = figure.subplots(1, 4)
    ways = {way.replace("_", " "): found["all"] for way, found in document["ways"].items()}
    _bars(left, {**ways, "untrained": document["untrained"]}, "way of decoding")
    groups = document["ways"][document["headline"]]["groups"]
    for axes, facet in zip(others, ("dataset", "position in the answer", "context length"), strict=True):
        _bars(axes, groups[facet], facet)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _bars(axes: Any, groups: Mapping[str, Mapping[str, Any]], title: str) -> None:
    names = list(groups)
    taus = [groups[name]["tau"] for name in names]
    axes.barh(range(len(names)), taus, color="#4c78a8")
    for k, name in enumerate(names):
        if groups[name]["low"] is not None:
            axes.plot([groups[name]["low"], groups[name]["high"]], [k, k], color="#222222", linewidth=1.5)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=1.0)
    axes.set_title(f"τ by {title}", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
