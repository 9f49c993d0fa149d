"""Two texts or two id sequences side by side: what stands in both, what only in one.

Belongs here: differences as plain records. Does not belong here: what made them (`exact`), drawing.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_COMPARED = 2000  # characters or ids between the first and the last difference that are compared piece by piece

LIKE = 0.6  # share of both middles that must be alike for pieces of them to be called the same


class Edit(NamedTuple):
    """`op`: same, gone (only in the first), new (only in the second); half-open ranges of either side."""

    op: str
    a_start: int
    a_end: int
    b_start: int
    b_end: int


def edits(a: Sequence[Any], b: Sequence[Any]) -> list[Edit]:
    """What turns `a` into `b`, in order; equal sequences give one `same` (or nothing where both are empty).

    Common beginnings and ends are taken off first, so that a changed edge of a long text costs nothing; a middle longer than
    MOST_COMPARED is one replacement.
    """
    front = _common(a, b)
    back = _common(a[front:][::-1], b[front:][::-1])
    out = [Edit("same", 0, front, 0, front)] if front else []
    x, y = a[front : len(a) - back], b[front : len(b) - back]
    if len(x) + len(y) <= MOST_COMPARED:
        matcher = difflib.SequenceMatcher(None, x, y, autojunk=False)
        codes = matcher.get_opcodes()
        if x and y and matcher.ratio() < LIKE:  # letters that happen to stand in both say nothing
            codes = [("replace", 0, len(x), 0, len(y))]
    else:
        codes = [("replace", 0, len(x), 0, len(y))]
    for tag, i, j, k, m in codes:
        i, j, k, m = i + front, j + front, k + front, m + front
        if tag == "equal":
            out.append(Edit("same", i, j, k, m))
            continue
        if j > i:
            out.append(Edit("gone", i, j, k, k))
        if m > k:
            out.append(Edit("new", j, j, k, m))
    if back:
        out.append(Edit("same", len(a) - back, len(a), len(b) - back, len(b)))
    return out


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many leading items are equal; by halving, so that long equal runs are compared by the interpreter at once."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    low, high = 0, most  # a[:low] equal, a[:high] not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
