"""Which assistant turn of a conversation is asked: `turns = "last" | "first" | "chain" | "every"`.

Belongs here: cutting a conversation into history, follow-ups and the answers it already has; building turn k+1.
Does not belong here: deciding whether the result may be sent (`screen.py`).

| policy | asked | rest |
| --- | --- | --- |
| last | the last assistant turn, the history as the source gives it (a trailing assistant message is what is asked anew) | – |
| first | the answer to the first user message | dropped |
| chain | the answer to the first user message | `follow_ups`: every later turn is asked on the model's own answers |
| every | imports only: each assistant message is an answer, to the history before it | `follow_ups` and `given_next` |

With backend = "import" nothing is asked: the assistant message at that place is the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from eagle3_assets.prompts.mapping import Conversation, Message
from eagle3_assets.prompts.prompt import Given, Prompt
from eagle3_assets.prompts.set_aside import BadRow

SEVERAL = ("chain", "every")  # policies under which a sample has more than one turn
FOR_CALL = "for_call"  # inside follow_ups only: the call that a tool result answers; `next_turn` takes it off again


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn cut out of a conversation. `own_answer` is the source's own message there (None: it has none).

    `own_next` (turns = "every") are the source's own messages of the further turns, one each follow-up.
    """

    history: tuple[Message, ...]
    follow_ups: tuple[tuple[Message, ...], ...]
    own_answer: Message | None
    own_next: tuple[Message | None, ...] = ()

    @property
    def number(self) -> int:
        """Assistant turns before this one."""
        return sum(m["role"] == "assistant" for m in self.history)

    @property
    def own_answers(self) -> tuple[Message | None, ...]:
        return (self.own_answer, *self.own_next)

    @property
    def whole_history(self) -> tuple[Message, ...]:
        """The history of the last turn: that of the first, and every own answer with what follows it."""
        later = [m for own, group in zip(self.own_answers, self.follow_ups, strict=False) for m in (own, *group) if m is not None]
        return (*self.history, *later) if self.own_next else self.history


def cut_turn(conversation: Conversation, turns: Literal["last", "first", "chain", "every"]) -> Turn:
    """Raises BadRow (`ends_wrong`) when no user message is there to answer, `no_answer` when "every" finds no answer."""
    messages = conversation.messages
    if turns == "every":
        return _every_turn(conversation)
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


def _every_turn(conversation: Conversation) -> Turn:
    """The first assistant message, and behind it each further one. What follows the last one is nobody's history, and dropped;
    unless ids without a message answer it."""
    messages = conversation.messages
    places = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    owns: list[Message | None] = [messages[i] for i in places]
    if conversation.final.output_ids and (not places or places[-1] < len(messages) - 1):
        places.append(len(messages))
        owns.append(None)
    if not places:
        raise BadRow("no_answer", "no assistant message and no output ids")
    between = tuple(messages[a + 1 : b] for a, b in pairwise(places))
    return Turn(messages[: places[0]], between, owns[0], tuple(owns[1:]))


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


def given_answers(conversation: Conversation, turn: Turn) -> tuple[Given, ...]:
    """The answers of an import, one a turn. Raises BadRow (`no_answer`) when the row has neither a message nor ids. Of several
    answers one may be empty: its row is put out later, and the others stay."""
    given = []
    for k, message in enumerate(turn.own_answers, turn.number):
        facts = conversation.final if message is None else conversation.answers[k]
        # ids without a message are the answer; its text follows from them
        shown: Message = {"role": "assistant", "content": ""} if message is None else message
        given.append(Given(shown, facts.output_ids, facts.prompt_ids, facts.finish_reason))
    if not any(map(_says_something, given)):
        what = "the final assistant message is empty" if turn.own_answer else "no final assistant message and no output ids"
        raise BadRow("no_answer", what)
    return tuple(given)


def _says_something(given: Given) -> bool:
    message = given.message
    return bool(message.get("content") or message.get("reasoning_content") or message.get("tool_calls") or given.output_ids)


def given_turn(prompt: Prompt) -> Prompt | None:
    """The next turn of an import (turns = "every"): the source's own answer and what follows it; None behind the last."""
    if not prompt.given_next or prompt.given is None:
        return None
    return replace(
        prompt,
        turn=prompt.turn + 1,
        messages=(*prompt.messages, prompt.given.message, *prompt.follow_ups[0]),
        expected_tokens=0,  # those of the first turn are the sample's
        follow_ups=prompt.follow_ups[1:],
        given=prompt.given_next[0],
        given_next=prompt.given_next[1:],
    )


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
