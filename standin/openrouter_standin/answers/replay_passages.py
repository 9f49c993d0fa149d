"""Text -> passages -> ids: what the answers of a replay bank are put together from.

Belongs here: reading text files, cutting them at blank lines, encoding each passage once in such a way that ids can be joined.
Does not belong here: which passages an answer takes (`replay`), what a model does beside the canonical (`replay_habits`).

Why ids may be joined: in a text, passages stand apart by an empty line. A split regex without lookbehind that never lets a match
go on from the last line break of a run of whitespace has a boundary there, so `enc(a + "\\n\\n" + b) == enc(a + "\\n\\n") +
enc(b)`. That is proven for Kimi's regex and a `b` that begins with no whitespace; for any other tokenizer and any other `b` each
passage is tried behind texts of several kinds (by its first and last characters: a boundary is local), and one that would be
split otherwise is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kimi_mini.tokenizer import KIMI_NAMED
from openrouter_standin.errors import StandinError
from openrouter_standin.vocabulary import Ids, Vocabulary

GAP = "\n\n"
BUILT_IN = Path(__file__).parents[1] / "replay_text"
MARKER_NAMES = tuple(KIMI_NAMED)
_LONGEST = 2_000  # characters; a longer passage is cut at a line end, else at a space: it would fit into few answers
_BLANK = re.compile(r"\r?\n(?:[ \t\r]*\n)+")
# ends and beginnings of the kinds that split regexes tell apart: letter, digit, sign, bracket and quote, Han, emoji, closing
# slash
_NEIGHBOURS = ("word", "7", "end.", '")', "漢字", "\U0001f642", "/")
_AFTER = ("word", "7", "漢字")  # what a passage is tried in front of; whatever else comes is itself tried behind all of those
_NEAR = 16  # characters of a passage that are tried


@dataclass(frozen=True)
class Texts:
    """What was read. `digest` of all of it joins the bank's seed: another text is another bank."""

    passages: tuple[str, ...]
    digest: str


def read_texts(patterns: Sequence[str], beside: Path) -> Texts:
    """The passages of the files, each once, in order; those with a marker's name are left out, for the habit `literal_markers`
    to have its share alone. Raises StandinError: no file, not UTF-8, nothing in it."""
    paths = [path for pattern in patterns for path in _files(pattern, beside)] or sorted(BUILT_IN.glob("*.md"))
    passages: dict[str, None] = {}
    for path in dict.fromkeys(paths):
        passages |= dict.fromkeys(cut_passages(_read(path)))
    kept = tuple(p for p in passages if not any(name in p for name in MARKER_NAMES))
    if not kept:
        raise StandinError(f"source.replay.text: no text in {', '.join(map(str, paths))}; give files with at least one paragraph")
    return Texts(kept, hashlib.blake2b(GAP.join(kept).encode(), digest_size=16).hexdigest())


def _files(pattern: str, beside: Path) -> list[Path]:
    whole = (beside / Path(pattern).expanduser()).absolute()
    found = [path for path in sorted(Path(whole.anchor).glob(str(whole.relative_to(whole.anchor)))) if path.is_file()]
    if not found:
        raise StandinError(
            f"source.replay.text: {pattern!r} is no file in {beside.resolve()}; give a UTF-8 file or a glob of some"
        )
    return found


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StandinError(f"source.replay.text: {path} is not UTF-8 (byte {error.start}); convert it") from None
    except OSError as error:
        raise StandinError(f"source.replay.text: {path} cannot be read ({error.strerror}); give a UTF-8 file") from None


def cut_passages(text: str) -> list[str]:
    """Cut at blank lines; a passage has no whitespace behind it and no line break in front."""
    pieces = (piece.rstrip().lstrip("\r\n") for piece in _BLANK.split(text))
    return [part for piece in pieces if piece.strip() for part in _shorten(piece)]


def _shorten(passage: str) -> Iterable[str]:
    while len(passage) > _LONGEST:
        edge = max(passage.rfind("\n", 1, _LONGEST), 0) or max(passage.rfind(" ", 1, _LONGEST), 0) or _LONGEST
        head, passage = passage[:edge].rstrip(), passage[edge:].lstrip()
        if head:
            yield head
    if passage:
        yield passage


class Speller:
    """Texts -> ids, each of them encoded once; all ids of a bank are the same few int objects."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._number = tuple(range(vocabulary.encoding.n_vocab)).__getitem__
        self._known: dict[str, Ids] = {}

    def __call__(self, text: str) -> Ids:
        if text not in self._known:
            self._known[text] = self.shared(self.vocabulary.encode_text(text))
        return self._known[text]

    def shared(self, ids: Iterable[int]) -> Ids:
        return tuple(map(self._number, ids))

    def learn(self, texts: Iterable[str]) -> None:
        """Encode many at once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        encoded = self.vocabulary.encoding.encode_ordinary_batch(new, num_threads=2)
        self._known |= {text: self.shared(ids) for text, ids in zip(new, encoded, strict=True)}

    @cached_property
    def normalizes(self) -> bool:
        """Whether ids of a text can decode to another text (Qwen's NFC)."""
        return self.vocabulary.text(self("e\u0301")) != "e\u0301"

    def as_decoded(self, text: str) -> str:
        return self.vocabulary.text(self(text)) if self.normalizes else text

    def ordinary(self) -> dict[int, bytes]:
        """Id -> bytes of every id that text can be spelled with."""
        encoding = self.vocabulary.encoding
        control = {encoding.encode_single_token(name) for name in encoding.special_tokens_set}
        words: dict[int, bytes] = {}
        for i in range(encoding.n_vocab):
            if i not in control:
                with contextlib.suppress(KeyError):  # a gap in the vocabulary
                    words[self._number(i)] = encoding.decode_single_token_bytes(i)
        return words

    def is_part(self, i: int) -> bool:
        """Whether the id stands for a part of a character."""
        try:
            self.vocabulary.encoding.decode_single_token_bytes(i).decode()
        except UnicodeDecodeError:
            return True
        return False


@dataclass(frozen=True)
class Passage:
    """`inner` are the ids with the empty line behind it, `last` those without."""

    text: str
    inner: Ids
    last: Ids


def encode_passages(texts: Iterable[str], speller: Speller) -> tuple[Passage, ...]:
    """The passages that can be joined, in order."""
    texts = tuple(dict.fromkeys(map(speller.as_decoded, texts)))
    speller.learn(probe for text in texts for probe in _probes(text))
    kept = (text for text in texts if _joins(text, speller))
    return tuple(Passage(text, speller(text + GAP), speller(text)) for text in kept)


def _probes(text: str) -> Iterable[str]:
    head, tail = text[:_NEAR], text[-_NEAR:]
    yield from (text, text + GAP, head, tail + GAP)
    for other in _NEIGHBOURS:
        yield from (other + GAP, other + GAP + head)
    for other in _AFTER:
        yield from (other, tail + GAP + other)


def _joins(text: str, speller: Speller) -> bool:
    head, tail = text[:_NEAR], text[-_NEAR:]
    return bool(speller(text)) and all(
        [
            *(speller(other + GAP + head) == speller(other + GAP) + speller(head) for other in _NEIGHBOURS),
            *(speller(tail + GAP + other) == speller(tail + GAP) + speller(other) for other in _AFTER),
        ]
    )
