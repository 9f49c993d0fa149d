"""Bodies as vLLM writes them: chat, whole and streamed, errors, the small routes.

Belongs here: shapes. Does not belong here: SGLang's (`sglang_wire`), OpenRouter's (`wire`), sockets (`vllm_server`).

Checked against vLLM's source (0.30, September 2026: chat_completion/serving.py and protocol.py, generate/base/protocol.py,
serve/engine/protocol.py):
- a message has `reasoning` (`reasoning_content` is gone) and no `tool_calls` where there are none;
- `usage.completion_tokens_details.reasoning_tokens` where a reasoning parser is configured;
- a stream leaves unset fields out; prompt_token_ids stand on the first chunk, `reasoning` in deltas; an id that its parsers swallowed has
  a chunk with an empty delta only with ids or log-probabilities, or as the last one; usage (choices []) only with
  `stream_options.include_usage`, on every chunk with `continuous_usage_stats`, too;
- finish_reason of a cut answer with a parsed call: `tool_calls` in a body (vllm#58228), `length` in a stream (vllm#53270).
Chosen: no system_fingerprint; reasoning_tokens are the ids in front of `</think>`; a call's opening delta has no arguments; a cut call is
not streamed (the real parser has told a part of it by then); characters cut off at the very end are U+FFFD (vLLM tells nothing).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from openrouter_standin.engines.engine_logprobs import Entry
from openrouter_standin.openrouter.wire import SSE_DONE, sse, to_bytes
from openrouter_standin.truth.generation import Generation

VERSION = "0.30.0"
_quoted = json.encoder.encode_basestring  # type: ignore[attr-defined]  # "text" as JSON, non-ASCII as it is


# ------------------------------------------------------------------------------------------------ chat
def vllm_body(generation: Generation, entries: Sequence[Entry] | None, *, with_ids: bool) -> bytes:
    """A whole answer; with `return_token_ids` the ids stand in `prompt_token_ids` and `choices[0].token_ids`
    (docs/research/openrouter-contract.md#3.4)."""
    bent = generation.bent
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": "".join(c.arguments)}} for c in bent.calls
    ]
    message = {
        "role": "assistant",
        "content": bent.content_text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": calls} if calls else {}),
        "reasoning": bent.reasoning_text,
    }
    parsed = calls and generation.request.tool_choice != "required"
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None if entries is None else {"content": entries},
        "finish_reason": "tool_calls" if parsed else bent.finish_reason,
        "stop_reason": None,
        "token_ids": list(generation.completion_ids) if with_ids else None,
        "routed_experts": None,
    }
    usage = _usage(generation, len(generation.completion_ids))
    return to_bytes(
        {
            **_head(generation, "chat.completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {**usage, "prompt_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": list(generation.prompt_ids) if with_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def vllm_chunks(generation: Generation, entries: Sequence[Entry] | None, wants: frozenset[str]) -> Iterator[bytes]:
    """The SSE events of an answer, `[DONE]` included: one chunk for each sampled id that shows something, for every id with
    `return_token_ids` or log-probabilities. Written by hand: an encoder would repeat the head 3,500 times."""
    ids, with_ids = generation.completion_ids, "return_token_ids" in wants
    with_usage = "include_usage" in wants
    continuous = with_usage and "continuous_usage_stats" in wants

    def usage(told: int) -> str:
        return ',"usage":' + _json(_usage(generation, told)) if continuous else ""

    head = 'data: {"' + _json(_head(generation, "chat.completion.chunk"))[2:-1] + ',"choices":[{"index":0,"delta":'
    prompt = _json(list(generation.prompt_ids)) if with_ids else "null"
    opening = '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
    yield f'{head}{opening}{usage(0)},"prompt_token_ids":{prompt}}}\n\n'.encode("utf-8", "replace")
    deltas, every = _deltas(generation), with_ids or entries is not None
    for told, (token, delta) in enumerate(zip(ids, deltas, strict=True), 1):
        last = told == len(ids)
        if delta is None and not last and not every:
            continue
        logprobs = "null" if entries is None else '{"content":[' + _json(entries[told - 1]) + "]}"
        finish = f'"{generation.bent.finish_reason}","stop_reason":null' if last else "null"
        told_ids = f"[{token}]" if with_ids else "null"
        tail = f',"logprobs":{logprobs},"finish_reason":{finish},"token_ids":{told_ids}}}]{usage(told)}}}\n\n'
        yield (head + (delta or "{}") + tail).encode("utf-8", "replace")
    if with_usage:
        yield sse({**_head(generation, "chat.completion.chunk"), "choices": [], "usage": _usage(generation, len(ids))})
    yield SSE_DONE


def _deltas(generation: Generation) -> list[str | None]:
    """The delta of each sampled id, as JSON; None where it shows nothing."""
    bent, parts = generation.bent, generation.parts
    out: list[str | None] = [None] * len(generation.completion_ids)
    for at, text in enumerate(bent.reasoning):
        if text:
            out[at] = f'{{"reasoning":{_quoted(text)}}}'
    for at, text in enumerate(bent.content, parts.content_at):
        if text:
            out[at] = f'{{"content":{_quoted(text)}}}'
    for k, (call, true) in enumerate(zip(bent.calls, parts.calls, strict=True)):
        opening = {"id": call.id, "type": "function", "index": k, "function": {"name": call.name}}
        out[true.arguments_at - 1] = '{"tool_calls":[' + _json(opening) + "]}"
        for at, text in enumerate(call.arguments, true.arguments_at):
            if text:
                out[at] = f'{{"tool_calls":[{{"index":{k},"function":{{"arguments":{_quoted(text)}}}}}]}}'
    return out


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _head(generation: Generation, kind: str) -> dict[str, Any]:
    return {"id": generation.id, "object": kind, "created": generation.created, "model": generation.model}


def _usage(generation: Generation, told: int) -> dict[str, Any]:
    prompt = len(generation.prompt_ids)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + told,
        "completion_tokens": told,
        "completion_tokens_details": {"reasoning_tokens": min(told, len(generation.parts.reasoning))},
    }


# ------------------------------------------------------------------------------------------------ the rest
def vllm_error(code: int, message: str, param: str | None = None) -> dict[str, Any]:
    """vLLM's shape (serve/engine/protocol.py, ErrorResponse)."""
    kind = {404: "NotFoundError", 500: "InternalServerError"}.get(code, "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def too_long(prompt_tokens: int, max_tokens: int, longest: int) -> str:
    """renderers/params.py, _token_len_check."""
    return (
        f"This model's maximum context length is {longest} tokens. However, you requested {max_tokens} output tokens and your prompt "
        f"contains {prompt_tokens} input tokens, for a total of {prompt_tokens + max_tokens} tokens. Please reduce the length of the "
        f"input prompt or the number of requested output tokens. (parameter=input_tokens, value={prompt_tokens})"
    )


def vllm_models(model: str, created: int, longest: int) -> dict[str, Any]:
    """GET /v1/models (serve/engine/protocol.py, ModelCard)."""
    permission = {
        "id": f"modelperm-{created:032x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {"id": model, "object": "model", "created": created, "owned_by": "vllm", "root": model, "parent": None}
    return {"object": "list", "data": [{**card, "max_model_len": longest, "permission": [permission]}]}
