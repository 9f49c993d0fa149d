"""Questions to the table of rows: filters, ranges, sorting, full text, facets, neighbours.

Belongs here: the words of a query, its SQL (values are always parameters, columns always from `columns.py`). Does not belong here: where
rows come from (`catalogue.py`).

The words, as they stand in an address: `grade=Q&grade=C1` one of these, `not.provider=X` none of these, `length.min=10`, `length.max=99`,
`id=3fa9` (first digits), `q=text` with `in=prompt|answer`, `sort=-p_exact`, `offset`, `limit`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.errors import UsageError
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.view.columns import BY_NAME, COLUMNS, FACETS

MOST_ROWS = 500
MOST_VALUES = 40  # of one facet
SNIPPET = 60  # characters on either side of what was found
_PLACES = {"": ("prompt", "answer"), "both": ("prompt", "answer"), "prompt": ("prompt",), "answer": ("answer",)}


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for. `low`, `high` are bounds that belong to the range."""

    among: dict[str, tuple[str, ...]] = field(default_factory=dict)
    without: dict[str, tuple[str, ...]] = field(default_factory=dict)
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    prefix: str = ""
    text: str = ""
    places: tuple[str, ...] = _PLACES[""]
    sort: str = ""
    descending: bool = False
    offset: int = 0
    limit: int = 100


def parse_query(words: Iterable[tuple[str, str]]) -> Query:
    """The query in an address. Raises UsageError for a word that does not exist or a value that is no number."""
    among: dict[str, list[str]] = {}
    without: dict[str, list[str]] = {}
    bounds: dict[str, dict[str, float]] = {"min": {}, "max": {}}
    plain: dict[str, str] = {}
    for name, value in words:
        column, _, bound = name.rpartition(".")
        if name in FACETS:
            among.setdefault(name, []).append(value)
        elif name.startswith("not.") and name[4:] in FACETS:
            without.setdefault(name[4:], []).append(value)
        elif bound in bounds and column in BY_NAME and BY_NAME[column].kind == "number":
            bounds[bound][column] = _number(name, value)
        elif name in ("q", "in", "id", "sort", "offset", "limit"):
            plain[name] = value
        else:
            raise UsageError(f"{name!r} is no column of the table and no word of a query; columns: {', '.join(BY_NAME)}")
    sort = plain.get("sort", "")
    if sort.removeprefix("-") not in ("", *BY_NAME):
        raise UsageError(f"sort: {sort!r} is no column of the table; it has {', '.join(BY_NAME)}")
    if plain.get("in", "") not in _PLACES:
        raise UsageError(f"in: expected prompt, answer or both, found {plain['in']!r}")
    return Query(
        {name: tuple(values) for name, values in among.items()},
        {name: tuple(values) for name, values in without.items()},
        bounds["min"],
        bounds["max"],
        prefix=plain.get("id", ""),
        text=plain.get("q", "").lower(),
        places=_PLACES[plain.get("in", "")],
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
        offset=max(0, int(_number("offset", plain.get("offset", "0")))),
        limit=min(MOST_ROWS, max(1, int(_number("limit", plain.get("limit", "100"))))),
    )


def _number(name: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UsageError(f"{name}: expected a number, found {value!r}")
    return found


# ---------------------------------------------------------------------------------------------------- SQL
def _where(query: Query, *, but: str = "") -> tuple[str, list[Any]]:
    """The condition and its parameters; `but`: leave out what is asked of this column (its facet shows what else there is)."""
    parts = ["true"]
    values: list[Any] = []
    for name, chosen in query.among.items():
        if name != but:
            parts.append(f'"{name}" IN ({", ".join("?" * len(chosen))})')
            values += chosen
    for name, chosen in query.without.items():
        parts.append(f'"{name}" NOT IN ({", ".join("?" * len(chosen))})')
        values += chosen
    for name, bound in query.low.items():
        parts.append(f'"{name}" >= ?')
        values.append(bound)
    for name, bound in query.high.items():
        parts.append(f'"{name}" <= ?')
        values.append(bound)
    if query.prefix:
        parts.append("starts_with(sample_id, ?)")
        values.append(query.prefix)
    return " AND ".join(parts), values


def _found(query: Query) -> tuple[str, list[Any]]:
    """The rows to ask: all, or those in whose text the words stand."""
    if not query.text:
        return "rows", []
    places = " OR ".join(f"contains(t.{place}, ?)" for place in query.places)
    source = f"(SELECT r.* FROM rows r JOIN (SELECT file, place FROM texts t WHERE {places}) USING (file, place))"
    return source, [query.text] * len(query.places)


def _order(query: Query) -> str:
    if not query.sort:
        return "n"
    return f'"{query.sort}" {"DESC" if query.descending else "ASC"} NULLS LAST, n'


def find(catalogue: Catalogue, query: Query) -> dict[str, Any]:
    """{total, offset, rows [{column: value}], facets {column: [[value, rows]]}}; with `text`, each row's `snippet`.

    Full text is looked for once, and everything else is asked of what was found.
    """
    source, found = _found(query)
    with catalogue.asking() as cursor:
        if query.text:
            cursor.execute(f"CREATE OR REPLACE TEMP TABLE found AS SELECT * FROM {source}", found)
            source = "found"
        where, values = _where(query)
        (total,) = cursor.execute(f"SELECT count(*) FROM {source} WHERE {where}", values).fetchall()[0]
        names = ["n", "key", "file", "place", *(column.name for column in COLUMNS)]
        listed = ", ".join(f'"{name}"' for name in names)
        order = f"ORDER BY {_order(query)} LIMIT {query.limit} OFFSET {query.offset}"
        lines = cursor.execute(f"SELECT {listed} FROM {source} WHERE {where} {order}", values).fetchall()
        facets = {}
        for name in FACETS:
            where, values = _where(query, but=name)
            counted = f'SELECT "{name}", count(*) FROM {source} WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MOST_VALUES}'
            facets[name] = [list(line) for line in cursor.execute(counted, values).fetchall()]
        rows = [dict(zip(names, line, strict=True)) for line in lines]
        if query.text:
            _add_snippets(cursor, rows, query)
    for row in rows:
        del row["file"], row["place"]
    return {"total": total, "offset": query.offset, "rows": rows, "facets": facets}


def _add_snippets(cursor: Any, rows: Sequence[dict[str, Any]], query: Query) -> None:
    """What stands around the first place where the words were found (as indexed: in lower case)."""
    for row in rows:
        texts = cursor.execute(
            "SELECT substr(prompt, greatest(1, strpos(prompt, $q) - $s), $w), strpos(prompt, $q), "
            "substr(answer, greatest(1, strpos(answer, $q) - $s), $w), strpos(answer, $q) FROM texts WHERE file = $f AND place = $p",
            {"q": query.text, "s": SNIPPET, "w": 2 * SNIPPET + len(query.text), "f": row["file"], "p": row["place"]},
        ).fetchone()
        if texts is None:
            continue
        prompt, in_prompt, answer, in_answer = texts
        first = answer if in_answer and "answer" in query.places else prompt if in_prompt else ""
        row["snippet"] = first


def neighbours(catalogue: Catalogue, key: str, query: Query) -> dict[str, str | None]:
    """{previous, next} keys around `key` in the query's rows and order; around its place by key where it is not among them."""
    source, found = _found(query)
    where, values = _where(query)
    order = _order(query)
    line = catalogue.ask(
        f"SELECT before, behind FROM (SELECT key, lag(key) OVER w AS before, lead(key) OVER w AS behind FROM {source} WHERE {where} "
        f"WINDOW w AS (ORDER BY {order})) WHERE key = ?",
        [*found, *values, key],
    )
    if line:
        return {"previous": line[0][0], "next": line[0][1]}
    sides = [
        catalogue.ask(
            f"SELECT key FROM {source} WHERE {where} AND n {sign} (SELECT min(n) FROM rows WHERE key = ?) ORDER BY n {way} LIMIT 1",
            [*found, *values, key],
        )
        for sign, way in (("<", "DESC"), (">", "ASC"))
    ]
    return {"previous": sides[0][0][0] if sides[0] else None, "next": sides[1][0][0] if sides[1] else None}
