"""What a person should hear of without looking: checks that stop data, providers that changed, an approval that is used up.

Belongs here: finding these in a data root, telling an address. Does not belong here: when they are looked for (`assets/sensors.py`).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

from eagle3_assets import gate, stages
from eagle3_assets import store as st
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import Eagle3Error, WireError
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.store import Store, manifest_path

WEBHOOK = "EAGLE3_WEBHOOK"
USED_UP = 0.98  # of an approval: behind this, reservations of requests in flight stop a run


@dataclass(frozen=True, slots=True)
class Notice:
    """`key` is the same as long as it is the same finding: what was told is not told again."""

    key: str
    words: str


def find_notices(campaign: Campaign, store: Store) -> list[Notice]:
    """Everything worth telling, read from the files as they are; nothing is judged."""
    return [*_stopping(campaign, store), *_changed_providers(store), *_used_up(campaign, store)]


def _stopping(campaign: Campaign, store: Store) -> list[Notice]:
    found = []
    for artifact in stages.artifacts(campaign, store):
        if artifact.stage.checks and manifest_path(artifact.path).exists():
            for v in gate.standing(artifact) or ():
                if v.stops:
                    where = " ".join(n for n in artifact.place if n != ALL)
                    digest = artifact.digest()[:12]
                    found.append(Notice(f"check {where} {v.check} {digest}", f"{where}: check {v.check} stops data: {v.message}"))
    return found


def _changed_providers(store: Store) -> list[Notice]:
    from eagle3_assets.exact.providers.drift import changes

    if not manifest_path(store.wire_profiles).exists():
        return []
    try:
        profiles = st.read_committed(store.wire_profiles, made_by="wire_profiles")
    except Eagle3Error:
        return []
    return [
        Notice(f"drift {c.provider} {c.at}", f"{c.words}; its probes are asked again when answers are next bought")
        for c in changes(profiles)
    ]


def _used_up(campaign: Campaign, store: Store) -> list[Notice]:
    from eagle3_assets.collect.money.account import read_account
    from eagle3_assets.estimate import plan as planning

    try:
        approved = planning.approved_usd(campaign, store)
        total = read_account(store.ledger).totals.total
    except Eagle3Error:
        return []
    used = total.spent_usd + total.reserved_usd + total.ambiguous_usd
    incomplete = any(a.manifest() is None for s in stages.STAGES if s.name == "answers" for a in s.artifacts(campaign, store))
    if not incomplete or approved <= 0 or used < USED_UP * approved:
        return []
    words = f"{used:,.4f} of {approved:,.2f} approved USD are used and answers are missing: `eagle3 status` says what to approve"
    return [Notice(f"budget {approved}", f"campaign {campaign.name}: {words}")]


def tell(address: str, text: str, *, timeout_s: float = 10.0) -> None:
    """POST {"text": ...} as JSON, which chat services take as a message. Raises WireError that never shows the address's path: it is a secret."""
    host = address.split("//")[-1].split("/")[0].rpartition("@")[2]
    if not address.startswith(("http://", "https://")):
        raise WireError(f"{WEBHOOK}: expected an http or https address")
    request = urllib.request.Request(address, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        raise WireError(f"{WEBHOOK}: {host} answered {error.code}; the notice stays in the sensor's log") from None
    except (OSError, ValueError) as error:
        raise WireError(f"{WEBHOOK}: {host} cannot be reached ({error}); the notice stays in the sensor's log") from None
