"""One text of an answer, put together from its pieces.

Belongs here: joining as UTF-16 (a server that cuts by code units sends halves of a character: eliza#30904, rakazo#416), a last piece
that says everything again. Does not belong here: which texts an answer has (`answer.py`), calls (`calls.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_SURROGATE = re.compile("[\ud800-\udfff]")
_HIGH_AT_END = re.compile("[\ud800-\udbff]\\Z")
# A piece of this length that equals all before it is a repetition; a shorter one may be the model's own (`ha`, `ha`).
_LONG = 16


@dataclass(slots=True)
class Text:
    """The pieces of one channel in order, each with the number of the chunk that brought it."""

    pieces: list[str] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)

    def add(self, piece: str, chunk: int) -> None:
        if piece:
            self.pieces.append(piece)
            self.chunks.append(chunk)

    @property
    def joined(self) -> str:
        return join("".join(self.pieces))

    @property
    def says_all_again(self) -> bool:
        """Whether the last piece equals all before it."""
        return len(self.pieces) > 1 and self.pieces[-1] == "".join(self.pieces[:-1])

    @property
    def repeats_for_sure(self) -> bool:
        """Whether the last piece is too long, or stands behind too many, to be the model's own repetition."""
        return self.says_all_again and (len(self.pieces) > 2 or len(self.pieces[-1]) >= _LONG)

    def drop_last(self) -> None:
        self.pieces.pop()
        self.chunks.pop()


def join(text: str) -> str:
    """Halves of characters that lie side by side put together; a half without its other half stays, for a later stage to judge."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") if _has_halves(text) else text


def _has_halves(text: str) -> bool:
    return not text.isascii() and _SURROGATE.search(text) is not None


def whole_characters(deltas: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(channel, text) deltas in which no character is cut: its first half waits for the channel's next delta."""
    if not any(_has_halves(text) for _, text in deltas):
        yield from deltas
        return
    last = {channel: k for k, (channel, _) in enumerate(deltas)}
    waiting: dict[str, str] = {}
    for k, (channel, text) in enumerate(deltas):
        text = waiting.pop(channel, "") + text
        if k < last[channel] and (half := _HIGH_AT_END.search(text)):
            waiting[channel], text = half[0], text[:-1]
        if text:
            yield channel, join(text)
