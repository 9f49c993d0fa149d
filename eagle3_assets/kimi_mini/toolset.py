"""The six tools of the world: their declarations and arguments as a model would write them.

Belongs here: OpenAI tool declarations, random arguments that fit them, the JSON form the model writes (spaced mostly, compact
sometimes), results a tool might return. Does not belong here: when a tool is called (`world.py`).
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from eagle3_assets.kimi_mini import prose, snippets

CODING_TOOLS = ("bash", "str_replace_editor", "submit")
LOOKUP_TOOLS = ("get_weather", "search_docs", "calculator")


def _declare(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


DECLARATIONS: dict[str, dict[str, Any]] = {
    "bash": _declare(
        "bash",
        "Run a command in the shell of the repository and return its output.",
        {
            "command": {"type": "string", "description": "The command line"},
            "timeout": {"type": "integer", "description": "Seconds", "minimum": 1, "maximum": 600, "default": 60},
        },
        ["command"],
    ),
    "str_replace_editor": _declare(
        "str_replace_editor",
        "View, create and edit text files.",
        {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            "path": {"type": "string", "description": "Absolute path of the file"},
            "old_str": {"type": "string"},
            "new_str": {"type": "string"},
            "view_range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        },
        ["command", "path"],
    ),
    "submit": _declare("submit", "Hand in the change when it is finished.", {"summary": {"type": "string"}}, []),
    "get_weather": _declare(
        "get_weather",
        "Current weather and forecast of a city.",
        {
            "location": {"type": "string", "description": "Name of the city"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        ["location"],
    ),
    "search_docs": _declare(
        "search_docs",
        "Search the handbook; returns the best passages.",
        {"query": {"type": "string"}, "top_k": {"type": "integer", "default": 3}, "language": {"type": "string"}},
        ["query"],
    ),
    "calculator": _declare(
        "calculator", "Evaluate an arithmetic expression.", {"expression": {"type": "string"}}, ["expression"]
    ),
}


def declarations(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [DECLARATIONS[name] for name in names]


def _bash(rng: Random, language: str) -> dict[str, Any]:
    return {"command": snippets.shell_command(rng)} | ({"timeout": rng.randint(5, 120)} if rng.random() < 0.2 else {})


def _editor(rng: Random, language: str) -> dict[str, Any]:
    path, roll = snippets.file_path(rng), rng.random()
    if roll < 0.35:
        start = rng.randint(1, 200)
        return {"command": "view", "path": path} | ({"view_range": [start, start + 30]} if roll < 0.2 else {})
    if roll < 0.5:
        return {"command": "create", "path": path, "new_str": snippets.code(rng)[1]}
    old, new = snippets.edit(rng)
    return {"command": "str_replace", "path": path, "old_str": old, "new_str": new}


def _submit(rng: Random, language: str) -> dict[str, Any]:
    return {} if rng.random() < 0.3 else {"summary": prose.sentence(rng, language, "statements")}


def _weather(rng: Random, language: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {"location": rng.choice(prose.lexicon(language).places)}
    if rng.random() < 0.5:
        arguments["unit"] = rng.choice(("celsius", "fahrenheit"))
    if rng.random() < 0.3:
        arguments["days"] = rng.randint(1, 7)
    return arguments


def _search(rng: Random, language: str) -> dict[str, Any]:
    words = prose.lexicon(language)
    query = words.joiner.join((rng.choice(words.adjectives), rng.choice(words.nouns), rng.choice(words.nouns)))
    return {"query": query} | ({"top_k": rng.randint(1, 9), "language": language} if rng.random() < 0.4 else {})


def _calculator(rng: Random, language: str) -> dict[str, Any]:
    a, b, c = (rng.randint(1, 10 ** rng.randint(1, 4)) for _ in range(3))
    return {"expression": rng.choice((f"{a} * {b}", f"({a} + {b}) / {c}", f"{a}*({b}-{c})**2", f"round({a} / {b}, 2)"))}


_ARGUMENTS = {
    "bash": _bash,
    "str_replace_editor": _editor,
    "submit": _submit,
    "get_weather": _weather,
    "search_docs": _search,
    "calculator": _calculator,
}


def arguments(rng: Random, name: str, language: str) -> dict[str, Any]:
    """Arguments of one call; they validate against the tool's declaration."""
    return _ARGUMENTS[name](rng, language)


def write_json(rng: Random, value: Any) -> str:
    """JSON in the model's hand: spaced in about 80 %, compact 15 %, ASCII-escaped 3 %, indented 2 %."""
    roll = rng.random()
    if roll < 0.15:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if roll < 0.18:
        return json.dumps(value)
    if roll < 0.20:
        return json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=False)


def result(rng: Random, name: str, given: dict[str, Any], language: str) -> str:
    """What the tool returned, as the text of a tool message."""
    if name == "get_weather":
        sky = rng.choice(("sunny", "cloudy", "rain", "snow", "fog"))
        return json.dumps({"location": given["location"], "temperature": rng.randint(-15, 38), "sky": sky}, ensure_ascii=False)
    if name == "search_docs":
        return prose.paragraph(rng, language, prose.templates(rng, language, "statements"), rng.randint(60, 300))
    if name == "calculator":
        return str(rng.randint(-999, 99_999) / rng.choice((1, 4, 100)))
    if name == "submit":
        return "submitted"
    if name == "str_replace_editor" and given["command"] != "view":
        return f"The file {given['path']} has been edited."
    return snippets.shell_output(rng)
