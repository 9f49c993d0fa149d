"""Which assistant turn of a conversation is asked: `turns = "last" | "first" | "chain"`.

Belongs here: cutting a conversation into history, follow-ups and the answer it already has; building turn k+1 of a chain.
Does not belong here: deciding whether the result may be sent (`screen.py`).

| policy | asked | rest |
| --- | --- | --- |
| last | the last assistant turn, the history as the source gives it (a trailing assistant message is what is asked anew) | – |
| first | the answer to the first user message | dropped |
| chain | the answer to the first user message | `follow_ups`: every later turn is asked on the model's own answers |

With backend = "import" nothing is asked: the assistant message at that place is the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle3_assets.prompts.mapping import Conversation, Message
from eagle3_assets.prompts.prompt import Given, Prompt
from eagle3_assets.prompts.set_aside import BadRow

FOR_CALL = "for_call"  # inside follow_ups only: the call that a tool result answers; `next_turn` takes it off again


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn cut out of a conversation. `own_answer` is the source's own message there (None: it has none)."""

    history: tuple[Message, ...]
    follow_ups: tuple[tuple[Message, ...], ...]
    own_answer: Message | None

    @property
    def number(self) -> int:
        """Assistant turns before this one."""
        return sum(m["role"] == "assistant" for m in self.history)


def cut_turn(conversation: Conversation, turns: Literal["last", "first", "chain"]) -> Turn:
    """Raises BadRow (`ends_wrong`) when no user message is there to answer."""
    messages = conversation.messages
    if turns == "last":
        own = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        return Turn(messages[:-1] if own else messages, (), own)
    first = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
    if first is None:
        raise BadRow("ends_wrong", "no user message")
    # several user messages in a row are one turn: the first answer stands behind the last of them
    while first + 1 < len(messages) and messages[first + 1]["role"] == "user":
        first += 1
    rest = messages[first + 1 :]
    own = rest[0] if rest and rest[0]["role"] == "assistant" else None
    return Turn(messages[: first + 1], _follow_ups(rest) if turns == "chain" else (), own)


def _follow_ups(rest: tuple[Message, ...]) -> tuple[tuple[Message, ...], ...]:
    """What stands between the source's assistant messages, each tool result marked with the call it answers."""
    groups: list[tuple[Message, ...]] = []
    group: list[Message] = []
    calls: dict[str, dict[str, Any]] = {}
    for message in rest:
        if message["role"] == "assistant":
            if group:
                groups.append(tuple(group))
            group, calls = [], {c["id"]: c["function"] for c in message.get("tool_calls", ())}
        elif message["role"] == "tool":
            group.append({**message, FOR_CALL: calls.get(message["tool_call_id"])})
        else:
            group.append(message)
    return tuple([*groups, tuple(group)] if group else groups)


def given_answer(conversation: Conversation, turn: Turn) -> Given:
    """The answer of an import. Raises BadRow (`no_answer`) when the row has neither a message nor ids."""
    message = turn.own_answer
    if message is None and not conversation.output_ids:
        raise BadRow("no_answer", "no final assistant message and no output ids")
    if message is None:  # the ids are the answer; its text follows from them
        message = {"role": "assistant", "content": ""}
    elif not (message.get("content") or message.get("reasoning_content") or message.get("tool_calls") or conversation.output_ids):
        raise BadRow("no_answer", "the final assistant message is empty")
    return Given(message, conversation.output_ids, conversation.prompt_ids, conversation.finish_reason)


# ---------------------------------------------------------------------------------------------------- chains
def next_turn(prompt: Prompt, message: dict[str, Any]) -> Prompt | None:
    """Turn k+1 of a chain: the history, the model's own `message` (an assistant message as the server returned it), what follows.

    None when the chain ends: nothing follows, or the source's tool results no longer answer the calls that the model made
    (same number, same names and equal arguments, in order; the results then carry the model's own call ids), or the model
    called tools and the source has no results.
    """
    if not prompt.follow_ups:
        return None
    calls = message.get("tool_calls") or []
    results = [m for m in prompt.follow_ups[0] if m["role"] == "tool"]
    if len(calls) != len(results) or not all(_same_call(c, r.get(FOR_CALL)) for c, r in zip(calls, results, strict=True)):
        return None
    ids = iter([c["id"] for c in calls])
    follow = tuple(_result(m, next(ids)) if m["role"] == "tool" else m for m in prompt.follow_ups[0])
    messages = (*prompt.messages, _own_message(message), *follow)
    return replace(prompt, turn=prompt.turn + 1, messages=messages, follow_ups=prompt.follow_ups[1:])


def _result(message: Message, call_id: str) -> Message:
    return {**{k: v for k, v in message.items() if k != FOR_CALL}, "tool_call_id": call_id}


def _own_message(message: dict[str, Any]) -> Message:
    """The fields of an answer that history has: content, reasoning, tool calls."""
    out: Message = {"role": "assistant", "content": message.get("content")}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        out["reasoning_content"] = reasoning
    if message.get("tool_calls"):
        keep = ("id", "type", "function")  # not `index`, which only answers have
        out["tool_calls"] = [{k: c[k] for k in keep if k in c} for c in message["tool_calls"]]
    elif out["content"] is None:
        out["content"] = ""
    return out


def _same_call(call: dict[str, Any], wanted: dict[str, Any] | None) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return False  # no shape that a server may send ends a run
    if wanted is None or not call.get("id") or function.get("name") != wanted["name"]:
        return False
    mine, theirs = function.get("arguments"), wanted["arguments"]
    try:
        return bool(mine == theirs or json.loads(str(mine)) == json.loads(str(theirs)))
    except (TypeError, ValueError):
        return False
