"""The reference of a stand-in profiles file, from its schema: `docs/standin_keys.md`.

Belongs here: schema -> Markdown. Does not belong here: the schema (`schema`), prose (docs/standin.md).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from openrouter_standin.profiles import Profiles

_PLAIN = {str: "text", int: "integer", float: "number", bool: "true or false", Decimal: "number"}
_LONG = 8  # more options than these are told elsewhere


def markdown() -> str:
    """One section for each table of the file, one row for each key."""
    head = "Made by `eagle3 standin schema --markdown`; what they are for is told in [standin.md](standin.md)."
    told: dict[type[BaseModel], str] = {}
    sections = "".join(_section(name, table, told) for name, table in _tables("", Profiles, told))
    return f"# Keys of a stand-in profiles file\n\n{head}\n{sections}"


def _tables(name: str, table: type[BaseModel], told: dict[type[BaseModel], str]) -> Iterator[tuple[str, type[BaseModel]]]:
    """(name as in the file, table), each once and before the tables in it."""
    if name:
        told[table] = name
        yield name, table
    for key, field in table.model_fields.items():
        for inner, many in _inner(field.annotation):
            path = f"{name.strip('[]')}.{key}" if name else key
            if inner not in told:
                yield from _tables(f"[[{path}]]" if many else f"[{path}]", inner, told)


def _inner(annotation: Any, many: bool = False) -> list[tuple[type[BaseModel], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, many)]
    if get_origin(annotation) is dict:
        return []
    return [found for part in get_args(annotation) for found in _inner(part, many or get_origin(annotation) in (tuple, list))]


def _section(name: str, table: type[BaseModel], told: dict[type[BaseModel], str]) -> str:
    own = name.strip("[]")
    rows = []
    for key, field in table.model_fields.items():
        inner = _inner(field.annotation)
        if not inner and key != "sha256":
            rows.append(_row(key, field))
        elif inner and (where := told.get(inner[0][0])) and where.strip("[]") != f"{own}.{key}":
            rows.append(f"| `{key}` | as `{where}` | | {field.description or ''} |\n")
    about = " ".join((table.__doc__ or "").split())
    body = f"\n## `{name}`\n\n{about}\n"
    return body + ("\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows) if rows else "")


def _row(key: str, field: FieldInfo) -> str:
    default = (
        "required"
        if field.default is PydanticUndefined and field.default_factory is None
        else _shown(field.get_default(call_default_factory=True))
    )
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `{key}` | {_kind(field.annotation)}{_bounds(field)} | {default} | {meaning} |\n"


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict):
        return "`{ " + ", ".join(f"{k!r} = {v}" for k, v in value.items()).replace("'", '"') + " }`" if value else "`{}`"
    if isinstance(value, tuple | list):
        return "`[" + ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _kind(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f'`"{v}"`' if isinstance(v, str) else f"`{v}`" for v in parts) if len(parts) <= _LONG else "a name"
    if origin is typing.Annotated:
        return _kind(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in parts if part is not type(None)))
    if origin is dict:
        return f"table {_kind(parts[0])} -> {_kind(parts[1])}"
    if origin in (tuple, list):
        inner = [_kind(part) for part in parts if part is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in parts or origin is list else "[" + ", ".join(inner) + "]"
    return _PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(field: FieldInfo) -> str:
    out = [f"{sign} {getattr(m, name):g}" for m in field.metadata for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
           if getattr(m, name, None) is not None]  # fmt: skip
    return f" ({', '.join(out)})" if out else ""
