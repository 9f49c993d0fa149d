"""Who is asked, and at what pace. Belongs here: two value objects. Does not belong here: reading an environment or a campaign."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_assets.collect.servers.openrouter import ApiKey


@dataclass(frozen=True, slots=True)
class Servers:
    """Who is asked. `base_url` and `api_key` for OpenRouter or its stand-in; `engine_urls` in the order of the campaign's
    engines.
    """

    base_url: str | None = None
    api_key: ApiKey | None = None
    engine_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """Times, in seconds."""

    backoff_first: float = 0.5
    backoff_most: float = 30.0
    retry_after_most: float = 120.0  # an absurd Retry-After is bounded to this
    # group fsync: a power loss takes at most the answers of so long (docs/research/perf-baselines.md#7.2: 0.1 - 0.2)
    sync: float = 0.2
    progress: float = 0.5
    look_up: float = 2.0  # /generation is written some seconds after the answer (docs/research/openrouter-contract.md#1.6)
    money_poll: float = 0.5
    reconcile: float = 60.0  # /key and /credits are cached for up to a minute (docs/research/openrouter-contract.md#1.4)
    provider_pause: float = 5.0  # a provider that is left out is tried again after so long, then after twice as long, …
    key_trust: float = 5.0  # so long the word of /key is not asked for again
    row_wait_most: float = 600.0  # a row that everybody who is asked refused waits so long for providers that are left out
    outage_most: float = 900.0  # nobody can be asked (every provider left out, or only an edge's pages): a run waits so long


DEFAULT_PACE = Pace()
