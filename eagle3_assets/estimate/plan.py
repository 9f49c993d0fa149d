"""The plan of a campaign as plain JSON, and the approval that lets `answers` spend.

Belongs here: putting the plan together (arithmetic: `estimate/`); plan.json and `approval.json`.
Does not belong here: spending (`collect/money/ledger.py`), printing (`cli/plan.py`), Dagster.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.estimate.assumptions import STATED, stated
from eagle3_assets.estimate.facts import DatasetFacts, facts_of, outline
from eagle3_assets.estimate.holds import answer_seconds, in_flight_possible, token_interval
from eagle3_assets.estimate.lengths import RowLengths, buckets, sigma_of
from eagle3_assets.estimate.outcome import outcome
from eagle3_assets.estimate.page import usd_text
from eagle3_assets.estimate.scenario import DTYPES, change, scenario_of, usual_what_ifs
from eagle3_assets.store import Store, read_json, write_json

__all__ = [
    "DatasetFacts", "answer_seconds", "approve", "approved_usd", "dataset_cap", "facts_of", "free_bytes", "in_flight_possible",
    "make_plan", "outline", "outline_plan", "read_plan", "state_bytes", "still_needed_usd", "token_interval", "usd_text", "what_if",
]  # fmt: skip

LAYERS_STORED = 4  # E_low, E_mid, E_high, final_prenorm


def state_bytes(tokens: int, hidden_size: int, dtype: str = "bfloat16", layers: int = LAYERS_STORED) -> int:
    """Bytes of hidden states: tokens x layers stored x hidden size x bytes a value. 57,344 a token for Kimi K2.5 (3+1, bf16)."""
    return tokens * layers * hidden_size * DTYPES[dtype]


def make_plan(
    campaign: Campaign,
    facts: Sequence[DatasetFacts],
    pilot: Mapping[str, Any],
    prices: tuple[float, float],
    free_bytes: int,
    *,
    listed: Sequence[tuple[float, float]] = (),
) -> dict[str, Any]:
    """The plan as plain JSON. `prices` (prompt, completion; USD per million tokens) bound what an answer may cost: holds are made of
    them. `listed` are those of the eligible endpoints: their mean is expected, the cheapest and the dearest end the interval.
    """
    spread = _Prices.of(listed or [prices])
    lengths = pilot.get("lengths") or {}
    rows = [_dataset_plan(campaign, f, lengths.get(f.dataset.name), spread) for f in facts]
    basis = _basis(campaign, pilot, prices, spread, free_bytes)
    scenario = scenario_of(campaign)
    found = outcome(rows, basis, scenario)
    for row in rows:
        row |= {k: found["datasets"][row["dataset"]][k] for k in ("tokens", "kept_rows", "kept_tokens", "rows_over")}
    left, hold, asked = max(0.0, scenario.budget - basis["pilot_spent_usd"]), basis["hold_usd"], scenario.in_flight
    rented = sum(r["output_tokens"] for r in rows if r["backend"] == "openrouter")
    return {
        "datasets": rows,
        "basis": basis,
        **{k: v for k, v in found.items() if k != "datasets"},
        "hours": {**found["hours"], "answers_if_served_locally": round(rented / scenario.local_tokens_per_s / 3600, 2)},
        "in_flight": {
            "asked": asked,
            "hold_usd": hold,
            "money_allows_at_start": in_flight_possible(left, hold, asked, bounded=False),
            "by_money_left": [[round(left * k, 6), in_flight_possible(left * k, hold, asked)] for k in (1.0, 0.5, 0.2, 0.1)],
        },
        "scenario": dataclasses.asdict(scenario),
        "what_if": [_case(rows, basis, campaign, settings) for settings in usual_what_ifs(scenario, rows)],
        "assumptions": _assumptions(rows, basis, pilot),
    }


def outline_plan(campaign: Campaign, free_bytes: int) -> dict[str, Any]:
    """A plan from the campaign file alone, before there are prompts or a pilot: prices are the campaign's highest."""
    most = campaign.routing
    prices = (
        most.max_price_prompt if most.max_price_prompt is not None else most.max_price_completion / 4,
        most.max_price_completion,
    )
    return make_plan(campaign, outline(campaign), {}, prices, free_bytes)


def what_if(campaign: Campaign, plan: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """What `plan` becomes with each NAME=VALUE of `settings`. Raises UsageError for one that is none."""
    return _case(plan["datasets"], plan["basis"], campaign, settings)


def _case(
    datasets: Sequence[Mapping[str, Any]], basis: Mapping[str, Any], campaign: Campaign, settings: Sequence[str]
) -> dict[str, Any]:
    scenario = change(scenario_of(campaign), settings, [d["dataset"] for d in datasets])
    found = outcome(datasets, basis, scenario)
    return {"settings": list(settings), **{k: v for k, v in found.items() if k != "datasets"}}


@dataclass(frozen=True, slots=True)
class _Prices:
    """(prompt, completion) in USD per million tokens."""

    cheapest: tuple[float, float]
    expected: tuple[float, float]
    dearest: tuple[float, float]

    @classmethod
    def of(cls, listed: Sequence[tuple[float, float]]) -> _Prices:
        by_completion = sorted(listed, key=lambda price: (price[1], price[0]))
        mean = tuple(math.fsum(price[k] for price in listed) / len(listed) for k in (0, 1))
        return cls(by_completion[0], (mean[0], mean[1]), by_completion[-1])


def _basis(
    campaign: Campaign, pilot: Mapping[str, Any], prices: tuple[float, float], spread: _Prices, free_bytes: int
) -> dict[str, Any]:
    """What an outcome needs beside the datasets and the scenario."""
    usd = {k: list(v) for k, v in dataclasses.asdict(spread).items()}
    return {
        "hidden_size": campaign.target.hidden_size,
        "usd_per_million": {**usd, "at_most": list(prices)},
        "pilot_spent_usd": round(float(pilot.get("spent_usd", 0.0)), 6),
        "seconds_per_answer": float(pilot.get("mean_seconds") or stated("seconds_per_answer")),
        "hold_usd": campaign.sampling.max_tokens * prices[1] / 1e6,
        "streamed": campaign.collect.stream == "always",
        "weights": dict(campaign.corpus.weights),
        "disk_free_bytes": free_bytes,
    }


def _dataset_plan(campaign: Campaign, facts: DatasetFacts, lengths: Mapping[str, Any] | None, prices: _Prices) -> dict[str, Any]:
    paid = facts.dataset.backend == "openrouter"
    output = round(facts.rows * lengths["mean"]) if lengths else facts.expected_tokens
    # what exists already is not guessed; what a server will answer is
    low, high = (output, output) if facts.whole else token_interval(facts.rows, output, lengths)
    prompt = facts.prompt_tokens

    def usd(tokens: float, price: tuple[float, float]) -> float:
        return round((prompt * price[0] + tokens * price[1]) / 1e6, 6) if paid else 0.0

    return {
        "dataset": facts.dataset.name,
        "backend": facts.dataset.backend,
        "rows": facts.rows,
        "token_budget": facts.dataset.token_budget,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "output_tokens_interval": [round(low), round(high)],
        "usd_expected": usd(output, prices.expected),
        "usd_output": round(output * prices.expected[1] / 1e6, 6) if paid else 0.0,
        "usd_interval": [usd(low, prices.cheapest), usd(high, prices.dearest)],
        "usd_cap": dataset_cap(campaign, facts.dataset),
        "hours_if_served_locally": round(output / stated("local_tokens_per_s") / 3600, 2),
        "row_lengths": _row_lengths(facts, output, lengths).as_json(),
        "lengths_from": "the rows themselves" if facts.whole else "pilot" if lengths else "stated",
        "conversations": _conversations(facts),
    }


def _row_lengths(facts: DatasetFacts, output: int, lengths: Mapping[str, Any] | None) -> RowLengths:
    """Known prompts with a log-normal answer behind them; imports are known as a whole."""
    rows = max(1, facts.rows)
    if facts.whole:
        return RowLengths(buckets(facts.known))
    fixed = buckets(facts.known) if facts.known else ((1.0, facts.prompt_tokens / rows),)
    if lengths and lengths.get("n", 0) >= 2 and lengths.get("p50") and lengths.get("p90"):
        return RowLengths(fixed, output / rows, sigma_of(lengths["p50"], lengths["p90"]))
    return RowLengths(fixed, output / rows, stated("length_sigma"))


def _conversations(facts: DatasetFacts) -> dict[str, Any] | None:
    if not facts.conversations:
        return None
    return {"rows": len(facts.conversations), "row_lengths": RowLengths(buckets(facts.conversations)).as_json()}


def _assumptions(rows: Sequence[Mapping[str, Any]], basis: Mapping[str, Any], pilot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every value that the plan rests on, with where it comes from."""
    prices = basis["usd_per_million"]
    said = [
        {"name": f"usd_per_million_{part}", "value": prices["expected"][k], "unit": "USD",
         "source": f"mean of the eligible endpoints; {prices['cheapest'][k]:.4g} at the cheapest, {prices['dearest'][k]:.4g} at the dearest; "
         f"at most {prices['at_most'][k]:.4g}"}
        for k, part in enumerate(("prompt", "output"))
    ]  # fmt: skip
    measured = {"seconds_per_answer"} if pilot.get("mean_seconds") else set()
    if measured:
        said.append({"name": "seconds_per_answer", "value": basis["seconds_per_answer"], "unit": "s", "source": "pilot"})
    lengths = pilot.get("lengths") or {}
    for name, found in lengths.items():
        told = f"pilot: n = {found.get('n', 1)}, p50 {found.get('p50', found['mean']):g}, p90 {found.get('p90', found['mean']):g}"
        said.append({"name": f"mean_length of {name}", "value": found["mean"], "unit": "tokens", "source": told})
    if all(r["lengths_from"] != "stated" for r in rows):
        measured.add("length_sigma")
    said += [dataclasses.asdict(a) for a in STATED.values() if a.name not in measured]
    interval = "95 % for lengths that the pilot saw, else half to twice the length; cheapest to dearest endpoint for the price"
    return [*said, {"name": "interval", "value": 0.95, "unit": "", "source": interval}]


# ---------------------------------------------------------------------------------------------------- money
def still_needed_usd(plan: dict[str, Any], spent_usd: float) -> float:
    """What the plan expects to be spent from now on."""
    return max(0.0, float(plan["usd"]["expected"]) + float(plan["usd"]["pilot_spent"]) - spent_usd)


def dataset_cap(campaign: Campaign, dataset: Dataset) -> float | None:
    """USD that this dataset may spend, or None when only the campaign's limit holds."""
    return dataset.usd if dataset.usd is not None else campaign.budget.dataset_usd


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk that holds `folder` (or its nearest existing parent)."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


# ---------------------------------------------------------------------------------------------------- approval
def approve(campaign: Campaign, store: Store, usd: float) -> Path:
    """Write approval.json for `usd`. Raises GateError for an amount that the campaign's budget does not cover."""
    if campaign.budget.approved_usd is not None:
        raise GateError(
            f"{campaign.path}: this campaign's stand-in money is approved in the file itself (budget.approved_usd = "
            f"{campaign.budget.approved_usd:g}); change it there"
        )
    if not usd > 0:
        raise GateError(f"cannot approve {usd:g} USD; give an amount above 0")
    if not 0 < usd <= campaign.budget.campaign_usd:
        raise GateError(
            f"{campaign.path}: cannot approve {usd:g} USD: budget.campaign_usd is {campaign.budget.campaign_usd:g}; "
            f"approve at most that, or raise it there first"
        )
    write_json(
        store.approval,
        {
            "fingerprint": campaign.fingerprint,
            "server": campaign.server_address,
            "usd": usd,
            "max_price_prompt": campaign.routing.max_price_prompt,
            "max_price_completion": campaign.routing.max_price_completion,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    )
    return store.approval


def approved_usd(campaign: Campaign, store: Store) -> float:
    """USD that `answers` may spend, pilot spend included. Raises GateError when nothing valid is approved."""
    if campaign.budget.approved_usd is not None:  # only an embedded campaign can say so (campaign.py)
        return min(campaign.budget.approved_usd, campaign.budget.campaign_usd)
    how = "look at `eagle3 plan`, then run `eagle3 plan --approve USD`"
    if not store.approval.exists():
        raise GateError(f"{store.approval}: nothing is approved, so answers may not spend; {how}")
    approval = _read_approval(store.approval, how)
    if (then := approval.get("server", "openrouter.ai")) != campaign.server_address:
        raise GateError(
            f"{store.approval}: was given for money at {then}; answers would be bought at {campaign.server_address}; {how}"
        )
    if approval["fingerprint"] != campaign.fingerprint:
        raise GateError(f"{store.approval}: was given for another version of {campaign.path}; {how}")
    for key in ("max_price_prompt", "max_price_completion"):
        was, now = approval[key], getattr(campaign.routing, key)
        if was is not None and (now is None or now > was):
            raise GateError(f"{store.approval}: was given for routing.{key} = {was}, which is now {now}; {how}")
    return min(float(approval["usd"]), campaign.budget.campaign_usd)


def _read_approval(path: Path, how: str) -> dict[str, Any]:
    """approval.json with its keys; raises GateError for anything else: money is never spent on a guess."""
    try:
        raw = read_json(path, otherwise=f"nothing is approved by it; {how}")
    except StoreError as error:
        raise GateError(str(error)) from None
    prices = ("max_price_prompt", "max_price_completion")

    def number(key: str) -> bool:
        return type(raw.get(key)) in (int, float) and 0 <= raw[key] < float("inf")

    whole = isinstance(raw, dict) and isinstance(raw.get("fingerprint"), str) and number("usd")
    if not whole or not all(key in raw and (raw[key] is None or number(key)) for key in prices):
        raise GateError(
            f"{path}: expected an object with fingerprint, usd and {', '.join(prices)}, found something else: nothing is approved by it; "
            f"{how}"
        )
    return dict(raw)


def read_plan(store: Store) -> dict[str, Any] | None:
    """plan.json, or None when the plan asset was never materialized. Raises StoreError for a damaged one."""
    if not store.plan.exists():
        return None
    plan = read_json(store.plan)
    needed = {"datasets", "basis", "usd", "kept", "states", "disk", "hours", "minutes", "in_flight", "what_if", "assumptions"}
    if not (isinstance(plan, dict) and needed <= plan.keys()):  # or one of an earlier version
        raise StoreError(f"{store.plan}: is not a plan; remove it and run `eagle3 run --until plan`")
    return dict(plan)
