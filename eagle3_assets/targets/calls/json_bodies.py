"""A call as one JSON object of name and raw arguments (Hermes, Qwen 2.5 and 3).

Belongs here: that body as text. Does not belong here: where bodies stand (`bodies.py`).
"""

from __future__ import annotations

import json
import re

from eagle3_assets.targets.calls.bodies import Bodies
from eagle3_assets.targets.facts import JsonCalls
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall


class JsonBodies(Bodies):
    """The `CallForm` of JSON bodies. `read_call(call_parts(call)) == call` where the arguments have no whitespace at their ends."""

    def __init__(self, profile: Profile, tools: JsonCalls) -> None:
        super().__init__(profile, tools)
        self._tools = tools
        self._pattern = re.compile(tools.body_pattern, re.DOTALL)

    def written(self, call: ToolCall) -> str:
        return self._tools.body_format.format(name=json.dumps(call.name, ensure_ascii=False), arguments=call.arguments)

    def read_body(self, body: str) -> ToolCall | None:
        match = self._pattern.match(body)
        name = json_string(match["name"]) if match else None
        return ToolCall("", name, match["arguments"].strip()) if match and name is not None else None


def json_string(text: str) -> str | None:
    """The string that a JSON text is; None where it is no string."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
