"""Tool declarations as a Kimi server writes them into the prompt: TypeScript, or JSON.

Belongs here: JSON Schema -> text. Does not belong here: where the text goes (`chat`).
Facts: docs/research/tokenizers.md#5 and the behaviour of K2.5's tokenizer code (tools key-sorted recursively, then declared as
TypeScript; a schema that it cannot express makes it fall back to JSON). `strict` is not rendered
(docs/research/prompt-side.md#rows).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_STEP = "  "
# JSON Schema type -> (TypeScript name, constraints that are shown)
_SCALARS: dict[str, tuple[str, tuple[str, ...]]] = {
    "string": ("string", ("maxLength", "minLength", "pattern")),
    "number": ("number", ("maximum", "minimum")),
    "integer": ("number", ("maximum", "minimum")),
}
_UNION = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}


class _Inexpressible(ValueError):
    """The schema has no TypeScript form."""


def compact_json(tools: Sequence[Mapping[str, Any]]) -> str:
    """What the bare template renders: the tools as sent, without `strict`."""
    return json.dumps(_without_strict(tools), ensure_ascii=False, separators=(",", ":"))


def spaced_json(tools: Sequence[Mapping[str, Any]]) -> str:
    """The same as Python's JSON writes it by default, with `", "` and `": "`."""
    return json.dumps(_without_strict(tools), ensure_ascii=False)


def _without_strict(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}} if "function" in tool else dict(tool)
        for tool in tools
    ]


def typescript(tools: Sequence[Mapping[str, Any]]) -> str:
    """Kimi's own declaration, or key-sorted compact JSON where the schema has no TypeScript form; "" without function tools."""
    ordered = _sorted(list(tools))
    try:
        functions = [_function(t["function"]) for t in ordered if t.get("type") == "function" and t.get("function")]
    except (ValueError, LookupError, TypeError, AttributeError):  # _Inexpressible is a ValueError
        return compact_json(ordered)
    if not functions:
        return ""
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _sorted(value[k]) for k in sorted(value)}
    return [_sorted(v) for v in value] if isinstance(value, list) else value


def _comment(text: str, indent: str = "") -> str:
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))


def _function(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters") or {}
    definitions = dict(schema.get("$defs") or {})
    name = function.get("name", "function")
    blocks: list[str] = []
    body = _object(schema, "", definitions)
    if _refers_to_root(schema):
        fields = ",\n".join(
            _field(key, sub, key not in schema.get("required", ()), _STEP, definitions)
            for key, sub in (schema.get("properties") or {}).items()
        )
        blocks.append(f"interface parameters {{\n{fields}\n}}" if fields else "interface parameters {}")
        body = "parameters"
    for key, sub in definitions.items():
        lead = _comment(sub["description"]) + "\n" if sub.get("description") else ""
        blocks.append(f"{lead}interface {key} {_type(sub, '', definitions)}")
    if function.get("description"):
        blocks.append(_comment(function["description"]))
    return "\n".join([*blocks, f"type {name} = (_: {body}) => any;"])


def _refers_to_root(schema: Any) -> bool:
    if isinstance(schema, dict):
        return schema.get("$ref") == "#" or any(_refers_to_root(v) for v in schema.values())
    return isinstance(schema, list) and any(_refers_to_root(v) for v in schema)


def _constraints(schema: Any) -> tuple[str, ...]:
    if not isinstance(schema, dict) or "anyOf" in schema or "enum" in schema or "$ref" in schema:
        return ()
    kind = schema.get("type")
    if kind == "array":
        return ("maxItems", "minItems")
    return _SCALARS[kind][1] if isinstance(kind, str) and kind in _SCALARS else ()


def _doc(schema: Any, indent: str) -> str:
    """Description and constraints as comment lines above a field."""
    if not isinstance(schema, dict):
        return ""
    lines = [_comment(schema["description"], indent)] if schema.get("description") else []
    shown = [f"{key}: {schema[key]}" for key in _constraints(schema) if key in schema]
    if shown:
        lines.append(f"{indent}// {', '.join(shown)}")
    return "".join(line + "\n" for line in lines)


def _default(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)


def _field(key: str, schema: Any, optional: bool, indent: str, definitions: Mapping[str, Any]) -> str:
    lines = _doc(schema, indent)
    if isinstance(schema, dict) and schema.get("default") is not None:
        lines += f"{indent}// Default: {_default(schema['default'])}\n"
    return f"{lines}{indent}{key}{'?' if optional else ''}: {_type(schema, indent, definitions)}"


def _object(schema: Mapping[str, Any], indent: str, definitions: Mapping[str, Any]) -> str:
    inner = indent + _STEP
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    in_order = sorted(k for k in properties if k in required) + sorted(k for k in properties if k not in required)
    fields = [_field(k, properties[k], k not in required, inner, definitions) for k in in_order]
    more = schema.get("additionalProperties")
    if more is not None:
        kind = {True: "any", False: "never"}[more] if isinstance(more, bool) else _type(more, inner, definitions)
        fields.append(f"{inner}[k: string]: {kind}")
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"


def _type(schema: Any, indent: str, definitions: Mapping[str, Any]) -> str:
    if isinstance(schema, bool):
        return "any" if schema else "null"
    if schema == {}:
        return "any"
    if "$ref" in schema:
        return _reference(schema["$ref"], definitions)
    if "anyOf" in schema:
        return " | ".join(_type(s, indent, definitions) for s in schema["anyOf"])
    if "enum" in schema:
        return _enumeration(schema)
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_UNION[k] for k in kind)
    if kind == "object":
        return _object(schema, indent, definitions)
    if kind == "array":
        return _array(schema, indent, definitions)
    if not isinstance(kind, str):
        raise _Inexpressible(f"no type in {schema}")
    return _SCALARS[kind][0] if kind in _SCALARS else kind


def _array(schema: Mapping[str, Any], indent: str, definitions: Mapping[str, Any]) -> str:
    item = schema.get("items") or {}
    inner = indent + _STEP
    doc = _doc(item, inner)
    if not doc:
        return f"Array<{_type(item, indent, definitions)}>"
    return f"Array<\n{doc}{inner}{_type(item, inner, definitions)}\n{indent}>"


def _reference(ref: str, definitions: Mapping[str, Any]) -> str:
    if ref == "#":
        return "parameters"
    name = ref.rsplit("/", 1)[-1]
    if not ref.startswith("#/$defs/") or name not in definitions:
        raise _Inexpressible(f"reference {ref}")
    return name


# what an enum's members must be, by declared type; bool counts as int, as in Python
_MEMBERS: dict[str, type | tuple[type, ...]] = {"string": str, "number": (int, float), "integer": int, "boolean": bool}


def _enumeration(schema: Mapping[str, Any]) -> str:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if (len(kinds) == 2 and "null" not in kinds) or len(kinds) > 2:
        raise _Inexpressible(f"enum of {kinds}")
    kind = next((k for k in kinds if k != "null"), None)
    for value in schema["enum"]:
        if value is not None and kind in _MEMBERS and not isinstance(value, _MEMBERS[kind]):
            raise _Inexpressible(f"{value!r} is no {kind}")
    return " | ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in schema["enum"])
