"""Requests and responses out of their envelopes; the times and names beside them.

Belongs here: what every shape of log does with a half of an exchange. Does not belong here: where a shape keeps its halves (`shapes.py`).
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

ENVELOPE_KEYS = ("body", "parsed_body", "content", "text", "json", "postData", "string", "base64_string")
_CREATED = re.compile(rb'(?<!\\)"created"\s*:\s*(\d{9,13})\b')  # a quote inside a text is escaped, so this is a key
_GATEWAYS = {"openrouter.ai"}  # hosts that answer for others
_EARLIEST, _LATEST = 1.0e9, 4.0e9  # unix seconds that a log of chat completions can show
_GZIP = b"\x1f\x8b"


# ---------------------------------------------------------------------------------------------------- requests
def read_request(request: Any) -> Mapping[str, Any]:
    """The body of a chat completion request, out of its envelope. Raises ValueError, one line."""
    request = loaded(request, "request")
    for _ in range(3):  # an envelope in an envelope: HAR's postData.text, VCR's body.string
        if not isinstance(request, Mapping) or "messages" in request:
            break
        inner = first(request, ENVELOPE_KEYS)
        if inner is None:
            break
        request = loaded(_plain(inner, request), "request")
    if not isinstance(request, Mapping):
        raise ValueError(f"the request is {kind(request)}, expected an object with messages")
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        hint = next((f" (it has {key}: not a chat completion)" for key in ("prompt", "input") if key in request), "")
        raise ValueError(f"the request has no list of messages{hint}")
    return request


def first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def loaded(value: Any, what: str) -> Any:
    """`value`, parsed where it is text. Raises ValueError, one line."""
    if isinstance(value, bytes):
        value = text_of(value, what)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"the {what} is text that is not JSON ({error})") from None


def text_of(data: bytes, what: str) -> str:
    """Recorded bytes: unpacked where they were compressed."""
    try:
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"the {what} is neither text nor gzip ({error})") from None


def _plain(inner: Any, envelope: Mapping[str, Any]) -> Any:
    """The content of an envelope, out of base64 where the envelope says so (HAR's `encoding`, VCR's `base64_string`)."""
    encoded = "base64_string" in envelope or str(envelope.get("encoding", "")).lower() == "base64"
    if not encoded or not isinstance(inner, str):
        return inner
    try:
        return base64.b64decode(inner, validate=False)
    except ValueError as error:
        raise ValueError(f"a body is not base64 as its envelope says ({error})") from None


# ---------------------------------------------------------------------------------------------------- responses
def read_body(response: Any) -> bytes:
    """The wire body: text as it is, an object as JSON, a list of chunks as a stream. JSON strings survive both ways unchanged, so a body
    that a log parsed and wrote again has the same fields."""
    if isinstance(response, bytes):
        response = text_of(response, "response")
    if isinstance(response, str):
        return response.encode("utf-8", "surrogatepass")
    if isinstance(response, list):
        events = (chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in response)
        lines = [event if event.startswith(("data:", ":")) else f"data: {event}" for event in events]
        return ("\n\n".join([*lines, "data: [DONE]"]) + "\n\n").encode("utf-8", "surrogatepass")
    if not isinstance(response, Mapping):
        raise ValueError(f"the response is {kind(response)}, expected a body")
    inner = None if "choices" in response or "error" in response else first(response, ENVELOPE_KEYS)
    if isinstance(inner, str | list | Mapping | bytes):
        return read_body(_plain(inner, response))
    return json.dumps(response).encode()


def headers_of(envelope: Any) -> dict[str, str]:
    """Lower-case name → value, from a mapping (of texts or of lists, VCR) or a list of pairs (HAR)."""
    headers = envelope.get("headers") if isinstance(envelope, Mapping) else None
    if isinstance(headers, list):
        headers = {pair.get("name"): pair.get("value") for pair in headers if isinstance(pair, Mapping)}
    if not isinstance(headers, Mapping):
        return {}
    values = {str(name).lower(): value[0] if isinstance(value, list) and value else value for name, value in headers.items()}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def status_of(envelope: Any) -> int | None:
    """The HTTP status where an envelope says so: `status: 200`, `status_code`, VCR's `status: {code: 200}`, go-vcr's `code`."""
    if not isinstance(envelope, Mapping):
        return None
    status = envelope.get("status")
    if isinstance(status, Mapping):
        status = status.get("code")
    found = (value for value in (status, envelope.get("status_code"), envelope.get("code")) if type(value) is int)
    return next(found, None)


def content_type_of(envelope: Any) -> str | None:
    if not isinstance(envelope, Mapping):
        return None
    content = envelope.get("content")
    mime = content.get("mimeType") if isinstance(content, Mapping) else None  # HAR
    found = (envelope.get("content_type"), headers_of(envelope).get("content-type"), mime)
    return next((value for value in found if isinstance(value, str)), None)


# ---------------------------------------------------------------------------------------------------- when and who
def created_of(body: bytes) -> float | None:
    """`created` of the answer, which every chat completion and every chunk of a stream has."""
    match = _CREATED.search(body)
    return seconds_of(int(match[1])) if match else None


def seconds_of(value: Any) -> float | None:
    """Unix seconds of a number (seconds or milliseconds), an ISO date or an HTTP date; None for anything else."""
    if isinstance(value, datetime):
        return _in_range((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if type(value) in (int, float):
        return _in_range(float(value)) or _in_range(float(value) / 1000)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return seconds_of(moment)


def _in_range(seconds: float) -> float | None:
    return seconds if _EARLIEST <= seconds <= _LATEST else None


def host_of(url: Any) -> str | None:
    """The host that answered, as a name of the provider; None for a gateway (its body names the provider)."""
    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        return None
    return None if host in _GATEWAYS else host


def kind(value: Any) -> str:
    return {type(None): "null", list: "a list", str: "text", bool: "a truth value"}.get(type(value), f"a {type(value).__name__}")
