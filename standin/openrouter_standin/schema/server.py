"""`[model]` and `[server]`: what is sold, the account, the limits.

Belongs here: settings that concern the gateway as a whole. Does not belong here: a single endpoint (`provider`), answers (`source`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openrouter_standin.schema.base import PerSecond, Rate, Seconds, Table, Usd
from openrouter_standin.schema.faults import Faults


class Model(Table):
    """`[model]`: what is sold. OpenRouter answers with the dated slug whatever was asked for
    (docs/research/openrouter-contract.md#1.3)."""

    slug: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="what a request asks for")
    dated_slug: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="what a response says")
    name: str
    created: int = Field(description="unix seconds, for /models")
    context_length: int = Field(ge=1, description="tokens; a longer prompt is a 400")


class ForeignSpend(Table):
    """One entry of `server.money.foreign`: somebody else spends on this account."""

    at_s: Seconds = Field(description="simulated seconds since the server started")
    usd: Usd


class Money(Table):
    """`[server.money]`: how the account shows and guards its balance (docs/research/openrouter-contract.md#1.4, #2.4, #2.5)."""

    credits_stale_s: Seconds = Field(default=0.0, description="/credits repeats its value for so many simulated seconds")
    credits_nodes: int = Field(
        default=1, ge=1, le=8, description="caches that answer in turn, each stale by its own phase: the value jumps, back too"
    )
    credits_need_management_key: bool = Field(
        default=False, description="/credits refuses the inference key with 403; the other one lies in management.key"
    )
    key_stale_s: Seconds = Field(default=0.0, description="the same for usage and limit_remaining of /key")
    key_limit_usd: Usd | None = Field(default=None, description="limit of the key")
    key_limit_status: Literal[402, 403] = Field(default=402, description="what a spent key answers; both are documented")
    in_flight_share: Rate | None = Field(
        default=None, description="share of the balance that the estimates of running requests may fill; unset = no holds"
    )
    in_flight_ceiling_usd: Usd | None = Field(default=None, gt=0, description="and never more than this")
    in_flight_token_cap: int = Field(default=16_384, ge=1, description="completion tokens of one estimate, at most")
    in_flight_retry_after_s: int = Field(default=1, ge=0, description="Retry-After of the transient 402, real seconds")
    settlement_s: Seconds = Field(default=2.0, description="simulated seconds that the actual cost stays held after the end")
    refund_delay_s: Seconds = Field(default=5.0, description="simulated seconds until an error finish is given back")
    foreign_usd_per_s: Usd = Field(default=0.0, description="spend of somebody else, per simulated second")
    foreign: tuple[ForeignSpend, ...] = Field(default=(), description="and in one piece")
    foreign_on_this_key: bool = Field(default=True, description="shown by /key too, not only by /credits")


class Limits(Table):
    """`[server.limits]`: of the platform. A paid model has none today (docs/research/openrouter-contract.md#2.3); free ones
    do."""

    requests_per_s: PerSecond | None = Field(default=None, description="token bucket, simulated seconds")
    burst: int = Field(default=20, ge=1)


class Server(Table):
    """`[server]`."""

    seed: int = Field(default=0, description="joined with the seed that the launcher passes")
    credit_usd: Usd = Field(default=25.0, description="credit of the account; spent for good (the ledger survives a restart)")
    time_scale: float = Field(
        default=0.02, ge=0, le=1000, description="real seconds per simulated second: latencies, limits, delays; 0 = no waiting"
    )
    keep_alive_s: float = Field(default=0.5, ge=1e-3, le=1e6, description="simulated seconds between keep-alive writes")
    generation_delay_s: Seconds = Field(default=1.0, description="simulated seconds until /generation knows an id")
    retry_after_s: int = Field(default=1, ge=0, description="the Retry-After of a 429, real seconds")
    hang_s: Seconds = Field(default=600.0, description="simulated seconds until a hanging connection is closed")
    idle_exit_s: Seconds = Field(default=900.0, description="a detached server ends after so many real idle seconds; 0 = never")
    gzip: Rate = Field(default=0.0, description="share of whole bodies that go out compressed, where the client accepts it")
    money: Money = Money()
    limits: Limits = Limits()
    faults: Faults = Faults()
