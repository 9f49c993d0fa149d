"""What a provider sends of an answer: texts, calls, counts; as a body of the chat completion API. Truth stays beside it.

Belongs here: the one shape that all habits and mechanisms change. Does not belong here: the changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.foreign.cases import Case
from benchmarks.foreign.model import Model

DAY = 1_764_000_000.0  # an arbitrary moment: the first answer of every log


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Sent:
    """`billed_*` as the provider says; `prompt_ids`, `completion_ids` the truth."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]
    finish: str
    billed_prompt: int
    billed_completion: int
    billed_reasoning: int | None
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True)
class Scene:
    """What a mechanism may look at: the case, the model's tokens, a generator of its own, when the answer came."""

    case: Case
    model: Model
    rng: Random
    at: float


def verbatim(scene: Scene) -> Sent:
    """Text as the model wrote it, every id billed."""
    case = scene.case
    prompt, completion = case.prompt_ids(scene.model), case.completion_ids(scene.model)
    calls = tuple(Call(made, *call) for made, call in zip(case.call_ids(), case.calls, strict=True))
    finish = "length" if case.cut else "tool_calls" if case.calls else "stop"
    return Sent(case.reasoning, case.content, calls, finish, len(prompt), len(completion), None, prompt, completion)


def body_of(sent: Sent, *, provider: str, number: int, at: float, with_ids: bool = False) -> dict[str, Any]:
    """The response body."""
    message: dict[str, Any] = {"role": "assistant", "reasoning": sent.reasoning or None, "content": sent.content or None}
    if sent.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "index": k, "function": {"name": call.name, "arguments": call.arguments}}
            for k, call in enumerate(sent.calls)
        ]
    usage: dict[str, Any] = {"prompt_tokens": sent.billed_prompt, "completion_tokens": sent.billed_completion}
    usage["total_tokens"] = sent.billed_prompt + sent.billed_completion
    if sent.billed_reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": sent.billed_reasoning}
    choice: dict[str, Any] = {"index": 0, "finish_reason": sent.finish, "message": message}
    body: dict[str, Any] = {"id": f"gen-{provider}-{number}", "object": "chat.completion", "created": int(at)}
    body |= {"model": "moonshotai/kimi-k2.5", "provider": provider, "choices": [choice], "usage": usage}
    if with_ids:
        choice["token_ids"] = list(sent.completion_ids)
        body["prompt_token_ids"] = list(sent.prompt_ids)
    return body
