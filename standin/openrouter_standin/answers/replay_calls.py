"""Arguments of tool calls for a replay bank: JSON as models write it, with the values that parsers and re-serialisers trip over.

Belongs here: shapes, values and spellings of arguments. Does not belong here: headers, markers, ids (`replay`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

_WORDS = (
    "München",
    "Zürich",
    "東京",
    "Санкт-Петербург",
    "São Paulo",
    "الرباط",
    "café ☕",
    "naïve",
    "서울",
    "👩‍👩‍👧",
    "O'Hare",
    "a/b",
)
_SPELLINGS: tuple[dict[str, Any], ...] = (
    {"ensure_ascii": False},
    {"ensure_ascii": False, "separators": (",", ":")},
    {"ensure_ascii": False, "indent": 2},
    {},
)
_WEIGHTS = (60, 20, 15, 5)


def make_arguments(passages: Sequence[str], count: int, rng: Random) -> tuple[str, ...]:
    """`count` JSON objects, each once; the empty one and a short one are always among them."""
    made = {"{}": None, '{"q": "a"}': None}
    for _ in range(count):
        shape = rng.choice(_SHAPES)(passages, rng)
        made[json.dumps(shape, **rng.choices(_SPELLINGS, weights=_WEIGHTS)[0])] = None
    return tuple(made)


def _flat(passages: Sequence[str], rng: Random) -> dict[str, Any]:
    return {"city": rng.choice(_WORDS), "unit": rng.choice(("celsius", "fahrenheit")), "days": rng.randint(1, 14)}


def _query(passages: Sequence[str], rng: Random) -> dict[str, Any]:
    text = rng.choice(passages).split("\n")[0][:80]
    return {"query": text, "limit": rng.choice((5, 10, 0.5, None)), "languages": rng.sample(["en", "zh", "ja", "de"], 2)}


def _nested(passages: Sequence[str], rng: Random) -> dict[str, Any]:
    inner = {"op": rng.choice(("<=", "!=", "in")), "value": [rng.choice(_WORDS), rng.uniform(-1, 1), {"quoted": 'say "no"'}]}
    return {"filter": {"all": [inner, {"not": {}}], "strict": rng.random() < 0.5}, "page": None}


def _edit(passages: Sequence[str], rng: Random) -> dict[str, Any]:
    return {
        "path": f"src/{rng.choice('abcxyz')}_{rng.randint(1, 99)}.py",
        "content": rng.choice(passages) + "\n",
        "append": False,
    }


def _command(passages: Sequence[str], rng: Random) -> dict[str, Any]:
    lines = rng.choice(passages).split("\n")[:6]
    return {"command": "cat > notes.txt <<'EOF'\n" + "\n".join(lines) + "\nEOF\n\tgrep -n '\\\\d+' notes.txt", "timeout": 30}


_SHAPES = (_flat, _query, _nested, _edit, _command)
