"""The report's picture: residuals against the bill, lengths, and the course of the purchase, in one small PNG.

Belongs here: drawing. Does not belong here: counting (`figures.py`). matplotlib is imported inside the function: definitions
load without it.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

MAX_STRATA, COLOURS = 6, 160
# in base64 with the text around it below the 50 kB that one Dagster event should hold (docs/research/dagster.md#2)
MAX_BYTES = 28_000


def draw_report(report: dict[str, Any], max_bytes: int = MAX_BYTES) -> bytes:
    """PNG of at most `max_bytes` where that is possible: above the histogram of rebuilt minus billed (log scale) and the lengths; below,
    where there is a timeline, tokens and refusals over time, and the share of rows equal to their bill by quarter of the time."""
    for dpi in (96, 88, 80, 72, 64, 56):
        png = _draw(report, dpi)
        if len(png) <= max_bytes:
            break
    return png


def _draw(report: dict[str, Any], dpi: int) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    rows = 2 if report["timeline"] else 1
    figure = Figure(figsize=(8.4, 2.6 * rows), dpi=dpi, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    (left, right), *below = figure.subplots(rows, 2, squeeze=False)
    _draw_residuals(left, report["billing"])
    _draw_lengths(right, report["lengths"])
    for first, second in below:
        _draw_course(first, report["timeline"])
        _draw_windows(second, report["monitor"]["strata"])
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    out = io.BytesIO()
    image.quantize(COLOURS).save(out, format="png", optimize=True)  # a third of the bytes; equal figures give equal bytes
    return out.getvalue()


def _draw_residuals(axes: Any, billing: dict[str, Any]) -> None:
    parts = [(part, billing[part]["histogram"]) for part in ("completion", "prompt")]
    if not any(billing[part]["n"] for part, _ in parts):
        axes.text(0.5, 0.5, "nothing was billed", ha="center", va="center", fontsize=9)
        axes.set_axis_off()
        return
    for k, (part, counts) in enumerate(parts):
        places = [x + (k - 0.5) * 0.4 for x in range(len(counts))]
        bars = axes.bar(places, list(counts.values()), 0.4, label=f"{part} (n = {billing[part]['n']})")
        axes.bar_label(bars, [str(c) if c else "" for c in counts.values()], fontsize=7)
    axes.set_xticks(range(len(parts[0][1])), list(parts[0][1]))
    axes.set_yscale("symlog")
    axes.set_title("rows by rebuilt minus billed tokens", fontsize=9)
    axes.set_xlabel("tokens more than billed", fontsize=7)
    axes.set_ylabel("rows", fontsize=7)
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=7)
    axes.margins(y=0.15)


def _draw_lengths(axes: Any, lengths: dict[str, Any]) -> None:
    labels = [f"{e // 1024}K" if e >= 1024 else str(e) for e in lengths["edges"]]
    used = [i for i in range(len(labels)) if lengths["prompt"]["histogram"][i] or lengths["response"]["histogram"][i]]
    last = max(used, default=0) + 1
    for k, part in enumerate(("response", "prompt")):
        places = [x + (k - 0.5) * 0.4 for x in range(last)]
        axes.bar(places, lengths[part]["histogram"][:last], 0.4, label=part)
    axes.set_xticks(range(last), [f"≥{label}" for label in labels[:last]])
    axes.set_title("rows by length", fontsize=9)
    axes.set_xlabel("tokens, from", fontsize=7)
    axes.set_ylabel("rows", fontsize=7)
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=7)


def _draw_course(axes: Any, timeline: list[dict[str, Any]]) -> None:
    """Tokens of each stretch of time as bars, attempts that failed and 429s as lines on a scale of their own."""
    unit, seconds = next(((n, s) for n, s in (("hours", 3600), ("minutes", 60)) if timeline[-1]["to_s"] >= 3 * s), ("seconds", 1))
    at = [t["from_s"] / seconds for t in timeline]
    width = (timeline[0]["to_s"] / seconds - at[0]) * 0.9
    axes.bar(at, [t["tokens"] for t in timeline], width, align="edge", label="tokens", color="#9ecae1")
    axes.set_title("tokens (bars) and failed attempts (lines)", fontsize=9)
    axes.set_xlabel(f"{unit} since the first answer", fontsize=7)
    axes.set_ylabel("tokens", fontsize=7)
    axes.tick_params(labelsize=7)
    other = axes.twinx()
    for name, label in (("failed", "failed"), ("refused_429", "of them 429")):
        other.plot(at, [t[name] for t in timeline], marker=".", markersize=3, linewidth=1, label=label)
    other.set_ylim(0, 1.1 * max(1, *(t["failed"] for t in timeline)))
    other.yaxis.get_major_locator().set_params(integer=True)
    other.tick_params(labelsize=7)
    other.legend(fontsize=7)


def _draw_windows(axes: Any, strata: list[dict[str, Any]]) -> None:
    """Share of rows equal to their bill in each quarter of the time, for the strata with the most rows."""
    shown = sorted(strata, key=lambda s: -s["n"])[:MAX_STRATA]
    if not shown:
        axes.text(0.5, 0.5, "nothing was billed", ha="center", va="center", fontsize=9)
        axes.set_axis_off()
        return
    for s in shown:
        label = f"{s['provider'][:18]}, {s['finish_reason'][:12]}" + (", tools" if s["tools"] else "")
        axes.plot([w["equal_share"] for w in s["windows"]], marker="o", markersize=3, linewidth=1, label=label.replace("$", "＄"))
    axes.set_xticks(range(4), ["1st quarter", "2nd", "3rd", "4th"])
    axes.set_title("share of rows equal to their bill", fontsize=9)
    axes.set_ylim(-0.02, 1.02)
    axes.legend(fontsize=6)
    axes.tick_params(labelsize=7)
