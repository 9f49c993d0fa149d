"""Sentences: the slots of `data/phrases.toml` filled at random, joined into text of about a wanted length.

Belongs here: natural-language text in the eight languages of the world, numbers and invented names in it, layout (paragraphs,
lists, tables, headings). Does not belong here: code and tool arguments (`snippets.py`, `toolset.py`), who says what (`world.py`).
Every function takes its `random.Random`; the same generator state gives the same text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

PHRASES = Path(__file__).parent / "data" / "phrases.toml"
Kind = Literal["asks", "thoughts", "statements", "closers"]
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|honest)")  # "a" before a word of the list that starts with a vowel sound
_COMBINING_ACUTE = "\u0301"  # "e" + U+0301 is another byte sequence than "é": text that a normaliser would change


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What one language's table of `phrases.toml` holds."""

    language: str
    weight: int
    joiner: str
    chars_per_token: float
    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    places: tuple[str, ...]
    sentences: dict[str, tuple[str, ...]]


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(PHRASES.read_text(encoding="utf-8"))


def _words(table: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in table[key].split(","))


@cache
def lexicon(language: str) -> Lexicon:
    """The words of `language` ("en", "de", ...); KeyError for a language that has no table."""
    table = _tables()[language]
    return Lexicon(
        language=language,
        weight=table["weight"],
        joiner=table["joiner"],
        chars_per_token=table["chars_per_token"],
        nouns=_words(table, "nouns"),
        adjectives=_words(table, "adjectives"),
        places=_words(table, "places"),
        sentences={kind: tuple(table[kind]) for kind in ("asks", "thoughts", "statements", "closers")},
    )


@cache
def languages() -> tuple[str, ...]:
    return tuple(key for key in _tables() if key != "shared")


@cache
def _weights() -> tuple[int, ...]:
    return tuple(lexicon(language).weight for language in languages())


def pick_language(rng: Random) -> str:
    return rng.choices(languages(), weights=_weights())[0]


@cache
def _shared_words(key: str) -> tuple[str, ...]:
    return _words(_tables()["shared"], key)


def emoji(rng: Random) -> str:
    return str(rng.choice(_tables()["shared"]["emoji"]))


def invented_word(rng: Random) -> str:
    """A lower-case word that no list holds, so that the encoder has to spell it."""
    return "".join(rng.choice(_shared_words("syllables")) for _ in range(rng.randint(2, 4)))


def _plural(noun: str) -> str:
    """English plural of a word of the list."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh", "ato")) else "s")


def templates(rng: Random, language: str, kind: Kind) -> Iterator[str]:
    """The templates of `kind` without end: a shuffled deck, shuffled again when it is used up (no sentence twice in a row)."""
    deck = list(lexicon(language).sentences[kind])
    last = ""
    while True:
        rng.shuffle(deck)
        if deck[0] == last:
            deck.reverse()
        yield from deck
        last = deck[-1]


def sentence(rng: Random, language: str, kind: Kind) -> str:
    """One sentence of `kind`, any template."""
    return fill(rng, language, rng.choice(lexicon(language).sentences[kind]))


def fill(rng: Random, language: str, template: str) -> str:
    """`template` with its slots filled; `{total}` is `{n}` + `{m}`, so the sums are right."""
    words = lexicon(language)
    n, m = rng.randint(1, 10 ** rng.randint(1, 4)), rng.randint(1, 999)

    def value(match: re.Match[str]) -> str:
        slot = match[1]
        if slot in ("noun", "noun2"):
            return rng.choice(words.nouns)
        if slot in ("nouns", "nouns2"):
            return _plural(rng.choice(words.nouns))
        if slot == "adj":
            return rng.choice(words.adjectives)
        if slot == "place":
            return rng.choice(words.places)
        if slot == "name":
            return invented_word(rng).capitalize()
        if slot == "word":
            return invented_word(rng)
        return str({"n": n, "m": m, "total": n + m}[slot])

    text = _SLOT.sub(value, template)
    return _ARTICLE.sub(r"\1n ", text) if language == "en" else text


def paragraph(rng: Random, language: str, deck: Iterator[str], chars: int) -> str:
    """Sentences from `deck` until about `chars` characters, at least one."""
    parts: list[str] = []
    while not parts or sum(map(len, parts)) < chars:
        parts.append(fill(rng, language, next(deck)))
        if rng.random() < 0.03:
            parts.append(emoji(rng))
        if rng.random() < 0.01:
            parts.append("cafe" + _COMBINING_ACUTE)
    return lexicon(language).joiner.join(parts)


def _bullets(rng: Random, language: str, deck: Iterator[str]) -> str:
    numbered, count = rng.random() < 0.4, rng.randint(2, 5)
    nouns = lexicon(language).nouns
    lines = []
    for k in range(1, count + 1):
        lead = f"{k}. " if numbered else "- "
        bold = f"**{rng.choice(nouns)}**: " if rng.random() < 0.5 else ""
        lines.append(lead + bold + fill(rng, language, next(deck)))
    return "\n".join(lines)


def _table(rng: Random, language: str) -> str:
    nouns, rows = lexicon(language).nouns, rng.randint(2, 4)
    lines = [f"| {rng.choice(nouns)} | {rng.choice(nouns)} |", "| --- | ---: |"]
    lines += [f"| {rng.choice(nouns)} | {rng.randint(0, 99_999) / 100:.2f} |" for _ in range(rows)]
    return "\n".join(lines)


def _formula(rng: Random) -> str:
    a, b = rng.randint(2, 40), rng.randint(2, 40)
    return rng.choice((f"${a} \\times {b} = {a * b}$", f"$$x^2 - {a + b}x + {a * b} = 0$$", f"\\[ \\frac{{{a}}}{{{b}}} \\]"))


def block(rng: Random, language: str, deck: Iterator[str], chars: int, *, plain: bool) -> str:
    """One block of a longer text: a paragraph, or (unless `plain`) sometimes a list, a table, a heading or a formula."""
    roll = rng.random()
    if plain or roll < 0.6:
        return paragraph(rng, language, deck, min(chars, rng.randint(60, 400)))
    if roll < 0.85:
        return _bullets(rng, language, deck)
    if roll < 0.92:
        return _table(rng, language)
    if roll < 0.97:
        return f"## {rng.choice(_shared_words('headings'))}\n\n" + paragraph(rng, language, deck, 80)
    return _formula(rng)
