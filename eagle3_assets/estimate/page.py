"""The plan for people: tables of texts, as the terminal and the Dagster UI show them alike, and as markdown.

Belongs here: words and units. Does not belong here: arithmetic (`outcome.py`), colours (`cli/plan.py`), the picture (`picture.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_assets.estimate.scenario import SETTINGS

DISK_WORDS = {
    "answers": "journals of the answers, as received",
    "tokens": "tokens/<ds>: ids and evidence",
    "corpus": "corpus: archive and training form",
    "corpus_rebuilt": "the same while a corpus is rebuilt beside it",
    "handoff_tokens": "handoff/tokens: rows for online training",
    "hidden_states": "hidden_states",
    "handoff_files": "copies of the states in a trainer's own format",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A table of texts. `numbers`: how many columns, from the right, are aligned to the right. `notes` stand below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int
    notes: tuple[str, ...] = ()


def sections(plan: Mapping[str, Any], asked: Mapping[str, Any] | None = None) -> list[Section]:
    """Datasets, money, the outcome, disk, what-ifs, assumptions. `asked`: the outcome of the user's own what-if, shown first among them."""
    return [
        datasets_table(plan),
        money_table(plan),
        takes_table(plan),
        disk_table(plan),
        what_if_table(plan, asked),
        assumptions_table(plan),
    ]


def as_markdown(plan: Mapping[str, Any]) -> str:
    """All sections."""
    parts = []
    for section in sections(plan):
        left = len(section.columns) - section.numbers
        lines = [f"### {section.title}", "", _md(section.columns), _md(["---"] * left + ["---:"] * section.numbers)]
        lines += [_md(row) for row in section.rows]
        parts.append("\n".join([*lines, *(f"\n{note}" for note in section.notes)]))
    return "\n\n".join(parts) + "\n"


def _md(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---------------------------------------------------------------------------------------------------- words
def usd_text(usd: float) -> str:
    """An amount for people: two decimals, or as many as it takes to say it truly (a limit of 0.035 is not 0.04)."""
    return f"{usd:,.2f}" if abs(usd - round(usd, 2)) < 1e-9 else f"{usd:,.6f}".rstrip("0")


def about_usd(usd: float) -> str:
    """An estimate: two decimals from ten cents on."""
    return f"{usd:,.2f}" if usd >= 0.1 or usd == 0 else f"{usd:.4f}"


def size_text(n: float) -> str:
    """Bytes in powers of ten and of two, side by side: 7.94 TB (7.22 TiB)."""
    for ten, (decimal, binary) in ((4, ("TB", "TiB")), (3, ("GB", "GiB")), (2, ("MB", "MiB")), (1, ("kB", "KiB"))):
        if n >= 1000**ten or ten == 1:
            return f"{n / 1000**ten:,.2f} {decimal} ({n / 1024**ten:,.2f} {binary})"
    raise AssertionError  # the loop ends at kB


def count_text(n: float) -> str:
    """Tokens: 138.4 M from a million on."""
    return f"{n / 1e6:,.1f} M" if n >= 1e6 else f"{n:,.0f}"


# ---------------------------------------------------------------------------------------------------- tables
def datasets_table(plan: Mapping[str, Any]) -> Section:
    columns = (
        "dataset", "backend", "answers", "prompt tokens", "output tokens", "rows kept", "tokens kept", "hours if local",
    )  # fmt: skip
    rows = (
        (
            d["dataset"],
            d["backend"],
            *(f"{d[k]:,}" for k in ("rows", "prompt_tokens", "output_tokens", "kept_rows", "kept_tokens")),
            f"{d['hours_if_served_locally']:,.1f}",
        )
        for d in plan["datasets"]
    )
    return Section("Datasets", columns, tuple(rows), 6)


def money_table(plan: Mapping[str, Any]) -> Section:
    """Of the datasets that cost money."""
    rows = (
        (
            d["dataset"],
            about_usd(d["usd_output"]),
            about_usd(d["usd_expected"] - d["usd_output"]),
            about_usd(d["usd_expected"]),
            "{} … {}".format(*map(about_usd, d["usd_interval"])),
            "" if d["usd_cap"] is None else usd_text(d["usd_cap"]),
        )
        for d in plan["datasets"]
        if d["backend"] == "openrouter"
    )
    return Section("Money (USD)", ("dataset", "output", "prompts", "expected", "low … high", "cap"), tuple(rows), 5)


def takes_table(plan: Mapping[str, Any]) -> Section:
    usd, kept, hours, states, minutes = (plan[k] for k in ("usd", "kept", "hours", "states", "minutes"))
    scenario = plan["scenario"]
    cap = "no cap" if scenario["max_length"] is None else f"cap {scenario['max_length']:,}, longer rows: {scenario['too_long']}"
    rows = (
        ("answers", f"{about_usd(usd['expected'])} USD", f"{about_usd(usd['output'])} for output, {about_usd(usd['prompt'])} for prompts"),
        ("", f"{about_usd(usd['low'])} … {about_usd(usd['high'])} USD", f"{about_usd(usd['pilot_spent'])} spent on the pilot besides"),
        (
            "budget",
            f"{usd_text(usd['budget'])} USD",
            "fits" if usd["fits"] else f"DOES NOT FIT: buys {usd['share_bought']:.0%} of the answers",
        ),
        ("time of answers", f"{minutes['answers']:,.1f} min", f"{minutes['answers_if_money_held_nothing_up']:,.1f} min if money held nothing up"),
        ("tokens kept", count_text(kept["tokens"]), f"of {count_text(plan['tokens']['total'])} ({cap}); {kept['rows_over']:,} rows are longer"),
        (
            "hidden states",
            size_text(states["bytes"]),
            f"{_layers(states['layers'])} layers, {states['dtype']}, {states['bytes_per_token']:,} bytes a token"
            + (", lossless" if states["lossless"] else ""),
        ),
        (
            "extraction",
            f"{hours['extraction']:,.2f} h",
            f"at {scenario['tokens_per_s']:,g} tokens/s; writes {hours['states_bytes_per_s'] / 1e6:,.1f} MB/s, limited by the "
            f"{hours['extraction_limit']}",
        ),
    )  # fmt: skip
    return Section("What it takes", ("what", "how much", "how"), rows, 0)


def _layers(layers: int) -> str:
    return "3+1" if layers == 4 else str(layers)


def disk_table(plan: Mapping[str, Any]) -> Section:
    disk = plan["disk"]
    rows = [(DISK_WORDS[name], size_text(n)) for name, n in disk["items"].items()]
    rows += [("needed in all", size_text(disk["needed"])), ("free", size_text(disk["free"]))]
    fits = (
        "It fits."
        if disk["fits"]
        else "IT DOES NOT FIT in what is free now (files that were written already are not counted off)."
    )
    asked = f"A trainer's own files (handoff.files) are written on request only, {size_text(disk['handoff_files_if_asked'])} for each."
    return Section("Disk", ("what", "bytes"), tuple(rows), 1, (fits, asked))


def what_if_table(plan: Mapping[str, Any], asked: Mapping[str, Any] | None = None) -> Section:
    rows = [_case_row("as the campaign stands", plan)]
    rows += [_case_row(f"ASKED: {', '.join(asked['settings'])}", asked)] if asked else []
    rows += [_case_row(", ".join(case["settings"]), case) for case in plan["what_if"]]
    columns = ("what if", "rows", "over", "tokens kept", "USD", "budget", "answers", "states", "extraction", "disk")
    note = (
        "`over`: rows longer than the cap. Your own: `eagle3 plan --what-if NAME=VALUE …`, several together are one case. Names: "
        + ", ".join(SETTINGS)
        + "."
    )
    return Section("What if", columns, tuple(rows), 9, (note,))


def _case_row(name: str, case: Mapping[str, Any]) -> tuple[str, ...]:
    usd, kept, hours = case["usd"], case["kept"], case["hours"]
    local = hours["answers_served_locally"]
    return (
        name,
        f"{kept['rows']:,}",
        f"{kept['rows_over']:,}",
        count_text(kept["tokens"]),
        about_usd(usd["expected"]),
        "fits" if usd["fits"] else f"buys {usd['share_bought']:.0%}",
        f"{local:,.1f} h" if local else f"{case['minutes']['answers']:,.1f} min",
        size_text(case["states"]["bytes"]),
        f"{hours['extraction']:,.1f} h",
        "fits" if case["disk"]["fits"] else "NO",
    )


def assumptions_table(plan: Mapping[str, Any]) -> Section:
    rows = tuple((a["name"], f"{a['value']:,.4g}", a["unit"], a["source"]) for a in plan["assumptions"])
    return Section("Assumptions", ("name", "value", "unit", "from"), rows, 0)
