"""Compact JSON arguments off the encoder's path: what models sample in the place of its `":"`.

Belongs here: the other spellings of arguments and how often each was seen. Does not belong here: choosing among them
(`selection.py`), deltas that show one (`witnesses.py`).

Token-level streams of K2-0905 show `{"key` `":` `"value` where the encoder has one id `":"`
(docs/research/recorded-traffic.md#3-4). The count is one more, or equal where the quote joins what follows (`":` `"."` for `":"`
`."`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from eagle3_assets.targets.grammar import Ids
from eagle3_assets.targets.tokenizer import Profile

_COLON, _COMMA = re.compile(r'":(?=")'), re.compile(r'",(?=")')
# Of the 31 fields off the path among the recorded streams: all leave it at the first colon, 2 of them at the first comma, too. They are
# 31 of 74 compact fields and 0 of 249 others, and a habit of a provider: Chutes 28 of 33, AtlasCloud 2 of 2, Together 1 of 1;
# SiliconFlow 0 of 26, BaseTen 0 of 6, Novita 0 of 3, Moonshot AI 0 of 2. Of all 648 token-level fields that were measured: 55.
FIRST_COLON, FIRST_COLON_AND_COMMA = 29 / 31, 2 / 31


@dataclass(frozen=True, slots=True)
class OffPath:
    """One spelling of arguments off the path: its ids, the places where it leaves the path, its share among such spellings."""

    ids: Ids
    places: int
    share: float


def offpath_arguments(profile: Profile, text: str) -> list[OffPath]:
    """The other spellings of compact JSON arguments, likeliest first; [] where the text has no such place, or the encoder itself cuts
    there."""
    canonical = tuple(profile.encode(text))
    colon, comma = _COLON.search(text), _COMMA.search(text)
    if colon is None:
        return []
    wanted = [([colon.end()], FIRST_COLON)]
    if comma is not None:
        wanted.append((sorted((colon.end(), comma.end())), FIRST_COLON_AND_COMMA))
    out: list[OffPath] = []
    for places, share in wanted:
        ids = _cut_at(profile, text, places)
        if ids != canonical and all(ids != other.ids for other in out):
            out.append(OffPath(ids, len(places), share))
    whole = sum(other.share for other in out)
    return [OffPath(other.ids, other.places, other.share / whole) for other in out]


def _cut_at(profile: Profile, text: str, places: list[int]) -> Ids:
    """Each piece encoded by itself."""
    bounds = [0, *places, len(text)]
    return tuple(token for a, b in pairwise(bounds) for token in profile.encode(text[a:b]))
