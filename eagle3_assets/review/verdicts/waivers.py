"""Waivers: a person accepts the failure of one check of one artifact, as it is, until a day.

Belongs here: `waivers.json` beside the verdicts, which waiver holds, what a waived verdict looks like. Does not belong here: the gate.
A waiver is bound to the digest of what was judged: other bytes need another decision.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eagle3_assets.errors import StoreError
from eagle3_assets.review.verdicts.verdict import Subject, Verdict
from eagle3_assets.store import Store, read_json, write_json

VERSION = 1


@dataclass(frozen=True, slots=True)
class Waiver:
    """`until` is the last day (ISO, UTC) on which it holds; `digest` that of the judged artifact."""

    who: str
    why: str
    until: str
    stage: str
    dataset: str
    shard: str
    check: str
    digest: str
    given: str

    @property
    def subject(self) -> Subject:
        return Subject(self.stage, self.dataset, self.shard, self.digest)

    def in_force(self, today: dt.date | None = None) -> bool:
        """True through its last day."""
        return (today or dt.datetime.now(dt.UTC).date()) <= dt.date.fromisoformat(self.until)

    def holds(self, subject: Subject, today: dt.date | None = None) -> bool:
        return self.subject == subject and self.in_force(today)

    @property
    def words(self) -> str:
        return f"waived by {self.who} until {self.until}: {self.why}"


def waivers_path(store: Store) -> Path:
    return store.root / "waivers.json"


def read_waivers(store: Store) -> list[Waiver]:
    """All of them, in the order given; [] where there is no file. Raises StoreError for a damaged one: a decision is not guessed."""
    path = waivers_path(store)
    if not path.exists():
        return []
    keep = "it holds decisions of people: restore it from a copy, or move it aside and waive again"
    raw = read_json(path, otherwise=keep)
    try:
        found = [Waiver(**w) for w in raw["waivers"]]
        for waiver in found:
            dt.date.fromisoformat(waiver.until)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: is not a file of waivers ({error}); {keep}") from None
    return found


def add_waiver(store: Store, waiver: Waiver) -> None:
    """Append one; an earlier one of the same artifact and check is replaced."""
    same = ("stage", "dataset", "shard", "check")
    others = [w for w in read_waivers(store) if any(getattr(w, n) != getattr(waiver, n) for n in same)]
    write_json(waivers_path(store), {"version": VERSION, "waivers": [asdict(w) for w in (*others, waiver)]})


def apply_waivers(verdicts: Sequence[Verdict], waivers: Sequence[Waiver], subject: Subject) -> list[Verdict]:
    """A stopping verdict that is waived becomes a warning that says by whom: it stays failed, and lets data go on."""
    holding = {w.check: w for w in waivers if w.holds(subject)}
    return [
        replace(v, severity="WARN", message=f"{v.message} ({holding[v.check].words})", numbers={**v.numbers, "waived": True})
        if v.stops and v.check in holding
        else v
        for v in verdicts
    ]


def used_waivers(store: Store, judged: Sequence[tuple[Subject, Sequence[Verdict]]]) -> list[dict[str, Any]]:
    """The waivers that let something through, as plain JSON for the corpus. `judged`: verdicts with waivers applied."""
    waivers, out = read_waivers(store), []
    for subject, verdicts in judged:
        waived = {v.check for v in verdicts if v.numbers.get("waived")}
        out += [asdict(w) for w in waivers if w.check in waived and w.holds(subject)]
    return out
