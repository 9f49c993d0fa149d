"""The ledger of one campaign: whose limits are the approval's, the pilot's and the datasets'.

Belongs here: opening it with these limits. Does not belong here: the ledger itself (`money/ledger.py`), approvals (`estimate.plan`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.recount import recount
from eagle3_assets.estimate import plan as planning
from eagle3_assets.store import Store


@contextmanager
def open_ledger(campaign: Campaign, store: Store, limit_usd: float) -> Iterator[Ledger]:
    """The campaign's ledger: `limit_usd` for everything together, and the caps of the pilot and of single datasets.

    A ledger that was lost is first counted again from every journal (`collect.recount`).
    """
    caps = {"pilot": campaign.budget.pilot_usd}
    caps |= {d.name: cap for d in campaign.dataset if (cap := planning.dataset_cap(campaign, d)) is not None}
    ledger = Ledger(store.ledger, limit_usd=limit_usd, caps=caps)
    try:
        recount(ledger, pilot=store.pilot_dir, pilot_figures=store.pilot, answers=store.root / "answers")
        yield ledger
    finally:
        ledger.close()
