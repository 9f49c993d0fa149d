"""A chat request to an engine: what `request` reads, and the switches that only engines know.

Belongs here: their reading from body and headers. Does not belong here: chat requests as such (`request`), `/generate` (`native`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from openrouter_standin.request import BadRequest, ChatRequest, read_request

# in the body, true or not there
_SWITCHES = (
    "return_token_ids", "return_prompt_token_ids", "return_meta_info", "return_input_ids_in_sglext", "return_output_ids_in_sglext",
    "return_tokens_as_token_ids",
)  # fmt: skip
_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")
# SGLang's headers, each "1" (openai/serving_chat.py, _convert_to_internal_request, _generate_chat_stream)
_HEADERS = {
    "x-sglext-return-input-ids": "return_input_ids_in_sglext",
    "x-sglext-return-output-ids": "return_output_ids_in_sglext",
    "x-sglext-ids-framed": "ids_framed",
}


@dataclass(frozen=True)
class EngineRequest:
    """`wants`: names of the switches that are on."""

    chat: ChatRequest
    wants: frozenset[str]
    stream_options: bool
    top_without_logprobs: bool


def read_engine_request(body: bytes, headers: Mapping[str, str]) -> EngineRequest:
    """Raises BadRequest."""
    chat = read_request(body)
    raw = json.loads(body)
    options = raw.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options: expected an object")
    wants = {name for name in _SWITCHES if raw.get(name) is True}
    wants |= {name for name in _STREAM_OPTIONS if (options or {}).get(name) is True}
    wants |= {name for header, name in _HEADERS.items() if headers.get(header) == "1"}
    return EngineRequest(chat, frozenset(wants), bool(options), bool(chat.top_logprobs) and not chat.logprobs)
