"""Claims about what an answer shows on its face."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3_assets.exact.search.wire_facts import AGAINST_SCHEMA, facts_of, request_facts
from eagle3_assets.wire.fields import Fields, ToolCall

SCHEMA = {
    "type": "object",
    "properties": {
        "days": {"type": "integer"},
        "ratio": {"type": "number"},
        "names": {"type": "array", "items": {"type": "string"}},
    },
}
REQUEST: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
}


def shown(content: str, *arguments: str) -> set[str]:
    calls = tuple(ToolCall("functions.f:0", "f", text) for text in arguments)
    return set(facts_of(REQUEST, Fields(reasoning=None, content=content, tool_calls=calls, finish_reason="stop")))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("a “b”", "text: characters of category Pi"),
        ("**bold**", "text: '**'"),
        ("a *** b", "text: '***'"),
        ("line \nline", "text: ' \\n'"),
        ("1,000", "text: ','"),
        ('```json\n{"b": 1, "a": 2}\n```', "text: JSON with keys in another order"),
        ('{"a": 1, "b": 2}', "text: JSON with sorted keys"),
        ("\n\nHi", "content: begins with '\\n\\n'"),
        ("Hi.", "content: ends with '.'"),
    ],
)
def test_what_a_server_could_rewrite_is_a_fact(text: str, fact: str) -> None:
    assert fact in shown(text) and fact not in shown("plain words")


@pytest.mark.parametrize(
    ("arguments", "against"),
    [
        ('{"days": "5"}', "string for number"),
        ('{"ratio": "0.5"}', "string for number"),
        ('{"days": null}', "null for number"),
        ('{"names": [1]}', "integer for string"),
        ('{"names": "a"}', "string for array"),
        ('{"ratio": 5}', None),
        ('{"days": 5, "names": ["a"]}', None),
        ("no JSON", None),
    ],
)
def test_values_are_held_against_their_tools_schema(arguments: str, against: str | None) -> None:
    found = {fact.removeprefix(AGAINST_SCHEMA) for fact in shown("", arguments) if fact.startswith(AGAINST_SCHEMA)}
    assert found == ({against} if against else set())


def test_a_conversation_shows_which_turns_it_has() -> None:
    roles = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "tool")]
    assert request_facts({"messages": roles}) == {"request: a system turn", "request: earlier turns", "request: tool results"}
    assert request_facts({"messages": roles[1:2]}) == frozenset() == request_facts({})
