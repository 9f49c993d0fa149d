"""`OpenRouterResource`: who answers the prompts. Holds the *name* of the key's variable, never the key."""

from __future__ import annotations

import dagster as dg

from eagle3_assets.answering import find_servers
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import KEY_VARIABLE
from eagle3_assets.store import Store


class OpenRouterResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The answering servers of a campaign.

    `kind` is `openrouter` or `embedded`. For `openrouter` the key is read from the environment (`key_variable` only says where) when a
    run needs it, never stored, shown or logged, and sent only where docs/design.md#key allows.
    """

    kind: str
    key_variable: str = KEY_VARIABLE

    def servers(self, campaign: Campaign, store: Store, *, rented: bool) -> Servers:
        """See `answering.find_servers`."""
        return find_servers(campaign, store, rented=rented, kind=self.kind)
