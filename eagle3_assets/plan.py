"""Arithmetic of money, time and bytes, and the approval that lets `answers` spend.

Belongs here: what a campaign will cost in tokens, dollars, minutes, hours and terabytes, with every assumption named; `approval.json`.
Does not belong here: spending (`collect/ledger.py`), printing (`cli/plan.py`), Dagster.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.store import Store, read_json, write_json

CHARS_PER_TOKEN = 3.88  # Kimi's vocabulary on prose and code (research note tokenizers.md, section 2)
GUESS = 2.0  # without a pilot an answer may be half or twice as long as the campaign file says
LOCAL_TOKENS_PER_S = 90.0  # one local server of eight GPUs, as stated for B1 and B2 (30 h a dataset)
EXTRACTION_TOKENS_PER_S = 422.0  # 138.4 M tokens in 91 h (hidden-states.md, section 5): measure your own
LAYERS_STORED = 4  # E_low, E_mid, E_high, final_prenorm
DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What is known of one dataset before it is answered."""

    dataset: Dataset
    rows: int
    prompt_chars: int
    expected_tokens: int


def state_bytes(tokens: int, hidden_size: int, dtype: str = "bfloat16", layers: int = LAYERS_STORED) -> int:
    """Bytes of hidden states: tokens x layers stored x hidden size x bytes a value. 57,344 a token for Kimi K2.5 (3+1, bf16)."""
    return tokens * layers * hidden_size * DTYPE_BYTES[dtype]


def make_plan(
    campaign: Campaign,
    facts: list[DatasetFacts],
    pilot: dict[str, Any],
    prices: tuple[float, float],
    free_bytes: int,
    *,
    listed: Sequence[tuple[float, float]] = (),
) -> dict[str, Any]:
    """The plan as plain JSON. `prices` (prompt, completion; USD per million tokens) bound what an answer may cost: holds are made of
    them. `listed` are those of the eligible endpoints: their mean is expected, the cheapest and the dearest end the interval.
    """
    spread = _Prices.of(listed or [prices])
    rows = [_dataset_plan(campaign, f, pilot, spread) for f in facts]
    paid = [r for r in rows if r["backend"] == "openrouter"]
    output = sum(r["output_tokens"] for r in rows)
    total = output + sum(r["prompt_tokens"] for r in rows)
    paid_output = sum(r["output_tokens"] for r in paid)
    stored = state_bytes(total, campaign.target.hidden_size, campaign.extraction.dtype)
    pilot_spent = float(pilot.get("spent_usd", 0.0))
    expected = sum(r["usd_expected"] for r in paid)
    budget, asked = campaign.budget.campaign_usd, campaign.collect.in_flight
    hold = campaign.sampling.max_tokens * prices[1] / 1e6
    left = max(0.0, budget - pilot_spent)
    seconds = float(pilot.get("mean_seconds") or 60.0)
    n_paid = sum(r["rows"] for r in paid)
    return {
        "datasets": rows,
        "tokens": {"output": output, "prompt": total - output, "total": total},
        "usd": {
            "expected": round(expected, 6),
            **_usd_interval(paid),
            "pilot_spent": round(pilot_spent, 6),
            "budget": budget,
            "fits": expected + pilot_spent <= budget,
        },
        "minutes": {
            "answers": round(answer_seconds(n_paid, expected, left, hold, asked, seconds) / 60, 2),
            "answers_if_money_held_nothing_up": round(n_paid / asked * seconds / 60, 2),
        },
        "hours": {
            "answers_if_served_locally": round(paid_output / LOCAL_TOKENS_PER_S / 3600, 2),
            "extraction": round(total / EXTRACTION_TOKENS_PER_S / 3600, 2),
        },
        "in_flight": {
            "asked": asked,
            "hold_usd": hold,
            "money_allows_at_start": in_flight_possible(left, hold, asked, bounded=False),
            "by_money_left": [[round(left * k, 6), in_flight_possible(left * k, hold, asked)] for k in (1.0, 0.5, 0.2, 0.1)],
        },
        "states": {
            "bytes": stored,
            "terabytes": stored / 1e12,
            "tebibytes": stored / 2**40,
            "layers": LAYERS_STORED,
            "dtype": campaign.extraction.dtype,
            "bytes_per_token": state_bytes(1, campaign.target.hidden_size, campaign.extraction.dtype),
            "disk_free_bytes": free_bytes,
            "disk_fits": stored < free_bytes,
        },
        "assumptions": {
            "prices_usd_per_million": {"prompt": prices[0], "completion": prices[1]},
            "expected_usd_per_million": {"prompt": spread.expected[0], "completion": spread.expected[1]},
            "interval": "95 % for the lengths, cheapest to dearest endpoint for the price"
            if pilot.get("lengths")
            else "no pilot yet: half to twice the length, cheapest to dearest endpoint for the price",
            "lengths_from": "pilot" if pilot.get("lengths") else "campaign file (mean_tokens)",
            "seconds_per_answer": seconds,
            "chars_per_prompt_token": CHARS_PER_TOKEN,
            "local_tokens_per_s": LOCAL_TOKENS_PER_S,
            "extraction_tokens_per_s": EXTRACTION_TOKENS_PER_S,
        },
    }


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


def _dataset_plan(campaign: Campaign, facts: DatasetFacts, pilot: dict[str, Any], prices: _Prices) -> dict[str, Any]:
    lengths = pilot.get("lengths", {}).get(facts.dataset.name)
    output = round(facts.rows * lengths["mean"]) if lengths else facts.expected_tokens
    low, high = token_interval(facts.rows, output, lengths)
    prompt = round(facts.prompt_chars / CHARS_PER_TOKEN)
    paid = facts.dataset.backend == "openrouter"

    def usd(tokens: float, price: tuple[float, float]) -> float:
        return round((prompt * price[0] + tokens * price[1]) / 1e6, 6) if paid else 0.0

    return {
        "dataset": facts.dataset.name,
        "backend": facts.dataset.backend,
        "rows": facts.rows,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "output_tokens_interval": [round(low), round(high)],
        "usd_expected": usd(output, prices.expected),
        "usd_interval": [usd(low, prices.cheapest), usd(high, prices.dearest)],
        "usd_expected_at_ends": [usd(output, prices.cheapest), usd(output, prices.dearest)],
        "usd_cap": dataset_cap(campaign, facts.dataset),
        "hours_if_served_locally": round(output / LOCAL_TOKENS_PER_S / 3600, 2),
    }


def token_interval(rows: int, output: float, lengths: dict[str, float] | None) -> tuple[float, float]:
    """95 % for the sum of output tokens of `rows` answers, from the pilot's length distribution (n, mean, p50, p90, perhaps sd).

    Two parts: the mean is known from n answers only, and the rows scatter themselves. Without `sd` the spread is that of a
    log-normal distribution through p50 and p90 (answer lengths are about log-normal).
    """
    n = int(lengths.get("n", 0)) if lengths else 0
    if lengths is None or n < 2:
        return output / GUESS, output * GUESS
    sd = lengths.get("sd")
    if sd is None:
        p50, p90 = lengths["p50"], lengths["p90"]
        sigma = math.log(p90 / p50) / 1.2816 if p90 > p50 > 0 else 0.0
        sd = lengths["mean"] * math.sqrt(math.expm1(sigma**2))
    t = 1.96 + 2.37 / (n - 1) + 2.82 / (n - 1) ** 2  # Student's t at 97.5 %, expanded in 1/(n - 1)
    half = t * sd * math.sqrt(rows + rows**2 / n)
    return max(float(min(rows, output)), output - half), output + half


def _usd_interval(paid: list[dict[str, Any]]) -> dict[str, float]:
    """Lengths of datasets are independent of each other (their errors add in quadrature), the price is one for all."""
    ends = []
    for k, sign in ((0, -1), (1, 1)):
        middle = math.fsum(row["usd_expected_at_ends"][k] for row in paid)
        ends.append(middle + sign * math.hypot(*(row["usd_interval"][k] - row["usd_expected_at_ends"][k] for row in paid)))
    return {"low": round(max(0.0, ends[0]), 6), "high": round(ends[1], 6)}


# ---------------------------------------------------------------------------------------------------- money in flight
def in_flight_possible(left_usd: float, hold_usd: float, asked: int, *, bounded: bool = True) -> int:
    """Requests that `left_usd` can hold at once (2,000 x 16,384 tokens x 3.25 USD/M = 106 USD), at most `asked` if `bounded`."""
    if hold_usd <= 0:
        return asked
    possible = int(max(0.0, left_usd) / hold_usd)
    return min(asked, possible) if bounded else possible


def answer_seconds(rows: int, cost_usd: float, left_usd: float, hold_usd: float, asked: int, seconds: float) -> float:
    """Time for `rows` answers of `seconds` each that cost `cost_usd` together, with `left_usd` at the start.

    While x USD are spent, min(asked, (left - x) / hold) are in flight: dt = seconds * rows / cost * dx / n(x). Never below one in
    flight; money that does not last is spent to its last hold.
    """
    full = rows * seconds / asked
    if rows == 0 or cost_usd <= 0 or hold_usd <= 0:
        return full
    per_usd = rows * seconds / cost_usd
    spendable = min(cost_usd, max(0.0, left_usd - hold_usd))
    free = min(spendable, max(0.0, left_usd - asked * hold_usd))  # spent before holds bind
    bent = hold_usd * math.log((left_usd - free) / (left_usd - spendable)) if spendable > free else 0.0
    return per_usd * (free / asked + bent)


def still_needed_usd(plan: dict[str, Any], spent_usd: float) -> float:
    """What the plan expects to be spent from now on."""
    return max(0.0, float(plan["usd"]["expected"]) + float(plan["usd"]["pilot_spent"]) - spent_usd)


def dataset_cap(campaign: Campaign, dataset: Dataset) -> float | None:
    """USD that this dataset may spend, or None when only the campaign's limit holds."""
    return dataset.usd if dataset.usd is not None else campaign.budget.dataset_usd


def usd_text(usd: float) -> str:
    """An amount for people: two decimals, or as many as it takes to say it truly (a limit of 0.035 is not 0.04)."""
    return f"{usd:,.2f}" if abs(usd - round(usd, 2)) < 1e-9 else f"{usd:,.6f}".rstrip("0")


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
    is_one = (
        isinstance(plan, dict) and {"datasets", "usd", "states", "hours", "minutes", "in_flight", "assumptions"} <= plan.keys()
    )
    if not is_one or "low" not in plan["usd"]:  # the second: one of an earlier version
        raise StoreError(f"{store.plan}: is not a plan; remove it and run `eagle3 run --until plan`")
    return dict(plan)
