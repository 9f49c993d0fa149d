"""`Verdict`: the outcome of one check. Only the type lives here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["ERROR", "WARN"]


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
