"""The order of keys in tool arguments: did a server sort them?

Belongs here: what the keys of one call say beside the tool's own schema, what may have been changed in calls. Does not belong here: what
a provider does (`learning.py`).

Models write keys in the order in which the schema lists the properties. Where that is the alphabet's order, sorted keys say nothing and
sorting would change nothing; where it is not, one call shows what happened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.exact.search.deviations import Kind
from eagle3_assets.wire.fields import ToolCall

Schemas = Mapping[str, Mapping[str, Any]]
UNDECLARED: Mapping[
    str, Any
] = {}  # of a tool that the request does not declare: its keys have no usual order, and sorted ones are suspicious


def schemas_of(request: Mapping[str, Any]) -> Schemas:
    """{tool: its parameters' JSON schema} of a request."""
    tools = request.get("tools")
    out = {}
    for tool in tools if isinstance(tools, list | tuple) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            out[str(function["name"])] = parameters if isinstance(parameters, Mapping) else {}
    return out


def sorts_keys(call: ToolCall, schemas: Schemas) -> bool | None:
    """Whether the keys of every object of a call are sorted, where by the schema's order one would not be; None where the call says
    nothing."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    told = list(_objects(arguments, schemas.get(call.name, UNDECLARED)))
    return all(told) if told else None


def _objects(value: Any, schema: Any) -> list[bool]:
    """Of each object whose keys could show sorting, whether they are sorted."""
    declared, schema = schema is not UNDECLARED, schema if isinstance(schema, Mapping) else {}
    if isinstance(value, list):
        return [told for item in value for told in _objects(item, schema.get("items"))]
    if not isinstance(value, dict):
        return []
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    keys = list(value)
    inner = [told for key in keys for told in _objects(value[key], properties.get(key))]
    usual = [key for key in properties if key in value]
    by_schema = [*usual, *(key for key in keys if key not in properties)]
    shows = len(keys) > 1 and (keys != sorted(keys) or not declared or (bool(usual) and by_schema != sorted(keys)))
    return [*([keys == sorted(keys)] if shows else []), *inner]


def kind_of(calls: Sequence[ToolCall], schemas: Schemas) -> Kind:
    """What a server may have changed in these calls: nothing ("text"), spelling ("calls"), or also the order of keys ("keys": they are
    sorted, and by the schema would not be)."""
    if not calls:
        return "text"
    return "keys" if any(sorts_keys(call, schemas) for call in calls) else "calls"
