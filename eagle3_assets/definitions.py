"""The Dagster definitions: assembly only, fits on one screen.

At import only the campaign file is read. A bad one still loads a location with one `campaign_error` asset that carries the line.
"""

from __future__ import annotations

import warnings

import dagster as dg

# `partitions_def` on checks (preview) and `backfill_policy` (beta) warn once a definition and a process: dozens of lines. These two
# categories only, and before anything is built.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
warnings.filterwarnings("ignore", category=dg.BetaWarning)

from eagle3_assets.assets import build as assets  # noqa: E402
from eagle3_assets.assets.frame import leave_last_word, say_last_word_at_exit  # noqa: E402
from eagle3_assets.assets.prune import prune_job  # noqa: E402
from eagle3_assets.campaign import Campaign, load_campaign  # noqa: E402
from eagle3_assets.checks import stages as checks  # noqa: E402
from eagle3_assets.errors import CampaignError  # noqa: E402
from eagle3_assets.resources.gpu import GpuResource  # noqa: E402
from eagle3_assets.resources.openrouter import OpenRouterResource  # noqa: E402


def build_definitions(campaign: Campaign) -> dg.Definitions:
    return dg.Definitions(
        assets=assets.build(campaign),
        asset_checks=checks.build(campaign),
        jobs=[prune_job(campaign)],
        resources={
            "openrouter": OpenRouterResource(kind=campaign.server.kind),
            "gpu": GpuResource.of(campaign),
            "pipes": dg.PipesSubprocessClient(),
        },
        # A process a step in the UI: Terminate works, memory is given back. `eagle3 run` takes the in-process executor.
        executor=dg.multiprocess_executor.configured({"max_concurrent": 2}),
    )


def campaign_error(error: CampaignError) -> dg.Definitions:
    @dg.asset(key="campaign_error", group_name="campaign_error", description=str(error), kinds={"error"})
    def broken() -> None:
        raise dg.Failure(description=str(error), allow_retries=False)

    return dg.Definitions(assets=[broken])


say_last_word_at_exit()
try:
    defs = build_definitions(load_campaign())
except CampaignError as mistake:
    leave_last_word(mistake)
    defs = campaign_error(mistake)
