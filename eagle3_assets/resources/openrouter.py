"""`OpenRouterResource`: who answers the prompts. Holds the *name* of the key's variable, never the key."""

from __future__ import annotations

import enum

import dagster as dg
from pydantic import Field

from eagle3_assets.answering import find_servers
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import KEY_VARIABLE
from eagle3_assets.store import Store


class ServerKind(enum.Enum):
    """Who answers: OpenRouter with a key, or the stand-in of this package."""

    openrouter = "openrouter"
    embedded = "embedded"


class OpenRouterResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The answering servers of a campaign.

    `kind` is `openrouter` or `embedded`. For `openrouter` the key is read from the environment (`key_variable` only says where) when a
    run needs it, never stored, shown or logged, and sent only where docs/design.md#key allows.
    """

    kind: ServerKind = Field(description="who answers: OpenRouter with a key, or the embedded stand-in, which costs nothing")
    key_variable: str = Field(
        default=KEY_VARIABLE, description="name of the environment variable that holds the key; never the key itself"
    )

    def servers(self, campaign: Campaign, store: Store, *, rented: bool) -> Servers:
        """See `answering.find_servers`."""
        return find_servers(campaign, store, rented=rented, kind=self.kind.value)
