"""The figures of the model card: written from what was measured, so that card and measurement cannot part.

Belongs here: figures -> Markdown, and the place in README.md where they stand. Does not belong here: measuring (`evaluate`, `bank`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kimi_mini
from kimi_mini import bank, model
from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import make_bank

CARD = Path(kimi_mini.__file__).parent / "README.md"
BEGIN, END = "<!-- figures: written by `python -m kimi_mini_workshop write-card` -->", "<!-- end of figures -->"
Cell = Callable[[dict[str, Any]], str]
EVALUATION_FILE, TRAINING_FILE = "evaluation.json", model.TRAINING_FILE


def read_figures(folder: Path = model.MODEL_FOLDER) -> tuple[dict[str, Any], dict[str, Any]]:
    """(evaluation, training) as measured for the weights in `folder`. Raises KimiMiniError where they are another model's, or missing."""
    try:
        evaluation, training = (json.loads((folder / name).read_bytes()) for name in (EVALUATION_FILE, TRAINING_FILE))
    except (OSError, ValueError) as error:
        raise KimiMiniError(f"{folder}: no figures ({error}); run `python -m kimi_mini_workshop evaluate --write`") from None
    for name, figures in ((EVALUATION_FILE, evaluation), (TRAINING_FILE, training)):
        if figures["model_sha256"] != model.weights_sha256(folder):
            raise KimiMiniError(
                f"{folder / name}: belongs to other weights; measure these: python -m kimi_mini_workshop evaluate --write"
            )
    return evaluation, training


def markdown(evaluation: dict[str, Any], training: dict[str, Any], bank_figures: dict[str, Any]) -> str:
    """The figures' section."""
    temperatures: dict[str, Any] = evaluation["temperatures"]
    turns = next(iter(temperatures.values()))["turns"]
    lines = [
        f"Training: {training['steps']:,} steps, {training['tokens']:,} tokens, seed {training['seed']}; loss of generated tokens on "
        f"held-out conversations {training['held_out_loss'][0][1]:.2f} after {training['held_out_loss'][0][0]} steps, "
        f"{training['held_out_loss'][-1][1]:.3f} at the end.",
        "",
        f"Held-out prompts, {evaluation['conversations']} conversations (seed {evaluation['seed']}), {turns} turns at each temperature, "
        "the whole distribution (top_p = 1):",
        "",
        "| | " + " | ".join(f"T = {t}" for t in temperatures) + " |",
        "| --- |" + " --- |" * len(temperatures),
    ]
    rows: dict[str, Cell] = {
        "tokens": lambda c: f"{c['tokens']:,}",
        "grammar accepted": lambda c: f"{c['grammar'] / c['turns']:.1%} ({c['grammar']})",
        "turn correct": lambda c: f"{c['right'] / c['turns']:.1%} ({c['right']})",
        "not canonical": lambda c: f"{c['non_canonical'] / c['turns']:.1%} ({c['non_canonical']})",
        "… longer / equal length / shorter than the encoder's": lambda c: f"{c['longer']} / {c['equal_length']} / {c['shorter']}",
        "… not UTF-8": lambda c: str(c["not_utf8"]),
        "tokens/s, 32 in flight, 2 cores": lambda c: f"{c['tokens_per_s']:,}",
    }
    lines += [f"| {name} | " + " | ".join(cell(c) for c in temperatures.values()) + " |" for name, cell in rows.items()]
    lines += ["", "Correct turns by task type:", "", "| | " + " | ".join(f"T = {t}" for t in temperatures) + " |"]
    lines.append("| --- |" + " --- |" * len(temperatures))
    for kind in sorted(next(iter(temperatures.values()))["by_type"]):
        cells = (c["by_type"][kind] for c in temperatures.values())
        lines.append(
            f"| {kind} | " + " | ".join(f"{c['right']}/{c['turns']} ({c['right'] / c['turns']:.0%})" for c in cells) + " |"
        )
    weak = [
        f"{turn} {c['right']}/{c['turns']}"
        for turn, c in next(iter(temperatures.values()))["by_turn"].items()
        if c["right"] < 0.9 * c["turns"]
    ]
    lines += ["", f"Single turns of a type below 90 % at T = {next(iter(temperatures))}: {', '.join(weak) or 'none'}."]
    lines += ["", *_bank_lines(bank_figures)]
    return "\n".join(lines)


def _bank_lines(figures: dict[str, Any]) -> list[str]:
    by_temperature: dict[str, Any] = figures["temperatures"]
    rows: dict[str, Cell] = {
        "answers (tokens)": lambda f: f"{f['answers']:,} ({f['tokens']:,})",
        "mean / 95th percentile / longest": lambda f: f"{f['mean_tokens']} / {f['p95_tokens']} / {f['max_tokens']}",
        "instant mode / with tool calls": lambda f: f"{f['instant']:.1%} / {f['with_tools']:.1%}",
        "cut off by length": lambda f: f"{f['truncated']:.1%}",
        "grammar accepted (cut answers count as broken)": lambda f: f"{f['grammar']:.1%}",
        "not canonical": lambda f: f"{f['non_canonical']:.1%} ({f['non_canonical_answers']})",
    }
    return [
        f"The bank: {figures['answers']:,} answers to {figures['prompts']:,} prompts, {figures['tokens']:,} ids:",
        "",
        "| | " + " | ".join(f"T = {t}" for t in by_temperature) + " |",
        "| --- |" + " --- |" * len(by_temperature),
        *(f"| {name} | " + " | ".join(cell(f) for f in by_temperature.values()) + " |" for name, cell in rows.items()),
    ]


def current_section() -> str:
    """What the section must say for the committed model and bank."""
    return markdown(*read_figures(), make_bank.statistics(bank.load_bank()))


def section(text: str) -> str:
    """The figures' section of a card. Raises KimiMiniError where its marks are missing."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise KimiMiniError(f"{CARD}: the marks {BEGIN!r} and {END!r} are missing; put them where the figures belong")
    return text[begin + len(BEGIN) : end].strip("\n")


def write_card() -> dict[str, Any]:
    """Put the current figures into README.md."""
    text = CARD.read_text(encoding="utf-8")
    old, new = section(text), current_section()
    begin = text.index(BEGIN) + len(BEGIN)
    CARD.write_text(f"{text[:begin]}\n{new}\n{text[text.index(END) :]}", encoding="utf-8")
    return {"card": str(CARD), "changed": old != new}
