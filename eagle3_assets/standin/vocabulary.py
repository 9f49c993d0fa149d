"""The stand-in's view of a tokenizer: marker ids by name, text pieces per id, an answer's ids taken apart.

Belongs here: what rendering, bending and billing need to know about ids. Does not belong here: text changes (`bend`), templates
(`render`). Shares only tokenizer files with room `exact`.

Grammar of an answer (openrouter-contract 3.3): `[reasoning </think>] content [section_begin (call_begin ID argument_begin ARGS
call_end)+ section_end] <|im_end|>`; with thinking the `<think>` stands in the prompt; reasoning may also end at section_begin.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import tiktoken

Ids = tuple[int, ...]
# Marked `"special": false` in Kimi's tokenizer_config: a server's `skip_special_tokens` leaves them in the text (exactness.md 1.3).
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
        (tokenizers.md section 2: a marker in a user's text becomes a control token there)."""
        return tuple(self.encoding.encode(text, allowed_special="all"))

    def pieces(self, ids: Iterable[int]) -> tuple[str, ...]:
        """One text piece per id, as an incremental detokenizer streams them: bytes of an unfinished character are held back
        until it is whole; what never becomes one is U+FFFD. The last piece takes what is left. A named special token that a model
        samples where none belongs has no text (`skip_special_tokens`, every server's default)."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        out = [decoder.decode(b"" if i in self.hidden else self.encoding.decode_single_token_bytes(i)) for i in ids]
        rest = decoder.decode(b"", final=True)
        if rest and out:
            out[-1] += rest
        return tuple(out)

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
    v = vocabulary
    ended = bool(ids) and ids[-1] == v.im_end
    body = list(ids[:-1] if ended else ids)
    reasoning: Ids = ()
    closed = False
    if thinking:
        edge = next((k for k, i in enumerate(body) if i in (v.close_think, v.section_begin)), len(body))
        reasoning = tuple(body[:edge])
        closed = edge < len(body) and body[edge] == v.close_think
        body = body[edge + closed :]
    edge = body.index(v.section_begin) if v.section_begin in body else len(body)
    calls, stray = _calls(body[edge + 1 :], v, len(reasoning) + closed + edge + 1)
    return Parts(reasoning, closed, tuple(body[:edge]), edge < len(body), calls, stray, ended)


def _calls(ids: list[int], v: Vocabulary, offset: int) -> tuple[tuple[CallIds, ...], Ids]:
    calls: list[CallIds] = []
    stray: list[int] = []
    at = 0
    while at < len(ids):
        if ids[at] == v.call_begin and v.call_end in ids[at:]:
            end = ids.index(v.call_end, at)
            if v.argument_begin in ids[at:end]:
                middle = ids.index(v.argument_begin, at)
                calls.append(CallIds(tuple(ids[at + 1 : middle]), tuple(ids[middle + 1 : end]), offset + at))
                at = end + 1
                continue
        if ids[at] != v.section_end:
            stray.append(ids[at])
        at += 1
    return tuple(calls), tuple(stray)
