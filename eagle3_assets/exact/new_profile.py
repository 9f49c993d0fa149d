"""A publisher's folder → a profile: everything measured, what is open asked, golden encodings by the publisher's own library.

Belongs here: the order of the measurements, the proof that the grammar writes what the template writes, the text of `profile.toml`, the
golden file for `tokenizer_probe`. Does not belong here: single measurements (`measure_tokenizer.py`, `measure_template.py`), asking
people and fetching files (`cli/new_profile.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact import measure_template as probes
from eagle3_assets.exact.measure_template import Measured, Question, Template
from eagle3_assets.exact.measure_tokenizer import fuzzed_texts, measure_tokenizer, stops_of
from eagle3_assets.exact.probe import EDGE_TEXTS, GOLDEN_FILE, conversations
from eagle3_assets.exact.prompt_side.render import reasoning_of, template_of
from eagle3_assets.targets.grammar import assemble
from eagle3_assets.targets.tokenizer import TEMPLATE_FILE, Profile
from eagle3_assets.targets.turn_text import TurnText, parts_of, texts_of
from eagle3_assets.targets.vocabulary_files import CONFIG_FILE, HUB_FILE
from eagle3_assets.wire.fields import ToolCall

FILES = (HUB_FILE, "tiktoken.model", CONFIG_FILE, TEMPLATE_FILE, "generation_config.json", "config.json")
GOLDEN_TEXTS = 200
# Arguments with every type of JSON, and those that every form can carry
STRINGS_ONLY = {"city": "Zürich", "note": "two words", "count": 3}
EVERY_TYPE = {**STRINGS_ONLY, "ratio": 1.5, "yes": True, "nothing": None, "list": [1, "x"], "object": {"k": "v"}}


def measure(folder: Path, name: str, models: list[str], hub: str | None = None) -> Measured:
    """Everything that the files of `folder` say of a model. Raises ExactError where they are no tokenizer that can be read."""
    out = Measured({"": {"name": name, "models": models}, "tokenizer": {"folders": [name]}})
    if hub:
        out.tables[""]["hub"] = hub
    path = template_path(folder)
    source = _source(path)
    specials = measure_tokenizer(folder, source, out)
    ends = stops_of(folder, specials)
    if not source:
        out.say("template", "kind", "none", f"the folder has neither {TEMPLATE_FILE} nor a chat_template in {CONFIG_FILE}")
        out.say("tools", "form", "none")
        out.say("reasoning", "opened_by", "never")
        out.questions.append(Question("turn.end", "There is no chat template: which control token ends a turn?", tuple(ends)))
        line = "There is no chat template: does the model think? (its prompt opens reasoning, it opens it itself, never)"
        out.questions.append(Question("reasoning.opened_by", line, ("prompt", "model", "never")))
        return out
    assert path is not None
    template = Template(path, specials)
    out.say("template", "kind", "jinja", f"{path.name}, run in jinja2's sandbox")
    if template.tried([probes.user()], generate=True) is None:
        raise ExactError(f"{path}: cannot render one user message; it is no chat template that this platform can run")
    probes.measure_end(template, ends, out)
    probes.measure_reasoning(template, out)
    probes.measure_tools(template, out)
    probes.measure_calls_end(template, ends, out)
    if "strftime_now" in source:
        line = "The template writes the date of the day: which text stands there? (the template's variable date_string)"
        out.questions.append(Question("template.variables.date_string", line))
    return out


def template_path(folder: Path) -> Path | None:
    """The file that holds the chat template of a publisher's folder."""
    return next((folder / name for name in (TEMPLATE_FILE, CONFIG_FILE) if _source(folder / name)), None)


def _source(path: Path | None) -> str:
    if path is None or not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8")
    try:
        return template_of(json.loads(text)) if path.suffix == ".json" else text
    except ValueError as error:
        raise ExactError(f"{path}: is no JSON ({error}); get the model's own file") from None


def answer(measured: Measured, question: Question, text: str) -> None:
    """Put a person's answer where it belongs."""
    *tables, key = question.key.split(".")
    table: dict[str, Any] = measured.tables.setdefault(tables[0], {})
    for inner in tables[1:]:
        table = table.setdefault(inner, {})
    table[key] = text
    measured.reasons[question.key] = "stated by a person"
    if question.key == "tools.id_format" and measured.tables["tools"]["form"] == "sections":
        pattern = re.escape(text).replace(re.escape("{name}"), "(?P<name>.+)").replace(re.escape("{index}"), r"(?P<index>\d+)")
        table["id_pattern"] = f"^{pattern}$"
    measured.questions.remove(question)


# ---------------------------------------------------------------------------------------------------- the file
def toml_of(measured: Measured) -> str:
    """The profile's text: tables in the order of the docs, each fact with its reason, open questions as TODO lines."""
    order = ("", "tokenizer", "turn", "reasoning", "tools", "template")
    lines = ["# Written by `eagle3 new-profile`: every fact was measured on the publisher's files; the reason stands above it."]
    for section in order:
        table = dict(measured.tables.get(section, {}))
        lines += ["", f"[{section}]"] if section else [""]
        asked = [question for question in measured.questions if question.key.split(".")[0] == (section or "name")]
        lines += [f"# TODO {question.key}: {question.line}" for question in asked]
        nested = {key: table.pop(key) for key in list(table) if isinstance(table[key], Mapping)}
        for key, value in table.items():
            if reason := measured.reasons.get(f"{section}.{key}"):
                lines.append(f"# {' '.join(reason.split())}")
            lines.append(f"{key} = {_toml(value)}")
        for key, inner in nested.items():
            lines += ["", f"[{section}.{key}]", *(f"{_quoted(name)} = {_toml(value)}" for name, value in inner.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """A basic string: JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---------------------------------------------------------------------------------------------------- proofs
def grammar_faults(profile: Profile) -> list[str]:
    """Where the grammar writes calls otherwise than the template does, one line each; [] without tools or a template."""
    path, form = profile.template_path, profile.facts.tools.form
    if path is None or form == "none":
        return []
    template = Template(path, profile.specials)
    as_object = profile.facts.template.kind == "jinja" and profile.facts.template.arguments == "object"
    faults = []
    for title, arguments in (("texts and whole numbers", STRINGS_ONLY), ("every type of JSON", EVERY_TYPE)):
        for count in (1,) if form == "bare_json" else (1, 2):
            raw = json.dumps(arguments, ensure_ascii=False)
            ids = [profile.tool_id(probes.NAME, k) or f"call{k}" for k in range(count)]
            region = probes.rendered_calls(template, [probes.call(dict(arguments) if as_object else raw, i) for i in ids], "")
            turn = TurnText("", "", tuple(ToolCall(i, probes.NAME, raw) for i in ids))
            parts = parts_of(profile, turn, thinking=False)
            ours = profile.decode(assemble(profile, parts)[:-1])
            if region is None or _without_end(region, profile).strip() != ours.strip():
                faults.append(
                    f"{count} call(s) with {title}: the template writes {(region or '')[-90:]!r}, the grammar {ours[-90:]!r}"
                )
            read = [(call.name, _parsed(call.arguments)) for call in texts_of(profile, parts).calls]
            if read != [(probes.NAME, arguments)] * count:
                faults.append(f"{count} call(s) with {title} are read back as {read!r:.120}")
    return faults


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _without_end(region: str, profile: Profile) -> str:
    for name in (profile.facts.turn.end, profile.facts.turn.end_after_calls):
        region = region.rstrip().removesuffix(name or "")
    return region


def golden_of(profile: Profile) -> dict[str, Any]:
    """Encodings and renderings by the publisher's own libraries (`tokenizers`, `transformers`), in the form that the probe reads. Without a
    tokenizer.json there is no independent encoder, and nothing to record."""
    from tokenizers import Tokenizer
    from transformers.utils.chat_template_utils import render_jinja_template

    if profile.ranks_path.name != HUB_FILE:
        return {"encode": [], "chat": []}
    theirs = Tokenizer.from_file(str(profile.ranks_path))

    def ids_of(text: str) -> list[int]:
        ids: list[int] = theirs.encode(text, add_special_tokens=False).ids
        return ids

    texts = [*EDGE_TEXTS, *fuzzed_texts(GOLDEN_TEXTS, tuple(profile.specials)[:8])]
    encode = []
    for text in dict.fromkeys(texts):
        case: dict[str, Any] = {"text": text, "all_special": ids_of(text)}
        if not profile.marker_pattern.search(text) and profile.doubts(text) is None:
            case["ordinary"] = case["all_special"]
        encode.append(case)
    chats: list[dict[str, Any]] = []
    facts = profile.facts
    if facts.template.kind != "jinja" or profile.template_path is None:
        return {"encode": encode, "chat": chats}
    source = _source(profile.template_path)
    config = profile.template_path.with_name(CONFIG_FILE)
    raw = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    names = {k: v.get("content") if isinstance(v, Mapping) else v for k, v in raw.items() if k.endswith("_token")}
    named = {key: value for key, value in names.items() if isinstance(value, str)}
    for title, messages, tools in conversations():
        for thinking in (True, False) if profile.instant else (True,):
            switch = {facts.template.switch: thinking} if facts.template.switch else {}
            shown = [_as_engines_show(message, facts.template.arguments == "object", profile) for message in messages]
            try:
                variables: dict[str, Any] = {**named, **facts.template.variables, **switch, "add_generation_prompt": True}
                rendered = render_jinja_template([shown], tools=[*tools] if tools else None, chat_template=source, **variables)
                text = str(rendered[0][0])
            except Exception:
                continue
            text += facts.template.generation_suffix
            kwargs = {"thinking": thinking, "add_generation_prompt": True}
            case = {
                "name": title,
                "model": profile.name,
                "messages": messages,
                "tools": tools,
                "kwargs": kwargs,
                "ids": ids_of(text),
            }
            chats.append(case)
    return {"encode": encode, "chat": chats}


def _as_engines_show(message: Mapping[str, Any], as_object: bool, profile: Profile) -> dict[str, Any]:
    """A message as an engine hands it to a template: texts, one name for reasoning."""
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(part["text"] for part in content or ())
    shown: dict[str, Any] = {**message, "content": text}
    if profile.opened_by == "never" or not reasoning_of(message):
        shown.pop("reasoning_content", None)
    if message.get("tool_calls"):
        shown["tool_calls"] = [_call(call, as_object) for call in message["tool_calls"]]
    return shown


def _call(call: Mapping[str, Any], as_object: bool) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if as_object and isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not as_object and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def write_golden(profile: Profile, folder: Path) -> Path:
    """Lay the golden file beside the ranks; a file that somebody laid there stays."""
    path = folder / GOLDEN_FILE
    if not path.is_file():
        path.write_text(json.dumps(golden_of(profile), ensure_ascii=False), encoding="utf-8")
    return path
