"""Bodies as engines write them: vLLM's chat (whole and streamed), SGLang's chat and its native `/generate`.

Belongs here: shapes. Facts: openrouter-contract 3.4 and 4.2; where that is silent, the servers' own source (autumn 2026):
- vLLM `serving_chat.py`, chat_completion_stream_generator: prompt_token_ids on the first chunk, unset fields left out, a chunk with
  an empty delta for an id that its parser swallowed when ids are asked for, `tool_calls` as the finish once a call was streamed, usage
  (choices []) only with stream_options.include_usage;
- SGLang `serving_chat.py`, _build_chat_response and `tokenizer_manager.py`, _handle_batch_output: content is never null, keys of
  meta_info, finish_reason {type, matched | length}.
Not known, and chosen here: SGLang's id fields are left out (not null) when nobody asks; its output_ids keep the end token;
its reasoning_tokens count `</think>`. Does not belong here: OpenRouter's bodies (`wire`), sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle3_assets.standin.generation import Generation
from eagle3_assets.standin.vocabulary import Vocabulary
from eagle3_assets.standin.wire import SSE_DONE, sse, to_bytes


# ------------------------------------------------------------------------------------------------ vLLM
def vllm_body(generation: Generation, *, with_ids: bool) -> bytes:
    """A vLLM answer; with `return_token_ids` the ids stand in `prompt_token_ids` and `choices[0].token_ids` (contract 3.4)."""
    bent = generation.bent
    message = {
        "role": "assistant",
        "content": bent.content_text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": "".join(c.arguments)}} for c in bent.calls
        ],
        "reasoning": bent.reasoning_text,
        "reasoning_content": bent.reasoning_text,
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": bent.finish_reason,
        "stop_reason": None,
        "token_ids": list(generation.completion_ids) if with_ids else None,
    }
    return to_bytes(
        {
            **_head(generation, "chat.completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {**_usage(generation), "prompt_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": list(generation.prompt_ids) if with_ids else None,
            "kv_transfer_params": None,
        }
    )


def vllm_chunks(generation: Generation, *, with_ids: bool, with_usage: bool) -> Iterator[bytes]:
    """The SSE events of a vLLM answer, `[DONE]` included: one chunk for each sampled id that shows something, for every id with
    `return_token_ids`."""
    head, ids = _head(generation, "chat.completion.chunk"), generation.completion_ids
    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    yield sse({**head, "choices": [opening], "prompt_token_ids": list(generation.prompt_ids) if with_ids else None})
    deltas = {told: delta for delta, told in _vllm_deltas(generation)}
    finish = (
        "tool_calls" if generation.bent.calls else generation.bent.finish_reason
    )  # vllm#53269: a cut second call says so, too
    for told, token in enumerate(ids, 1):
        last = told == len(ids)
        if told not in deltas and not last and not with_ids:
            continue
        choice: dict[str, Any] = {"index": 0, "delta": deltas.get(told, {}), "logprobs": None, "finish_reason": None}
        if last:
            choice |= {"finish_reason": finish, "stop_reason": None}
        yield sse({**head, "choices": [{**choice, "token_ids": [token] if with_ids else None}]})
    if with_usage:
        yield sse({**head, "choices": [], "usage": _usage(generation)})
    yield SSE_DONE


def _vllm_deltas(generation: Generation) -> Iterator[tuple[dict[str, Any], int]]:
    """(delta, how many of the sampled ids have been told when it is); `reasoning` under both names, as in the body."""
    bent, parts = generation.bent, generation.parts
    for told, text in enumerate(bent.reasoning, 1):
        if text:
            yield {"reasoning": text, "reasoning_content": text}, told
    for told, text in enumerate(bent.content, parts.content_at + 1):
        if text:
            yield {"content": text}, told
    for k, (call, true) in enumerate(zip(bent.calls, parts.calls, strict=True)):
        opening = {"id": call.id, "type": "function", "index": k, "function": {"name": call.name}}
        yield {"tool_calls": [opening]}, true.arguments_at
        for told, text in enumerate(call.arguments, true.arguments_at + 1):
            if text:
                yield {"tool_calls": [{"index": k, "function": {"arguments": text}}]}, told


def vllm_error(code: int, message: str) -> dict[str, Any]:
    """vLLM's shape."""
    kind = {404: "NotFoundError", 500: "InternalServerError"}.get(code, "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _head(generation: Generation, kind: str) -> dict[str, Any]:
    return {"id": generation.id, "object": kind, "created": generation.created, "model": generation.model}


def _usage(generation: Generation) -> dict[str, Any]:
    bill = generation.bill
    return {
        "prompt_tokens": bill.prompt_tokens,
        "total_tokens": bill.prompt_tokens + bill.completion_tokens,
        "completion_tokens": bill.completion_tokens,
    }


# ------------------------------------------------------------------------------------------------ SGLang
def sglang_body(generation: Generation, vocabulary: Vocabulary) -> bytes:
    """A SGLang chat answer (release 0.5.23). Ids, each where the request asks for them: `choices[0].response_token_ids` and
    `.prompt_token_ids`, `sglext.output_ids` (a list for each choice) and `.input_ids` (contract 3.4)."""
    bent, flags = generation.bent, generation.request.flags
    message = {
        "role": "assistant",
        "content": bent.content_text or "",
        "reasoning_content": bent.reasoning_text,
        "tool_calls": [
            {"id": c.id, "index": k, "type": "function", "function": {"name": c.name, "arguments": "".join(c.arguments)}}
            for k, c in enumerate(bent.calls)
        ]
        or None,
    }
    # the tool parser turns `stop` into `tool_calls` and forgets what matched; a cut answer stays `length`
    matched = vocabulary.im_end if bent.finish_reason == "stop" else None
    choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": None, "finish_reason": bent.finish_reason}
    choice["matched_stop"] = matched
    if flags & {"return_token_ids", "return_prompt_token_ids"}:
        choice["prompt_token_ids"] = list(generation.prompt_ids)
    if "return_token_ids" in flags:
        choice["response_token_ids"] = list(generation.completion_ids)
    if "return_meta_info" in flags:
        choice["meta_info"] = _meta_info(generation, vocabulary)
    usage = {**_usage(generation), "prompt_tokens_details": None, "reasoning_tokens": generation.bill.reasoning_tokens}
    extension: dict[str, Any] = {}
    if "return_input_ids_in_sglext" in flags:
        extension["input_ids"] = list(generation.prompt_ids)
    if "return_output_ids_in_sglext" in flags:
        extension["output_ids"] = [list(generation.completion_ids)]
    return to_bytes(
        {
            **_head(generation, "chat.completion"),
            "choices": [choice],
            "usage": usage,
            "metadata": {"weight_version": "default"},
            **({"sglext": extension} if extension else {}),
        }
    )


def generate_body(generation: Generation, vocabulary: Vocabulary, *, text_in_logprobs: bool) -> bytes:
    """A whole answer of SGLang's `/generate`: text without the end token, all sampled ids, meta_info."""
    meta = _meta_info(generation, vocabulary)
    sampled, request = generation.sampled, generation.request
    if request.logprobs and sampled.logprobs is not None:

        def told(token: int, logprob: float) -> list[Any]:
            return [logprob, token, vocabulary.encoding.decode([token]) if text_in_logprobs else None]

        meta["output_token_logprobs"] = [told(i, p) for i, p in zip(sampled.ids, sampled.logprobs, strict=True)]
        if request.top_logprobs:
            meta["output_top_logprobs"] = [[told(i, p) for i, p in top[: request.top_logprobs]] for top in sampled.top]
    return to_bytes({"text": vocabulary.text(sampled.ids), "output_ids": list(sampled.ids), "meta_info": meta})


def _meta_info(generation: Generation, vocabulary: Vocabulary) -> dict[str, Any]:
    ended = {"type": "stop", "matched": vocabulary.im_end}
    cut = {"type": "length", "length": len(generation.completion_ids)}
    return {
        "id": generation.id,
        "finish_reason": ended if generation.parts.ended else cut,
        "prompt_tokens": len(generation.prompt_ids),
        "weight_version": "default",
        "completion_tokens": len(generation.completion_ids),
        "cached_tokens": 0,
        "e2e_latency": round(generation.duration_s, 6),
    }


def sglang_error(code: int, message: str) -> dict[str, Any]:
    """SGLang's shape: flat."""
    kind = {404: "NotFoundError", 500: "InternalServerError"}.get(code, "BadRequestError")
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def generate_error(message: str) -> dict[str, Any]:
    """The shape of `/generate`."""
    return {"error": {"message": message}}
