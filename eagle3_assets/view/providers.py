"""Providers side by side: what was learned of each, what it costs, how fast it is, how it fails.

Belongs here: joining wire profiles, endpoints, calls and rows into one page. Does not belong here: learning, routing (their rooms).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_assets.collect.servers.routing import routing_table, stored_routing
from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.exact.providers.profile_pictures import convention, standing
from eagle3_assets.exact.search.edges import EDGES
from eagle3_assets.exact.show import visible
from eagle3_assets.store import manifest_path, read_committed, read_json
from eagle3_assets.view.calls import record_at
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.view.deciding import deciding_answers
from eagle3_assets.view.texts import profile_named

BINS = 48  # of a provider's time
MOST_OBSERVED = 240  # answers of a window that are held against its rivals

_CALLS = """SELECT provider, count(*) AS calls, count(*) FILTER (outcome = 'finished') AS finished, sum(coalesce(cost_usd, 0)) AS usd,
  sum(tokens) FILTER (outcome = 'finished') AS tokens,
  quantile_cont(finished - started, [0.1, 0.5, 0.9, 0.99]) FILTER (outcome = 'finished' AND finished > started) AS seconds,
  sum(tokens) FILTER (outcome = 'finished' AND finished > started) / nullif(sum(finished - started)
    FILTER (outcome = 'finished' AND finished > started AND tokens IS NOT NULL), 0) AS tokens_per_s,
  min(finished) FILTER (finished > 0) AS first, max(finished) AS last FROM calls GROUP BY provider ORDER BY calls DESC, provider"""
_ROWS = """SELECT provider, count(*) AS rows, count(*) FILTER (failing = 'yes') AS failing, avg(p_exact) AS expected_exact,
  count(residual_completion) AS billed, count(*) FILTER (residual_completion = 0) AS equal, sum(abs(residual_completion)) AS off,
  sum(supervised) FILTER (dropped = '' AND grade NOT IN ('Q', 'D')) AS trainable_tokens, sum(cost_usd) AS usd,
  list(DISTINCT grade ORDER BY grade) AS grades FROM rows GROUP BY provider"""
_FAILURES = """SELECT provider, reason, status, count(*) AS calls FROM calls WHERE outcome <> 'finished' GROUP BY ALL ORDER BY calls DESC, reason
  LIMIT 500"""
_TIME = """SELECT provider, least(floor((finished - $first) / $width)::INT, $bins - 1) AS bin, count(*) AS calls,
  count(*) FILTER (outcome <> 'finished') AS failed, median(finished - started) FILTER (outcome = 'finished') AS seconds,
  sum(tokens) FILTER (outcome = 'finished') AS tokens
  FROM calls WHERE finished > 0 GROUP BY ALL ORDER BY bin"""


def providers_page(catalogue: Catalogue) -> dict[str, Any]:
    """{providers [...], model {habits}, times [...], problems}: one entry for everyone who answered, was learned of, or is listed."""
    problems: list[str] = []
    profiles = _profiles(catalogue, problems)
    calls = {line["provider"]: line for line in catalogue.records(_CALLS)}
    rows = {line["provider"]: line for line in catalogue.records(_ROWS)}
    failures: dict[str, list[dict[str, Any]]] = {}
    for line in catalogue.records(_FAILURES):
        failures.setdefault(line.pop("provider"), []).append({**line, "reason": visible(line["reason"])})
    endpoints = _endpoints(catalogue, problems)
    names = sorted(
        {*calls, *rows, *profiles.get("providers", {}), *endpoints}, key=lambda name: (-calls.get(name, {}).get("calls", 0), name)
    )
    series, times = _series(catalogue)
    return {
        "providers": [
            {
                "name": name, "label": visible(name), "standing": _standing(profiles, name), "calls": calls.get(name),
                "rows": rows.get(name), "failures": failures.get(name, []),
                "endpoints": endpoints.get(name, []), "windows": _windows(profiles, name), "time": series.get(name),
                "usd_per_million_trainable": _per_million(rows.get(name)),
            }
            for name in names
        ],
        "times": times,
        "model": profiles.get("model") or {},
        "edges": list(EDGES),
        "problems": problems,
    }  # fmt: skip


def _per_million(rows: Mapping[str, Any] | None) -> float | None:
    return rows["usd"] / rows["trainable_tokens"] * 1e6 if rows and rows["trainable_tokens"] and rows["usd"] else None


def _profiles(catalogue: Catalogue, problems: list[str]) -> dict[str, Any]:
    path = catalogue.root.store.wire_profiles
    try:
        found = read_json(path) if path.exists() else {}
    except StoreError as error:
        problems.append(str(error))
        found = {}
    return found if isinstance(found, dict) else {}


def _endpoints(catalogue: Catalogue, problems: list[str]) -> dict[str, list[dict[str, Any]]]:
    campaign, store = catalogue.root.campaign, catalogue.root.store
    if campaign is None or not store.endpoints.exists():
        return {}
    out: dict[str, list[dict[str, Any]]] = {}
    try:
        pilot = read_committed(store.pilot, made_by="pilot") if manifest_path(store.pilot).exists() else None
        for line in routing_table(stored_routing(campaign, store), pilot):
            out.setdefault(line["provider"], []).append({**line, "why": visible(line["why"] or "")})
    except Eagle3Error as error:
        problems.append(str(error))
    return out


def _standing(profiles: Mapping[str, Any], name: str) -> str | None:
    """That of the latest window in the form that most answers have, which is what rows are read with."""
    entry = (profiles.get("providers") or {}).get(name)
    return standing(entry) if entry else None


def _windows(profiles: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entry = (profiles.get("providers") or {}).get(name) or {}
    return [
        {
            "from": window.get("from"), "to": window.get("to"), "stream": bool(window.get("stream")), "rows": window["rows"],
            "explained": window["explained"], "standing": standing(window), "why": visible(str(window.get("cannot_be_exact") or window["why"])),
            "reading": visible(str(window.get("reading"))), "spacing": window.get("spacing"), "bill": convention(window),
            "edges": {edge: (window.get("edges") or {}).get(edge, {}) for edge in EDGES}, "margins": _sorted(window.get("margins") or {}),
            "damage": window.get("damage") or {}, "arguments": window.get("arguments"), "tool_ids": window.get("tool_ids"),
            "strata": {
                stratum: {"rows": told["rows"], "explained": told["explained"], "prompt": told.get("prompt") or {}}
                for stratum, told in (window.get("strata") or {}).items()
            },
        }
        for window in entry.get("windows") or ()
    ]  # fmt: skip


def _sorted(margins: Mapping[str, float]) -> list[list[Any]]:
    return [[name, margin] for name, margin in sorted(margins.items(), key=lambda item: item[1])]


def _series(catalogue: Catalogue) -> tuple[dict[str, dict[str, list[Any]]], list[float]]:
    """Calls, failures, median seconds and tokens of each provider in BINS stretches of equal length, and their middles (unix seconds)."""
    first, last = catalogue.ask("SELECT min(finished), max(finished) FROM calls WHERE finished > 0")[0]
    if first is None:
        return {}, []
    width = max((last - first) / BINS, 1e-3)
    out: dict[str, dict[str, list[Any]]] = {}
    for line in catalogue.records(_TIME, {"first": first, "width": width, "bins": BINS}):  # type: ignore[arg-type]
        of = out.setdefault(line["provider"], {name: [None] * BINS for name in ("calls", "failed", "seconds", "tokens")})
        for name in of:
            of[name][line["bin"]] = line[name]
    return out, [first + (k + 0.5) * width for k in range(BINS)]


# ---------------------------------------------------------------------------------------------------- the rows that decided
def deciding(catalogue: Catalogue, provider: str, number: int) -> dict[str, Any]:
    """`deciding_answers` of one window, over at most MOST_OBSERVED of its answers, spread evenly; each row with the key of its page."""
    profiles = _profiles(catalogue, [])
    windows = ((profiles.get("providers") or {}).get(provider) or {}).get("windows") or []
    profile = profile_named(str(profiles.get("profile") or ""))
    if not 0 <= number < len(windows) or profile is None:
        raise StoreError(
            f"{catalogue.root.store.wire_profiles}: has no window {number} of {visible(provider)}, or its tokenizer is not here"
        )
    window = windows[number]
    places = catalogue.ask(
        "SELECT file, place, bytes FROM calls WHERE provider = ? AND outcome = 'finished' AND stream = ? "
        "AND finished BETWEEN ? AND ? ORDER BY hash(sample_id || turn) LIMIT ?",
        [provider, bool(window.get("stream")), float(window["from"]) - 1e-3, float(window["to"]) + 1e-3, MOST_OBSERVED],
    )
    campaign = catalogue.root.campaign
    answers = (record_at(*place) for place in places)
    found = deciding_answers(profile, window, answers, thinking=campaign.target.thinking if campaign else True)
    known = dict(catalogue.ask("SELECT sample_id || '/' || turn, key FROM rows WHERE provider = ?", [provider]))
    for row in found["rows"]:
        row["key"] = known.get(f"{row['sample_id']}/{row['turn']}")
        row["sample_id"] = visible(row["sample_id"])
    return found
