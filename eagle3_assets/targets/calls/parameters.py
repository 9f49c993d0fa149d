"""A call as a name and one element a parameter (Qwen3-Coder's XML, GLM-4.5 and later): strings stand as they are, the rest as JSON.

Belongs here: that body, whose inner markers may be control tokens (GLM) or plain text (Qwen3-Coder). Does not belong here: where bodies
stand (`bodies.py`).

A server parses such a body and returns JSON: which way a value that is no string was spelled is lost (`True` or `true`, spaces inside a
list, "5" or 5 where the tool's schema says string), and both spellings often have the same count. `doubt` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.calls.bodies import Bodies
from eagle3_assets.targets.facts import ParameterCalls
from eagle3_assets.targets.grammar import Encode, Ids
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,15})")


class ParameterBodies(Bodies):
    """The `CallForm` of parameters. `read_call(call_parts(call))` gives the same name and equal JSON; values that look like JSON and are
    no strings come back as JSON, whatever the schema says."""

    def __init__(self, profile: Profile, tools: ParameterCalls) -> None:
        super().__init__(profile, tools)
        self._tools = tools
        self.inner = tuple(name for name in profile.specials if name in tools.head_format + tools.parameter_format + tools.tail)
        self._head = re.compile(_as_pattern(tools.head_format, name=r"[^\n<>]+?"), re.DOTALL)
        self._parameter = re.compile(_as_pattern(tools.parameter_format, key=r"[^\n<>]+?", value=r".*?"), re.DOTALL)
        self._markers_inside = re.compile("(" + "|".join(map(re.escape, self.inner)) + ")") if self.inner else None

    def body_ids(self, call: ToolCall, encode: Encode) -> Ids:
        ids: list[int] = []
        text = ""
        for piece, is_frame in self._pieces(call):
            if not is_frame or self._markers_inside is None:
                text += piece
                continue
            for k, part in enumerate(self._markers_inside.split(piece)):
                if k % 2:
                    ids += [*encode(text), self._profile.special(part)]
                    text = ""
                else:
                    text += part
        return (*ids, *encode(text))

    def written(self, call: ToolCall) -> str:
        return "".join(piece for piece, _ in self._pieces(call))

    def _pieces(self, call: ToolCall) -> Iterator[tuple[str, bool]]:
        """The body's texts in order, and whether the form wrote them (then markers in them are markers)."""
        tools = self._tools
        yield tools.head_format.format(name=call.name), True
        before, _, rest = tools.parameter_format.partition("{key}")
        middle, _, behind = rest.partition("{value}")
        for key, raw in raw_members(call.arguments):
            text = json_text(raw)
            yield before, True
            yield key, False
            yield middle, True
            yield raw if text is None else text, False
            yield behind, True
        yield tools.tail, True

    def read_body(self, body: str) -> ToolCall | None:
        head = self._head.match(body)
        if head is None:
            return None
        values: list[str] = []
        at = head.end()
        while match := self._parameter.match(body, at):
            value = match["value"]
            written = value if _is_json(value) else json.dumps(value, ensure_ascii=False)
            values.append(f"{json.dumps(match['key'], ensure_ascii=False)}: {written}")
            at = match.end()
        return ToolCall("", head["name"], "{" + ", ".join(values) + "}") if body[at:] == self._tools.tail else None

    def doubt(self, call: ToolCall) -> str | None:
        try:
            members = raw_members(call.arguments)
        except ExactError:
            return f"the arguments of {call.name!r} are no JSON object, and the model writes parameters"
        for key, raw in members:
            text = json_text(raw)
            if text is None and not _INTEGER.fullmatch(raw):
                return (
                    f"the parameter {key!r} of {call.name!r} is neither text nor a whole number: its spelling is lost on the way"
                )
            if text is not None and text != text.strip("\n"):
                return f"the parameter {key!r} of {call.name!r} has line breaks at its edges, which parsers add and take away"
        return None


def _as_pattern(form: str, **groups: str) -> str:
    """A format as a regular expression whose fields are named groups."""
    pattern = re.escape(form)
    for name, inside in groups.items():
        pattern = pattern.replace(re.escape("{" + name + "}"), f"(?P<{name}>{inside})")
    return pattern


_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")


def raw_members(arguments: str) -> list[tuple[str, str]]:
    """(key, the value's own JSON text) of an object, in its order. Raises ExactError for what is no JSON object."""
    out: list[tuple[str, str]] = []
    try:
        at = _skip(arguments, _expect(arguments, _skip(arguments, 0), "{"))
        if arguments[at : at + 1] == "}":
            at += 1
        else:
            while True:
                key, at = _DECODER.raw_decode(arguments, at)
                if not isinstance(key, str):
                    raise ValueError("a key is no string")
                start = _skip(arguments, _expect(arguments, _skip(arguments, at), ":"))
                _, at = _DECODER.raw_decode(arguments, start)
                out.append((key, arguments[start:at]))
                at = _skip(arguments, at)
                if arguments[at : at + 1] == "}":
                    at += 1
                    break
                at = _skip(arguments, _expect(arguments, at, ","))
        if _skip(arguments, at) != len(arguments):
            raise ValueError("something follows the object")
    except (ValueError, RecursionError) as error:
        raise ExactError(
            f"arguments {arguments[:40]!r} are no JSON object ({error}): they cannot be written as parameters"
        ) from None
    return out


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, char: str) -> int:
    if text[at : at + 1] != char:
        raise ValueError(f"expected {char!r} at character {at}")
    return at + 1


def json_text(raw: str) -> str | None:
    """The string that a JSON value is; None for a value of another type."""
    value = json.loads(raw) if raw.startswith('"') else None
    return value if isinstance(value, str) else None


def _is_json(value: str) -> bool:
    """Whether a parameter's text is a JSON value that is no string."""
    try:
        return not isinstance(json.loads(value), str)
    except (ValueError, RecursionError):
        return False
