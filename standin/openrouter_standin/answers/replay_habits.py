"""What a sampling model does that the encoder of its text would not do, as changes to ids and as texts.

Belongs here: respelling, extra lines, odd tool headers, edges, and the record of them. Does not belong here: how often (schema),
where an answer has room for them (`replay`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

from openrouter_standin.answers.replay_passages import Speller
from openrouter_standin.vocabulary import Ids

# How often one, two or three ids are respelled as two: one id more (`th`+`at`), the same count (`'`+`data` for `'d`+`ata`), one
# less (`'`+`summary` for `'s`+`um`+`mary`). About the shape measured on a small model at T = 1 (docs/research/exactness.md#4i: of
# 22 places 16 longer, 5 equal, 1 shorter).
_WIDTHS, _WEIGHTS = (1, 2, 3), (70, 24, 6)
_TRIES = 300  # random places looked at; of 3-id windows few can be spelled with two

# Said by a model that writes about its own format; each is one passage. `{}` is the marker.
_LITERAL_LINES = (
    "Note that `{}` is only text here, it does not end anything.",
    'tokens = re.split(r"({})", raw)',
    "{} 在这里只是普通文字。",
    "The template writes {} at that place, so I must not repeat it literally.",
)
_LITERAL_NAMES = (
    "</think>",
    "<think>",
    "<|im_end|>",
    "<|tool_call_begin|>",
    "<|tool_calls_section_begin|>",
    "<|im_middle|>",
    "[EOS]",
)
# Characters that byte-level vocabularies of 100,000 to 200,000 ids have no id for.
_SPLIT_LINES = (
    "The badge reads \U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f, by \U0001f9d1\U0001f3fd‍\U0001f680.",
    "\U00020bb7野家で\U00029e3dの塩焼きを食べた。",
    "The old sign is \U0001202d, the fraktur one is \U0001d509, the mahjong tile is \U0001f004\ufe0e.",
    "姓氏里的 \U0002a6a5 和 \U0002070e 很少见。",
)
NO_CONTENT = "(no content)"
# K2.5's own slips (docs/research/openrouter-contract.md#4.3-7)
_ODD_HEADERS = ("functions{name}{index}", "call{index:05d}", "{index}")


@dataclass(frozen=True, slots=True)
class Traits:
    """Which habits an answer got, as far as a cut left them. `names` are the keys of `[source.replay.habits]` (cuts as
    `cut_reasoning`), with `same_count` beside `non_canonical` where the respelling changes no count. `regions`: respelled
    places. `count_change`: ids more than the encoder would give."""

    names: tuple[str, ...] = ()
    regions: int = 0
    count_change: int = 0


def literal_lines() -> tuple[str, ...]:
    return tuple(line.format(name) for line in _LITERAL_LINES for name in _LITERAL_NAMES)


def split_lines(speller: Speller) -> tuple[str, ...]:
    """The lines with a character that this vocabulary spells with several ids."""
    return tuple(line for line in map(speller.as_decoded, _SPLIT_LINES) if any(map(speller.is_part, speller(line))))


def odd_header(rng: Random) -> str:
    """A format with `name` and `index`."""
    return rng.choice(_ODD_HEADERS)


def draw_edge(edge: Mapping[str, float], chance: float) -> str:
    """The whitespace that a draw in [0, 1) falls on; "" for the rest."""
    end = 0.0
    for text, share in edge.items():
        end += share
        if chance < end:
            return text
    return ""


def draw_regions(mean: float, chance: float) -> int:
    """At least one, geometric."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1 - chance) / math.log(1 - 1 / mean))


class Respeller:
    """Other ids for the same bytes."""

    def __init__(self, speller: Speller) -> None:
        self._speller = speller

    @cached_property
    def _words(self) -> Mapping[int, bytes]:
        return self._speller.ordinary()

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        return {word: i for i, word in self._words.items()}

    def _two_ids(self, window: Ids) -> list[Ids]:
        """All ways to spell the bytes of `window` with exactly two ids, the window itself left out."""
        joined = b"".join(map(self._words.__getitem__, window))
        pairs = ((joined[:cut], joined[cut:]) for cut in range(1, len(joined)))
        ways = [(self._ranks[a], self._ranks[b]) for a, b in pairs if a in self._ranks and b in self._ranks]
        return [way for way in ways if way != window]

    def respell(self, ids: Ids, regions: int, rng: Random) -> tuple[Ids, int]:
        """`ids` with up to `regions` places, apart from each other, spelled otherwise; and how many were found.

        The encoder gives one spelling for a text. If `ids` are it, any others of the same bytes are not.
        """
        places: list[tuple[int, int, Ids]] = []
        taken: set[int] = set()
        while len(places) < regions and (found := self._place(ids, taken, rng)):
            places.append(found)
            taken |= set(range(found[0] - 1, found[0] + found[1] + 1))
        out: list[int] = []
        end = 0
        for start, width, way in sorted(places):
            out += ids[end:start] + self._speller.shared(way)
            end = start + width
        return (*out, *ids[end:]), len(places)

    def _place(self, ids: Ids, taken: set[int], rng: Random) -> tuple[int, int, Ids] | None:
        """(start, width, two ids for them), none of them in `taken`."""
        wanted = rng.choices(_WIDTHS, weights=_WEIGHTS)[0]
        for width in (wanted, *_WIDTHS):
            starts = range(len(ids) - width + 1)
            for start in rng.sample(starts, min(len(starts), _TRIES)):
                if taken.isdisjoint(range(start, start + width)) and (ways := self._two_ids(ids[start : start + width])):
                    return start, width, rng.choice(ways)
        return None
