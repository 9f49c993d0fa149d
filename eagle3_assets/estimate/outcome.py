"""What follows from a plan's facts under one scenario: rows, tokens kept, dollars, minutes, bytes, hours, disk.

Belongs here: the arithmetic, on the plain JSON of a plan (`plan["datasets"]`, `plan["basis"]`), so that any what-if can be had from a
plan.json alone. Does not belong here: reading prompts or a pilot (`facts.py`), what a setting means (`scenario.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.estimate.assumptions import stated
from eagle3_assets.estimate.holds import answer_seconds
from eagle3_assets.estimate.lengths import RowLengths
from eagle3_assets.estimate.scenario import DTYPES, Scenario

# Bytes beside the vectors of a trainer's own files are hundredths of a percent of them (handoff/row_table.py counts them).
VECTORS_IN_FILES = 4


def outcome(datasets: Sequence[Mapping[str, Any]], basis: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """`datasets` and `basis` as in plan.json. Every figure is for the whole campaign; money in USD, sizes in bytes."""
    chosen = [_Sized(d, scenario, basis) for d in datasets if d["dataset"] not in scenario.without]
    money = _money(chosen, basis, scenario)
    kept = {
        "rows": round(math.fsum(s.kept_rows for s in chosen)),
        "tokens": round(math.fsum(s.kept_tokens for s in chosen)),
        "rows_over": round(math.fsum(s.rows_over for s in chosen)),
        "tokens_lost": round(math.fsum(s.row_tokens - s.kept_tokens for s in chosen)),
    }
    states = states_of(kept["tokens"], basis, scenario)
    return {
        "tokens": {
            "prompt": round(math.fsum(s.prompt for s in chosen)),
            "output": round(math.fsum(s.output for s in chosen)),
            "total": round(math.fsum(s.row_tokens for s in chosen)),
        },
        "kept": kept,
        "usd": money,
        **_times(chosen, money, kept, states, basis, scenario),
        "states": states,
        "disk": _disk(chosen, kept, states, basis, scenario),
        "datasets": {
            s.name: {
                "rows": round(s.rows), "prompt_tokens": round(s.prompt), "output_tokens": round(s.output), "tokens": round(s.row_tokens),
                "kept_rows": round(s.kept_rows), "kept_tokens": round(s.kept_tokens), "rows_over": round(s.rows_over),
            }
            for s in chosen
        },
    }  # fmt: skip


class _Sized:
    """One dataset under a scenario. Floats; `rows` are rows of the corpus before the cap, `answers` what is bought."""

    def __init__(self, dataset: Mapping[str, Any], scenario: Scenario, basis: Mapping[str, Any]) -> None:
        self.name, self.backend = str(dataset["dataset"]), str(dataset["backend"])
        budget = dataset.get("token_budget")
        self.factor = scenario.tokens_a_dataset / budget if budget and scenario.tokens_a_dataset else 1.0
        self.prompt, self.output = (dataset[f"{part}_tokens"] * self.factor for part in ("prompt", "output"))
        self.output_ends = [end * self.factor for end in dataset["output_tokens_interval"]]
        self.answers = dataset["rows"] * self.factor
        joined = dataset.get("conversations") if scenario.join_turns else None
        lengths = RowLengths.of_json((joined or dataset)["row_lengths"])
        weight = float(basis.get("weights", {}).get(self.name, 1.0))
        self.rows = (joined or dataset)["rows"] * self.factor * weight
        under = lengths.under(scenario.max_length, cut=scenario.too_long == "cut")
        self.row_tokens = self.rows * lengths.tokens
        self.kept_tokens, self.kept_rows, self.rows_over = (self.rows * x for x in (under.tokens, under.rows, under.over))
        self.rented = self.backend == "openrouter" and scenario.served == "rented"

    def usd(self, price: Sequence[float], output: float) -> tuple[float, float]:
        """(for the prompt, for the output)."""
        return (self.prompt * price[0] / 1e6, output * price[1] / 1e6) if self.rented else (0.0, 0.0)


def _money(chosen: Sequence[_Sized], basis: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Lengths of datasets are independent of each other (their errors add in quadrature), the price is one for all."""
    prices = {k: list(basis["usd_per_million"][k]) for k in ("cheapest", "expected", "dearest")}
    if scenario.price is not None:
        prices = {k: [price[0], scenario.price] for k, price in prices.items()}
    parts = [s.usd(prices["expected"], s.output) for s in chosen]
    prompt, output = (math.fsum(p[k] for p in parts) for k in (0, 1))
    ends = []
    for k, (which, sign) in enumerate((("cheapest", -1), ("dearest", 1))):
        middle = math.fsum(sum(s.usd(prices[which], s.output)) for s in chosen)
        errors = [sum(s.usd(prices[which], s.output_ends[k])) - sum(s.usd(prices[which], s.output)) for s in chosen]
        ends.append(middle + sign * math.hypot(*errors))
    pilot = float(basis["pilot_spent_usd"]) if scenario.served == "rented" else 0.0
    expected, left = prompt + output, max(0.0, scenario.budget - pilot)
    return {
        "expected": round(expected, 6),
        "output": round(output, 6),
        "prompt": round(prompt, 6),
        "low": round(max(0.0, ends[0]), 6),
        "high": round(ends[1], 6),
        "pilot_spent": round(pilot, 6),
        "budget": scenario.budget,
        "fits": expected + pilot <= scenario.budget,
        "share_bought": round(min(1.0, left / expected), 6) if expected > 0 else 1.0,
    }


def states_of(tokens: float, basis: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Bytes of hidden states: tokens x vectors stored x hidden size x bytes a value, less what compression takes off."""
    per_token = scenario.layers * int(basis["hidden_size"]) * DTYPES[scenario.dtype]
    stored = round(tokens * per_token / (stated("lossless_ratio") if scenario.lossless else 1.0))
    return {
        "bytes": stored,
        "terabytes": stored / 1e12,
        "tebibytes": stored / 2**40,
        "layers": scenario.layers,
        "dtype": scenario.dtype,
        "lossless": scenario.lossless,
        "bytes_per_token": per_token,
    }


def _times(
    chosen: Sequence[_Sized],
    money: Mapping[str, Any],
    kept: Mapping[str, int],
    states: Mapping[str, Any],
    basis: Mapping[str, Any],
    scenario: Scenario,
) -> dict[str, Any]:
    rented = math.fsum(s.answers for s in chosen if s.rented)
    served = math.fsum(s.output for s in chosen if s.backend == "openrouter" and not s.rented)
    each, left = float(basis["seconds_per_answer"]), max(0.0, scenario.budget - money["pilot_spent"])
    answers = answer_seconds(round(rented), money["expected"], left, float(basis["hold_usd"]), scenario.in_flight, each)
    compute = kept["tokens"] / scenario.tokens_per_s + kept["rows"] * scenario.seconds_per_row
    written = states["bytes"] / scenario.disk_bytes_per_s
    return {
        "minutes": {
            "answers": round(answers / 60, 2),
            "answers_if_money_held_nothing_up": round(rented / scenario.in_flight * each / 60, 2),
        },
        "hours": {
            "answers_served_locally": round(served / scenario.local_tokens_per_s / 3600, 2),
            "extraction": round(max(compute, written) / 3600, 2),
            "extraction_limit": "disk" if written > compute else "GPUs",
            "states_bytes_per_s": round(states["bytes"] / max(compute, written, 1e-9)),
        },
    }


def _disk(
    chosen: Sequence[_Sized], kept: Mapping[str, int], states: Mapping[str, Any], basis: Mapping[str, Any], scenario: Scenario
) -> dict[str, Any]:
    """Bytes by what they are for; `needed` is the most at one time: a corpus is rebuilt beside the old one."""
    streamed = stated("streamed_bytes") if basis.get("streamed") else stated("answers_bytes")
    read = math.fsum(s.prompt for s in chosen) * stated("answers_bytes")
    files = kept["tokens"] * VECTORS_IN_FILES * int(basis["hidden_size"]) * DTYPES[scenario.dtype]
    items = {
        "answers": round(
            read
            + math.fsum(s.output * (streamed if s.rented else stated("answers_bytes")) for s in chosen)
            + math.fsum(s.answers for s in chosen) * stated("answer_bytes")
        ),
        "tokens": round(math.fsum(s.prompt + s.output for s in chosen) * stated("tokens_bytes")),
        "corpus": round(kept["tokens"] * stated("corpus_bytes")),
        "corpus_rebuilt": round(kept["tokens"] * stated("rebuild_bytes")),
        "handoff_tokens": round(kept["tokens"] * stated("handoff_bytes")),
        "hidden_states": states["bytes"],
        "handoff_files": files * len(scenario.handoff_files),
    }
    needed, free = sum(items.values()), int(basis["disk_free_bytes"])
    return {"items": items, "needed": needed, "free": free, "fits": needed < free, "handoff_files_if_asked": files}
