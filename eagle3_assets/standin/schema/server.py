"""`[model]` and `[server]`: what is sold, the account, the weather.

Belongs here: settings that concern the gateway as a whole. Does not belong here: a single endpoint (`provider`), answers (`source`).
"""

from __future__ import annotations

from pydantic import Field, model_validator

from eagle3_assets.standin.schema.base import Rate, Seconds, Table


class Model(Table):
    """`[model]`: what is sold. OpenRouter answers with the dated slug whatever was asked for (openrouter-contract 1.3)."""

    slug: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="what a request asks for")
    dated_slug: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="what a response says")
    name: str
    created: int = Field(description="unix seconds, for /models")
    context_length: int = Field(ge=1, description="tokens; a longer prompt is a 400")


class Faults(Table):
    """`[server.faults]`: shares of requests that fail, decided by (seed, request, attempt), so a retry is drawn anew."""

    rate_429: Rate = Field(default=0.0, description="capacity_exhausted, with Retry-After")
    rate_500: Rate = Field(default=0.0, description="masked internal error")
    rate_502: Rate = Field(default=0.0, description="provider unavailable")
    rate_reset: Rate = Field(default=0.0, description="connection reset after headers and keep-alive; billed")
    rate_truncated: Rate = Field(default=0.0, description="body cut in the middle; billed")
    rate_error_in_200: Rate = Field(default=0.0, description="an error object in a 200 body; not billed")

    @model_validator(mode="after")
    def _at_most_all(self) -> Faults:
        total = sum(self.model_dump().values())
        if total > 1:
            raise ValueError(f"the rates add up to {total:g}; expected at most 1")
        return self

    def drawn(self, chance: float) -> str | None:
        """The fault that a draw in [0, 1) falls on: 429, 500, 502, reset, truncated, error_in_200; None for a good answer."""
        edge = 0.0
        for key, rate in self.model_dump().items():
            edge += rate
            if chance < edge:
                return str(key).removeprefix("rate_")
        return None


class Server(Table):
    """`[server]`."""

    seed: int = Field(default=0, description="joined with the seed that the launcher passes")
    credit_usd: float = Field(
        default=25.0, ge=0, description="credit of the account; spent for good (the ledger survives a restart)"
    )
    time_scale: float = Field(default=0.02, ge=0, description="real seconds per simulated second")
    keep_alive_s: float = Field(default=0.5, gt=0, description="simulated seconds between keep-alive writes")
    generation_delay_s: Seconds = Field(default=1.0, description="simulated seconds until /generation knows an id")
    retry_after_s: int = Field(default=1, ge=0, description="the Retry-After of a 429, real seconds")
    idle_exit_s: Seconds = Field(default=900.0, description="a detached server ends after so many real idle seconds; 0 = never")
    faults: Faults = Faults()
