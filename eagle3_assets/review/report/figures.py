"""The figures of a report: one pass over the token files of a dataset, shard by shard, keeping only what is counted.

Belongs here: counting. Does not belong here: wording and layout (`page.py`), pictures (`pictures.py`), judging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.exact.sample_row import read_table
from eagle3_assets.grades import GRADES
from eagle3_assets.review.report.billing import Stratum, billing_statistics, has_tools, joined, merge_strata, strata_of
from eagle3_assets.review.report.monitor import Billed, length_drift, monitored
from eagle3_assets.review.report.timeline import Timeline
from eagle3_assets.review.rows.admission import drop_reason_sql
from eagle3_assets.review.rows.columns import Columns, Ints
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import Store, read_json, read_manifest
from eagle3_assets.wire import journal

WORST = 20
LENGTH_EDGES = (0, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 2**31)


Tally = dict[str, Any]  # name -> count, tokens or USD


@dataclass(slots=True)
class Figures:
    """What is kept of the rows of a dataset. Lengths are ids; `worst` holds (order, line for the report)."""

    grades: dict[str, Tally] = field(default_factory=dict)
    providers: dict[str, Tally] = field(default_factory=dict)
    totals: Tally = field(default_factory=dict)
    strata: list[Stratum] = field(default_factory=list)
    responses: list[Ints] = field(default_factory=list)
    prompts: list[Ints] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    worst: list[tuple[tuple[int, float, int], dict[str, Any]]] = field(default_factory=list)
    billed: list[Billed] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)


def count_dataset(campaign: Campaign, store: Store, dataset: str) -> Figures:
    """Figures over every shard of `dataset` whose tokens are committed."""
    figures = Figures()
    for shard in SHARDS:
        path = store.tokens(dataset, shard)
        if read_manifest(path) is not None:
            figures.timeline.add(journal.read(store.answers(dataset, shard)))
            table = read_table(path)
            add_table(campaign, figures, table)
            figures.billed.append(billed_rows(table, figures.timeline.when, _prices(store)))
    return figures


def _prices(store: Store) -> dict[str, tuple[float, float]]:
    """Provider -> (prompt, completion) USD a token; left out where its endpoints differ in price."""
    if not store.endpoints.exists():
        return {}
    found: dict[str, set[tuple[float, float]]] = {}
    for e in read_json(store.endpoints).get("eligible", []):
        if not e.get("request_price"):
            found.setdefault(str(e.get("provider_name")), set()).add((float(e["prompt_price"]), float(e["completion_price"])))
    return {name: next(iter(prices)) for name, prices in found.items() if len(prices) == 1}


def billed_rows(table: pa.Table, when: Mapping[tuple[str, int, int], float], prices: Mapping[str, tuple[float, float]]) -> Billed:
    """The rows with a bill, as `monitor` wants them."""
    columns = Columns(table)
    residual = columns.residual("completion")
    at = np.flatnonzero(residual.known)
    names, models, finishes = (columns.strings(n) for n in ("provider", "model", "finish_reason"))
    turns, attempts = columns.integers("turn"), columns.integers("attempt")
    prompt, completion = columns.integers("billed_prompt"), columns.integers("billed_completion")
    stated = [columns.evidence[i].get("residual") for i in at]
    reasoning = [r.get("reasoning") if isinstance(r, dict) else None for r in stated]
    price = [prices.get(names[i] or "") for i in at]
    nan = float("nan")
    return Billed(
        strata=[
            (names[i] or "", models[i] or "", has_tools(columns.evidence[i], finishes[i]), finishes[i] or "none") for i in at
        ],
        d=residual.d[at],
        billed=completion[at],
        reasoning=np.array([nan if r is None else float(r) for r in reasoning]),
        cost=np.asarray(table.column("cost_usd").fill_null(nan).to_numpy(), dtype=np.float64)[at],
        price=np.array([nan if p is None else p[0] * prompt[i] + p[1] * completion[i] for p, i in zip(price, at, strict=True)]),
        time=np.array([when.get((columns.sample_ids[i], int(turns[i]), int(attempts[i])), nan) for i in at]),
    )


def monitor_lines(figures: Figures) -> dict[str, Any]:
    """`monitor.monitored` over all shards."""
    parts = figures.billed
    strata = [key for part in parts for key in part.strata]
    arrays = (
        {n: np.concatenate([getattr(p, n) for p in parts]) for n in ("d", "billed", "reasoning", "cost", "price", "time")}
        if parts
        else {}
    )
    return monitored(Billed(strata, **arrays)) if strata else {"strata": [], "flagged": []}


def drift_line(store: Store, dataset: str, figures: Figures) -> dict[str, Any] | None:
    """Response lengths beside the pilot's; None where it did not ask this dataset. Rows without ids (in quarantine) have no length."""
    pilot = read_json(store.pilot).get("lengths", {}).get(dataset) if store.pilot.exists() else None
    responses = joined([figures.responses])
    return length_drift(responses[responses > 0], pilot)


def add_table(campaign: Campaign, figures: Figures, table: pa.Table) -> None:
    """Count the rows of one shard into `figures`."""
    columns = Columns(table)
    why = _drop_reasons(campaign, columns)
    prompt = columns.integers("prompt_len")
    response, p_exact = columns.lengths - prompt, np.nan_to_num(table.column("p_exact").to_numpy())
    cost = table.column("cost_usd").fill_null(0.0).to_pylist()
    names = [p or str(s) for p, s in zip(columns.strings("provider"), columns.strings("source"), strict=True)]
    figures.strata += strata_of(columns)
    figures.responses.append(response)
    figures.prompts.append(prompt)
    for i in range(len(columns)):
        kept, supervised = why[i] is None, int(columns.supervised[i])
        facts = {
            "rows": 1,
            "tokens": int(columns.lengths[i]),
            "response": int(response[i]),
            "supervised": supervised,
            "expected_exact": float(p_exact[i]),
            "trainable_rows": int(kept),
            "trainable_expected_exact": float(p_exact[i]) if kept else 0.0,
            "trainable_tokens": supervised if kept else 0,
            "cost_usd": cost[i],
        }
        for tally in (
            figures.grades.setdefault(str(columns.grades[i]), {}),
            figures.providers.setdefault(names[i], {}),
            figures.totals,
        ):
            for name, value in facts.items():
                tally[name] = tally.get(name, 0) + value
        figures.drops[why[i] or ""] += 1
        figures.reasons.update({r.split(":", 1)[0] for r in columns.reasons[i]})
    _keep_worst(figures, columns, p_exact)


def _drop_reasons(campaign: Campaign, columns: Columns) -> list[str | None]:
    """Why the corpus would drop each row, from the same rule that it uses; duplicates are seen only there."""
    import duckdb

    lines = pa.table(
        {
            "line": pa.array(np.arange(len(columns))),
            "grade": columns.table.column("grade"),
            "p_exact": columns.table.column("p_exact"),
            "length": pa.array(columns.lengths),
            "supervised": pa.array(columns.supervised),
        }
    )
    with duckdb.connect(":memory:") as db:
        db.register("lines", lines)
        found = db.execute(f"SELECT {drop_reason_sql(campaign)} AS reason FROM lines ORDER BY line").fetchall()
    return [reason for (reason,) in found]


def _keep_worst(figures: Figures, columns: Columns, p_exact: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Rows that are out come first, those furthest from their bill first; then the least certain of the rest."""
    residual = columns.residual("completion")
    off = np.where(residual.known, np.abs(residual.d), 0)
    order = np.lexsort((-off, p_exact, columns.admitted))
    table = columns.table
    for i in (int(k) for k in order[:WORST]):
        if columns.admitted[i] and p_exact[i] >= 1.0:
            break
        line = {
            "sample_id": columns.sample_ids[i],
            "turn": table.column("turn")[i].as_py(),
            "shard": table.column("shard")[i].as_py(),
            "provider": table.column("provider")[i].as_py() or table.column("source")[i].as_py(),
            "grade": str(columns.grades[i]),
            "p_exact": float(p_exact[i]),
            "residual": int(residual.d[i]) if residual.known[i] else None,
            "finish_reason": table.column("finish_reason")[i].as_py(),
            "reasons": columns.reasons[i],
            "command": f"eagle3 show {columns.sample_ids[i]}",
        }
        figures.worst.append(((int(columns.admitted[i]), float(p_exact[i]), -int(off[i])), line))
    figures.worst = sorted(figures.worst, key=lambda w: (w[0], w[1]["sample_id"], w[1]["turn"]))[:WORST]


# ---------------------------------------------------------------------------------------------------- plain JSON
def grade_lines(figures: Figures) -> list[dict[str, Any]]:
    """One line a grade, in the order of the design's table."""
    rows = figures.totals.get("rows", 0)
    return [{"grade": g, **figures.grades[g], "share": figures.grades[g]["rows"] / rows} for g in GRADES if g in figures.grades]


def provider_lines(figures: Figures) -> list[dict[str, Any]]:
    """One line a provider: what it cost a million response tokens, and a million *trainable* ones (None where there is none)."""
    lines = []
    for name, facts in sorted(figures.providers.items()):
        usd, made, kept = facts["cost_usd"], facts["response"], facts["trainable_tokens"]
        dear = {
            "usd_per_million": usd / made * 1e6 if made else None,
            "usd_per_million_trainable": usd / kept * 1e6 if kept else None,
        }
        lines.append({"provider": name, **facts, **dear})
    return lines


def length_lines(figures: Figures) -> dict[str, Any]:
    """Prompt and response lengths (ids): mean, median, p99, longest, and counts between `LENGTH_EDGES`."""
    out: dict[str, Any] = {"edges": list(LENGTH_EDGES[:-1])}
    for name, arrays in (("prompt", figures.prompts), ("response", figures.responses)):
        d = joined([arrays])
        some = len(d) > 0
        out[name] = {
            "n": len(d),
            "mean": float(d.mean()) if some else None,
            "median": float(np.median(d)) if some else None,
            "p99": float(np.percentile(d, 99)) if some else None,
            "longest": int(d.max()) if some else None,
            "histogram": [int(c) for c in np.histogram(d, LENGTH_EDGES)[0]],
        }
    return out


def funnel_lines(store: Store, dataset: str, figures: Figures) -> list[dict[str, Any]]:
    """Prompts → answers → rows → trainable rows, each with what was lost on the way."""
    prompts = read_manifest(store.prompts(dataset))
    numbers = dict(prompts.numbers) if prompts else {}
    answers: Counter[str] = Counter()
    for shard in SHARDS:
        manifest = read_manifest(store.answers(dataset, shard))
        if manifest is not None:
            answers.update({k: int(manifest.numbers.get(k) or 0) for k in ("selected", "finished", "failed", "ambiguous")})
    set_aside = {k: v for k, v in dict(numbers.get("set_aside") or {}).items() if v}
    spare = int(numbers.get("reserve") or 0) + int(numbers.get("not_sampled") or 0)
    not_needed = {"not_needed": spare} if spare else {}
    lost = {k: answers[k] for k in ("failed", "ambiguous") if answers[k]}
    drops = {k: v for k, v in sorted(figures.drops.items()) if k}
    return [
        {"step": "source rows read", "rows": numbers.get("source_rows"), "lost": {**set_aside, **not_needed}},
        {"step": "prompts selected", "rows": numbers.get("selected"), "lost": {}},
        {"step": "answers", "rows": answers["finished"], "lost": lost},
        {"step": "rows of tokens", "rows": figures.totals.get("rows", 0), "lost": drops},
        {"step": "trainable rows (before duplicates)", "rows": figures.totals.get("trainable_rows", 0), "lost": {}},
    ]


def round_trip_line(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """encode(decode(ids)) == ids over rows whose ids came from a server: how many were asked, how many came back equal."""
    asked = sum(int(v.numbers.get("total", 0)) for v in verdicts if v.check == "canonical")
    unequal = sum(int(v.numbers.get("bad", 0)) for v in verdicts if v.check == "canonical")
    return {"asked": asked, "equal": asked - unequal, "share": (asked - unequal) / asked if asked else None}


def billing_lines(figures: Figures) -> dict[str, Any]:
    """`billing_statistics` over all shards."""
    return billing_statistics(merge_strata(figures.strata))
