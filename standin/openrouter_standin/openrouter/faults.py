"""Which fault happens to a request, and what kind of thing each fault of the catalogue is.

Belongs here: the choice and the facts about a fault. Does not belong here: its settings (`schema.faults`), a refusal's words (`refusals`),
what it does to a socket (`delivery`) or a body (`faulty_bodies`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from openrouter_standin import chance
from openrouter_standin.request import ChatRequest
from openrouter_standin.schema.faults import FaultName, Faults, drawn
from openrouter_standin.schema.provider import Provider

ALL: tuple[FaultName, ...] = get_args(FaultName)
# no byte of an answer exists: nothing is sampled, nothing is billed
REFUSALS: frozenset[FaultName] = frozenset(name for name in ALL if name[:3].isdigit() or name.startswith("html_"))
SILENT: frozenset[FaultName] = frozenset({"silence"})
# an error is told in the 200, without output: not billed
ERRORS: frozenset[FaultName] = frozenset(
    {
        "error_in_200",
        "error_choices_null",
        "error_choices_empty",
        "error_string_code",
        "error_401_in_200",
        "error_402_in_200",
        "error_403_in_200",
        "error_400_in_200",
    }
)
# headers wait for the outcome, because they depend on it
LATE: frozenset[FaultName] = frozenset({"reset_before_headers", "truncated_length", "truncated_wrong_length", "gzip"})
# the answer is whole and the bill is right; only its transport or its shape is odd
HARMLESS: frozenset[FaultName] = frozenset(
    {"slow_drip", "gzip", "usage_missing", "usage_null", "usage_zero", "usage_twice", "no_done"}
)


@dataclass
class FaultBook:
    """Chooses faults for one server. `places`: the different requests seen so far, in order of arrival."""

    faults: Faults
    seed: str
    places: dict[str, int] = field(default_factory=dict)

    def choose(self, request: ChatRequest, provider: Provider, *, attempt: int, now_s: float) -> FaultName | None:
        """The fault of this attempt; a script comes first, then the endpoint's own, then all rates that hold now."""
        place = self.places.setdefault(request.hash, len(self.places))
        for script in self.faults.script:
            chosen = chance.unit(self.seed, request.hash, "script", script.fault)
            if script.chooses(text=request.last_text, place=place, chance=chosen, attempt=attempt):
                return script.fault
        if own := fault_of(provider, seed=self.seed, request_hash=request.hash, attempt=attempt):
            return own
        tables = [self.faults.rates, *(window.rates_at(now_s, provider.tag) for window in self.faults.schedule)]
        if not any(tables):
            return None
        return drawn(tables, chance.unit(self.seed, request.hash, attempt, "fault"))


def fault_of(provider: Provider, *, seed: str, request_hash: str, attempt: int) -> FaultName | None:
    """What this endpoint does to this attempt: drawn once, so that an endpoint that did not turn it away does not fail it then."""
    if not provider.faults:
        return None
    return drawn([provider.faults], chance.unit(seed, request_hash, attempt, "fault", provider.tag))
