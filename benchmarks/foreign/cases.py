"""One conversation with what the model answered in it: texts, ids, prompt; the model's habits at the edges of a field.

Belongs here: what the model does, before any provider touches it. Does not belong here: wire, bills.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from benchmarks.foreign import model as tokens
from benchmarks.foreign import texts
from benchmarks.foreign.model import Message, Model, Template

Share = tuple[tuple[str, float], ...]
_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
    {
        "name": "search_files",
        "description": "Search files for a pattern",
        "parameters": {
            "type": "object",
            "properties": {
                "pattern": {"type": "string"},
                "path": {"type": "string", "description": "Folder"},
                "limit": {"type": "integer"},
            },
            "required": ["pattern", "path"],
        },
    },
    {
        "name": "run_python",
        "description": "Run a Python program",
        "parameters": {
            "type": "object",
            "properties": {"timeout": {"type": "number"}, "code": {"type": "string", "description": "The program"}},
            "required": ["code"],
        },
    },
    {
        "name": "edit_file",
        "description": "Replace text in a file",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "old": {"type": "string"},
                "new": {"type": "string"},
                "all": {"type": "boolean"},
            },
            "required": ["path", "old", "new"],
        },
    },
)


Keys = Literal["mixed", "sorted", "unsorted"]


@dataclass(frozen=True)
class Manner:
    """What this model does: shares of whitespace at the edges; how often arguments are compact, in another order of keys; ids a token
    off the canonical path in texts, and how often the quote behind a compact colon is a token of its own. `keys`: the order in which the
    schemas of all tools list their keys, which the model follows."""

    reasoning_lead: Share = ((" ", 0.85), ("", 0.12), ("\n", 0.03))
    reasoning_trail: Share = (("", 0.9), ("\n", 0.06), (" ", 0.04))
    content_lead: Share = ((" ", 0.5), ("", 0.4), ("\n\n", 0.1))
    content_trail: Share = (("", 0.96), ("\n", 0.04))
    compact: float = 0.2
    other_order: float = 0.05
    off_path: float = 0.0001
    off_path_compact: float = 0.06
    keys: Keys = "mixed"

    @classmethod
    def drawn(cls, rng: Random) -> Manner:
        """Another model of the same kind, so that seeds differ in more than words."""
        space, content = rng.uniform(0.6, 0.95), rng.uniform(0.25, 0.7)
        return cls(
            reasoning_lead=((" ", space), ("", 0.98 - space), ("\n", 0.02)),
            content_lead=((" ", content), ("", 0.92 - content), ("\n\n", 0.08)),
            compact=rng.uniform(0.05, 0.4),
        )


@dataclass(frozen=True)
class Case:
    """`calls`: (name, arguments) as written; `prior`: calls of the conversation before; ids by part; `cut`: the length limit ended it."""

    request: dict[str, Any]
    thinking: bool
    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    prior: int
    reasoning_ids: tuple[int, ...]
    content_ids: tuple[int, ...]
    argument_ids: tuple[tuple[int, ...], ...]
    cut: bool = False

    def call_ids(self) -> list[str]:
        return [f"functions.{name}:{self.prior + k}" for k, (name, _) in enumerate(self.calls)]

    def completion_ids(self, model: Model) -> tuple[int, ...]:
        ids = [*self.reasoning_ids, tokens.THINK_END] if self.thinking else []
        ids += self.content_ids
        if self.calls:
            ids.append(tokens.SECTION)
            for name, arguments in zip(self.call_ids(), self.argument_ids, strict=True):
                ids += [tokens.CALL, *model.encode(name), tokens.ARGUMENT, *arguments, tokens.CALL_END]
            ids.append(tokens.SECTION_END)
        return tuple(ids if self.cut else [*ids, tokens.END])

    def prompt_ids(self, model: Model, template: Template | None = None) -> tuple[int, ...]:
        messages, tools = self.request["messages"], self.request.get("tools", ())
        return tuple(tokens.prompt_ids(model, messages, tools, thinking=self.thinking, template=template))


def drawn(shares: Share, rng: Random) -> str:
    return rng.choices([run for run, _ in shares], [share for _, share in shares])[0]


def make_case(model: Model, manner: Manner, rng: Random, *, size: int = 3) -> Case:
    """One conversation. `size`: at most so many parts a text (3: 50 to 400 tokens)."""
    kind = rng.random()
    tools = [_tool(_listed(function, manner.keys)) for function in rng.sample(_TOOLS, rng.randint(1, 3))] if kind < 0.35 else []
    messages, prior = _messages(rng, tools, in_loop=kind < 0.12)
    thinking = rng.random() > 0.05
    calls = _calls(rng, tools, manner) if tools and rng.random() < 0.7 else ()
    reasoning = _edged(texts.reasoning(rng, size), manner.reasoning_lead, manner.reasoning_trail, rng) if thinking else ""
    content = _edged(texts.answer(rng, size), manner.content_lead, manner.content_trail, rng)
    if calls:
        content = rng.choice(("", "", content, f"{drawn(manner.content_lead, rng)}{texts.sentence(rng)}"))
    request: dict[str, Any] = {"model": "moonshotai/kimi-k2.5", "messages": messages, "max_tokens": 4096, "temperature": 1.0}
    if tools:
        request["tools"] = tools
    if not thinking:
        request["reasoning"] = {"enabled": False}
    case = Case(
        request=request,
        thinking=thinking,
        reasoning=reasoning,
        content=content,
        calls=calls,
        prior=prior,
        reasoning_ids=tuple(model.off_path(model.encode(reasoning), manner.off_path, rng)),
        content_ids=tuple(model.off_path(model.encode(content), manner.off_path, rng)),
        argument_ids=tuple(_argument_ids(model, manner, arguments, rng) for _, arguments in calls),
    )
    return _cut(model, case, rng) if not calls and len(case.content_ids) > 12 and rng.random() < 0.04 else case


def _edged(text: str, lead: Share, trail: Share, rng: Random) -> str:
    return drawn(lead, rng) + text + drawn(trail, rng)


def _cut(model: Model, case: Case, rng: Random) -> Case:
    """Ended by max_tokens inside the content, where the text is whole characters."""
    for length in range(rng.randint(4, len(case.content_ids) - 1), 2, -1):
        kept = case.content_ids[:length]
        try:
            text = model.encoding.decode_bytes(kept).decode("utf-8")
        except UnicodeDecodeError:
            continue
        short = replace(case, content=text, content_ids=kept, cut=True)
        return replace(short, request={**case.request, "max_tokens": len(short.completion_ids(model))})
    return case


# ---------------------------------------------------------------------------------------------------- conversations and calls
def _listed(function: dict[str, Any], keys: Keys) -> dict[str, Any]:
    """The function with the keys of its schema in the alphabet's order, or in the opposite one."""
    if keys == "mixed":
        return function
    schema = function["parameters"]
    names = sorted(schema["properties"], reverse=keys == "unsorted")
    return {**function, "parameters": {**schema, "properties": {name: schema["properties"][name] for name in names}}}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _messages(rng: Random, tools: Sequence[Message], *, in_loop: bool) -> tuple[list[dict[str, Any]], int]:
    """(messages, calls so far)."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        messages.append(
            {"role": "system", "content": f"You are a {rng.choice(texts.ADJECTIVES)} assistant. {texts.sentence(rng)}"}
        )
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        messages += [{"role": "user", "content": texts.question(rng)}, {"role": "assistant", "content": texts.answer(rng, 2)}]
    messages.append({"role": "user", "content": texts.question(rng)})
    prior = 0
    if in_loop and tools:
        for _ in range(rng.randint(1, 2)):
            name, arguments = _call(rng, rng.choice(tools)["function"], compact=False, swapped=False)
            made = f"functions.{name}:{prior}"
            call = {"id": made, "type": "function", "function": {"name": name, "arguments": arguments}}
            thought = f" {texts.reasoning(rng, 0)}"
            messages.append({"role": "assistant", "content": "", "reasoning": thought, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": made, "content": texts.json_text(rng)})
            prior += 1
    return messages, prior


def _calls(rng: Random, tools: Sequence[Message], manner: Manner) -> tuple[tuple[str, str], ...]:
    return tuple(
        _call(
            rng, rng.choice(tools)["function"], compact=rng.random() < manner.compact, swapped=rng.random() < manner.other_order
        )
        for _ in range(rng.choice((1, 1, 1, 2)))
    )


def _call(rng: Random, function: Message, *, compact: bool, swapped: bool) -> tuple[str, str]:
    schema = function["parameters"]
    names = [name for name in schema["properties"] if name in schema["required"] or rng.random() < 0.4]
    if swapped:
        rng.shuffle(names)
    values = {name: _value(rng, name, schema["properties"][name]) for name in names}
    return function["name"], json.dumps(values, ensure_ascii=False, separators=(",", ":") if compact else None)


def _value(rng: Random, name: str, schema: Message) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] in ("integer", "number"):
        return rng.choice((1, 5, 10, rng.randrange(1000)))
    if schema["type"] == "boolean":
        return rng.random() < 0.5
    if name == "path":
        return rng.choice(
            (".", f"src/{rng.choice(texts.NOUNS)}.py", f"/home/{rng.choice(texts.NOUNS)}/{rng.choice(texts.NOUNS)}")
        )
    if name == "city":
        return rng.choice((*texts.PLACES, "東京", "北京"))
    return rng.choice(
        (texts.sentence(rng), texts.code(rng).strip("`"), rng.choice(texts.NOUNS), f"{rng.choice(texts.NOUNS)}\\s+\\d")
    )


def _argument_ids(model: Model, manner: Manner, arguments: str, rng: Random) -> tuple[int, ...]:
    """Compact arguments are sometimes sampled with the quote behind a colon as a token of its own (measured on Kimi's streams)."""
    ids = model.encode(arguments)
    joined, colon, quote = (model.ranks.get(text) for text in (b'":"', b'":', b'"'))
    if joined is None or colon is None or quote is None:
        return tuple(ids)
    out: list[int] = []
    for token in ids:
        out += [colon, quote] if token == joined and rng.random() < manner.off_path_compact else [token]
    return tuple(out)
