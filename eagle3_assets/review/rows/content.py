"""Content that no bill can see: loops, error pages, refusals, mixed scripts, duplicates.

Belongs here: tests of one text or of flat ids, with their thresholds and where they come from. Does not belong here: which check uses
them (`row_invariants.py`).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.review.rows.columns import Bools, Ints

# docs/research/exactness.md#5-16: a window of 4 kB that packs to less than 5 % is a loop, to less than 10 % worth a look;
# n-grams of 8 and more ids, 20 times in a row; the same call three times in a row.
WINDOW, LOOP_RATIO, DULL_RATIO = 4096, 0.05, 0.10
PERIODS, REPEATS, SAME_CALLS = range(8, 65), 20, 3
# invariant 17: five scripts within 200 characters
SCRIPT_WINDOW, SCRIPTS_TOO_MANY = 200, 5
# First code points of blocks (Unicode 15) -> script; punctuation, digits, symbols and emoji belong to none.
_BLOCKS: tuple[tuple[int, str], ...] = (
    (0x0000, ""), (0x0041, "latin"), (0x005B, ""), (0x0061, "latin"), (0x007B, ""), (0x00C0, "latin"), (0x0250, ""),
    (0x0370, "greek"), (0x0400, "cyrillic"), (0x0530, "armenian"), (0x0590, "hebrew"), (0x0600, "arabic"), (0x0700, ""),
    (0x0900, "devanagari"), (0x0980, "bengali"), (0x0A00, ""), (0x0B80, "tamil"), (0x0C00, ""), (0x0E00, "thai"), (0x0E80, ""),
    (0x10A0, "georgian"), (0x1100, "hangul"), (0x1200, "ethiopic"), (0x1380, ""), (0x1E00, "latin"), (0x1F00, "greek"), (0x2000, ""),
    (0x3040, "japanese"), (0x3100, ""), (0x3400, "han"), (0x4DC0, ""), (0x4E00, "han"), (0xA000, ""), (0xAC00, "hangul"), (0xD7B0, ""),
    (0xF900, "han"), (0xFB00, ""),
)  # fmt: skip
_SCRIPTS = sorted({script for _, script in _BLOCKS if script})
_STARTS = np.array([start for start, _ in _BLOCKS], dtype=np.uint32)
_BITS = np.array([1 << _SCRIPTS.index(s) if s else 0 for _, s in _BLOCKS], dtype=np.uint32)

# Pages and notices that gateways return with status 200 in place of an answer (docs/research/openrouter-contract.md#4.3). Only
# the begin of a text can be such a notice: an answer that explains HTML or HTTP errors is innocent.
_NOTICE = re.compile(
    r"\s*(?:<!doctype html[^>]*>\s*<html|<html[^>]*>\s*<head[^>]*>\s*<title>\s*(?:\d{3}|error|just a moment|attention)"
    r"|\{\s*\"error\"\s*:\s*\{\s*\"(?:code|message|type)\""
    r"|(?:upstream (?:error|connect error)|internal server error|bad gateway|service (?:temporarily )?unavailable|gateway time-?out"
    r"|provider returned error|rate limit exceeded|too many requests)\b[^\n]{0,200}\Z)",
    re.IGNORECASE,
)
_CUT = re.compile(r"\[(?:truncated|output truncated|response truncated)\]\s*\Z", re.IGNORECASE)
_PAGE = re.compile(r"<title>\s*(?:[45]\d\d\b|error|just a moment|attention required)|cloudflare|nginx</center>", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\s*(?:i'?m sorry,? but (?:i|as an ai)|i (?:can'?t|cannot|am unable to|'m unable to) (?:help|assist|comply|provide|fulfil|do that|continue)"
    r"|as an ai (?:language )?model\b|sorry,? (?:but )?i (?:can'?t|cannot) (?:help|assist|comply))",
    re.IGNORECASE,
)
REFUSAL_CHARS = 600  # a refusal and nothing else is short


def packed_ratio(text: str) -> float:
    """The smallest packed share of any 4 kB window of `text`; 1.0 for texts shorter than one window."""
    data = text.encode("utf-8", "replace")
    windows = range(0, len(data) - WINDOW + 1, WINDOW)
    return min((len(zlib.compress(data[at : at + WINDOW], 1)) / WINDOW for at in windows), default=1.0)


def repeated_ids(values: npt.NDArray[Any], offsets: Ints) -> Bools:
    """Rows of a ragged array that hold an n-gram of `PERIODS` ids `REPEATS` times in a row (shorter periods too: their multiples do).

    A run long enough covers a multiple of its own length, so only every such place is looked at before runs are measured.
    """
    bad = np.zeros(len(offsets) - 1, dtype=bool)
    for period in PERIODS:
        run = (REPEATS - 1) * period
        places = np.arange(run, len(values), run)
        hit = places[values[places] == values[places - period]]
        for step in (1, 2, 3, 5, 7):  # cheap: a run reaches to the left or to the right of the place
            left = values[hit - step] == values[hit - step - period]
            right_at = np.minimum(hit + step, len(values) - 1)
            hit = hit[left | (values[right_at] == values[right_at - period])]
        for at in hit.tolist():
            row = int(np.searchsorted(offsets, at, side="right")) - 1
            if not bad[row] and _run_length(values, at, period, int(offsets[row]), int(offsets[row + 1])) >= run:
                bad[row] = True
    return bad


def _run_length(values: npt.NDArray[Any], at: int, period: int, begin: int, end: int) -> int:
    """How many places around `at`, inside the row, equal the one a period before."""
    low, high = max(begin + period, at - REPEATS * period), min(end, at + REPEATS * period)
    if not low <= at < high:
        return 0
    same = values[low:high] == values[low - period : high - period]
    before, after = np.flatnonzero(~same[: at - low]), np.flatnonzero(~same[at - low :])
    first = int(before[-1]) + 1 if len(before) else 0
    last = at - low + int(after[0]) if len(after) else len(same)
    return last - first


def repeated_calls(calls: Sequence[tuple[str, str]]) -> bool:
    """The same call (name, arguments) `SAME_CALLS` times in a row."""
    return any(len(set(calls[i : i + SAME_CALLS])) == 1 for i in range(len(calls) - SAME_CALLS + 1))


def mixes_scripts(text: str) -> bool:
    """`SCRIPTS_TOO_MANY` scripts within `SCRIPT_WINDOW` characters (looked at in steps of half a window)."""
    if text.isascii():
        return False
    points = np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4")
    bits = _BITS[np.searchsorted(_STARTS, points, side="right") - 1]
    half = SCRIPT_WINDOW // 2
    halves = np.bitwise_or.reduceat(bits, np.arange(0, len(bits), half))
    pairs = np.append(halves, 0)[:-1] | np.append(halves[1:], 0)
    return (
        bool((np.bitwise_count(pairs) >= SCRIPTS_TOO_MANY).any())
        if hasattr(np, "bitwise_count")
        else any(int(p).bit_count() >= SCRIPTS_TOO_MANY for p in pairs)
    )


def is_error_text(text: str) -> bool:
    """A gateway's page or notice in place of an answer, or its "[truncated]" at the end."""
    found = _NOTICE.match(text)
    if found and text.lstrip()[:1] == "<":
        return bool(_PAGE.search(text[:2000])) and len(text) < 20_000
    return bool(found) or bool(_CUT.search(text[-40:]))


def is_refusal(text: str) -> bool:
    """A refusal and nothing else."""
    return len(text) <= REFUSAL_CHARS and bool(_REFUSAL.match(text))


def is_unclean(text: str) -> bool:
    """U+FFFD, a byte order mark, NUL, or half a surrogate pair: what broken splitting of a stream leaves behind."""
    if text.isascii():
        return "\x00" in text
    return "\ufffd" in text or "\ufeff" in text or "\x00" in text or any("\ud800" <= c <= "\udfff" for c in _surrogates(text))


def _surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start : error.end]
    return ""
