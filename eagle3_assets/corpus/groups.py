"""Which rows belong together, and so to the same side of the train/validation split.

Belongs here: groups and sides. Does not belong here: finding duplicates (`order.py`, `near.py`).

Rows are of one group when they are turns of one conversation (one sample id), have the same prompt ids (a row of joined turns has the
prompts of all of them), or one repeats the other (exactly or nearly, whether or not both were kept), and so on over any number of steps.
The least of its members' keyed hashes names a group, and a draw from that name decides its side: seeded, with the same chance for small
and large groups, and for a row that has no relatives the same whatever else is in the corpus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle3_assets.corpus.keys import group_draw

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)


@dataclass(frozen=True, slots=True)
class Members:
    """The rows that policy admits, duplicates included: line numbers, and for each of them a wave, two labels and a key.
    `later`: line -> hashes of the prompts of the later turns that were joined into its row, where there are any."""

    lines: Sequence[int]
    wave: Sequence[int]
    sample_id: Sequence[str]
    prompt_hash: Sequence[str]
    key: Sequence[str]
    later: Mapping[int, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Groups:
    """`group` line -> its group's key, `split` line -> "train" or "validation"; `torn`: lines that cannot be on either side."""

    group: dict[int, str]
    split: dict[int, str]
    torn: frozenset[int]


def group_rows(members: Members, repeats: Mapping[int, int], share: float) -> Groups:
    """Group and split. `repeats`: line -> the line that it repeats. `share` in [0, 1).

    Waves (corpus.additions) are decided one after another, so that what joins later never moves a row that was there before. A row of
    a later wave that ties together rows of both sides is `torn`: it would leak wherever it went.
    """
    tree = _Forest()
    found = Groups({}, {}, frozenset())
    torn: set[int] = set()
    waves = np.asarray(members.wave)
    for wave in sorted(set(waves.tolist())):
        new = np.flatnonzero(waves == wave).tolist()
        for k in new:
            line = members.lines[k]
            tree.join(line, ("sample", members.sample_id[k]))
            for prompt in (members.prompt_hash[k], *members.later.get(line, ())):
                tree.join(line, ("prompt", prompt))
            if line in repeats:
                tree.join(line, repeats[line])
        old = _old_sides(tree, found)
        keys: dict[object, str] = {}
        for k in new:
            root = tree.root(members.lines[k])
            keys[root] = min(keys.get(root, members.key[k]), members.key[k])
        for k in new:
            line = members.lines[k]
            root = tree.root(line)
            sides = old.get(root) or {(VALIDATION if group_draw(keys[root]) < share else TRAIN, keys[root])}
            side, key = min(sides, key=lambda s: s[1])
            found.group[line], found.split[line] = key, side
            if len({s for s, _ in sides}) > 1:
                torn.add(line)
    return Groups(found.group, found.split, frozenset(torn))


def _old_sides(tree: _Forest, found: Groups) -> dict[object, set[tuple[str, str]]]:
    """Root -> the (side, group) of the rows of earlier waves in it."""
    old: dict[object, set[tuple[str, str]]] = {}
    for line, side in found.split.items():
        old.setdefault(tree.root(line), set()).add((side, found.group[line]))
    return old


class _Forest:
    """Disjoint sets of lines and labels."""

    def __init__(self) -> None:
        self._parent: dict[object, object] = {}

    def root(self, node: object) -> object:
        parent = self._parent
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def join(self, a: object, b: object) -> None:
        one, two = self.root(a), self.root(b)
        if one != two:
            self._parent[one] = two
