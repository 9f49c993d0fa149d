"""Whether a row's grade and probability are what its own evidence carries: no tokenizer and no journal needed.

Belongs here: comparing grade, p_exact, survivors and stated residuals with the evidence of the same row. Does not belong here: giving
grades (`exact`), what the ids say (`token_rows.py` asks a checker).

A tokens file that was changed behind its manifest is found by its checksum; these rules find what was written wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eagle3_assets.grades import GRADES
from eagle3_assets.review.rows.columns import Bools, Columns, list_column
from eagle3_assets.review.rows.structure import Faults

FLOORS = {name: grade.floor for name, grade in GRADES.items() if grade.floor}
LEAVES_OPEN = tuple(name for name, grade in GRADES.items() if grade.leaves_open)


def grade_faults(columns: Columns) -> Faults:
    """Fault name -> bool [rows], True where grade or p_exact say something that the evidence does not carry."""
    rows = list(zip(columns.grades.tolist(), columns.evidence, strict=True))
    p = np.asarray(columns.table.column("p_exact").fill_null(float("nan")).to_numpy(), dtype=np.float64)
    survivors = np.diff(list_column(columns.table, "survivors")[1])
    return {
        "unknown grade": _each([grade not in GRADES for grade, _ in rows]),
        "p_exact is no probability": ~((p >= 0.0) & (p <= 1.0)),  # NaN is neither
        "p_exact of a quarantined row is not 0": (columns.grades == "Q") & (p != 0.0),
        "grade without its evidence": _each([_unsupported(grade, evidence) for grade, evidence in rows])
        | np.logical_or.reduce([(columns.grades == name) & ~(p >= floor) for name, floor in FLOORS.items()]),
        "survivors under a grade that leaves none open": (survivors > 0) & ~np.isin(columns.grades, LEAVES_OPEN),
        "evidence states another residual": _other_residual(columns, "completion") | _other_residual(columns, "prompt"),
    }


def _each(bad: list[bool]) -> Bools:
    return np.array(bad, dtype=bool)


def _unsupported(grade: str, evidence: dict[str, Any]) -> bool:
    """The evidence does not carry the grade: another basis, or for B1 an undecided provider or more than one sequence."""
    basis = GRADES[grade].basis if grade in GRADES else ()
    if basis and evidence.get("basis") not in basis:
        return True
    if grade == "A0":
        return evidence.get("wire_text") is not True
    if grade != "B1":
        return False
    hypotheses = evidence.get("hypotheses")
    distinct = hypotheses.get("distinct") if isinstance(hypotheses, dict) else None
    return evidence.get("provider_decided") is not True or distinct != 1


def _other_residual(columns: Columns, part: str) -> Bools:
    """Where evidence.residual is not what the ids and the bill give."""
    found = columns.residual(part)
    stated = [r.get(part) if isinstance(r := e.get("residual"), dict) else None for e in columns.evidence]
    return _each(
        [known and type(s) is int and s != d for s, d, known in zip(stated, found.d.tolist(), found.known.tolist(), strict=True)]
    )
