"""The report's picture: residuals against the bill, and lengths, in one small PNG.

Belongs here: drawing. Does not belong here: counting (`figures.py`). matplotlib is imported inside the function: definitions
load without it.
"""

from __future__ import annotations

import io
from typing import Any

MAX_BYTES = 28_000  # in base64 with the text around it below the 50 kB that one Dagster event should hold (dagster.md section 2)


def draw_report(report: dict[str, Any]) -> bytes:
    """PNG of at most `MAX_BYTES`: left the histogram of rebuilt minus billed (log scale), right response and prompt lengths."""
    for dpi in (90, 72, 56):
        png = _draw(report, dpi)
        if len(png) <= MAX_BYTES:
            break
    return png


def _draw(report: dict[str, Any], dpi: int) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 2.8), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_residuals(left, report["billing"])
    _draw_lengths(right, report["lengths"])
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})  # no version: equal figures give equal bytes
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
    axes.set_title("rebuilt minus billed tokens, rows", fontsize=9)
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
    axes.set_title("length in tokens, rows", fontsize=9)
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=7)
