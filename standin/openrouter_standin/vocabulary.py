"""The stand-in's view of a tokenizer: marker ids by name, text pieces per id, an answer's ids taken apart.

Belongs here: what rendering, bending and billing need to know about ids. Does not belong here: text changes (`bend`), templates
(`render`). Shares only tokenizer files with room `exact`.

Grammar of an answer (docs/research/openrouter-contract.md#3.3): `[reasoning </think>] content [section_begin (call_begin ID
argument_begin ARGS call_end)+ section_end] <|im_end|>`; with thinking the `<think>` stands in the prompt; reasoning may also end
at section_begin.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tiktoken

Ids = tuple[int, ...]
# Marked `"special": false` in Kimi's tokenizer_config: a server's `skip_special_tokens` leaves them in the text
# (docs/research/exactness.md#1.3).
_VISIBLE_MARKERS = frozenset(
    {
        "<think>",
        "</think>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    }
)


class _Pieces(dict[int, str | None]):
    """Id -> its text where that is whole by itself, None where its bytes are a part of a character. Filled as ids are met."""

    def __init__(self, encoding: tiktoken.Encoding, hidden: frozenset[int]) -> None:
        super().__init__()
        self._encoding, self._hidden = encoding, hidden

    def __missing__(self, i: int) -> str | None:
        try:
            text = "" if i in self._hidden else self._encoding.decode_single_token_bytes(i).decode()
        except UnicodeDecodeError:
            text = None
        self[i] = text
        return text


@dataclass(frozen=True)
class Vocabulary:
    """A tiktoken encoding with Kimi's markers looked up by name; `hidden` are the ids that a server leaves out of its text."""

    encoding: tiktoken.Encoding
    im_end: int
    close_think: int
    section_begin: int
    section_end: int
    call_begin: int
    argument_begin: int
    call_end: int
    hidden: frozenset[int] = frozenset()

    @classmethod
    def of(cls, encoding: tiktoken.Encoding) -> Vocabulary:
        """Raises KeyError when the tokenizer lacks one of Kimi's markers."""
        one = encoding.encode_single_token
        return cls(
            encoding=encoding,
            im_end=one("<|im_end|>"),
            close_think=one("</think>"),
            section_begin=one("<|tool_calls_section_begin|>"),
            section_end=one("<|tool_calls_section_end|>"),
            call_begin=one("<|tool_call_begin|>"),
            argument_begin=one("<|tool_call_argument_begin|>"),
            call_end=one("<|tool_call_end|>"),
            hidden=frozenset(
                one(name) for name in encoding.special_tokens_set - _VISIBLE_MARKERS if "reserved_token" not in name
            ),
        )

    def encode_text(self, text: str) -> Ids:
        """Ids of plain text; marker text in it stays plain text."""
        return tuple(self.encoding.encode_ordinary(text))

    def encode_prompt(self, text: str) -> Ids:
        """Ids of a rendered prompt: one string with markers, encoded with specials on, as Kimi's own tokenizer code does
        (docs/research/tokenizers.md#2: a marker in a user's text becomes a control token there)."""
        # only the markers that occur: handing all of them over costs more than encoding a short prompt
        named, reserved = self._markers
        allowed = {name for name in (*named, *(reserved if "reserved" in text else ())) if name in text}
        return tuple(self.encoding.encode(text, allowed_special=allowed, disallowed_special=()))

    @cached_property
    def _markers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Special tokens with a name of their own, and the many `reserved_token` ones."""
        names = sorted(self.encoding.special_tokens_set)
        return tuple(n for n in names if "reserved" not in n), tuple(n for n in names if "reserved" in n)

    @cached_property
    def _kept(self) -> dict[int, tuple[Ids, tuple[str, ...]]]:
        """id() of a tuple of ids -> that tuple (held, so that no other gets its id()) and its pieces."""
        return {}

    def keep(self, *runs: Ids) -> None:
        """Remember the pieces of these very tuples: they will be asked for again."""
        for ids in runs:
            self._kept[id(ids)] = ids, self.pieces(ids)

    def forget(self) -> None:
        self._kept.clear()

    @cached_property
    def _alone(self) -> _Pieces:
        return _Pieces(self.encoding, self.hidden)

    def pieces(self, ids: Iterable[int]) -> tuple[str, ...]:
        """One text piece per id, as an incremental detokenizer streams them: bytes of an unfinished character are held back
        until it is whole; what never becomes one is U+FFFD. The last piece takes what is left. A named special token that a model
        samples where none belongs has no text (`skip_special_tokens`, every server's default)."""
        kept = self._kept.get(id(ids))
        if kept is not None and kept[0] is ids:
            return kept[1]
        ids = tuple(ids)
        out = list(map(self._alone.__getitem__, ids))
        at = 0
        with contextlib.suppress(ValueError):  # until there is no gap left
            while True:
                at = self._join(ids, out, out.index(None, at))
        return tuple(out)  # type: ignore[arg-type]

    def _join(self, ids: Ids, out: list[str | None], at: int) -> int:
        """Fill in the pieces from `at` on until no byte is held back; the place behind them."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for k in range(at, len(ids)):
            out[k] = decoder.decode(b"" if ids[k] in self.hidden else self.encoding.decode_single_token_bytes(ids[k]))
            if not decoder.getstate()[0]:
                return k + 1
        out[-1] = (out[-1] or "") + decoder.decode(b"", final=True)
        return len(ids)

    def text(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces(ids))


@dataclass(frozen=True)
class CallIds:
    """One complete tool call. `at`: where its begin marker stands in the completion."""

    header: Ids
    arguments: Ids
    at: int = field(default=0, compare=False)

    @property
    def arguments_at(self) -> int:
        """Where the first id of the arguments stands in the completion, behind both markers and the header."""
        return self.at + len(self.header) + 2


@dataclass(frozen=True)
class Parts:
    """An answer's ids taken apart. `closed`: `</think>` was generated. `stray`: ids inside or behind the tool section that
    belong to no complete call (a cut call, text between calls): parsers drop them from the text, the bill counts them."""

    reasoning: Ids
    closed: bool
    content: Ids
    section: bool
    calls: tuple[CallIds, ...]
    stray: Ids
    ended: bool

    @property
    def content_at(self) -> int:
        """Where the first id of the content stands in the completion."""
        return len(self.reasoning) + self.closed


def take_apart(ids: Sequence[int], thinking: bool, vocabulary: Vocabulary) -> Parts:
    """`ids` of a completion; `thinking` says whether `<think>` is open in the prompt."""
    v, ids = vocabulary, tuple(ids)
    ended = bool(ids) and ids[-1] == v.im_end
    last = len(ids) - ended
    close, section = _find(ids, v.close_think, last), _find(ids, v.section_begin, last)
    closed = thinking and close < min(section, last)
    edge = min(close, section) if thinking else 0
    start = edge + closed
    calls, stray = _calls(ids[section + 1 : last], v, section + 1)
    return Parts(ids[:edge], closed, ids[start:section], section < last, calls, stray, ended)


def _find(ids: Ids, wanted: int, last: int) -> int:
    """The first place of `wanted` before `last`, else `last`."""
    try:
        return ids.index(wanted, 0, last)
    except ValueError:
        return last


def _calls(ids: Ids, v: Vocabulary, offset: int) -> tuple[tuple[CallIds, ...], Ids]:
    calls: list[CallIds] = []
    stray: list[int] = []
    at = 0
    while at < len(ids):
        if ids[at] == v.call_begin and (end := _find(ids[at:], v.call_end, len(ids) - at) + at) < len(ids):
            middle = _find(ids[at:end], v.argument_begin, end - at) + at
            if middle < end:
                calls.append(CallIds(ids[at + 1 : middle], ids[middle + 1 : end], offset + at))
                at = end + 1
                continue
        if ids[at] != v.section_end:
            stray.append(ids[at])
        at += 1
    return tuple(calls), tuple(stray)
