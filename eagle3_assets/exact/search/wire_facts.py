"""What an answer and its request show on their face: plain facts by which answers of one provider are compared.

Belongs here: facts that need no tokenizer and no hypothesis. Does not belong here: what follows from them (`providers/damage.py`,
`providers/prompt_learning.py`).

A server that rewrites texts rewrites those that have something to rewrite: quotes, numbers, tables, a line break at the front. Which, nobody
can list. So the facts are dumb: each kind of character, each run of them, each kind of value in arguments.
"""

from __future__ import annotations

import json
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.exact.search.key_order import schemas_of
from eagle3_assets.wire.fields import Fields, ToolCall

Facts = frozenset[str]
AGAINST_SCHEMA = "calls: against the schema: "  # in front of such facts: they do not depend on what was asked
SYSTEM, EARLIER, TOOL_RESULTS, SEVERAL_SYSTEMS = "a system turn", "earlier turns", "tool results", "several system turns"
REQUEST_FACTS = tuple(f"request: {fact}" for fact in (SYSTEM, EARLIER, TOOL_RESULTS, SEVERAL_SYSTEMS))
_RUNS = re.compile(r"([^\w\s])\1+|[^\S\n]{2,}|[^\S\n]\n|\n{2,}")
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_LINE_STARTS = re.compile(r"^[ \t]*(\d+[.)] |[^\w\s])", re.MULTILINE)
_LONGEST = 4
# What of a text's two ends is no whitespace: how it begins and ends is the model's, and nothing that a reading undoes
FIRST, LAST = "its first character: ", "its last character: "
WORD = "word: "  # in front of a fact that is one word; only those of `word_facts` are looked for
_WORDS = re.compile(r"[^\W\d_]{2,24}")
Marks = npt.NDArray[np.uint32]
NO_WORDS: Marks = np.empty(0, dtype=np.uint32)
_JSON_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def facts_of(request: Mapping[str, Any], fields: Fields) -> Facts:
    """Of both texts together, of all calls together, and of the request."""
    text = "\n".join(part.strip() for part in (fields.reasoning, fields.content) if part)  # edges have facts of their own
    out = {f"text: {fact}" for fact in _of_text(text)}
    for name, part in (("reasoning", fields.reasoning), ("content", fields.content)):
        out |= {f"{name}: {fact}" for fact in _of_edges(part or "")}
    out |= {f"text: {fact}" for fact in _of_lines(text)}
    out |= {f"text: {fact}" for fact in _of_json(text)} if "{" in text or "[" in text else set()
    if fields.tool_calls:
        schemas = schemas_of(request)
        out |= {f"calls: {fact}" for call in fields.tool_calls for fact in _of_call(call, schemas.get(call.name, {}))}
        out |= {"calls: several"} if len(fields.tool_calls) > 1 else set()
    return frozenset(out) | request_facts(request)


def words_of(fields: Fields) -> frozenset[str]:
    """The words of both texts, in small letters."""
    return frozenset(word.lower() for part in (fields.reasoning, fields.content) if part for word in _WORDS.findall(part))


def word_marks(words: Iterable[str]) -> Marks:
    """A number for each word, in order: what a learner keeps of thousands of answers (four bytes a word). Two words with one number, one
    pair in 4 billion, are taken for one."""
    return np.unique(np.fromiter((zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words), dtype=np.uint32))


def request_facts(request: Mapping[str, Any]) -> Facts:
    """Which turns a conversation has before the answer."""
    roles = [str(message.get("role")) for message in request.get("messages") or () if isinstance(message, Mapping)]
    systems = sum(role in ("system", "developer") for role in roles)
    shown = {SYSTEM: systems > 0, SEVERAL_SYSTEMS: systems > 1, EARLIER: "assistant" in roles, TOOL_RESULTS: "tool" in roles}
    return frozenset(f"request: {fact}" for fact, holds in shown.items() if holds)


def _of_text(text: str) -> Iterator[str]:
    for char in set(text):
        if char.isascii():
            if not char.isalnum() and char not in " \n":
                yield repr(char)
        else:
            yield f"characters of category {unicodedata.category(char)}"
    if any(char.isdigit() for char in text):
        yield "digits"
    for run in {match.group()[:_LONGEST] for match in _RUNS.finditer(text)}:
        yield repr(run)


def _of_lines(text: str) -> Iterator[str]:
    """How lines begin: what marks a list, a title, a table."""
    for start in set(_LINE_STARTS.findall(text)):
        yield "a numbered line" if start[0].isdigit() else f"a line begins with {start!r}"


def _of_json(text: str) -> Iterator[str]:
    """JSON between fences, or all of a part of the text."""
    for block in (
        *(match[1] for match in _FENCED.finditer(text)),
        *(part for part in text.split("\n") if part.lstrip().startswith(("{", "["))),
    ):
        try:
            value = json.loads(block)
        except (ValueError, RecursionError):
            continue
        yield "JSON"
        if isinstance(value, dict) and len(value) > 1:
            yield "JSON with sorted keys" if list(value) == sorted(value) else "JSON with keys in another order"


def _of_edges(text: str) -> Iterator[str]:
    core = text.strip()
    if core:
        start = text.find(core)
        yield f"begins with {text[: start + (not core[0].isalnum())]!r}"
        yield f"ends with {text[start + len(core) - (not core[-1].isalnum()) :]!r}"
        yield f"{FIRST}{_kind(core[0])}"
        yield f"{LAST}{_kind(core[-1])}"


def _kind(char: str) -> str:
    """A character as a fact: itself, or that it is a letter."""
    return "a capital" if char.isupper() else "a letter" if char.isalpha() else "a digit" if char.isdigit() else repr(char)


def _of_call(call: ToolCall, schema: Any) -> Iterator[str]:
    yield from _of_text(call.arguments)
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        yield "no JSON"
        return
    yield from _of_value(arguments, schema if isinstance(schema, Mapping) else {})


def _of_value(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    told, declared = "null" if value is None else _JSON_TYPES[type(value)], schema.get("type")
    yield told
    if isinstance(declared, str) and told != declared and (told, declared) != ("integer", "number"):
        yield f"against the schema: {told} for {'number' if declared == 'integer' else declared}"
    if not value and value is not None:
        yield f"an empty or false {told}"
    if isinstance(value, str) and value.strip("-").replace(".", "", 1).isdigit():
        yield "a string that is a number"
    items = schema.get("items")
    for item in value if isinstance(value, list) else ():
        yield from _of_value(item, items if isinstance(items, Mapping) else {})
    if isinstance(value, dict):
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        if any(name not in value for name in properties):
            yield "a declared property left out"
        for name, item in value.items():
            yield from _of_value(item, properties[name] if isinstance(properties.get(name), Mapping) else {})
