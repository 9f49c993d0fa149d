"""Kimi K2.5's tool declaration: JSON schemas as TypeScript text.

Belongs here: our own writing of the format (facts: docs/research/tokenizers.md#5; behaviour learned from the public encoder that
ships with the model, its golden output, and real bills). Does not belong here: where the text goes in a prompt (`render.py`).

The format: `# Tools`, a `functions` namespace, one `type NAME = (_: {…}) => any;` a function. Required keys come first, each
group by name; `$defs` become interfaces; a comment line holds description, constraints and default. Whatever the format has no
words for raises `Unwritable`, and the caller falls back to compact JSON, as the model's own tokenizer does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_INDENT = "  "
_CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_UNION_WORDS = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_ENUM_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,)}


# How the members of an object in an array are indented: one level below the array ("nested", the encoder that ships with K2.5), as if the
# array stood at the margin ("flat"), or with its closing brace at the margin only ("loose"). Moonshot's and Novita's K2-0905 bills are one
# id below "nested" in 86 of 86 rows with such an array (crush's `multiedit`); "flat" and "loose" both are, and no row tells them apart.
Arrays = Literal["nested", "flat", "loose"]


class Unwritable(ValueError):
    """A schema that the TypeScript form cannot express."""


@dataclass
class _Definitions:
    """`$defs` seen so far in one function, whether the root refers to itself, and how arrays are written."""

    known: dict[str, Any] = field(default_factory=dict)
    self_reference: bool = False
    arrays: Arrays = "nested"


def sort_keys(value: Any) -> Any:
    """Dictionaries with their keys sorted, at every depth (the model's tokenizer does this to tools before anything else)."""
    if isinstance(value, Mapping):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [sort_keys(item) for item in value]
    return value


def declare_tools(tools: Sequence[Mapping[str, Any]], *, arrays: Arrays = "nested") -> str:
    """The declaration of OpenAI-shaped `tools` ("" when none is a function). Raises Unwritable."""
    try:
        functions = [
            tool["function"] for tool in sort_keys(list(tools)) if tool.get("type") == "function" and tool.get("function")
        ]
        blocks = [_function(function, arrays) for function in functions]
    except (TypeError, AttributeError, LookupError, RecursionError) as error:
        raise Unwritable(f"not a JSON schema: {error!r}") from None
    if not blocks:
        return ""
    body = "\n".join(blocks)
    return f"# Tools\n\n## functions\nnamespace functions {{\n{body}\n}}\n"


def _function(function: Mapping[str, Any], arrays: Arrays) -> str:
    root = function.get("parameters") or {}
    seen = _Definitions(arrays=arrays)
    _collect(root, seen)
    parameters = _object(root, seen, "")
    parts = []
    if seen.self_reference:
        parts.append("interface parameters " + _braces(_keys(root, seen, "", required_first=False), ""))
        parameters = "parameters"
    for name, schema in dict(seen.known).items():
        parts.append(_comment(schema.get("description") or "", "") + f"interface {name} {_type(schema, seen, '')}")
    if function.get("description"):
        parts.append(_comment(function["description"], "").removesuffix("\n"))
    parts.append(f"type {function.get('name', 'function')} = (_: {parameters}) => any;")
    return "\n".join(part for part in parts if part)


def _collect(schema: Any, seen: _Definitions) -> None:
    """Definitions are known before anything that refers to them is written."""
    if isinstance(schema, Mapping) and schema.get("$defs"):
        seen.known.update(schema["$defs"])


def _type(schema: Any, seen: _Definitions, indent: str) -> str:
    """The TypeScript words for one schema, `indent` being that of the line it stands on."""
    if isinstance(schema, bool):
        return "any" if schema else "null"
    if "$ref" in schema:
        return _reference(schema["$ref"], seen)
    if "anyOf" in schema:
        return " | ".join([_type(option, seen, indent) for option in schema["anyOf"]])
    if "enum" in schema:
        return _enum(schema)
    if schema == {}:
        return "any"
    if "type" not in schema:
        raise Unwritable(f"a schema without type, enum, anyOf or $ref: {json.dumps(schema)[:80]}")
    kind = schema["type"]
    if isinstance(kind, list):
        return " | ".join([_UNION_WORDS[one] for one in kind])
    if kind == "object":
        return _object(schema, seen, indent)
    if kind == "array":
        return _array(schema, seen, indent)
    return "number" if kind == "integer" else str(kind)


def _reference(ref: str, seen: _Definitions) -> str:
    if ref == "#":
        seen.self_reference = True
        return "parameters"
    name = ref.rpartition("/")[2]
    if not ref.startswith("#/$defs/") or name not in seen.known:
        raise Unwritable(f"$ref {ref!r} is not a definition of this tool")
    return name


def _enum(schema: Mapping[str, Any]) -> str:
    declared = schema.get("type")
    if isinstance(declared, list):
        others = [one for one in declared if one != "null"]
        if len(declared) not in (1, 2) or (len(declared) == 2 and len(others) != 1):
            raise Unwritable(f"enum of type {declared}")
        declared = others[0] if others else "null"
    allowed = _ENUM_TYPES.get(str(declared))
    for value in schema["enum"]:
        if allowed and value is not None and not isinstance(value, allowed):
            raise Unwritable(f"enum value {value!r} is not a {declared}")
    return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"])


def _array(schema: Mapping[str, Any], seen: _Definitions, indent: str) -> str:
    if not schema.get("items"):
        return "Array<any>"
    inner = indent + _INDENT
    comment = _docstring(schema["items"], inner)
    if not comment:
        items = _type(schema["items"], seen, "" if seen.arrays == "flat" else indent)
        if seen.arrays == "loose" and items.endswith(f"\n{indent}}}"):
            items = items.removesuffix(f"{indent}}}") + "}"
        return f"Array<{items}>"
    return f"Array<\n{comment}{inner}{_type(schema['items'], seen, inner)}\n{indent}>"


def _object(schema: Mapping[str, Any], seen: _Definitions, indent: str) -> str:
    _collect(schema, seen)
    keys = _keys(schema, seen, indent, required_first=True)
    extra = schema.get("additionalProperties")
    if extra is not None:
        keys.append(f"{indent}{_INDENT}[k: string]: {_extra(extra, seen, indent + _INDENT)}")
    return _braces(keys, indent) if keys else "{}"


def _extra(extra: Any, seen: _Definitions, indent: str) -> str:
    if isinstance(extra, bool):
        return "any" if extra else "never"
    if not isinstance(extra, Mapping):
        raise Unwritable(f"additionalProperties is {extra!r}")
    return _type(extra, seen, indent)


def _braces(keys: list[str], indent: str) -> str:
    body = ",\n".join(keys)
    return f"{{\n{body}\n{indent}}}" if body else "{}"


def _keys(schema: Mapping[str, Any], seen: _Definitions, indent: str, *, required_first: bool) -> list[str]:
    if "properties" not in schema:
        return []
    properties = schema["properties"]
    required = set(schema.get("required", []))
    names = sorted(properties, key=lambda name: (name not in required, name)) if required_first else list(properties)
    return [_key(name, properties[name], name not in required, seen, indent + _INDENT) for name in names]


def _key(name: str, schema: Any, optional: bool, seen: _Definitions, indent: str) -> str:
    comment = _docstring(schema, indent)
    default = schema.get("default") if isinstance(schema, Mapping) else None
    if default is not None:
        shown = repr(default) if isinstance(default, int | float) else json.dumps(default, ensure_ascii=False)
        comment += f"{indent}// Default: {shown}\n"
    return f"{comment}{indent}{name}{'?' if optional else ''}: {_type(schema, seen, indent)}"


def _docstring(schema: Any, indent: str) -> str:
    """Comment lines in front of a key or an array item: description, then the constraints that its kind has."""
    if not isinstance(schema, Mapping):
        return ""
    out = _comment(schema.get("description") or "", indent)
    kind = schema.get("type")
    plain = not any(key in schema for key in ("$ref", "anyOf", "enum")) and isinstance(kind, str)
    names = _CONSTRAINTS.get(str(kind), ()) if plain else ()
    limits = [f"{name}: {schema[name]}" for name in names if name in schema]
    return out + (f"{indent}// {', '.join(limits)}\n" if limits else "")


def _comment(text: str, indent: str) -> str:
    """`text` as comment lines, each ending in a newline; an empty line stays empty."""
    if not text:
        return ""
    return "".join(f"{indent}// {line}\n" if line else "\n" for line in text.split("\n"))
