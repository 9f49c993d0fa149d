"""Bodies as SGLang writes them: chat, whole and streamed, `/generate`, errors, the small routes.

Belongs here: shapes. Does not belong here: vLLM's (`vllm_wire`), OpenRouter's (`wire`), sockets (`sglang_server`).

Checked against SGLang's source (between 0.5.21 and 0.5.23, autumn 2026: openai/serving_chat.py, sse_utils.py, protocol.py,
usage_processor.py, tokenizer_manager.py `_handle_batch_output`, function_call/kimik2_detector.py) and bodies that its documentation
shows (May 2026):
- content is never null; id fields are left out, not null, when nobody asks; a parsed call turns `stop` into `tool_calls` and forgets
  what matched, in `meta_info` too; in a stream the finish chunk says what matched all the same;
- a stream has two ways to write a chunk: short (`reasoning_content` always there, other unset fields left out) and full (every field of
  the delta, `usage` null), the latter for all that passes the tool parser; log-probabilities stand on the first short chunk of an id, or
  on one of their own; the parser tells a call's name when its arguments begin, and the arguments one id later;
- `sglext` with the ids is a chunk of its own (choices []) behind the finish, usage (choices []) behind that; with `x-sglext-ids-framed` it
  is an event named sglext_ids;
- `output_ids` keep the end token, `text` does not; reasoning_tokens count up to and with `</think>`, all ids where there is none, and
  only where reasoning is required (on /generate: `require_reasoning`);
- /generate streams text, ids and log-probabilities from the beginning again in each event (an engine flag that this stand-in does not
  have would send increments), finish_reason null until the last;
- bytes of an unfinished character are held back, at the end they are U+FFFD (detokenizer_manager.py).
Chosen: `input_token_logprobs` is empty (nothing but logprob_start_len -1 is served); no `weight_versions`; cached_tokens 0; text in front
of an unfinished character in the same id is not held back to the last space; whitespace around arguments stays; a cut call is not told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from openrouter_standin.engines.engine_logprobs import Entry, Triple
from openrouter_standin.openrouter.wire import SSE_DONE, sse, to_bytes
from openrouter_standin.truth.generation import Generation
from openrouter_standin.vocabulary import Vocabulary

VERSION = "0.5.23"
WEIGHTS = "default"  # weight_version of a server that nobody told another one
_quoted = json.encoder.encode_basestring  # type: ignore[attr-defined]  # "text" as JSON, non-ASCII as it is
Triples = tuple[list[Triple], list[list[Triple]]]


# ------------------------------------------------------------------------------------------------ chat
def sglang_body(
    generation: Generation,
    vocabulary: Vocabulary,
    wants: frozenset[str],
    entries: Sequence[Entry] | None,
    triples: Triples | None,
) -> bytes:
    """A whole answer. Ids, each where the request asks for them: `choices[0].response_token_ids` and `.prompt_token_ids`,
    `sglext.output_ids` (a list for each choice) and `.input_ids` (docs/research/openrouter-contract.md#3.4)."""
    bent, reasoning = generation.bent, _reasoning(generation, vocabulary, generation.request.thinking)
    calls = [_call(c.id, k, c.name, "".join(c.arguments)) for k, c in enumerate(bent.calls)]
    message = {
        "role": "assistant",
        "content": bent.content_text or "",
        "reasoning_content": bent.reasoning_text,
        "tool_calls": calls or None,
    }
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": None if entries is None else {"content": entries},
        "finish_reason": bent.finish_reason,
        "matched_stop": vocabulary.im_end if bent.finish_reason == "stop" else None,
    }
    if wants & {"return_token_ids", "return_prompt_token_ids"}:
        choice["prompt_token_ids"] = list(generation.prompt_ids)
    if "return_token_ids" in wants:
        choice["response_token_ids"] = list(generation.completion_ids)
    if "return_meta_info" in wants:
        choice["meta_info"] = meta_info(generation, vocabulary, thinking=generation.request.thinking, triples=triples)
        if bent.finish_reason == "tool_calls":
            choice["meta_info"]["finish_reason"] = {"type": "tool_calls", "matched": None}
    return to_bytes(
        {
            **_head(generation, "chat.completion"),
            "choices": [choice],
            "usage": _usage(generation, len(generation.completion_ids), reasoning),
            "metadata": {"weight_version": WEIGHTS},
            **_extension(generation, wants),
        }
    )


def sglang_chunks(
    generation: Generation, vocabulary: Vocabulary, wants: frozenset[str], entries: Sequence[Entry] | None
) -> Iterator[bytes]:
    """The SSE events of a chat answer, `[DONE]` included. Written by hand: an encoder would repeat the head 3,500 times."""
    ids, continuous = generation.completion_ids, "continuous_usage_stats" in wants
    reasoning = _reasoning(generation, vocabulary, generation.request.thinking)
    head = 'data: {"' + _json(_head(generation, "chat.completion.chunk"))[2:-1] + ',"choices":[{"index":0,"delta":'

    def chunk(delta: str, *, full: bool = False, told: int = 0, logprobs: str = "null", ending: str = "null") -> bytes:
        usage = ',"usage":' + _json(_usage(generation, told, reasoning)) if continuous and told else ',"usage":null' * full
        end = ending if ending != "null" else 'null,"matched_stop":null'
        return f'{head}{delta},"logprobs":{logprobs},"finish_reason":{end}}}]{usage}}}\n\n'.encode("utf-8", "replace")

    yield chunk('{"reasoning_content":null,"role":"assistant","content":""}')
    for told, shown in enumerate(_shown(generation), 1):
        logprobs = "null" if entries is None else '{"content":[' + _json(entries[told - 1]) + "]}"
        for delta, full in shown:
            yield chunk(delta, full=full, told=told, logprobs="null" if full else logprobs)
            logprobs = logprobs if full else "null"
        if logprobs != "null":
            yield chunk('{"reasoning_content":null}', told=told, logprobs=logprobs)
    matched = vocabulary.im_end if generation.parts.ended else "null"
    yield chunk('{"reasoning_content":null}', ending=f'"{generation.bent.finish_reason}","matched_stop":{matched}')
    bare = {**_head(generation, "chat.completion.chunk"), "choices": []}
    if extension := _extension(generation, wants):
        yield (b"event: sglext_ids\n" if "ids_framed" in wants else b"") + sse({**bare, "usage": None, **extension})
    if "include_usage" in wants:
        yield sse({**bare, "usage": _usage(generation, len(ids), reasoning)})
    yield SSE_DONE


def _shown(generation: Generation) -> list[list[tuple[str, bool]]]:
    """(delta as JSON, written in full) of each sampled id."""
    bent, parts, request = generation.bent, generation.parts, generation.request
    out: list[list[tuple[str, bool]]] = [[] for _ in generation.completion_ids]
    for at, text in enumerate(bent.reasoning):
        if text:
            out[at].append((f'{{"reasoning_content":{_quoted(text)}}}', False))
    parsing = bool(request.tools) and request.tool_choice != "none"
    for at, text in enumerate(bent.content, parts.content_at):
        if text and parsing:
            full = f'{{"role":null,"content":{_quoted(text)},"reasoning_content":null,"tool_calls":null}}'
            out[at].append((full, True))
        elif text:
            out[at].append((f'{{"reasoning_content":null,"content":{_quoted(text)}}}', False))
    for k, (call, true) in enumerate(zip(bent.calls, parts.calls, strict=True)):
        out[true.arguments_at].append((_tool(call.id, k, call.name, ""), True))
        late = ["".join(call.arguments[:2]), *call.arguments[2:]]  # the first id of the arguments is told with the next one
        for at, text in enumerate(late, true.arguments_at + 1):
            if text:
                out[at].append((_tool(None, k, None, text), True))
    return out


def _tool(call_id: str | None, index: int, name: str | None, arguments: str) -> str:
    call = _json(_call(call_id, index, name, arguments))
    return f'{{"role":null,"content":null,"reasoning_content":null,"tool_calls":[{call}]}}'


def _call(call_id: str | None, index: int, name: str | None, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "index": index, "type": "function", "function": {"name": name, "arguments": arguments}}


def _extension(generation: Generation, wants: frozenset[str]) -> dict[str, Any]:
    extension: dict[str, Any] = {}
    if "return_input_ids_in_sglext" in wants:
        extension["input_ids"] = list(generation.prompt_ids)
    if "return_output_ids_in_sglext" in wants:
        extension["output_ids"] = [list(generation.completion_ids)]
    return {"sglext": extension} if extension else {}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _head(generation: Generation, kind: str) -> dict[str, Any]:
    return {"id": generation.id, "object": kind, "created": generation.created, "model": generation.model}


def _usage(generation: Generation, told: int, reasoning: int) -> dict[str, Any]:
    prompt = len(generation.prompt_ids)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + told,
        "completion_tokens": told,
        "prompt_tokens_details": None,
        "reasoning_tokens": min(told, reasoning),
    }


def _reasoning(generation: Generation, vocabulary: Vocabulary, thinking: bool) -> int:
    """How many of the ids are reasoning as the scheduler counts it (schedule_batch.py, update_reasoning_tokens)."""
    ids = generation.completion_ids
    if not thinking:
        return 0
    return ids.index(vocabulary.close_think) + 1 if vocabulary.close_think in ids else len(ids)


# ------------------------------------------------------------------------------------------------ meta_info and /generate
def meta_info(generation: Generation, vocabulary: Vocabulary, *, thinking: bool, triples: Triples | None) -> dict[str, Any]:
    """`meta_info` of a finished answer; `thinking` says whether reasoning is counted."""
    ids = generation.completion_ids
    ended = {"type": "stop", "matched": vocabulary.im_end}
    cut = {"type": "length", "length": len(ids)}
    return {
        **_beginning(generation, ended if generation.parts.ended else cut),
        **(_logprobs(generation, *triples) if triples else {}),
        "reasoning_tokens": _reasoning(generation, vocabulary, thinking),
        "completion_tokens": len(ids),
        **_CACHE,
        "e2e_latency": round(generation.duration_s, 6),
        "response_sent_to_client_ts": round(generation.created + generation.duration_s, 6),
    }


_CACHE = {"cached_tokens": 0, "cached_tokens_details": None, "dp_rank": None}


def _beginning(generation: Generation, finish: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": generation.id,
        "finish_reason": finish,
        "prompt_tokens": len(generation.prompt_ids),
        "weight_version": WEIGHTS,
        "num_retractions": 0,
    }


def _logprobs(generation: Generation, chosen: list[Triple], likely: list[list[Triple]]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "input_token_logprobs": [],
        "output_token_logprobs": chosen,
        "output_token_logprobs_length": len(chosen),
    }
    if generation.request.top_logprobs:
        told |= {"input_top_logprobs": [], "output_top_logprobs": likely}
    return told


def generate_answer(
    generation: Generation, vocabulary: Vocabulary, *, thinking: bool, triples: Triples | None, with_prompt: bool
) -> dict[str, Any]:
    """A whole answer of `/generate`: text without the end token, all sampled ids, meta_info."""
    ids = generation.completion_ids
    return {
        "text": vocabulary.text(ids),
        "output_ids": list(ids),
        "meta_info": meta_info(generation, vocabulary, thinking=thinking, triples=triples),
        **({"prompt_token_ids": list(generation.prompt_ids)} if with_prompt else {}),
    }


def generate_events(
    generation: Generation,
    vocabulary: Vocabulary,
    *,
    thinking: bool,
    triples: Triples | None,
    with_prompt: bool,
    index: int | None,
) -> Iterator[bytes]:
    """The SSE events of one answer of `/generate`, one for each sampled id, `[DONE]` left out; `index` is its place in a batch.

    Each says everything from the beginning again, so what is new is joined to what was written before.
    """
    ids = generation.completion_ids
    pieces, more = vocabulary.pieces(ids), f',"index":{index}' if index is not None else ""
    prompt = f',"prompt_token_ids":{_json(generation.prompt_ids)}' if with_prompt else ""
    beginning, cache = _json(_beginning(generation, None))[:-1], _json(_CACHE)[1:]
    reasoning = _reasoning(generation, vocabulary, thinking)
    text = told_ids = chosen = likely = ""
    for told, (piece, token) in enumerate(zip(pieces[:-1], ids[:-1], strict=True), 1):
        comma = "," if told > 1 else ""
        text, told_ids = text + _quoted(piece)[1:-1], f"{told_ids}{comma}{token}"
        logprobs = ""
        if triples is not None:
            chosen += comma + _json(triples[0][told - 1])
            logprobs = f',"input_token_logprobs":[],"output_token_logprobs":[{chosen}],"output_token_logprobs_length":{told}'
            if generation.request.top_logprobs:
                likely += comma + _json(triples[1][told - 1])
                logprobs += f',"input_top_logprobs":[],"output_top_logprobs":[{likely}]'
        counts = f'"reasoning_tokens":{min(told, reasoning)},"completion_tokens":{told},{cache}'
        meta = f"{beginning}{logprobs},{counts}"
        event = f'data: {{"text":"{text}","output_ids":[{told_ids}],"meta_info":{meta}{prompt}{more}}}\n\n'
        yield event.encode("utf-8", "replace")
    last = generate_answer(generation, vocabulary, thinking=thinking, triples=triples, with_prompt=with_prompt)
    yield sse({**last, **({"index": index} if index is not None else {})})


def aborted(generation_id: str, prompt_tokens: int, message: str) -> dict[str, Any]:
    """The event of a /generate stream whose model failed (tokenizer_manager.py, _handle_abort_finish_reason; schedule_batch.py)."""
    finish = {"type": "abort", "message": message, "status_code": 500, "err_type": "InternalServerError"}
    meta = {"id": generation_id, "finish_reason": finish, "prompt_tokens": prompt_tokens, "weight_version": WEIGHTS}
    return {"text": "", "output_ids": [], "meta_info": {**meta, "num_retractions": 0, "completion_tokens": 0}}


# ------------------------------------------------------------------------------------------------ the rest
def sglang_error(code: int, message: str, kind: str | None = None) -> dict[str, Any]:
    """SGLang's shape: flat (openai/protocol.py, ErrorResponse)."""
    kind = kind or {404: "NotFoundError", 500: "InternalServerError"}.get(code, "BadRequestError")
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def generate_error(message: str) -> dict[str, Any]:
    """What `/generate` says of a value that it cannot take (http_server.py)."""
    return {"error": {"message": message}}


def too_long(prompt_tokens: int, longest: int) -> str:
    """tokenizer_manager.py, _validate_one_request; a prompt of exactly `longest` tokens is too long already."""
    return f"The input ({prompt_tokens} tokens) is longer than the model's context length ({longest} tokens)."


def too_much(prompt_tokens: int, max_tokens: int, longest: int) -> str:
    """tokenizer_manager.py, _validate_one_request."""
    return (
        f"Requested token count exceeds the model's maximum context length of {longest} tokens. You requested a total of "
        f"{prompt_tokens + max_tokens} tokens: {prompt_tokens} tokens from the input messages and {max_tokens} tokens for the "
        f"completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit."
    )


def sglang_models(model: str, created: int, longest: int) -> dict[str, Any]:
    """GET /v1/models (openai/protocol.py, ModelCard)."""
    card = {"id": model, "object": "model", "created": created, "owned_by": "sglang", "root": model, "parent": None}
    return {"object": "list", "data": [{**card, "max_model_len": longest}]}


def model_info(model: str) -> dict[str, Any]:
    """GET /model_info, formerly /get_model_info (http_server.py)."""
    return {
        "model_path": model,
        "tokenizer_path": model,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": WEIGHTS,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": None,
        "architectures": None,
    }


def server_info(model: str, longest: int) -> dict[str, Any]:
    """GET /server_info, formerly /get_server_info (http_server.py): of the many server arguments those that a client may want."""
    return {
        "model_path": model,
        "tokenizer_path": model,
        "served_model_name": model,
        "context_length": longest,
        "reasoning_parser": "kimi_k2",
        "tool_call_parser": "kimi_k2",
        "stream_interval": 1,
        "incremental_streaming_output": False,
        "weight_version": WEIGHTS,
        "internal_states": [{}],
        "version": VERSION,
    }
