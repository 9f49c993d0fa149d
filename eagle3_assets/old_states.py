"""Which stored states nothing needs any more, by the campaign's own lineage.

Belongs here: asking what is wanted and current. Does not belong here: removing (`prune.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.parts import corpus_shards
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import hidden_states
from eagle3_assets.states.care.prune import Candidate, find_candidates
from eagle3_assets.store import Store, is_current, manifest_path


def find_old_states(campaign: Campaign, store: Store, *, asked: Iterable[str] = (), unfinished: bool = False) -> list[Candidate]:
    """See `prune.find_candidates`. Raises StateError when there is no corpus to say what is wanted: then nothing is old."""
    wanted = corpus_shards(store)
    if not wanted:
        raise StateError(
            f"{store.corpus}: there is no committed corpus, so nothing says which states are old; materialize corpus first, or remove "
            "folders by hand"
        )
    current = set()
    for key in wanted:
        if manifest_path(store.states(key)).exists():
            with contextlib.suppress(Eagle3Error):  # damaged counts as not current
                if is_current(store.states(key), Artifact(hidden_states.STAGE, campaign, store, partition=key).inputs()):
                    current.add(key)
    return find_candidates(store, wanted=wanted, current=current, asked=asked, unfinished=unfinished)
