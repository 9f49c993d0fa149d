"""Learning which prompt form a provider uses, from billed prompt counts.

Belongs here: one stratum's verdict. Does not belong here: the forms (`hypotheses.py`), completions (`learning.py`).

Forms are compared where their ids differ. A constant more in every prompt is a *stub* that is counted and not shown up to STUB
tokens (ROCm/ATOM#1727: 44 of 44 cases +3); what is more is text that the provider puts in, whose ids nobody knows: its prompts
cannot be exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from eagle3_assets.exact.observations import Observation

DECIDING_ROWS, WINS, EXPLAINS, CONSTANT = 8, 0.95, 0.80, 0.95
STUB = 3


def decide_prompt(rows: Sequence[Observation]) -> dict[str, Any]:
    """{form, offset, decided, explained, rows, forms {form: bills met}, ruled_out [form], cannot_be_exact: reason or None}."""
    counted = [row for row in rows if row.forms and row.billed_prompt]
    if not counted:
        return {
            "form": None,
            "offset": 0,
            "decided": False,
            "explained": 0,
            "rows": 0,
            "forms": {},
            "ruled_out": [],
            "cannot_be_exact": None,
        }
    order = list(dict.fromkeys(form for row in counted for form in row.forms))
    offset = 0
    fitting = _fitting(counted, 0)
    if max(fitting.values(), default=0) and sum(_meets(row, 0) for row in counted) >= EXPLAINS * len(counted):
        pass
    else:
        offset = _constant(counted, order)
        fitting = _fitting(counted, offset)
    winner = max(order, key=lambda form: _standing(counted, form, offset))
    ruled_out, still_open = [], []
    for rival in order:
        both = [
            row for row in counted if winner in row.forms and rival in row.forms and row.form_ids[winner] != row.form_ids[rival]
        ]
        mine = sum(_is(row, winner, offset) and not _is(row, rival, offset) for row in both)
        theirs = sum(_is(row, rival, offset) and not _is(row, winner, offset) for row in both)
        if mine >= DECIDING_ROWS and mine >= WINS * (mine + theirs):
            ruled_out.append(rival)
        elif both:
            still_open.append(rival)
    explained = sum(_meets(row, offset) for row in counted)
    why = None
    if len(counted) >= DECIDING_ROWS and explained < EXPLAINS * len(counted):
        why = f"prompt: {explained} of {len(counted)} bills fit a form of the request"
    elif abs(offset) > STUB:
        why = f"prompt: {offset:+d} tokens in every prompt, whose text is not known"
    return {
        "form": winner,
        "offset": offset,
        "decided": not still_open and why is None,
        "explained": explained,
        "rows": len(counted),
        "forms": dict(fitting.most_common()),
        "ruled_out": ruled_out,
        "cannot_be_exact": why,
    }


def _is(row: Observation, form: str, offset: int) -> bool:
    return row.forms[form] + offset == row.billed_prompt


def _meets(row: Observation, offset: int) -> bool:
    return any(_is(row, form, offset) for form in row.forms)


def _fitting(rows: Sequence[Observation], offset: int) -> Counter[str]:
    return Counter(form for row in rows for form in row.forms if _is(row, form, offset))


def _standing(rows: Sequence[Observation], form: str, offset: int) -> float:
    """Bills that a form meets. One that changes nothing in a conversation is not listed there: it stands for the form that it is
    equal to, so a miss counts, an absence does not."""
    return sum((1.0 if _is(row, form, offset) else -1.0) for row in rows if form in row.forms)


def _constant(rows: Sequence[Observation], order: Sequence[str]) -> int:
    """The constant difference between the bills and one form's counts, 0 where there is none."""
    best = (0.0, 0)
    for form in order:
        told = Counter(row.billed_prompt - row.forms[form] for row in rows if form in row.forms and row.billed_prompt)
        if not told:
            continue
        offset, count = told.most_common(1)[0]
        share = count / sum(told.values())
        if count >= DECIDING_ROWS and share >= CONSTANT and count > best[0]:
            best = (count, offset)
    return best[1]
