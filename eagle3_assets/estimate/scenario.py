"""The settings that a plan depends on, and how `--what-if NAME=VALUE` changes them.

Belongs here: names, meanings, reading a value, the table of what-ifs that every plan shows. Does not belong here: what follows from them
(`outcome.py`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import UsageError
from eagle3_assets.estimate.assumptions import stated

DTYPES = {"bfloat16": 2, "float32": 4}
TRAINERS = ("speculators", "specforge")
SMALLEST, LARGEST = 1e-9, 1e18  # of any value: behind them arithmetic on floats ends in infinity, which is no JSON


@dataclass(frozen=True, slots=True)
class Scenario:
    """One setting of everything a plan depends on. The field names are those of `--what-if`; meanings: `SETTINGS`."""

    max_length: int | None
    too_long: str
    layers: int
    dtype: str
    lossless: bool
    without: tuple[str, ...]
    join_turns: bool
    budget: float
    tokens_a_dataset: float | None
    served: str
    price: float | None
    in_flight: int
    handoff_files: tuple[str, ...]
    tokens_per_s: float
    seconds_per_row: float
    local_tokens_per_s: float
    disk_bytes_per_s: float


def scenario_of(campaign: Campaign) -> Scenario:
    """The campaign as it stands."""
    return Scenario(
        max_length=campaign.corpus.max_length,
        too_long=campaign.corpus.too_long,
        layers=4,
        dtype=campaign.extraction.dtype,
        lossless=campaign.extraction.compress == "lossless",
        without=(),
        join_turns=campaign.corpus.join_turns,
        budget=campaign.budget.campaign_usd,
        tokens_a_dataset=None,
        served="rented",
        price=None,
        in_flight=campaign.collect.in_flight,
        handoff_files=campaign.handoff.files,
        tokens_per_s=stated("tokens_per_s"),
        seconds_per_row=stated("seconds_per_row"),
        local_tokens_per_s=stated("local_tokens_per_s"),
        disk_bytes_per_s=stated("disk_bytes_per_s"),
    )


def scenario_of_json(raw: Mapping[str, Any]) -> Scenario:
    """`plan["scenario"]` back."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    return Scenario(**values)


# ---------------------------------------------------------------------------------------------------- reading values
def _number(text: str) -> float:
    """7_000_000, 7M, 1.5e9, 8K (8,192: lengths go by powers of two)."""
    factor = {"K": 1024.0, "M": 1e6, "G": 1e9}.get(text[-1:].upper(), 1.0)
    value = float(text[:-1] if factor != 1.0 else text) * factor
    if not math.isfinite(value) or abs(value) > LARGEST or 0 < abs(value) < SMALLEST:
        raise ValueError
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise ValueError
    return value


def _not_negative(text: str) -> float:
    value = _number(text)
    if value < 0:
        raise ValueError
    return value


def _length(text: str) -> int | None:
    if text == "none":
        return None
    value = _positive(text)
    if value < 2 or value != int(value):
        raise ValueError
    return int(value)


def _whole(text: str) -> int:
    value = _positive(text)
    if value != int(value):
        raise ValueError
    return int(value)


def _one_of(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError
        return values[text]

    return read


@dataclass(frozen=True, slots=True)
class Setting:
    """`read` raises ValueError for text that is not `expected`."""

    meaning: str
    expected: str
    read: Callable[[str], Any]


_YES = {"yes": True, "no": False, "true": True, "false": False}
SETTINGS: dict[str, Setting] = {
    "max_length": Setting("corpus.max_length: ids of a row at most", "a whole number of 2 or more, 8K, or none", _length),
    "too_long": Setting("corpus.too_long: what happens to longer rows", "drop or cut", _one_of({"drop": "drop", "cut": "cut"})),
    "layers": Setting("vectors stored a token; both trainers need 3+1", "3 or 3+1", _one_of({"3": 3, "3+1": 4, "4": 4})),
    "dtype": Setting("extraction.dtype", "bfloat16 or float32", _one_of({k: k for k in DTYPES})),
    "lossless": Setting("extraction.compress = lossless", "yes or no", _one_of(_YES)),
    "without": Setting("leave this dataset out (may be said again)", "the name of a dataset", str),
    "join_turns": Setting(
        "corpus.join_turns: one row a conversation where its turns continue each other", "yes or no", _one_of(_YES)
    ),
    "budget": Setting("budget.campaign_usd", "USD above 0", _positive),
    "tokens_a_dataset": Setting("token_budget of every dataset that has one", "a number of tokens, e.g. 10M", _positive),
    "served": Setting("who answers the rented datasets", "rented or local", _one_of({"rented": "rented", "local": "local"})),
    "price": Setting("USD per million output tokens, instead of the endpoints'", "USD, 0 or more", _not_negative),
    "in_flight": Setting("collect.in_flight", "a whole number above 0", _whole),
    "handoff_files": Setting(
        "handoff.files: copies of the states in a trainer's own format",
        "none, speculators, specforge or both",
        _one_of({"none": (), "both": TRAINERS, **{t: (t,) for t in TRAINERS}}),
    ),
    "tokens_per_s": Setting("tokens/s of the extraction: measure yours", "a number above 0", _positive),
    "seconds_per_row": Setting("seconds of the extraction for each row, on top", "a number, 0 or more", _not_negative),
    "local_tokens_per_s": Setting("output tokens/s of a local server", "a number above 0", _positive),
    "disk_bytes_per_s": Setting("bytes/s that the disk takes", "a number above 0, e.g. 2G", _positive),
}


def change(scenario: Scenario, settings: Sequence[str], datasets: Sequence[str]) -> Scenario:
    """`scenario` with each NAME=VALUE of `settings`. Raises UsageError, one line, for a name or value that is none."""
    for text in settings:
        name, sign, value = (part.strip() for part in text.partition("="))
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            raise UsageError(
                f"--what-if {text}: unknown name {name!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(SETTINGS)}")
            )
        setting = SETTINGS[name]
        wrong = f"--what-if {text}: expected {name}=VALUE, where VALUE is {setting.expected} ({setting.meaning})"
        if not sign or not value:
            raise UsageError(wrong)
        try:
            found = setting.read(value)
        except (ValueError, OverflowError):
            raise UsageError(wrong) from None
        if name == "without":
            if found not in datasets:
                raise UsageError(f"--what-if {text}: there is no dataset {found!r}; there are {', '.join(datasets)}")
            found = tuple(dict.fromkeys((*scenario.without, found)))
        scenario = dataclasses.replace(scenario, **{name: found})
    return scenario


def usual_what_ifs(scenario: Scenario, datasets: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The settings that every plan is shown with, each a tuple of NAME=VALUE. Those that change nothing are left out."""
    named = [str(d["dataset"]) for d in datasets]
    trajectories = next((n for n in named if n.startswith("a1")), None)
    asked: list[tuple[str, ...]] = [(f"max_length={cap}",) for cap in ("4096", "8192", "16384", "none")]
    asked += [("max_length=8192", "too_long=cut")]
    if trajectories and len(named) > 1:
        asked += [(f"without={trajectories}",), (f"without={trajectories}", "max_length=8192", "too_long=cut")]
    if any(d.get("conversations") for d in datasets):
        asked += [("join_turns=yes",), ("join_turns=no",)]
    asked += [("layers=3",), ("lossless=yes",), ("lossless=no",), ("handoff_files=speculators",)]
    asked += [("budget=50",), ("budget=100",), ("budget=150",)]
    if any(d.get("token_budget") for d in datasets):
        asked += [("tokens_a_dataset=7M",), ("tokens_a_dataset=10M",)]
    if any(d["backend"] == "openrouter" for d in datasets):
        asked += [("served=local",)]
    asked += [("tokens_per_s=2000",), ("tokens_per_s=20000",)]
    return [settings for settings in asked if change(scenario, settings, named) != scenario]
