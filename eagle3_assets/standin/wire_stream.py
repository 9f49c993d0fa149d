"""A streamed answer as OpenRouter writes it: deltas by the provider's own granularity, then the finish, then the usage.

Belongs here: SSE events of one generation. Does not belong here: whole bodies and every other shape (`wire`), when they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eagle3_assets.standin.generation import Generation
from eagle3_assets.standin.logprobs import content_of
from eagle3_assets.standin.wire import details, sse, usage_of


def _batches(pieces: Sequence[str], size: int, start: int) -> Iterator[tuple[str, int]]:
    """(text, sampled ids up to its end) of each delta; `start` sampled ids stand before the first piece."""
    for at in range(0, len(pieces), size):
        if text := "".join(pieces[at : at + size]):
            yield text, start + min(at + size, len(pieces))


def _deltas(generation: Generation) -> Iterator[tuple[dict[str, Any], int]]:
    """(delta, how many of the sampled ids have been told when it is)."""
    bent, parts, size = generation.bent, generation.parts, generation.tokens_per_delta
    role = {"role": "assistant"}
    if generation.request.show_reasoning:
        for text, told in _batches(bent.reasoning, size, 0):
            yield {"content": "", **role, "reasoning": text, "reasoning_details": details(text)}, told
    for text, told in _batches(bent.content, size, parts.content_at):
        yield {"content": text, **role}, told
    for k, (call, true) in enumerate(zip(bent.calls, parts.calls, strict=True)):
        opening = {"index": k, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield {"content": None, **role, "tool_calls": [opening]}, true.arguments_at
        for text, told in _batches(call.arguments, size, true.arguments_at):
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
        told = up_to
    finish = generation.bent.finish_reason
    yield sse(chunk({"content": "", "role": "assistant", "reasoning": None}, finish, told, ids))
    yield sse({**chunk({"content": "", "role": "assistant"}, finish, ids, ids), "usage": usage_of(generation)})
