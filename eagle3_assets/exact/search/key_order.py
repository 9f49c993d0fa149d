"""The order of keys in tool arguments: did a server sort them?

Belongs here: what the keys of one call say beside the tool's own schema, what may have been changed in calls. Does not belong here: what
a provider does (`learning.py`).

Models often write keys in the order in which the schema lists the properties, but not always: where that is the alphabet's order, 175 of
309 recorded calls of Kimi K2 and K2.5 with two keys and more have it. So calls are told apart by what their schema says: where it lists
the keys otherwise, one call with sorted keys shows much; where it lists them sorted, many say something beside the model's own habit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


class KeyOrder(NamedTuple):
    """Of a call with two keys and more in an object: whether its schema lists them all in the alphabet's order, and whether they came
    so; `of`: the tool and its keys, whose order is one habit of the model."""

    listed: bool
    is_sorted: bool
    of: str = ""

    @property
    def kind(self) -> Kind:
        return "listed" if self.listed else "keys"


def key_order(call: ToolCall, schemas: Schemas) -> KeyOrder | None:
    """None where no object of the call has two keys, and for what is no JSON."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    told = list(_objects(arguments, schemas.get(call.name, UNDECLARED)))
    if not told:
        return None
    named = f"{call.name}({','.join(sorted(arguments))})" if isinstance(arguments, dict) else call.name
    return KeyOrder(all(one.listed for one in told), all(one.is_sorted for one in told), named)


def _objects(value: Any, schema: Any) -> list[KeyOrder]:
    """The order of keys in each object with two and more."""
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
    listed = declared and by_schema == sorted(keys)
    return [*([KeyOrder(listed, keys == sorted(keys))] if len(keys) > 1 else []), *inner]


def orders_of(calls: Sequence[ToolCall], schemas: Schemas) -> tuple[KeyOrder, ...]:
    """Of each call that has an order of keys."""
    return tuple(order for call in calls if (order := key_order(call, schemas)) is not None)


def sorted_anew(orders: Sequence[KeyOrder], natural: Mapping[str, Any]) -> float:
    """P(a server that sorts keys changed one of these calls): the model had not sorted them itself. `natural`: how often it does, by kind
    of call, and by tool and keys where they were seen elsewhere (`by_call`)."""
    own = 1.0
    for order in orders:
        if order.is_sorted:
            own *= float((natural.get("by_call") or {}).get(order.of, natural.get(order.kind, 0.5)))
    return 1.0 - own


def kind_of(calls: Sequence[ToolCall], schemas: Schemas) -> Kind:
    """What a server may have changed in these calls: nothing ("text"), spelling ("calls"), or also the order of keys ("keys": they are
    sorted, and by the schema would not be; "listed": they are sorted, and so are they in the schema)."""
    if not calls:
        return "text"
    told = [order for order in orders_of(calls, schemas) if order.is_sorted]
    return "calls" if not told else "listed" if all(order.listed for order in told) else "keys"
