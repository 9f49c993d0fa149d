"""The Dagster definitions: assembly only, fits on one screen.

At import only the campaign file is read. A bad one is an error of the code location: the UI shows its line, `dagster definitions validate` fails.
"""

from __future__ import annotations

import os
import warnings

import dagster as dg

# `partitions_def` on checks (preview) and `backfill_policy` (beta) warn once a definition and a process: dozens of lines. These two
# categories only, and before anything is built.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
warnings.filterwarnings("ignore", category=dg.BetaWarning)

from eagle3_assets.assets import build as assets  # noqa: E402
from eagle3_assets.assets import sensors  # noqa: E402
from eagle3_assets.assets.frame import leave_last_word, say_last_word_at_exit  # noqa: E402
from eagle3_assets.assets.jobs import intent_jobs  # noqa: E402
from eagle3_assets.assets.prune import prune_job  # noqa: E402
from eagle3_assets.campaign import Campaign, load_campaign  # noqa: E402
from eagle3_assets.checks import stages as checks  # noqa: E402
from eagle3_assets.environment import refuse_unknown  # noqa: E402
from eagle3_assets.errors import Eagle3Error  # noqa: E402
from eagle3_assets.resources.gpu import GpuResource  # noqa: E402
from eagle3_assets.resources.openrouter import OpenRouterResource, ServerKind  # noqa: E402


def build_definitions(campaign: Campaign) -> dg.Definitions:
    return dg.Definitions(
        assets=assets.build(campaign),
        asset_checks=checks.build(campaign),
        jobs=[*intent_jobs(campaign), prune_job(campaign)],
        sensors=sensors.build(campaign),
        resources={
            "openrouter": OpenRouterResource(kind=ServerKind[campaign.server.kind]),
            "gpu": GpuResource.of(campaign),
            "pipes": dg.PipesSubprocessClient(),
        },
        # A process a step in the UI: Terminate works, memory is given back. `eagle3 run` takes the in-process executor.
        executor=dg.multiprocess_executor.configured({"max_concurrent": 2}),
    )


say_last_word_at_exit()
try:
    refuse_unknown(os.environ)
    defs = build_definitions(load_campaign())
except Eagle3Error as mistake:
    leave_last_word(mistake)
    raise
