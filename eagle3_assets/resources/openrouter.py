"""`OpenRouterResource`: who answers the prompts, and the money ledger's limit. Holds the *name* of the key's variable, never the key."""

from __future__ import annotations

import dagster as dg

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import KEY_VARIABLE, ApiKey, allowed_base_url
from eagle3_assets.store import Store


class OpenRouterResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The answering servers of a campaign.

    `kind` is `openrouter` or `embedded`. For `openrouter` the key is read from the environment (`key_variable` only says where) when a
    run needs it, never stored, shown or logged, and sent only where design section 4 allows. `embedded` starts the one stand-in
    process of the campaign's folder, or finds it running.
    """

    kind: str
    key_variable: str = KEY_VARIABLE

    def servers(self, campaign: Campaign, store: Store) -> Servers:
        """Base URLs and key. Raises WireError (missing key, forbidden host, stand-in that does not start)."""
        if self.kind == "embedded":
            return _embedded(campaign, store)
        key = ApiKey.from_environment()
        return Servers(
            base_url=allowed_base_url(campaign),
            api_key=key,
            engine_urls=tuple(e.base_url for e in campaign.engine if e.base_url != "embedded"),
        )

    def engines_only(self, campaign: Campaign, store: Store) -> Servers:
        """For selections that cost nothing: no key is needed or read."""
        if self.kind == "embedded":
            return _embedded(campaign, store)
        return Servers(base_url="", api_key=None, engine_urls=tuple(e.base_url for e in campaign.engine))


def _embedded(campaign: Campaign, store: Store) -> Servers:
    from eagle3_assets.standin.service.launcher import ensure_running

    profiles = campaign.server.standin_profiles
    address = ensure_running(
        store.standin,
        profiles=campaign.path.parent / profiles if profiles else None,
        seed=campaign.campaign.seed,
        answers=campaign.server.answers,
    )
    return Servers(
        base_url=address.base_url,
        api_key=ApiKey(address.api_key),
        engine_urls=tuple(address.engine_url if e.base_url == "embedded" else e.base_url for e in campaign.engine),
    )
