"""`[server.faults]` and `[provider.faults]`: what goes wrong, how often, when, for whom.

Belongs here: the names of the catalogue and how one is chosen. Does not belong here: what a fault is (`faults`), what it does to a socket
(`delivery`).
A fault is drawn by (seed, request, attempt): a retry is drawn anew, and the order in which requests arrive changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field, model_validator

from openrouter_standin.schema.base import Rate, Seconds, Table

FaultName = Literal[
    # refusals: an HTTP status before any output, nothing billed
    "400", "401", "402_in_flight", "402_weight", "402_afford", "402_credits", "403", "404", "408", "413", "422",
    "429", "429_bare", "429_date", "429_absurd", "429_platform", "429_availability",
    "500", "502", "503", "504", "524", "529", "html_502", "html_524",
    # a provider's own account, key or parser, passed on; a good key that is refused for a moment; pages of an edge server
    "401_provider", "402_provider", "403_provider", "402_bare", "401_transient", "400_html", "401_html", "403_html", "403_1010",
    # the socket
    "reset_before_headers", "reset", "reset_mid_body", "hang", "silence", "slow_drip", "gzip",
    "truncated", "truncated_length", "truncated_wrong_length",
    # the body of a 200
    "error_401_in_200", "error_402_in_200", "error_403_in_200", "error_400_in_200",
    "error_in_200", "error_choices_null", "error_choices_empty", "error_string_code", "finish_error", "empty_stop",
    "usage_missing", "usage_null", "usage_zero", "usage_twice", "no_done",
]  # fmt: skip

Rates = dict[FaultName, Rate]


def drawn(tables: Iterable[Mapping[FaultName, float]], chance: float) -> FaultName | None:
    """The fault that a draw in [0, 1) falls on when these tables hold at once; None for a good answer."""
    edge = 0.0
    for table in tables:
        for name, rate in table.items():
            edge += rate
            if chance < edge:
                return name
    return None


def at_most_one(rates: Rates) -> Rates:
    """Raises ValueError when the shares of one table exceed the whole."""
    total = sum(rates.values())
    if total > 1 + 1e-9:
        raise ValueError(f"the rates add up to {total:g}; expected at most 1")
    return rates


class FaultWindow(Table):
    """`[[server.faults.schedule]]`: more faults from `from_s` to `to_s` (simulated seconds since the server started)."""

    from_s: Seconds
    to_s: float = Field(gt=0, le=1e9)
    rates: Rates
    providers: tuple[str, ...] = Field(default=(), description="tags; empty = all")

    @model_validator(mode="after")
    def _sane(self) -> FaultWindow:
        at_most_one(self.rates)
        if self.to_s <= self.from_s:
            raise ValueError(f"to_s = {self.to_s:g} is not behind from_s = {self.from_s:g}")
        return self

    def rates_at(self, now_s: float, tag: str) -> Rates:
        return self.rates if self.from_s <= now_s < self.to_s and (not self.providers or tag in self.providers) else {}


class FaultScript(Table):
    """`[[server.faults.script]]`: chosen requests fail with `fault` for their first `times` attempts, then work. A request is chosen by
    what its last message says, by its place among the different requests that this server has seen, or by a seeded share."""

    fault: FaultName
    times: int = Field(default=1, ge=1)
    match: str | None = Field(default=None, description="text that the last message contains")
    nth: int | None = Field(default=None, ge=0, description="place among the different requests, in order of arrival, from 0")
    share: Rate | None = Field(default=None, description="of all different requests, chosen by seed and request")

    @model_validator(mode="after")
    def _one_way(self) -> FaultScript:
        given = [name for name in ("match", "nth", "share") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of match, nth, share; found {', '.join(given) or 'none'}")
        return self

    def chooses(self, *, text: str, place: int, chance: float, attempt: int) -> bool:
        """`chance`: a draw in [0, 1) of the request alone."""
        if attempt >= self.times:
            return False
        if self.match is not None:
            return self.match in text
        return place == self.nth if self.nth is not None else chance < (self.share or 0.0)


class Faults(Table):
    """`[server.faults]`: what clients see of every provider."""

    rates: Rates = Field(default={}, description="fault -> share of requests")
    schedule: tuple[FaultWindow, ...] = ()
    script: tuple[FaultScript, ...] = ()

    @model_validator(mode="after")
    def _sane(self) -> Faults:
        at_most_one(self.rates)
        return self
