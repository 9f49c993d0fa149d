"""Verdict files bound to what they judged, and the refusal to start over a failed predecessor (docs/design.md#rule-12).

Belongs here: writing, reading and re-applying verdicts. Does not belong here: judging (`invariants.py`), which artifact is judged
(`gate.py`), Dagster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.review.verdicts.table import ALL, Check
from eagle3_assets.review.verdicts.verdict import Subject, Verdict
from eagle3_assets.review.verdicts.waivers import apply_waivers, read_waivers
from eagle3_assets.store import Store, digest_json, read_json, write_json

VERSION = 1


@dataclass(frozen=True, slots=True)
class Judged:
    """One verdict file. `digest` is that of what was judged, `rules` that of the checks it was judged by."""

    digest: str
    rules: str
    verdicts: tuple[Verdict, ...]
    time: float


def read_verdicts(path: Path) -> Judged | None:
    """What a verdict file says; None where nothing was judged yet. Raises StoreError for a damaged file."""
    if not path.exists():
        return None
    raw = read_json(path)
    try:
        if raw["version"] != VERSION:
            raise StoreError(f"{path}: expected version {VERSION}, found {raw['version']!r}; remove it and check again")
        return Judged(raw["digest"], raw["rules"], tuple(_verdict(v) for v in raw["verdicts"]), raw["time"])
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path}: is not a verdict file ({error}); remove it and check again") from None


def _verdict(raw: dict[str, Any]) -> Verdict:
    return Verdict(**{**raw, "examples": tuple(raw["examples"])})


@dataclass(frozen=True, slots=True)
class Filed:
    """Where the verdicts on one subject lie, and the checks that are today's: verdicts on other bytes or by other checks are outdated."""

    store: Store
    subject: Subject
    checks: tuple[Check, ...]

    @property
    def path(self) -> Path:
        """`verdicts/<stage>/<dataset>/<shard>.json`"""
        return self.store.verdict(*self.subject[:3])

    @property
    def rules(self) -> str:
        """Identity of the checks: a verdict given under other limits is outdated."""
        return digest_json([asdict(check) for check in self.checks])

    def write(self, verdicts: Sequence[Verdict]) -> None:
        stage, dataset, shard, digest = self.subject
        write_json(
            self.path,
            {
                "version": VERSION,
                "stage": stage,
                "dataset": dataset,
                "shard": shard,
                "digest": digest,
                "rules": self.rules,
                "time": time.time(),
                "verdicts": [asdict(v) for v in verdicts],
            },
        )

    def read(self) -> Judged | None:
        """What is filed, current or not. See `read_verdicts`."""
        return read_verdicts(self.path)

    def judged_again(self, judge: Callable[[], list[Verdict]], *, anew: bool = False) -> list[Verdict]:
        """The stored verdicts when they are current, unless `anew`; else judged now and filed. Never raises for a failed check."""
        stored = None if anew else self._believed()
        if stored is not None and self.is_current(stored):
            return list(stored.verdicts)
        verdicts = judge()
        self.write(verdicts)
        return verdicts

    def refuse_outdated(self) -> None:
        """Raises GateError when a verdict is there that judged other bytes, or these under other rules.

        One that was never given is no reason to refuse: it is given before the next stage starts.
        """
        judged = self._believed()
        if judged is None or self.is_current(judged):
            return
        _, dataset, shard, digest = self.subject
        other = "other bytes than are there now" if judged.digest != digest else "other rules than today's"
        names = ", ".join(v.check for v in judged.verdicts[:6]) + ("" if len(judged.verdicts) <= 6 else ", ...")
        scope = "" if dataset == ALL else f" {dataset}" + ("" if shard == ALL else f" --shard {shard}")
        raise GateError(
            f"{self.subject}: the verdict of its checks ({names}) is outdated, it judged {other}; "
            f"run `eagle3 recheck{scope}` or its checks in the UI (nothing is bought), then go on"
        )

    def require_passed(self, judge: Callable[[], list[Verdict]]) -> list[Verdict]:
        """All verdicts of a predecessor, current ones, with waivers applied. Raises GateError for an outdated verdict and for one that
        stops; `judge` is asked where there is none yet."""
        self.refuse_outdated()
        verdicts = apply_waivers(self.judged_again(judge), read_waivers(self.store), self.subject)
        self._refuse_stopping(verdicts)
        return verdicts

    def _believed(self) -> Judged | None:
        """What is filed; a damaged file counts as none: judged anew, never believed."""
        try:
            return self.read()
        except StoreError:
            return None

    def is_current(self, judged: Judged) -> bool:
        return judged.digest == self.subject.digest and judged.rules == self.rules

    def _refuse_stopping(self, verdicts: Sequence[Verdict]) -> None:
        stopping = [v for v in verdicts if v.stops]
        if not stopping:
            return
        first, (stage, dataset, *_) = stopping[0], self.subject
        more = f" (and {len(stopping) - 1} more: {', '.join(v.check for v in stopping[1:])})" if len(stopping) > 1 else ""
        seen = f"; e.g. `eagle3 show {first.examples[0]}`" if first.examples else ""
        raise GateError(
            f"{self.subject}: check {first.check} failed: {first.message}{more}{seen}; "
            f"see {self.path}, mend what it names and materialize {stage}/{dataset} again, or `eagle3 waive` it"
        )
