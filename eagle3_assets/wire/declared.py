"""Is each called tool one that the request declares?

A name that was rebuilt from pieces, or cut on the way, is seen only against the request: 129 cuts of 42 common tool names keep the
token count of the whole name (NVIDIA Switchyard#785), so the bill does not show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3_assets.wire.fields import Fields


def declared_tools(request: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the tools in a request, wrapped in `function` or not; empty where it declares none, or none that has a name."""
    tools = request.get("tools")
    names = []
    for tool in tools if isinstance(tools, list | tuple) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name:
            names.append(name)
    return tuple(names)


def with_declared_names(fields: Fields, request: Mapping[str, Any]) -> Fields:
    """`fields`, with a problem for a call of a tool that the request does not declare. Ids of a server need no name to be known, and
    a turn that was cut may end inside one."""
    declared = declared_tools(request)
    if not declared or fields.output_ids is not None:
        return fields
    calls = fields.tool_calls
    if calls and fields.finish_reason == "length" and any(name.startswith(calls[-1].name) for name in declared):
        calls = calls[:-1]
    # a model's odd id comes back as the name too (sglang#21377): nothing was rebuilt then, and the ids are in the id
    odd = [call.name for call in calls if call.name not in declared and call.name != call.id]
    if not odd:
        return fields
    named = ", ".join(repr(name) for name in dict.fromkeys(odd))
    problem = (
        f"tool_calls: the answer calls {named}, and the request declares {', '.join(declared)}: a name lost or cut on the way?"
    )
    return replace(fields, problems=(*fields.problems, problem))
