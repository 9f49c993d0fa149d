"""What happens in one conversation of the world: who asks, each assistant turn, what its tools return, what would be right.

Belongs here: the types, the split into training and held-out, the messages of a conversation. Does not belong here: text
(`families`), ids (`spelling`), judging (`judge`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from kimi_mini_workshop import toolset

HELD_OUT_SHARE = 0.1
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; `arguments` is the raw JSON text in the model's hand."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer, taken apart. `reasoning` is None in instant mode; `implicit_end`: tools start without `</think>`."""

    reasoning: str | None
    content: str
    calls: tuple[Call, ...] = ()
    implicit_end: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """An assistant turn, the tools' results behind it, and what makes an answer right (calls are judged as calls): its content
    holds every text of `wanted`, and one of `one_of` where there are any."""

    turn: Turn
    results: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Episode:
    """One conversation.

    `kind`: task type. `key`: the content that the split is made by (arguments, not phrasing). `history`: earlier messages, settled.
    `text_steps`: that many first steps are written as plain text with a fenced command, as SWE trajectories have them.
    `json_tools`: the tools are declared as compact JSON, as some servers do (docs/research/prompt-side.md#rows), not as
    TypeScript.
    """

    kind: str
    key: str
    user: str
    steps: tuple[Step, ...]
    thinking: bool = True
    tools: tuple[str, ...] = ()
    system: str | None = None
    history: tuple[Message, ...] = ()
    text_steps: int = 0
    json_tools: bool = False

    @property
    def held_out(self) -> bool:
        """Whether no training run may see this content. By a hash of kind and key, so that it never changes."""
        digest = hashlib.sha256(f"{self.kind}/{self.key}".encode()).digest()
        return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def count_calls(messages: list[Message] | tuple[Message, ...]) -> int:
    """Tool calls made so far: the number of the next one in `functions.NAME:IDX` (docs/research/tokenizers.md#4)."""
    return sum(len(message.get("tool_calls", ())) for message in messages)


def assistant_message(turn: Turn, first_call: int) -> Message:
    """The message a client replays for this turn."""
    message: Message = {"role": "assistant", "content": turn.content}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"functions.{call.name}:{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(turn.calls, first_call)
        ]
    return message


def step_messages(step: Step, first_call: int) -> list[Message]:
    """The assistant's message and the tools' messages behind it."""
    results = [
        {"role": "tool", "tool_call_id": f"functions.{call.name}:{index}", "content": text}
        for index, (call, text) in enumerate(zip(step.turn.calls, step.results, strict=False), first_call)
    ]
    return [assistant_message(step.turn, first_call), *results]


def text_messages(step: Step, command: str) -> list[Message]:
    """The same as an SWE trajectory shows it: a thought and a fenced command, then the observation as a user's message."""
    thought = (step.turn.reasoning or "").strip()
    return [
        {"role": "assistant", "content": f"{thought}\n\n```\n{command}\n```"},
        {"role": "user", "content": step.results[0]},
    ]


def opening(episode: Episode) -> list[Message]:
    """Everything in front of the first step."""
    system = [{"role": "system", "content": episode.system}] if episode.system else []
    return [*system, *episode.history, {"role": "user", "content": episode.user}]


def prompt_messages(episode: Episode, step: int) -> list[Message]:
    """The messages in front of step number `step`."""
    messages = opening(episode)
    for k, done in enumerate(episode.steps[:step]):
        if k < episode.text_steps:
            messages += text_messages(done, plain_command(done.turn.calls[0]))
        else:
            messages += step_messages(done, count_calls(messages))
    return messages


def plain_command(call: Call) -> str:
    """A call as a command line of an SWE trajectory."""
    given = json.loads(call.arguments)
    if call.name == "bash":
        return str(given["command"])
    return " ".join([call.name, *map(str, given.values())])


def declarations(episode: Episode) -> list[dict[str, Any]] | None:
    return toolset.declarations(episode.tools) or None
