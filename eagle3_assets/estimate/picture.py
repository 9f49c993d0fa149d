"""The plan's picture: bytes of hidden states against the cap on the length, and dollars against the budget.

Belongs here: drawing. Does not belong here: arithmetic (`outcome.py`). matplotlib is imported inside the function: definitions load
without it.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import Any

from eagle3_assets.estimate.outcome import outcome
from eagle3_assets.estimate.scenario import scenario_of_json

CAPS = tuple(2**k for k in range(9, 19))
# in base64 with the text around it below the 50 kB that one Dagster event should hold (docs/research/dagster.md#2)
MAX_BYTES = 28_000


def states_by_cap(plan: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """(cap, bytes where longer rows are cut, bytes where they are dropped), under the plan's scenario otherwise."""
    scenario = scenario_of_json(plan["scenario"])

    def size(cap: int, too_long: str) -> int:
        capped = dataclasses.replace(scenario, max_length=cap, too_long=too_long)
        return int(outcome(plan["datasets"], plan["basis"], capped)["states"]["bytes"])

    return [(cap, size(cap, "cut"), size(cap, "drop")) for cap in CAPS]


def draw_plan(plan: Mapping[str, Any]) -> bytes:
    """PNG of at most `MAX_BYTES`; equal plans give equal bytes."""
    for dpi in (90, 72, 56):
        png = _draw(plan, dpi)
        if len(png) <= MAX_BYTES:
            break
    return png


def _draw(plan: Mapping[str, Any], dpi: int) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 2.8), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_states(left, plan)
    _draw_dollars(right, plan["usd"])
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})  # no version: equal figures give equal bytes
    return out.getvalue()


def _draw_states(axes: Any, plan: Mapping[str, Any]) -> None:
    points = states_by_cap(plan)
    unit, factor = next(
        (u, f) for u, f in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if points[-1][1] >= f or u == "kB"
    )
    caps = [cap for cap, _, _ in points]
    axes.plot(caps, [cut / factor for _, cut, _ in points], marker=".", label="longer rows cut")
    axes.plot(caps, [drop / factor for _, _, drop in points], marker=".", linestyle="--", label="longer rows dropped")
    free = plan["basis"]["disk_free_bytes"] / factor
    if free < 1.2 * points[-1][1] / factor:
        axes.axhline(free, color="tab:red", linewidth=1, label="free on this disk")
    axes.set_xscale("log", base=2)
    axes.set_xticks(caps[::2], [f"{cap // 1024}K" if cap >= 1024 else str(cap) for cap in caps[::2]])
    axes.set_ylim(bottom=0)
    axes.set_title(f"hidden states ({unit}) against max_length", fontsize=9)
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=7)


def _draw_dollars(axes: Any, usd: Mapping[str, Any]) -> None:
    parts = [("pilot", usd["pilot_spent"]), ("prompts", usd["prompt"]), ("output", usd["output"])]
    start = 0.0
    for name, amount in parts:
        axes.barh([0], [amount], left=start, height=0.4, label=f"{name} {amount:,.2f}")
        start += amount
    spent = usd["pilot_spent"]
    low, high = spent + usd["low"], spent + usd["high"]
    axes.errorbar([start], [0], xerr=[[max(0.0, start - low)], [max(0.0, high - start)]], color="black", capsize=4, linewidth=1)
    axes.axvline(usd["budget"], color="tab:red", linewidth=1.5, label=f"budget {usd['budget']:,.2f}")
    axes.set_yticks([])
    axes.set_ylim(-0.6, 0.9)
    axes.set_xlim(left=0)
    axes.set_title("USD expected, with its interval, against the budget", fontsize=9)
    axes.legend(fontsize=7, loc="upper right", ncols=2)
    axes.tick_params(labelsize=7)
