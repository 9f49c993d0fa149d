"""`Verdict`: the outcome of one check. `Subject`: what it was given on. Only the types live here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Severity = Literal["ERROR", "WARN"]


class Subject(NamedTuple):
    """What is judged: one artifact (`"all"` where it has no dataset or shard), as it is under one digest."""

    stage: str
    dataset: str
    shard: str
    digest: str

    def __str__(self) -> str:
        return f"{self.stage}/{self.dataset}, shard {self.shard}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check of one thing (a shard, a dataset, a file).

    `numbers` are the figures it was judged on (plain JSON), `examples` at most ten sample ids that failed it.
    `message` is one line for a person.
    """

    check: str
    passed: bool
    severity: Severity
    blocking: bool
    message: str
    numbers: dict[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    @property
    def stops(self) -> bool:
        """True when data must not go on."""
        return not self.passed and self.blocking and self.severity == "ERROR"
