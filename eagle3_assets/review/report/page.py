"""The report as one self-contained HTML page and as markdown.

Belongs here: layout. Does not belong here: figures. Text is escaped by default (jinja2 autoescape; `escape_markdown`); the
page loads nothing from anywhere, and its content policy forbids it to.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from eagle3_assets.review.report.style import STYLE

_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ r.dataset }}: report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{{ style }}</style></head><body>
<nav><a href="campaign.html">campaign {{ r.campaign }}</a> › {{ r.dataset }} · every row: <code>eagle3 view</code></nav>
<h1>{{ r.dataset }} <small>of campaign {{ r.campaign }}, by {{ r.backend }}</small></h1>
<div class="verdict {{ 'pass' if r.verdict.passed else 'stop' }}"><h2>{{ 'May go on' if r.verdict.passed else 'Stop' }}</h2>
{% for words in r.verdict.words %}<p>{{ words }}</p>{% endfor %}</div>
<h2>Checks</h2>
{% macro lines(checks) %}<table><tr><th>check</th><th></th><th>shards failed</th><th>what was found</th><th>look at</th></tr>
{% for c in checks %}<tr><td title="{{ c.description }}">{{ c.check }}</td>
<td class="{{ 'pass' if c.passed else ('stop' if c.severity == 'ERROR' else 'warn') }}">{{ 'passed' if c.passed else c.severity
}}</td>
<td class="n">{{ c.failed_shards }} of {{ c.shards }}</td><td>{{ c.message }}</td>
<td>{% for e in c.examples[:2] %}<code>eagle3 show {{ e }}</code> {% endfor %}</td></tr>{% endfor %}</table>{% endmacro %}
{% set failed = r.checks | rejectattr('passed') | list %}{% set passed = r.checks | selectattr('passed') | list %}
{% if failed %}<section>{{ lines(failed) }}</section>{% endif %}
{% if passed %}<details><summary>{{ passed | length }} of {{ r.checks | length }} checks passed</summary>{{ lines(passed) }}</details>{% endif %}
<h3>Over the whole dataset</h3>
<table><tr><th>check</th><th></th><th>what was found</th></tr>
{% for c in r.statistics %}<tr><td title="{{ c.description }}">{{ c.check }}</td>
<td class="{{ 'pass' if c.passed else 'warn' }}">{{ 'passed' if c.passed else c.severity }}</td><td>{{ c.message }}</td></tr>{% endfor %}</table>
<h2>Grades</h2>
<table><tr><th>grade</th><th>rows</th><th>share</th><th>tokens</th><th>supervised</th><th>expected exact rows</th>
<th>trainable rows</th></tr>
{% for g in r.grades %}<tr><td>{{ g.grade }}</td><td class="n">{{ n(g.rows) }}</td><td class="n">{{ pct(g.share) }}</td>
<td class="n">{{ n(g.tokens) }}</td><td class="n">{{ n(g.supervised) }}</td><td class="n">{{ '%.1f' % g.expected_exact }}</td>
<td class="n">{{ n(g.trainable_rows) }}</td></tr>{% endfor %}</table>
<h2>Billing, row by row</h2>
<img alt="rows by rebuilt minus billed tokens; rows by length; tokens and refusals over time; share equal to the bill over time"
src="data:image/png;base64,{{ picture }}">
{% if not r.billing.strata %}<p>Nothing was billed: these rows were imported or answered by an engine of one's own.</p>{% else %}
<p>d is rebuilt minus billed tokens of one row. "equal" is the share of rows with d = 0, "at least" what it is with 95 % confidence;
Σ|d| adds the differences up, |Σd| lets opposite signs cancel, "cancellation" is how much of Σ|d| vanishes that way.</p>
<table><tr><th>provider</th><th>tools</th><th>finish</th><th>rows</th><th>equal</th><th>at least (95 %)</th><th>Σ|d|</th>
<th>|Σd|</th>
<th>cancellation</th><th>prompt equal</th>{% for b in buckets %}<th>d {{ b }}</th>{% endfor %}</tr>
{% for s in r.billing.strata %}<tr><td>{{ s.provider }}</td><td>{{ 'yes' if s.tools else 'no' }}</td>
<td>{{ s.finish_reason }}</td>
<td class="n">{{ n(s.completion.n) }}</td><td class="n">{{ pct(s.completion.equal_share) }}</td>
<td class="n">{{ pct(s.completion.equal_share_lower) }}</td><td class="n">{{ n(s.completion.sum_abs) }}</td>
<td class="n">{{ n(s.completion.abs_sum) }}</td><td class="n">{{ cancel(s.completion) }}</td>
<td class="n">{{ pct(s.prompt.equal_share) }}</td>
{% for b in buckets %}<td class="n">{{ n(s.completion.histogram[b]) }}</td>{% endfor %}</tr>{% endfor %}</table>
<p>Over all: |Σd| is {{ pct(r.billing.aggregate.relative_difference, 4) }} of {{ n(r.billing.aggregate.billed) }} billed tokens,
Σ|d| is {{ pct(r.billing.aggregate.absolute_difference, 4) }}. {{ r.billing.aggregate.not_proved }}</p>{% endif %}
{% if r.waived %}<h2>Waived by people</h2><table><tr><th>check</th><th>shard</th><th>who</th><th>why</th><th>until</th></tr>
{% for w in r.waived %}<tr><td>{{ w.check }}</td><td>{{ w.shard }}</td><td>{{ w.who }}</td><td>{{ w.why }}</td><td>{{ w.until }}</td></tr>{% endfor %}
</table>{% endif %}
{% if r.monitor.strata %}<h2>Where mismatches sit, and since when</h2>
<p>{{ 'More mismatches than a rate of 1 % explains (false discoveries below 5 %): ' + r.monitor.flagged | join('; ') + '.' if r.monitor.flagged
else 'No stratum has more mismatches than a rate of 1 % explains (Benjamini-Hochberg over strata, 5 %).' }}</p>
<table><tr><th>provider</th><th>model</th><th>tools</th><th>finish</th><th>rows</th><th>q</th>
<th>mismatch per 1,000 ids</th><th>reasoning equal</th>
<th>cost = list price</th><th>alarm at row</th><th>equal, by quarter of the time</th></tr>
{% for s in r.monitor.strata %}<tr><td>{{ s.provider }}</td><td>{{ s.model }}</td>
<td>{{ 'yes' if s.tools else 'no' }}</td><td>{{ s.finish_reason }}</td>
<td class="n">{{ n(s.n) }}</td><td class="n {{ 'stop' if s.flagged }}">{{ '%.2g' % s.q }}</td>
<td class="n">{{ '–' if s.slope.per_1000 is none else '%.4f' % s.slope.per_1000 }}</td><td class="n">{{ pct(s.reasoning.equal_share) }}</td>
<td class="n">{{ pct(s.cost.equal_share) }}</td><td class="n">{{ n(s.cusum_alarm.row if s.cusum_alarm else none) }}</td>
<td>{% for w in s.windows %}{{ pct(w.equal_share) }} {% endfor %}</td></tr>{% endfor %}</table>{% endif %}
{% if r.timeline %}<h2>Over time</h2>
<table><tr><th>after s</th><th>answers</th><th>failed</th><th>429</th><th>tokens</th><th>USD</th></tr>
{% for t in r.timeline %}<tr><td class="n">{{ n(t.from_s) }}</td><td class="n">{{ n(t.answers) }}</td><td class="n">{{ n(t.failed) }}</td>
<td class="n">{{ n(t.refused_429) }}</td><td class="n">{{ n(t.tokens) }}</td><td class="n">{{ usd(t.usd) }}</td></tr>{% endfor %}</table>{% endif %}
<h2>Providers</h2>
<table><tr><th>provider</th><th>rows</th><th>response tokens</th><th>USD</th><th>USD per million response tokens</th>
<th>USD per million trainable tokens</th>
<th>trainable rows</th></tr>
{% for p in r.providers %}<tr><td>{{ p.provider }}</td><td class="n">{{ n(p.rows) }}</td><td class="n">{{ n(p.response) }}</td>
<td class="n">{{ usd(p.cost_usd) }}</td><td class="n">{{ usd(p.usd_per_million) }}</td>
<td class="n">{{ usd(p.usd_per_million_trainable) }}</td><td class="n">{{ n(p.trainable_rows) }}</td></tr>{% endfor %}</table>
<h2>From source row to trainable row</h2>
<table><tr><th>step</th><th>rows</th><th>lost, by reason</th></tr>
{% for f in r.funnel %}<tr><td>{{ f.step }}</td><td class="n">{{ n(f.rows) }}</td>
<td>{{ lost(f.lost) }}</td></tr>{% endfor %}</table>
{% if r.round_trip.asked %}<p>encode(decode(ids)) = ids for {{ n(r.round_trip.equal) }} of {{ n(r.round_trip.asked) }} rows
whose ids came
from a server ({{ pct(r.round_trip.share) }}). Those ids are kept as they are.</p>{% endif %}
<h2>Lengths</h2>
<table><tr><th></th><th>mean</th><th>median</th><th>p99</th><th>longest</th></tr>
{% for part in ('prompt', 'response') %}<tr><td>{{ part }}</td>{% for k in ('mean', 'median', 'p99', 'longest') %}
<td class="n">{{ n(r.lengths[part][k]) }}</td>{% endfor %}</tr>{% endfor %}</table>
{% if r.drift %}<p>Mean response: {{ n(r.drift.mean) }} ids, in the pilot {{ n(r.drift.pilot_mean) }} (z = {{ '%.1f' % r.drift.z }}).</p>{% endif %}
<h2>Rows to look at first</h2>
<table><tr><th>show</th><th>provider</th><th>grade</th><th>p exact</th><th>d</th><th>finish</th><th>reasons</th></tr>
{% for w in r.worst %}<tr><td><code>{{ w.command }}</code></td><td>{{ w.provider }}</td><td>{{ w.grade }}</td>
<td class="n">{{ '%.3f' % w.p_exact }}</td><td class="n">{{ n(w.residual) }}</td><td>{{ w.finish_reason or '–' }}</td>
<td>{{ w.reasons | join('; ') }}</td></tr>{% else %}<tr><td colspan="7">none</td></tr>{% endfor %}</table>
</body></html>
"""

MAX_MARKDOWN = 50_000  # bytes; metadata lives in the event log for ever (docs/research/dagster.md#2)
_WORST_IN_MARKDOWN, _STRATA_IN_MARKDOWN = 8, 8
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]#+!|<>~&])")


def render_html(report: dict[str, Any], png: bytes) -> str:
    """One page, no network. Everything that goes in is escaped."""
    import jinja2
    from markupsafe import Markup

    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_HTML)
    buckets = list(report["billing"]["completion"]["histogram"])
    words = {"n": _number, "pct": _percent, "usd": _usd, "cancel": _cancellation, "lost": _lost}
    return page.render(r=report, style=Markup(STYLE), picture=base64.b64encode(png).decode(), buckets=buckets, **words)


def render_markdown(report: dict[str, Any], png: bytes) -> str:
    """The same, shorter, with the picture inside: below 50 kB for the asset's metadata."""
    e = escape_markdown
    verdict, billing = report["verdict"], report["billing"]
    lines = [f"## {e(report['dataset'])}: {'may go on' if verdict['passed'] else 'STOP'}", ""]
    lines += [f"- {e(words)}" for words in verdict["words"]]
    lines += _table(
        ("check", "verdict", "shards failed", "found"),
        [
            (
                e(c["check"]),
                "passed" if c["passed"] else f"**{c['severity']}**",
                f"{c['failed_shards']} of {c['shards']}",
                e(c["message"]),
            )
            for c in sorted(report["checks"], key=lambda c: bool(c["passed"]))
        ],
    )
    lines += _table(
        ("over the whole dataset", "verdict", "found"),
        [(e(c["check"]), "passed" if c["passed"] else f"**{c['severity']}**", e(c["message"])) for c in report["statistics"]],
    )
    lines += _table(
        ("grade", "rows", "share", "supervised tokens", "expected exact"),
        [
            (g["grade"], _number(g["rows"]), _percent(g["share"]), _number(g["supervised"]), f"{g['expected_exact']:.1f}")
            for g in report["grades"]
        ],
    )
    lines += _table(
        ("provider", "tools", "finish", "rows", "equal", "at least (95 %)", "Σ\\|d\\|", "\\|Σd\\|", "cancellation"),
        [
            (
                e(s["provider"]),
                "yes" if s["tools"] else "no",
                e(s["finish_reason"]),
                _number(s["completion"]["n"]),
                _percent(s["completion"]["equal_share"]),
                _percent(s["completion"]["equal_share_lower"]),
                _number(s["completion"]["sum_abs"]),
                _number(s["completion"]["abs_sum"]),
                _cancellation(s["completion"]),
            )
            for s in billing["strata"][:40]
        ],
    )
    aggregate = billing["aggregate"]
    if not billing["strata"]:
        lines += ["", "Nothing was billed: these rows were imported or answered by an engine of one's own."]
    lines += (
        []
        if not billing["strata"]
        else ["", f"\\|Σd\\| is {_percent(aggregate['relative_difference'], 4)} of billed tokens. {e(aggregate['not_proved'])}"]
    )
    lines += _monitor_table(report["monitor"]["strata"])
    lines += _over_time(report["timeline"])
    lines += _table(
        ("step", "rows", "lost, by reason"), [(e(f["step"]), _number(f["rows"]), e(_lost(f["lost"]))) for f in report["funnel"]]
    )
    if report["round_trip"]["asked"]:
        share = report["round_trip"]
        lines += [
            "",
            f"encode(decode(ids)) = ids for {share['equal']} of {share['asked']} server rows ({_percent(share['share'])}).",
        ]
    lines += _table(
        ("look at", "provider", "grade", "d", "reasons"),
        [
            (
                f"`{w['command'].replace('`', '')}`",
                e(w["provider"]),
                w["grade"],
                _number(w["residual"]),
                e("; ".join(w["reasons"])[:120]),
            )
            for w in report["worst"][:_WORST_IN_MARKDOWN]
        ],
    )
    text = "\n".join([*lines, ""])
    picture = f"\n![residuals and lengths](data:image/png;base64,{base64.b64encode(png).decode()})\n"
    return text + picture if len((text + picture).encode()) < MAX_MARKDOWN else text


def _monitor_table(strata: list[dict[str, Any]]) -> list[str]:
    """Those strata first that chance explains least."""
    worst = sorted(strata, key=lambda s: float(s["q"]))[:_STRATA_IN_MARKDOWN]
    return _table(
        (
            "mismatches sit in",
            "finish",
            "q",
            "per 1,000 ids",
            "reasoning equal",
            "cost = list price",
            "alarm at row",
            "equal, by quarter",
        ),
        [
            (
                escape_markdown(s["provider"]) + (", tools" if s["tools"] else ""),
                escape_markdown(s["finish_reason"]),
                f"{s['q']:.2g}",
                "–" if s["slope"]["per_1000"] is None else f"{s['slope']['per_1000']:.4f}",
                _percent(s["reasoning"]["equal_share"]),
                _percent(s["cost"]["equal_share"]),
                _number(s["cusum_alarm"]["row"] if s["cusum_alarm"] else None),
                " ".join(_percent(w["equal_share"], 0) for w in s["windows"]),
            )
            for s in worst
        ],
    )


def _over_time(timeline: list[dict[str, Any]]) -> list[str]:
    """One sentence; the picture has the course."""
    if not timeline:
        return []
    whole = {name: sum(t[name] for t in timeline) for name in ("answers", "failed", "refused_429", "tokens", "usd")}
    return [
        "",
        f"Over {_number(timeline[-1]['to_s'])} s: {_number(whole['answers'])} answers, {_number(whole['tokens'])} tokens, "
        f"{_usd(whole['usd'])} USD; {_number(whole['failed'])} attempts failed, {_number(whole['refused_429'])} of them with 429.",
    ]


def escape_markdown(text: str) -> str:
    """`text` with everything that markdown or HTML would read as markup escaped."""
    return _MARKDOWN_SPECIAL.sub(lambda m: {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(m[1], "\\" + m[1]), text)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    return ["", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _percent(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f} %"


def _usd(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4f}"


def _cancellation(facts: dict[str, Any]) -> str:
    if facts["cancellation"] is not None:
        return f"{facts['cancellation']:.1f}"
    return "all cancel" if facts["cancels"] else "–"


def _lost(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
