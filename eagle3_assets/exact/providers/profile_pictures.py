"""Wire profiles for people: a table in markdown and one small picture.

Belongs here: wording and drawing of `wire_profiles.json`. Does not belong here: learning (`wire_profiles.py`). matplotlib is imported
inside the function: definitions load without it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from eagle3_assets.exact.search.edges import EDGES, MECHANISMS

MOST_PROVIDERS = 20  # drawn; the table has all
MAX_BYTES = 24_000  # with the table and in base64 below the 50 kB that one Dagster event should hold (docs/research/dagster.md#2)
_COLOURS = ("#e8e8e8", "#f2a541", "#c8553d", "#588b8b")  # of MECHANISMS
_STANDING = {"decided": "#588b8b", "not decided": "#f2a541", "cannot be exact": "#c8553d"}


def as_markdown(profiles: Mapping[str, Any]) -> str:
    """The table of all windows, the model's habits in one line, and the picture."""
    lines = [
        "| provider | since | answers | bills met | standing | spacing | bill counts | prompt | why |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, entry in _providers(profiles):
        for window in entry.get("windows") or [entry]:
            since = datetime.fromtimestamp(float(window.get("from") or 0), UTC).strftime("%Y-%m-%d %H:%M")
            cells = [
                _cell(name) + (" (streams)" if window.get("stream") else ""), since, str(window["rows"]), f"{_met(window):.1%}", standing(window),
                str(window["spacing"]), convention(window), _prompt(window), _cell(str(window.get("cannot_be_exact") or window["why"]))[:160],
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    model = profiles.get("model") or {}
    habits = [f"{edge} {model[edge]['share']:.1%}" for edge in EDGES if edge in model]
    sampling = model.get("sampling") or {}
    lines += ["", f"The model writes whitespace at {', '.join(habits)}; not canonical {1000 * sampling.get('lambda_per_token', 0.0):.3f} "
              f"in 1,000 tokens ({sampling.get('basis', 'prior')})."]  # fmt: skip
    if profiles.get("providers"):
        picture = base64.b64encode(draw_profiles(profiles)).decode()
        lines += ["", f"![bills met, edges](data:image/png;base64,{picture})"]
    return "\n".join(lines)


def standing(window: Mapping[str, Any]) -> str:
    """decided, not decided, or cannot be exact."""
    return "cannot be exact" if window.get("cannot_be_exact") else "decided" if window["decided"] else "not decided"


def convention(window: Mapping[str, Any]) -> str:
    """What the bill counts beside the ids: `end`, `no end`, a constant more or less; and how reasoning is counted."""
    extra, rho = int(window.get("extra") or 0), window.get("reasoning_count")
    words = ("end" if window.get("counts_end", True) else "no end") + (f" {extra:+d}" if extra else "")
    return words + ("" if rho is None else f", reasoning {rho:+d}" if rho else ", reasoning")


def _prompt(window: Mapping[str, Any]) -> str:
    offsets = {int(stratum["prompt"]["offset"]) for stratum in (window.get("strata") or {}).values()}
    forms = {str(stratum["prompt"]["form"]).split("/")[0] for stratum in (window.get("strata") or {}).values()}
    return "/".join(sorted(forms)) + "".join(f" {offset:+d}" for offset in sorted(offsets) if offset)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _met(window: Mapping[str, Any]) -> float:
    return float(window["explained"]) / max(1, int(window["rows"]))


def _providers(profiles: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """By number of answers, the most first."""
    return sorted((profiles.get("providers") or {}).items(), key=lambda item: (-int(item[1]["rows"]), item[0]))


def draw_profiles(profiles: Mapping[str, Any]) -> bytes:
    """PNG of at most `MAX_BYTES`. Of each provider's latest window, left the share of held-out bills that its reading meets, with and
    without tools, coloured by its standing; right what is done to the whitespace at the four edges."""
    for dpi in (90, 72, 56, 40):
        png = _draw(_providers(profiles)[:MOST_PROVIDERS], dpi)
        if len(png) <= MAX_BYTES:
            break
    return png


def _draw(providers: Sequence[tuple[str, Mapping[str, Any]]], dpi: int) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image  # which matplotlib itself needs

    figure = Figure(figsize=(9.0, 1.2 + 0.3 * len(providers)), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_bills(left, providers)
    _draw_edges(right, providers)
    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})  # no version: equal profiles give equal bytes
    Image.open(drawn).convert("RGB").quantize(24).save(out, format="PNG", optimize=True)  # a third of the size
    return out.getvalue()


def _draw_bills(axes: Any, providers: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    for k, (_, window) in enumerate(providers):
        strata = window.get("strata") or {}
        shown = [(name, strata[name]) for name in ("no_tools", "tools") if name in strata]
        for j, (name, stratum) in enumerate(shown):
            share = int(stratum["explained"]) / max(1, int(stratum["rows"]))
            axes.barh(
                k + 0.2 * (2 * j - len(shown) + 1),
                share,
                0.38,
                color=_STANDING[standing(window)],
                alpha=1.0 if name == "tools" else 0.6,
            )
        axes.text(0.01, k, convention(window), va="center", fontsize=6)
    axes.set_yticks(range(len(providers)), [f"{name[:24]} ({window['rows']})" for name, window in providers], fontsize=7)
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title("held-out bills met (pale: without tools), what they count", fontsize=8)
    handles = [axes.barh([0], [0], color=colour, label=name) for name, colour in _STANDING.items()]
    axes.legend(handles=handles, fontsize=6, loc="lower right")


def _draw_edges(axes: Any, providers: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    from matplotlib.colors import ListedColormap

    kinds = [
        [str(((window.get("edges") or {}).get(edge) or {}).get("mechanism", "keep")) for edge in EDGES] for _, window in providers
    ]
    axes.imshow(
        [[MECHANISMS.index(kind) for kind in row] for row in kinds],
        cmap=ListedColormap(_COLOURS),
        vmin=-0.5,
        vmax=3.5,
        aspect="auto",
    )
    for y, row in enumerate(kinds):
        for x, kind in enumerate(row):
            axes.text(x, y, kind, ha="center", va="center", fontsize=6)
    axes.set_xticks(range(len(EDGES)), [edge.replace("_", "\n") for edge in EDGES], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.set_title("whitespace at the edges", fontsize=8)
