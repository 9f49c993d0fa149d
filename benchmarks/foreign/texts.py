"""Texts as a reasoning model writes them: prose, lists, code, JSON, tables, Chinese and Japanese, emoji, odd typography.

Belongs here: words and how they are put together, drawn by a seeded generator. Does not belong here: what stands at the edges of a field
(`cases`), ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = words(
    """
    river market engine function garden teacher window signal bridge letter budget server cache recipe mountain
    sample harbour query sensor contract library pattern village number student kernel battery compiler painting
    protein calendar orchestra tariff glacier theorem pipeline archive bakery satellite committee tokenizer gradient
    ledger violin warehouse
    """
)
VERBS = words(
    """
    explains checks moves compares keeps returns rejects builds measures repeats describes replaces holds follows
    predicts
    """
)
ADJECTIVES = words(
    """
    small quiet recent unusual broken stable careful expensive hidden early narrow reliable asynchronous medieval
    linear warm incomplete optional green well-known so-called cheap
    """
)
ADVERBS = words("usually never quickly roughly only almost clearly often perhaps, however, eventually")
NAMES = words("Ada Björn Chloé Dmitri Eleni Fatima Gonçalo Hanna Ibrahim Jürgen Kateřina Liam Müller Niamh O'Brien Pérez")
PLACES = words("Paris Lisbon Kraków São-Paulo Reykjavík Nairobi Osaka Toronto Zürich Lima Hobart")
FILTERED = words("damn stupid killer bomb poison hack")
CHINESE = (
    "我们先看一下这个问题。",
    "答案是三。",
    "这段代码会返回一个列表,",
    "但是需要注意边界情况。",
    "根据题意,可以得到:",
    "因此时间复杂度为 O(n log n)。",
    "量子力学与经典力学不同。",
)
JAPANESE = ("まず問題を確認しましょう。", "答えは42です。", "コードは次のとおりです:", "ありがとうございます。")
OTHER = ("Привет, это короткий пример.", "한국어 문장도 하나 넣습니다.", "Ελληνικό κείμενο εδώ.", "هذا نص قصير.")
EMOJI = ("🙂", "🚀", "✅", "⚠️", "👩‍💻", "🎉", "📈", "🇫🇷")
THOUGHTS = (
    "The user asks about",
    "The user wants",
    "Let me think about",
    "We need to find",
    "Okay, so this is about",
    "I should first look at",
    "First, consider",
    "Hmm,",
    "Wait, what about",
    "This looks like a question on",
)
LANGUAGES = ("python", "js", "bash", "c", "")
Part = Callable[[Random], str]


def number(rng: Random) -> str:
    kind = rng.randrange(6)
    value = rng.randrange(1, 10 ** rng.randrange(1, 8))
    plain = (
        f"{value:,}",
        str(value),
        f"{value / 100:.2f}",
        f"{rng.randrange(100)}%",
        f"${value:,}.50",
        f"{rng.randrange(24):02d}:30",
    )
    return plain[kind]


def noun_phrase(rng: Random) -> str:
    article = rng.choice(("the", "a", "every", "one", "its", "their"))
    return f"{article} {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}" if rng.random() < 0.6 else f"{article} {rng.choice(NOUNS)}"


def sentence(rng: Random) -> str:
    subject = rng.choice(
        (rng.choice(NAMES), noun_phrase(rng), noun_phrase(rng), f"what {rng.choice(NAMES)} calls {noun_phrase(rng)}")
    )
    tail = rng.choice(
        (
            f" in {rng.choice(PLACES)}",
            f" by {number(rng)}",
            f", which {rng.choice(VERBS)} {noun_phrase(rng)}",
            f" — {noun_phrase(rng)} included",
            f" (see section {rng.randrange(1, 20)}.{rng.randrange(9)})",
            f" because it's {rng.choice(ADJECTIVES)}",
            "",
            "",
            f" “{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}”",
            f' "{rng.choice(NOUNS)}"',
            f", {rng.choice(ADVERBS)} {rng.choice(VERBS)} {number(rng)} {rng.choice(NOUNS)}s",
            f" without the {rng.choice(FILTERED)} {rng.choice(NOUNS)}",
        )
    )
    text = f"{subject} {rng.choice(VERBS)} {noun_phrase(rng)}{tail}"
    end = rng.choice((".", ".", ".", ".", ".", "!", "?", ":", "…", "..."))
    return text[0].upper() + text[1:] + end


def sentences(rng: Random, least: int = 1, most: int = 4) -> str:
    joint = "  " if rng.random() < 0.06 else " "
    return joint.join(sentence(rng) for _ in range(rng.randint(least, most)))


def bullets(rng: Random) -> str:
    mark = rng.choice(("- ", "- ", "* ", "• "))
    ordered = rng.random() < 0.3
    rows = [f"{k}. " if ordered else mark for k in range(1, rng.randint(3, 6))]
    end = "  " if rng.random() < 0.2 else ""
    return "\n".join(
        f"{row}{'**' + rng.choice(NOUNS).title() + '**: ' if rng.random() < 0.5 else ''}{sentence(rng)}{end}" for row in rows
    )


def code(rng: Random) -> str:
    name, other, value = rng.choice(NOUNS), rng.choice(NOUNS), rng.randrange(1000)
    tab = rng.choice(("    ", "    ", "  ", "\t", "\t"))
    body = (
        f"def {name}_{other}(items: list[int], limit: int = {value}) -> int:\n{tab}total = 0\n{tab}for item in items:\n{tab}{tab}if item > limit:"
        f'\n{tab}{tab}{tab}total += item  # {rng.choice(ADJECTIVES)}\n{tab}return total\n\nprint(f"{{{name}_{other}([1, 2, {value}])}}")',
        f"const {name} = async ({other}) => {{\n{tab}const res = await fetch(`/api/{name}`);\n{tab}return res.ok ? res.json() : null;\n}};",
        f'#include <stdio.h>\nint main() {{\n{tab}for (int i = 0; i < {value}; i++)\n{tab}{tab}printf("%d\\n", i * {value});\n{tab}return 0;\n}}',
        f"$ grep -rn '{name}' src/ | wc -l\n{value}\n$ make {other} && ./run --{name}={value} < in.txt > out.txt",
        f"SELECT {name}, COUNT(*) AS n\nFROM {other}s\nWHERE {name} <> '{value}' AND price >= 9.99\nGROUP BY {name}\nORDER BY n DESC;",
    )
    return f"```{rng.choice(LANGUAGES)}\n{rng.choice(body)}\n```"


def json_value(rng: Random, depth: int = 2) -> object:
    kind = rng.randrange(7 if depth else 5)
    simple: tuple[object, ...] = (rng.randrange(10000), rng.choice(NOUNS), rng.random() < 0.5, None, round(rng.random() * 100, 2))
    if kind < 5:
        return simple[kind]
    if kind == 5:
        return [json_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(NOUNS): json_value(rng, depth - 1) for _ in range(rng.randint(1, 4))}


def json_text(rng: Random) -> str:
    value = {rng.choice(NOUNS): json_value(rng) for _ in range(rng.randint(2, 5))}
    shown = json.dumps(value, ensure_ascii=False, indent=rng.choice((2, 4, None)))
    return f"```json\n{shown}\n```" if rng.random() < 0.6 else shown


def table(rng: Random) -> str:
    head = [rng.choice(NOUNS).title() for _ in range(3)]
    rows = [[number(rng), rng.choice(ADJECTIVES), f"`{rng.choice(NOUNS)}`"] for _ in range(rng.randint(2, 4))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * 3, *rows])


def mathematics(rng: Random) -> str:
    a, b = rng.randrange(2, 99), rng.randrange(2, 99)
    return rng.choice(
        (
            f"$$\\int_0^{{{a}}} x^{b}\\,dx = \\frac{{{a}^{{{b + 1}}}}}{{{b + 1}}}$$",
            f"{a} × {b} = {a * b}, so x₁ ≈ {a / b:.4f} and x² ≤ {a * a}.",
            f"\\[ f(n) = {a}n + {b} \\]\n\nHence **f(2) = {2 * a + b}**.",
        )
    )


def symbols(rng: Random) -> str:
    return rng.choice(
        (
            f"{rng.choice(EMOJI)} {sentence(rng)}",
            f"{sentence(rng)} {rng.choice(EMOJI)}{rng.choice(EMOJI)}",
            f"Temperature: {rng.randrange(40)} °C → {rng.randrange(100)} °F; ½ cup; №{rng.randrange(9)}; ﬁle™; Ｆｕｌｌ",
            f"Café naïve résumé, {rng.choice(NAMES)} & {rng.choice(NAMES)} <{rng.choice(NOUNS)}@example.org> said: 'it’s {rng.choice(ADJECTIVES)}'",
            f"https://example.org/{rng.choice(NOUNS)}?q={rng.choice(NOUNS)}%20{rng.randrange(99)}&lang=en#{rng.choice(NOUNS)}",
        )
    )


def foreign(rng: Random) -> str:
    pool: Sequence[str] = rng.choice((CHINESE, CHINESE, JAPANESE, OTHER))
    return rng.choice(("", " ")).join(rng.choice(pool) for _ in range(rng.randint(1, 4)))


def heading(rng: Random) -> str:
    return f"{'#' * rng.randint(1, 4)} {rng.choice(ADJECTIVES).title()} {rng.choice(NOUNS)}s\n\n{sentences(rng)}"


PARTS: tuple[tuple[Part, int], ...] = (
    (sentences, 9),
    (bullets, 3),
    (code, 3),
    (json_text, 2),
    (table, 1),
    (mathematics, 2),
    (symbols, 2),
    (foreign, 2),
    (heading, 2),
)


def answer(rng: Random, most: int = 4) -> str:
    """A content without whitespace at its edges."""
    kinds, weights = [part for part, _ in PARTS], [weight for _, weight in PARTS]
    if rng.random() < 0.12:
        return rng.choice(
            (str(rng.randrange(10000)), rng.choice(NAMES), "Yes.", "No", "42", f"**{rng.choice(NOUNS)}**", "Done!", "是的。")
        )
    paragraphs = [part(rng) for part in rng.choices(kinds, weights, k=rng.randint(1, most))]
    if rng.random() < 0.15:
        paragraphs[-1] += f" {rng.choice(EMOJI)}"
    return "\n\n".join(paragraphs)


def reasoning(rng: Random, most: int = 4) -> str:
    """A reasoning without whitespace at its edges."""
    opening = f"{rng.choice(THOUGHTS)} {noun_phrase(rng)}. {sentences(rng)}"
    more = [
        rng.choices((sentences, bullets, mathematics, foreign, code), (10, 2, 2, 1, 1))[0](rng)
        for _ in range(rng.randint(0, most))
    ]
    return rng.choice(("\n\n", "\n\n", "\n")).join([opening, *more])


def question(rng: Random) -> str:
    opening = rng.choice(("What about", "Explain", "How does one fix", "Write a note on", "Compare"))
    return f"{opening} {noun_phrase(rng)}? {sentences(rng, 0, 2)}".strip()
