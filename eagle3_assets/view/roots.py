"""Which campaigns can be looked at: the one that was asked for, its neighbours in the data root, and folders given by name.

Belongs here: `Root`, and its reading of what a campaign file is needed for. Does not belong here: any file below a root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store


@dataclass(frozen=True, slots=True)
class Root:
    """One campaign's folder. `campaign` is None for a folder whose campaign file nobody named: what needs one is left out there."""

    name: str
    store: Store
    campaign: Campaign | None = None

    @property
    def profile(self) -> str | None:
        """The tokenizer profile of rows that do not name theirs."""
        return self.campaign.target.profile if self.campaign else None


def roots_of(campaign: Campaign, beside: Sequence[Path] = ()) -> Mapping[str, Root]:
    """Name -> root; the campaign's own comes first. Raises StoreError for a folder in `beside` that holds no campaign's data."""
    own = Root(campaign.name, Store.of(campaign), campaign)
    found = {own.name: own}
    for folder in sorted(own.store.root.parent.glob("*/tokens")):
        found.setdefault(folder.parent.name, Root(folder.parent.name, Store(folder.parent)))
    for folder in beside:
        if not (folder / "tokens").is_dir():
            raise StoreError(f"{folder}: holds no `tokens` folder; give the folder of one campaign below a data root")
        name = folder.resolve().name
        while name in found and found[name].store.root.resolve() != folder.resolve():
            name += "'"
        found.setdefault(name, Root(name, Store(folder)))
    return found
