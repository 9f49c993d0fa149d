"""What a publisher's chat template says of a model's turns, found by rendering probes and reading them back.

Belongs here: generation prompt, end of turn, who writes the reasoning markers, the thinking switch, the way calls are written. Templates
run in jinja2's sandbox only (`render.py`). Does not belong here: the tokenizer's file (`measure_tokenizer.py`), the profile that is
written from all this (`cli/new_profile.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.render import render_with_template, template_of

# Words of the probes: no template and no vocabulary has them as they are.
ASKED, SAID, THOUGHT, RESULT = "Qzask", "Qzsay", "Qzthink", "Qzresult"
NAME, CALL_ID = "qzlookup", "qzcall7"
STRINGS = {"qzfirst": "Qzone", "qzother": "Qztwo"}
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in STRINGS}},
    },
}
# Variables that every template is given, or that say nothing of reasoning
_GIVEN = {
    "messages",
    "tools",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "loop",
    "documents",
}
_GIVEN |= {
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "builtin_tools",
    "custom_tools",
    "tools_in_user_message",
    "date_string",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What the files leave open: the key it decides, one line to ask, and the answers that are possible (() for free text)."""

    key: str
    line: str
    choices: tuple[str, ...] = ()


@dataclass(slots=True)
class Measured:
    """Tables of a profile as far as they were measured, the reason of each fact by its key, and what is left to ask."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)

    def say(self, table: str, key: str, value: Any, reason: str = "") -> None:
        self.tables.setdefault(table, {})[key] = value
        if reason:
            self.reasons[f"{table}.{key}"] = reason


class Template:
    """A publisher's template and the names of the control tokens that may stand in what it renders."""

    def __init__(self, path: Path, specials: Mapping[str, int]) -> None:
        self.path = path
        self.specials = specials
        names = sorted(map(re.escape, specials), key=len, reverse=True)
        self._names = re.compile("|".join(names)) if names else re.compile(r"(?!)")

    @property
    def source(self) -> str:
        text = self.path.read_text(encoding="utf-8")
        return template_of(json.loads(text)) if self.path.suffix == ".json" else text

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, *, generate: bool = False, **more: Any) -> str:
        """A probe's rendering; a template that writes the date of the day gets one."""
        more.setdefault("strftime_now", lambda form: "1 Jan 2026")
        return render_with_template(self.path, messages, tools, add_generation_prompt=generate, **more)

    def tried(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **more: Any) -> str | None:
        """The rendering, or None where the template refuses the conversation."""
        try:
            return self.render(messages, tools, **more)
        except ExactError:
            return None

    def names_in(self, text: str) -> list[str]:
        return self._names.findall(text)

    def variables(self) -> list[str]:
        """The names that the template reads and nobody defines, sorted."""
        from jinja2 import meta
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols, "jinja2.ext.do"])
        return sorted(meta.find_undeclared_variables(environment.parse(self.source)) - _GIVEN)


def user(text: str = ASKED) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": SAID, **more}


def call(arguments: Any, call_id: str = CALL_ID) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": NAME, "arguments": arguments}}


def result(call_id: str = CALL_ID) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": NAME, "content": RESULT}


# ---------------------------------------------------------------------------------------------------- ends
def measure_end(template: Template, ends: Sequence[str], out: Measured) -> None:
    """`turn.end`: the control token behind an answer, held against what generation_config.json stops at."""
    text = template.tried([user(), said(), user(RESULT)]) or template.tried([user(), said()]) or ""
    _, _, behind = text.partition(SAID)
    names = template.names_in(behind)
    shown = names[0] if names else None
    if shown is not None and (not ends or shown in ends):
        where = "the template writes it behind an answer" + (", generation_config.json stops at it" if ends else "")
        out.say("turn", "end", shown, where)
    elif len(ends) == 1 and shown is None:
        out.say("turn", "end", ends[0], "generation_config.json stops at it; the template shows nothing behind an answer")
    else:
        told = f"the template writes {shown or 'nothing'} behind an answer, generation_config.json stops at {', '.join(ends) or 'nothing'}"
        out.questions.append(
            Question("turn.end", f"Which control token ends a turn? ({told})", tuple(dict.fromkeys([*ends, *names])))
        )


# ---------------------------------------------------------------------------------------------------- reasoning
def measure_reasoning(template: Template, out: Measured) -> None:
    """Markers, who writes the opening one, and the variable that turns thinking off."""
    markers = _markers(template)
    bare = _generation(template, {})
    if markers is None:
        out.say("reasoning", "opened_by", "never", "no rendering shows reasoning, and no marker of it is a control token")
        return
    begin, close = markers
    switch = _switch(template, begin, close)
    on = _generation(template, {switch: True}) if switch else bare
    if begin in on and close not in on.rpartition(begin)[2]:
        opened_by, why = "prompt", f"the generation prompt ends with {on[-60:]!r}"
    elif close in on:
        out.say(
            "reasoning", "opened_by", "never", f"the generation prompt is {on[-60:]!r}: reasoning is closed, and nothing opens it"
        )
        return
    else:
        opened_by, why = "model", f"the generation prompt {on[-60:]!r} has no marker, the history shows {begin} … {close}"
    out.say("reasoning", "opened_by", opened_by, why)
    out.say("reasoning", "open", begin)
    out.say("reasoning", "close", close)
    out.say(
        "reasoning",
        "instant",
        switch is not None,
        f"{switch} = false: {_generation(template, {switch: False})[-60:]!r}" if switch else "",
    )
    if switch:
        out.say("template", "switch", switch, "tried: it changes the generation prompt or the last user turn")


def _markers(template: Template) -> tuple[str, str] | None:
    """(opening, closing) around the reasoning of a message, or by their usual names where no history shows it."""
    loop = [user(), said(reasoning_content=THOUGHT, tool_calls=[call(json.dumps(STRINGS))]), result()]
    parsed = [user(), said(reasoning_content=THOUGHT, tool_calls=[call(dict(STRINGS))]), result()]
    for messages, tools in (([user(), said(reasoning_content=THOUGHT)], None), (loop, [TOOL]), (parsed, [TOOL])):
        text = template.tried(messages, tools) or ""
        before, found, behind = text.partition(THOUGHT)
        names = template.names_in(before)[-1:], template.names_in(behind)[:1]
        if found and names[0] and names[1] and before.rstrip().endswith(names[0][0]) and behind.lstrip().startswith(names[1][0]):
            return names[0][0], names[1][0]
    usual = [(name, f"</{name[1:]}") for name in template.specials if re.fullmatch(r"<think(ing)?>", name)]
    shown = [pair for pair in usual if pair[1] in template.specials and pair[1] in template.source]
    return shown[0] if len(shown) == 1 else None


def _generation(template: Template, switches: Mapping[str, Any]) -> str:
    """What stands behind the user's text when an answer is asked for."""
    text = template.tried([user()], generate=True, **switches) or ""
    return text.rpartition(ASKED)[2]


def _switch(template: Template, begin: str, close: str) -> str | None:
    """The variable whose False closes the reasoning in the prompt, and whose True does not."""
    for name in template.variables():
        on, off = _generation(template, {name: True}), _generation(template, {name: False})
        if on != off and off.rstrip().endswith(close) and not on.rstrip().endswith(close):
            return name
    return None


# ---------------------------------------------------------------------------------------------------- tools
def measure_tools(template: Template, out: Measured) -> None:
    """The form of calls, and how the template wants their arguments."""
    region = rendered_calls(template, [call(json.dumps(STRINGS))], "")
    shown_as = "text"
    if region is None or json.dumps(json.dumps(STRINGS)) in region:  # it failed on a text, or wrote it as a JSON string
        region, shown_as = rendered_calls(template, [call(dict(STRINGS))], ""), "object"
    if region is None or NAME not in region:
        out.say("tools", "form", "none", "the template renders no calls")
        if "tool_calls" in template.source:
            line = "The template speaks of tool_calls and renders none beside a text: rows with calls are set aside; go on?"
            out.questions.append(Question("tools.form", line, ("none",)))
        return
    if shown_as == "object":
        out.say("template", "arguments", "object", "the template goes through the arguments of a call")
    arguments: Any = json.dumps(STRINGS) if shown_as == "text" else dict(STRINGS)
    two = rendered_calls(template, [call(arguments), call(arguments, "qzcall8")], "")
    names = template.names_in(region)
    end = out.tables.get("turn", {}).get("end")
    found = (
        _sections(region, names)
        or _json_bodies(region, names, two)
        or _parameters(region, names, two)
        or (_bare_json(region) if not [name for name in names if name != end] else None)
    )
    if found is None:
        out.say("tools", "form", "none", "the template renders calls in a form that no grammar of the package reads")
        line = f"Calls are written in no known form ({region.strip()[:120]!r}): rows with calls are set aside; go on?"
        out.questions.append(Question("tools.form", line, ("none",)))
        return
    for key, value in found.items():
        out.say("tools", key, value, f"rendered: {region.strip()[:100]!r}" if key == "form" else "")
    if found["form"] == "sections" and CALL_ID in region:
        line = "The template writes whatever id a call has: which does the model itself write, with {name} and {index} (of the conversation)?"
        out.questions.append(Question("tools.id_format", line))


def measure_calls_end(template: Template, ends: Sequence[str], out: Measured) -> None:
    """`turn.end_after_calls`: the control token behind a call, where generation stops at it and it is not the end of an answer."""
    end, tools = out.tables.get("turn", {}).get("end"), out.tables.get("tools", {})
    last = tools.get("section_end") or tools.get("call_end")
    if end is None or last is None:
        return
    shown_as: Any = dict(STRINGS) if out.tables.get("template", {}).get("arguments") == "object" else json.dumps(STRINGS)
    text = template.tried([user(), said(tool_calls=[call(shown_as)]), result(), said()], [TOOL]) or ""
    behind = text.partition(SAID)[2].partition(NAME)[2].rpartition(RESULT)[0].rpartition(last)[2]
    names = template.names_in(behind)
    if names and names[0] != end and names[0] in ends:
        out.say("turn", "end_after_calls", names[0], "the template writes it behind calls, generation_config.json stops at it")


def rendered_calls(template: Template, calls: list[dict[str, Any]], content: str) -> str | None:
    """The text of the calls of a last turn: what the turn has more than the same turn without calls. None where none are shown."""
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    with_calls = template.tried([user(), message], [TOOL])
    without = template.tried([user(), {"role": "assistant", "content": SAID}], [TOOL])
    if with_calls is None or without is None or SAID not in without:
        return None
    front, _, back = without.rpartition(SAID)
    if with_calls.startswith(front) and with_calls.endswith(back):
        return with_calls[len(front) : len(with_calls) - len(back)]
    start = with_calls.rpartition(ASKED)[2]
    return start if NAME in start else None


def _sections(region: str, names: list[str]) -> dict[str, Any] | None:
    if len(names) != 5 or len(set(names)) != 5:
        return None
    begin, call_begin, argument_begin, call_end, end = names
    form = re.compile(".*?" + r"(?P<a>.*?)".join(map(re.escape, (begin, call_begin))) + "(?P<head>.*?)" + re.escape(argument_begin)
                      + "(?P<arguments>.*?)" + re.escape(call_end) + "(?P<b>.*?)" + re.escape(end), re.DOTALL)  # fmt: skip
    match = form.match(region)
    if match is None or match["a"] or match["b"] or not _is_strings(match["arguments"]) or match["head"] not in (NAME, CALL_ID):
        return None
    is_name = match["head"] == NAME
    return {
        "form": "sections",
        "ends_reasoning": False,
        "section_begin": begin,
        "section_end": end,
        "call_begin": call_begin,
        "argument_begin": argument_begin,
        "call_end": call_end,
        "id_format": "{name}" if is_name else "functions.{name}:{index}",
        "id_pattern": "^(?P<name>.+)$" if is_name else r"^functions\.(?P<name>.+):(?P<index>\d+)$",
    }


def _json_bodies(region: str, names: list[str], two: str | None) -> dict[str, Any] | None:
    if len(names) < 2 or names[0] == names[1]:
        return None
    begin, end = names[0], names[1]
    body = region.partition(begin)[2].partition(end)[0]
    formats = _json_formats(body)
    separator = _separator(two, begin, end)
    if formats is None or separator is None:
        return None
    return {"form": "json", "ends_reasoning": False, "call_begin": begin, "call_end": end, "separator": separator, **formats}


def _json_formats(body: str) -> dict[str, str] | None:
    """`body_format` and `body_pattern` of a JSON object with the name in front of the arguments."""
    arguments = next((text for text in _spellings() if text in body), None)
    name = json.dumps(NAME)
    if arguments is None or not 0 <= body.find(name) < body.find(arguments):
        return None
    before, _, rest = body.partition(name)
    middle, _, behind = rest.partition(arguments)
    if not before.strip().startswith("{") or behind.strip() != "}":
        return None
    escaped = [text.replace("{", "{{").replace("}", "}}") for text in (before, middle, behind)]
    pattern = (
        r"^\s*" + re.escape(before.lstrip()) + r'(?P<name>"(?:[^"\\]|\\.)*")' + re.escape(middle) + r"(?P<arguments>.*)\}\s*$"
    )
    return {"body_format": f"{escaped[0]}{{name}}{escaped[1]}{{arguments}}{escaped[2]}", "body_pattern": pattern}


def _bare_json(region: str) -> dict[str, Any] | None:
    start, stop = region.find("{"), region.rfind("}")
    formats = _json_formats(region[start : stop + 1]) if 0 <= start < stop else None
    return {"form": "bare_json", **formats} if formats else None


def _parameters(region: str, names: list[str], two: str | None) -> dict[str, Any] | None:
    """One element a parameter: what stands around two string parameters tells head, element and tail apart."""
    if len(names) < 2:
        return None
    begin, end = names[0], names[-1]
    for candidate in names[1:]:  # the last marker of the first call, whatever ends the turn
        if candidate.startswith("</") and candidate[2:] == begin[1:]:
            end = candidate
    body = region.partition(begin)[2].partition(end)[0]
    (first, one), (other, second) = STRINGS.items()
    places = [body.find(text) for text in (NAME, first, one, other, second)]
    if -1 in places or places != sorted(places):
        return None
    between = [body[a + len(text) : b] for a, text, b in zip(places, (NAME, first, one, other), places[1:], strict=False)]
    front, middle, joint, again = between
    tail = body[places[-1] + len(second) :]
    shared = next((front[k:] for k in range(len(front)) if joint.endswith(front[k:])), "")
    before = shared[shared.rfind("<") :] if "<" in shared else shared
    behind = joint[: len(joint) - len(before)]
    separator = _separator(two, begin, end)
    if middle != again or not before or not tail.startswith(behind) or separator is None or _is_strings(body):
        return None
    head = body[: places[0]] + "{name}" + front[: len(front) - len(before)]
    return {
        "form": "parameters",
        "ends_reasoning": False,
        "call_begin": begin,
        "call_end": end,
        "separator": separator,
        "head_format": head,
        "parameter_format": f"{before}{{key}}{middle}{{value}}{behind}",
        "tail": tail[len(behind) :],
    }


def _separator(two: str | None, begin: str, end: str) -> str | None:
    """What stands between two calls; None where two calls are not two bodies."""
    if two is None or two.count(begin) != 2:
        return None
    return two.partition(end)[2].partition(begin)[0]


def _spellings() -> list[str]:
    return [
        json.dumps(STRINGS),
        json.dumps(STRINGS, separators=(",", ":")),
        json.dumps(STRINGS, indent=2),
        json.dumps(STRINGS, indent=4),
    ]


def _is_strings(text: str) -> bool:
    try:
        return bool(json.loads(text) == STRINGS)
    except ValueError:
        return False
