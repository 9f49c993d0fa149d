"""The seven tools of the world: their declarations, and the JSON that a model writes for them.

Belongs here: OpenAI tool declarations, the JSON form of arguments. Does not belong here: when a tool is called and what it returns
(`families`).
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

CODING_TOOLS = ("bash", "edit", "submit")
LOOKUP_TOOLS = ("get_weather", "get_price", "find_person", "track_parcel")


def _declare(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


DECLARATIONS: dict[str, dict[str, Any]] = {
    "get_weather": _declare("get_weather", "The weather in a city.", "city"),
    "get_price": _declare("get_price", "The price of an item.", "item"),
    "find_person": _declare("find_person", "Where a person lives.", "name"),
    "track_parcel": _declare("track_parcel", "Where a parcel is.", "code"),
    "bash": _declare("bash", "Run a command.", "command"),
    "edit": _declare("edit", "Replace text in a file.", "path", "old", "new"),
    "submit": _declare("submit", "Hand in the work.", "summary"),
}


def declarations(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [DECLARATIONS[name] for name in names]


def write_json(rng: Random, value: Any) -> str:
    """JSON in the model's hand: spaced in four of five, else compact."""
    separators = (",", ":") if rng.random() < 0.2 else (", ", ": ")
    return json.dumps(value, ensure_ascii=False, separators=separators)


def accepts(name: str, arguments: str, declared: frozenset[str]) -> bool:
    """Whether a call is one that the declared tools allow: a declared name, and a JSON object with exactly its parameters as text."""
    if name not in declared or name not in DECLARATIONS:
        return False
    try:
        given = json.loads(arguments)
    except ValueError:
        return False
    wanted = DECLARATIONS[name]["function"]["parameters"]["required"]
    return isinstance(given, dict) and sorted(given) == sorted(wanted) and all(isinstance(v, str) for v in given.values())
