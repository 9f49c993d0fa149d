"""One row made visible: coloured tokens, markers, loss mask, survivors, evidence; for a terminal and as a page.

Belongs here: turning a `SampleRow` into pieces and pieces into rich text or HTML, with everything that a model wrote escaped.
Does not belong here: finding the row (`cli/show.py`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.targets.tokenizer import Profile

if TYPE_CHECKING:
    from rich.text import Text

STRIPES = ("#7fb2ff", "#f2b36f")  # two colours in turn, so that token boundaries are seen


@dataclass(frozen=True, slots=True)
class Piece:
    """One token as shown. `kind`: prompt, model (supervised) or marker; `supervised`: inside a loss span."""

    position: int
    token_id: int
    text: str
    kind: str
    supervised: bool


def visible(text: str) -> str:
    """Control characters, terminal escapes and bidirectional overrides as `\\x1b`-like text; newlines and tabs too."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def pieces_of(profile: Profile, row: SampleRow, start: int = 0, stop: int | None = None) -> list[Piece]:
    """The tokens of the row from `start` up to `stop` (None: the end), in order. A token that is not UTF-8 by itself is shown as its bytes in
    hex, an id outside the vocabulary by those words."""
    stop = len(row.input_ids) if stop is None else min(stop, len(row.input_ids))
    supervised: set[int] = set()
    for first, end in row.loss_spans:
        supervised.update(range(max(first, start), min(end, stop)))
    out = []
    for position in range(start, stop):
        token_id = row.input_ids[position]
        marker = not profile.is_ordinary(token_id)
        text = profile.token_name(token_id) if marker else token_text(profile, token_id)
        kind = "marker" if marker else "prompt" if position < row.prompt_len else "model"
        out.append(Piece(position, token_id, text, kind, position in supervised))
    return out


def token_text(profile: Profile, token_id: int) -> str:
    """The text of one ordinary token, escaped; its bytes in hex where they are no text by themselves."""
    data = profile.decode_bytes([token_id])
    try:
        return visible(data.decode("utf-8"))
    except UnicodeDecodeError:
        return "⟨" + data.hex(" ") + "⟩"


def survivor_lines(profile: Profile, row: SampleRow, *, context: int = 4) -> list[str]:
    """For each surviving sequence where it first leaves the chosen one, and both readings of that place."""
    out = []
    for k, other in enumerate(row.survivors, start=1):
        at = next(
            (i for i, (a, b) in enumerate(zip(row.input_ids, other, strict=False)) if a != b), min(len(row.input_ids), len(other))
        )
        ours, theirs = (visible(profile.decode(ids[at : at + context])) for ids in (row.input_ids, other))
        out.append(f"survivor {k}: {len(other)} ids, differs from token {at}: chosen {ours!r}, survivor {theirs!r}")
    return out


def summary(row: SampleRow) -> dict[str, str]:
    """The row's facts, escaped, in reading order."""
    facts = {
        "sample": f"{row.sample_id} turn {row.turn} attempt {row.attempt}",
        "from": f"{row.dataset} shard {row.shard}, {row.source}, {row.provider or 'no provider'}, {row.model or 'no model'}",
        "grade": f"{row.grade}, p_exact {row.p_exact:.4f} ({row.p_basis})",
        "ids": f"{len(row.input_ids)} = {row.prompt_len} prompt + {len(row.input_ids) - row.prompt_len} response",
        "billed": f"prompt {row.billed_prompt}, completion {row.billed_completion}, reasoning {row.billed_reasoning}",
        "finish": f"{row.finish_reason} ({row.native_finish_reason})",
        "reasons": "; ".join(row.reasons) or "none",
    }
    return {name: visible(text) for name, text in facts.items()}


def evidence_lines(row: SampleRow) -> list[tuple[str, str]]:
    """The row's evidence as (name, value), nested values as short JSON, all escaped. Evidence that is no JSON object is shown as it is."""
    try:
        evidence = json.loads(row.evidence or "{}")
    except ValueError:
        evidence = None
    if not isinstance(evidence, dict):
        return [("evidence", visible(row.evidence))]
    return [(visible(str(name)), visible(_value(evidence[name]))) for name in sorted(evidence)]


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def as_rich(profile: Profile, row: SampleRow) -> Text:
    """For a terminal: prompt dim, markers reverse, the model's tokens in two colours in turn, the loss mask underlined."""
    from rich.text import Text

    out = Text()
    for name, text in summary(row).items():
        out.append(f"{name:>8}  ", style="bold").append(text + "\n")
    out.append("\n")
    for piece in pieces_of(profile, row):
        style = {"prompt": "dim", "marker": "reverse", "model": STRIPES[piece.position % 2]}[piece.kind]
        if piece.supervised:
            style += " underline" if piece.kind != "marker" else f" underline {STRIPES[piece.position % 2]}"
        out.append(piece.text, style=style)
        if "\\n" in piece.text or piece.token_id == profile.end_id:
            out.append("\n")
    out.append("\n\n").append("dim: prompt", style="dim").append(" · ").append("marker", style="reverse").append(" · ")
    out.append("token", style=STRIPES[0]).append("token", style=STRIPES[1]).append(" · ")
    out.append("in the loss", style="underline").append("\n")
    for line in survivor_lines(profile, row):
        out.append(line + "\n", style="yellow")
    out.append("evidence\n", style="bold")
    for name, text in evidence_lines(row):
        out.append(f"{name:>18}  {text}\n")
    return out


_STYLE = """
body { font: 14px/1.6 ui-monospace, monospace; margin: 2em auto; max-width: 110ch; color: #222; }
h1 { font-size: 1.1em } dt { float: left; clear: left; width: 8ch; font-weight: bold } dd { margin-left: 10ch }
.tokens { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #ddd; padding: 1em }
.prompt { color: #888 } .marker { background: #333; color: #fff; border-radius: 3px }
.s { border-bottom: 2px solid #2a7 } .e { background: #e8f1ff } .o { background: #fff0df } .marker.s { background: #165 }
th { text-align: right; vertical-align: top; padding-right: 2ch; font-weight: bold } td { overflow-wrap: anywhere }
"""


def as_html(profile: Profile, row: SampleRow) -> str:
    """A self-contained page (no network, no script). Everything from outside is escaped."""
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in summary(row).items())
    survivors = "".join(f"<li>{html.escape(line)}</li>" for line in survivor_lines(profile, row)) or "<li>none</li>"
    evidence = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in evidence_lines(row))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(row.sample_id)}</title><style>{_STYLE}</style>'
        f"<h1>One sample</h1><dl>{facts}</dl>"
        "<p>Grey: prompt. Dark: markers. Underlined: supervised (the loss mask). Colours alternate by token; "
        "hover for position and id.</p>"
        f'<div class="tokens">{_html_tokens(profile, pieces_of(profile, row))}</div>'
        f"<h1>Survivors</h1><ul>{survivors}</ul><h1>Evidence</h1><table>{evidence}</table></html>\n"
    )


def _html_tokens(profile: Profile, pieces: Sequence[Piece]) -> str:
    out = []
    for piece in pieces:
        stripe = "eo"[piece.position % 2] if piece.kind == "model" else ""
        names = " ".join(name for name in (piece.kind, "s" if piece.supervised else "", stripe) if name)
        title = f"{piece.position}: {piece.token_id}"
        out.append(f'<span class="{names}" title="{title}">{html.escape(piece.text)}</span>')
        if "\\n" in piece.text or piece.token_id == profile.end_id:
            out.append("\n")
    return "".join(out)
