"""Reading a source row: the value at a column or dotted path, JSON text inside a column.

Belongs here: looking at columns. Does not belong here: what a column means (`mapping.py`, `answer_facts.py`).
"""

from __future__ import annotations

import json
from typing import Any

from eagle3_assets.prompts.set_aside import BadRow

Row = dict[str, Any]


def find(row: Any, column: str) -> Any:
    """The value at `column`: the key itself, else a dotted path; None when absent."""
    if isinstance(row, dict) and column in row:
        return row[column]
    here: Any = row
    for part in column.split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return here


def need(row: Row, column: str) -> Any:
    value = find(row, column)
    if value is None:
        raise BadRow("missing_column", f"{column!r} is missing or null; the row has {', '.join(map(str, row))}")
    return value


def from_json(value: Any, column: str) -> Any:
    """Columns hold the structure itself or its JSON text (Arrow cannot hold free-form objects)."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRow("not_json", f"column {column!r}: {error}: {value[:120]}") from None


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
