"""Every question a page can ask, by name: what the server answers and what an export writes down.

Belongs here: names and parameters of questions. Does not belong here: HTTP (`server.py`), files (`export.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from eagle3_assets.errors import UsageError
from eagle3_assets.view import campaign_state, compare, one_row, providers, search
from eagle3_assets.view.columns import COLUMNS
from eagle3_assets.view.library import Library

Words = Sequence[tuple[str, str]]


def answer(library: Library, name: str, words: Words) -> Any:
    """The plain JSON of a question. Raises Eagle3Error: UsageError for what does not exist."""
    question = QUESTIONS.get(name)
    if question is None:
        raise UsageError(f"there is no question {name!r}; there are {', '.join(QUESTIONS)}")
    return question(library, words)


def _word(words: Words, name: str, otherwise: str = "") -> str:
    return next((value for key, value in words if key == name), otherwise)


def _whole(words: Words, name: str) -> int:
    value = _word(words, name, "0")
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name}: expected a whole number, found {value!r}") from None


def _rest(words: Words, *names: str) -> Words:
    return [(name, value) for name, value in words if name not in ("root", *names)]


def _state(library: Library, words: Words) -> Any:
    return {**library.state(_word(words, "root")), "columns": [asdict(column) for column in COLUMNS]}


def _rows(library: Library, words: Words) -> Any:
    return search.find(library.catalogue(_word(words, "root")), search.parse_query(_rest(words)))


def _neighbours(library: Library, words: Words) -> Any:
    """Around one row: in the list that it was opened from, and among the failing rows by key."""
    catalogue, key = library.catalogue(_word(words, "root")), _word(words, "key")
    listed = search.neighbours(catalogue, key, search.parse_query(_rest(words, "key")))
    failing = search.neighbours(catalogue, key, search.parse_query([("failing", "yes")]))
    return {"list": listed, "failing": failing}


def _row(library: Library, words: Words) -> Any:
    return one_row.row_page(library.catalogue(_word(words, "root")), _word(words, "key"))


def _tokens(library: Library, words: Words) -> Any:
    return one_row.token_block(library.catalogue(_word(words, "root")), _word(words, "key"), _whole(words, "start"))


def _raw(library: Library, words: Words) -> Any:
    data = one_row.raw_bytes(library.catalogue(_word(words, "root")), _word(words, "key"), _word(words, "which"))
    return one_row.raw_window(data, _whole(words, "start"), as_hex=_word(words, "as") == "hex")


def _side(library: Library, words: Words, which: str) -> compare.Side:
    name = _word(words, which) or library.first
    return compare.Side(name, library.catalogue(name), _word(words, f"{which}.provider"))


QUESTIONS: dict[str, Callable[[Library, Words], Any]] = {
    "state": _state,
    "campaign": lambda library, words: campaign_state.campaign_page(library.catalogue(_word(words, "root"))),
    "rows": _rows,
    "neighbours": _neighbours,
    "row": _row,
    "tokens": _tokens,
    "raw": _raw,
    "providers": lambda library, words: providers.providers_page(library.catalogue(_word(words, "root"))),
    "deciding": lambda library, words: providers.deciding(
        library.catalogue(_word(words, "root")), _word(words, "provider"), _whole(words, "window")
    ),
    "compare": lambda library, words: compare.compare(_side(library, words, "left"), _side(library, words, "right")),
    "pair": lambda library, words: compare.pair_of(
        _side(library, words, "left"), _side(library, words, "right"), _word(words, "asked")
    ),
}
