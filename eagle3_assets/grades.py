"""Grades: what a row's evidence says of its ids (docs/design.md#grades).

Belongs here: the facts of each grade. Does not belong here: giving one (`exact`, and the model's verdict in `states.verdict`), comparing it
with the evidence (`review.rows.grading`), which of them a campaign takes (`[corpus]` and `[handoff]`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GradeName = Literal["A0", "A1", "A2", "B1", "B2", "C1", "R", "I", "D", "Q"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One grade.

    `strength`: of equal rows the one with the lower number is kept, and joined turns are as good as the one with the highest.
    `basis`: what `evidence.basis` of such a row may be; empty where the evidence says it in another way, or the grade promises nothing.
    `proven`: the ids were stated by a server or its log-probabilities, so that the model's surprise does not unsay them.
    `asserted`: evidence of the row itself says that these are the model's ids. `from_text`: they were rebuilt from text and a bill.
    `leaves_open`: other id sequences may survive beside the row's own. `admitted` and `handed_on`: taken by corpus and hand-offs unless the
    campaign says otherwise. `floor`: the least `p_exact` it may have.
    """

    name: GradeName
    meaning: str
    strength: int
    basis: tuple[str, ...] = ()
    proven: bool = False
    asserted: bool = True
    from_text: bool = False
    leaves_open: bool = False
    admitted: bool = True
    handed_on: bool = True
    floor: float = 0.0


GRADES: dict[str, Grade] = {
    grade.name: grade
    for grade in (
        Grade(name="A0", meaning="ids returned by the server", strength=0, basis=("server_ids",), proven=True),
        Grade(name="A1", meaning="ids proven by the bytes of log-probabilities", strength=1, basis=("logprob_bytes",), proven=True),
        Grade(name="A2", meaning="ids proven by the boundaries of the stream", strength=2, basis=("stream_boundaries",), proven=True),
        # the floor is what a corpus admits by default ([corpus] min_p_exact): below it one surviving hypothesis is still only C1
        Grade(
            name="B1", meaning="one surviving hypothesis, edges known", strength=3, basis=("bill",), from_text=True, floor=0.95
        ),
        Grade(name="B2", meaning="chosen with the model's forward pass", strength=4),
        # with a server's output ids and a prompt that nothing proves, C1 and I rest on the ids too (exact/search/server_ids.py)
        Grade(
            name="C1", meaning="chosen by posterior", strength=7, basis=("bill", "server_ids"), asserted=False, from_text=True,
            leaves_open=True, handed_on=False,
        ),
        Grade(name="R", meaning="repaired", strength=5, from_text=True),
        Grade(name="I", meaning="imported without a bill", strength=6, basis=("none", "server_ids"), asserted=False),
        Grade(
            name="D", meaning="unverified: no bill", strength=8, asserted=False, leaves_open=True, admitted=False, handed_on=False
        ),
        Grade(name="Q", meaning="quarantine: nothing fits, or an invariant is broken", strength=9, asserted=False, leaves_open=True,
              admitted=False, handed_on=False),
    )
}  # fmt: skip

ADMITTED: tuple[GradeName, ...] = tuple(g.name for g in GRADES.values() if g.admitted)
HANDED_ON: tuple[GradeName, ...] = tuple(g.name for g in GRADES.values() if g.handed_on)
OUT: tuple[GradeName, ...] = tuple(g.name for g in GRADES.values() if not g.admitted)
BY_STRENGTH: tuple[GradeName, ...] = tuple(g.name for g in sorted(GRADES.values(), key=lambda g: g.strength))
