"""Who answers the prompts of a campaign: OpenRouter, the embedded stand-in, engines.

Belongs here: which addresses and which key a run gets. Does not belong here: asking (`collect`), serving (`standin`), Dagster.
"""

from __future__ import annotations

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.openrouter import ApiKey, allowed_base_url
from eagle3_assets.embedded import standin_errors
from eagle3_assets.store import Store


def find_servers(campaign: Campaign, store: Store, *, rented: bool, kind: str | None = None) -> Servers:
    """Base URLs and key. `embedded` starts the one stand-in process of the campaign's folder, or finds it running. Without `rented` no key
    is needed or read. `kind`: another one than the campaign's.

    Raises WireError (missing key, forbidden host, stand-in that does not start).
    """
    if (kind or campaign.server.kind) == "embedded":
        return _embedded(campaign, store)
    if not rented:
        return Servers(base_url="", api_key=None, engine_urls=tuple(e.base_url for e in campaign.engine))
    key = ApiKey.from_environment()
    return Servers(
        base_url=allowed_base_url(campaign),
        api_key=key,
        engine_urls=tuple(e.base_url for e in campaign.engine if e.base_url != "embedded"),
    )


def _embedded(campaign: Campaign, store: Store) -> Servers:
    profiles = campaign.server.standin_profiles
    with standin_errors():
        from openrouter_standin.service.launcher import ensure_running

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
