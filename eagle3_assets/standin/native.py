"""A request to SGLang's native `/generate`: ids or text in, no messages.

Belongs here: its reading (SGLang documentation, sampling_params). Does not belong here: chat requests (`request`), answers.
A prompt that ends in `<think>` is a thinking one. A bank has no answers to such prompts of its own: it gives one that fits the mode.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.standin.request import BadRequest, ChatRequest, read_request
from eagle3_assets.standin.vocabulary import Ids, Vocabulary

MAX_NEW_TOKENS = 128  # SGLang's default
_TOP_LOGPROBS = 20  # of this stand-in; SGLang names no limit


@dataclass(frozen=True)
class NativeRequest:
    """`chat`: the settings and the hash, with the prompt as the one user message."""

    chat: ChatRequest
    prompt_ids: Ids
    text_in_logprobs: bool


def read_native(body: bytes, vocabulary: Vocabulary) -> NativeRequest:
    """Raises BadRequest. Batches and streams are not served by this stand-in, and say so."""
    try:
        raw = json.loads(body)
    except ValueError:
        raise BadRequest("Invalid JSON in request body") from None
    if not isinstance(raw, dict):
        raise BadRequest("Request body must be a JSON object")
    if raw.get("stream"):
        raise BadRequest("stream = true is not supported on /generate by this stand-in")
    prompt_ids = _prompt(raw, vocabulary)
    settings = raw.get("sampling_params") or {}
    if not isinstance(settings, dict):
        raise BadRequest("sampling_params: expected an object (this stand-in answers one prompt at a time)")
    top = raw.get("top_logprobs_num") or 0
    thinking = prompt_ids[-1] == vocabulary.encoding.encode_single_token("<think>")
    limit = settings.get("max_new_tokens")
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": hashlib.sha256(repr(prompt_ids).encode()).hexdigest()}],
        "max_tokens": MAX_NEW_TOKENS if limit is None else limit,
        "chat_template_kwargs": {"thinking": thinking},
        "logprobs": bool(raw.get("return_logprob")),
        "top_logprobs": min(top, _TOP_LOGPROBS) if isinstance(top, int) else top,
        **{name: settings[name] for name in ("temperature", "top_p", "stop") if name in settings},
    }
    return NativeRequest(read_request(json.dumps(chat).encode()), prompt_ids, bool(raw.get("return_text_in_logprobs")))


def _prompt(raw: Mapping[str, Any], vocabulary: Vocabulary) -> Ids:
    text, ids = raw.get("text"), raw.get("input_ids")
    if (text is None) == (ids is None):
        raise BadRequest("Either text or input_ids should be provided, and not both.")
    if text is not None:
        if not isinstance(text, str) or not text:
            raise BadRequest("text: expected one prompt (this stand-in answers one at a time)")
        return vocabulary.encode_prompt(text)
    size = vocabulary.encoding.n_vocab
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < size for i in ids):
        raise BadRequest(f"input_ids: expected one list of token ids in [0, {size}) (this stand-in answers one prompt at a time)")
    return tuple(ids)
