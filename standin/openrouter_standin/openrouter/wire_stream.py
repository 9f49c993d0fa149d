"""A streamed answer as OpenRouter writes it: deltas by the provider's own granularity, then the finish, then the usage.

Belongs here: SSE events of one generation. Does not belong here: whole bodies and every other shape (`wire`), when they are sent, how
a run of ids is cut (`bend_deltas`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from openrouter_standin.answers.logprobs import content_of
from openrouter_standin.bending.bend import Bent
from openrouter_standin.openrouter.wire import details, sse, usage_of
from openrouter_standin.truth.generation import Generation


def _batches(bent: Bent, run: str, pieces: Sequence[str], start: int) -> Iterator[tuple[str, int]]:
    """(text, sampled ids up to its end) of each delta; `start` sampled ids stand before the first piece."""
    for begin, end in bent.deltas.spans(run, len(pieces)):
        if text := "".join(pieces[begin:end]):
            yield text, start + end


def _deltas(generation: Generation) -> Iterator[tuple[dict[str, Any], int]]:
    """(delta, how many of the sampled ids have been told when it is)."""
    bent = generation.bent
    role = {"role": "assistant"}
    if generation.request.show_reasoning:
        for text, told in _batches(bent, "reasoning", bent.reasoning, 0):
            yield {"content": "", **role, "reasoning": text, "reasoning_details": details(text)}, told
    for text, told in _batches(bent, "content", bent.content, bent.content_at):
        yield {"content": text, **role}, told
    if bent.no_content and not any(bent.content):
        yield {"content": bent.no_content, **role}, bent.content_at + len(bent.content)
    for k, call in enumerate(bent.calls):
        opening = {"index": k, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield {"content": None, **role, "tool_calls": [opening]}, call.arguments_at
        for text, told in _batches(bent, f"arguments:{k}", call.arguments, call.arguments_at):
            yield {"content": None, **role, "tool_calls": [{"index": k, "function": {"arguments": text}}]}, told


def stream_chunks(generation: Generation) -> Iterator[bytes]:
    """The SSE events of an answer, comments and `[DONE]` left out. The usage chunk repeats the finish with an empty delta, as
    recorded (the docs say: empty choices). Where log-probabilities are served each chunk has those of its ids."""
    head = {
        "id": generation.id,
        "object": "chat.completion.chunk",
        "created": generation.created,
        "model": generation.model,
        "provider": generation.provider,
    }

    entries, ids = generation.logprobs, len(generation.completion_ids)

    def chunk(delta: dict[str, Any], finish: str | None, first: int, last: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish, "native_finish_reason": finish}
        if entries is not None:
            choice["logprobs"] = content_of(entries[first:last])
        return {**head, "choices": [choice]}

    told = 0
    for delta, up_to in _deltas(generation):
        yield sse(chunk(delta, None, told, up_to))
        told = max(told, up_to)
    finish = generation.bent.finish_reason
    yield sse(chunk({"content": "", "role": "assistant", "reasoning": None}, finish, told, ids))
    yield sse({**chunk({"content": "", "role": "assistant"}, finish, ids, ids), "usage": usage_of(generation)})
