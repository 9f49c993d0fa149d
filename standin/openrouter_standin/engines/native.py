"""A request to SGLang's native `/generate`: ids or text in, no messages; one prompt or a batch of them.

Belongs here: its reading. Does not belong here: chat requests (`request`), answers (`sglang_wire`).
A prompt that ends in `<think>` is a thinking one. A bank has no answers to such prompts of its own: it gives one that fits the mode.

Checked against SGLang's source (managers/io_struct.py `normalize_batch_and_arguments`, tokenizer_manager.py `_handle_batch_request`,
sampling/sampling_params.py): max_new_tokens is 128 by default; a list of prompts is a batch, and `n` > 1 makes one of a single prompt;
the answers of a batch stand prompt by prompt; settings are one for all or a list; the messages that name a limit.
Chosen: text and input_ids together are refused (the server takes one of them silently), max_new_tokens 0 too; rid, stop strings,
skip_special_tokens and logprob_start_len have no effect.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openrouter_standin.request import BadRequest, ChatRequest, read_request
from openrouter_standin.vocabulary import Ids, Vocabulary

MAX_NEW_TOKENS = 128
_TOP_LOGPROBS = 20  # of this stand-in; SGLang names no limit


class Malformed(BadRequest):
    """No request at all by SGLang's schema: it answers in the shape of its chat errors, before a stream begins."""


@dataclass(frozen=True)
class NativeRequest:
    """One prompt with its settings. `chat`: the settings and the hash, with the prompt as the one user message."""

    chat: ChatRequest
    prompt_ids: Ids


@dataclass(frozen=True)
class NativeBatch:
    """`requests` in the order of the answers, each as often as `n` says; `single`: the answer is no list."""

    requests: tuple[NativeRequest, ...]
    single: bool
    stream: bool
    text_in_logprobs: bool
    require_reasoning: bool
    return_prompt_token_ids: bool


def read_body(body: bytes) -> dict[str, Any]:
    """Raises Malformed."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("Invalid JSON in request body") from None
    if not isinstance(raw, dict):
        raise Malformed("Request body must be a JSON object")
    ids, text, settings = raw.get("input_ids"), raw.get("text"), raw.get("sampling_params")
    if not (ids is None or _are_ids(ids) or (isinstance(ids, list) and all(map(_are_ids, ids)))):
        raise Malformed("input_ids: expected a list of token ids, or a list of such lists")
    if not (text is None or isinstance(text, str) or (isinstance(text, list) and all(isinstance(t, str) for t in text))):
        raise Malformed("text: expected a string or a list of strings")
    if not isinstance(settings or {}, dict) and not (isinstance(settings, list) and all(isinstance(s, dict) for s in settings)):
        raise Malformed("sampling_params: expected an object or a list of objects")
    return raw


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(i) is int for i in value)


def read_native(raw: Mapping[str, Any], vocabulary: Vocabulary) -> NativeBatch:
    """`raw` from `read_body`. Raises BadRequest."""
    prompts, single = _prompts(raw, vocabulary)
    size = len(prompts)
    settings = _each(raw.get("sampling_params") or {}, size, "sampling_params")
    n = settings[0].get("n", 1) if settings else 1
    if any(other.get("n", 1) != n for other in settings):
        raise BadRequest("The parallel_sample_num should be the same for all samples in sample params.")
    if type(n) is not int or n < 1:
        raise BadRequest(f"n must be a positive integer, got {n}.")
    logprobs = _each(raw.get("return_logprob") or False, size, "return_logprob")
    tops = _each(raw.get("top_logprobs_num") or 0, size, "top_logprobs_num")
    rows = zip(prompts, settings, logprobs, tops, strict=True)
    requests = [NativeRequest(_chat(raw, *row, vocabulary=vocabulary), row[0]) for row in rows]
    return NativeBatch(
        requests=tuple(request for request in requests for _ in range(n)),
        single=single and n == 1,
        stream=raw.get("stream") is True,
        text_in_logprobs=raw.get("return_text_in_logprobs") is True,
        require_reasoning=raw.get("require_reasoning") is True,
        return_prompt_token_ids=raw.get("return_prompt_token_ids") is True,
    )


def _each(value: Any, size: int, field: str) -> list[Any]:
    """A setting of each prompt of the batch."""
    if not isinstance(value, list):
        return [value] * size
    if len(value) != size:
        raise BadRequest(f"The length of {field} should be equal to the batch size.")
    return value


def _prompts(raw: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[list[Ids], bool]:
    text, ids = raw.get("text"), raw.get("input_ids")
    if text is None and ids is None:
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    if text is not None and ids is not None:
        raise BadRequest("Either text or input_ids should be provided, and not both.")
    if isinstance(text, str):
        return [_checked(vocabulary.encode_prompt(text), vocabulary)], True
    if text is not None:
        return [_checked(vocabulary.encode_prompt(each), vocabulary) for each in text], False
    assert ids is not None
    if not ids:
        raise BadRequest("input_ids cannot be empty.")
    if type(ids[0]) is int:
        return [_checked(tuple(ids), vocabulary)], True
    return [_checked(tuple(each), vocabulary) for each in ids], False


def _checked(ids: Ids, vocabulary: Vocabulary) -> Ids:
    size = vocabulary.encoding.n_vocab
    if not ids:
        raise BadRequest("input_ids cannot be empty.")
    if not 0 <= min(ids) <= max(ids) < size:
        raise BadRequest(f"The input_ids {list(ids)} contains values greater than the vocab size ({size}).")
    return ids


def _chat(
    raw: Mapping[str, Any], prompt_ids: Ids, settings: Mapping[str, Any], logprobs: Any, top: Any, *, vocabulary: Vocabulary
) -> ChatRequest:
    limit, temperature = settings.get("max_new_tokens", MAX_NEW_TOKENS), settings.get("temperature")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise BadRequest(f"max_new_tokens must be at least 1, got {limit}.")
    if temperature is not None and (not isinstance(temperature, int | float) or not 0 <= temperature < math.inf):
        raise BadRequest(f"temperature must be a non-negative finite number, got {temperature}.")
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": hashlib.sha256(repr(prompt_ids).encode()).hexdigest()}],
        "max_tokens": limit,
        "chat_template_kwargs": {"thinking": prompt_ids[-1] == vocabulary.encoding.encode_single_token("<think>")},
        "logprobs": logprobs is True,
        "top_logprobs": min(top, _TOP_LOGPROBS) if isinstance(top, int) else top,
        "stream": raw.get("stream") is True,
        **{name: settings[name] for name in ("temperature", "top_p", "stop") if name in settings},
    }
    return read_request(json.dumps(chat).encode())
