"""How a stream cuts a run of ids into deltas, and which deltas get lost.

Belongs here: the plan, a function of the answer's salt. Does not belong here: events (`wire_stream`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from openrouter_standin import chance


@dataclass(frozen=True)
class Deltas:
    """`low` to `high` ids in one delta, drawn for each delta of each run (reasoning, content, arguments:0 ...)."""

    low: int = 1
    high: int = 1
    salt: str = ""

    def spans(self, run: str, ids: int) -> Iterator[tuple[int, int]]:
        """[from, to) of each delta of a run of so many ids; the last one takes what is left."""
        draw = Random(chance.hexadecimal(32, "deltas", self.salt, run)) if self.low < self.high else None
        at = 0
        while at < ids:
            end = min(at + (draw.randint(self.low, self.high) if draw else self.low), ids)
            yield at, end
            at = end

    def drop(self, run: str, pieces: list[str], rate: float) -> bool:
        """Empty the pieces of the deltas that are lost; whether any text was."""
        draw = Random(chance.hexadecimal(32, "lost deltas", self.salt, run))
        lost = False
        for begin, end in self.spans(run, len(pieces)):
            if any(pieces[begin:end]) and draw.random() < rate:
                pieces[begin:end] = [""] * (end - begin)
                lost = True
        return lost


ONE_BY_ONE = Deltas()
