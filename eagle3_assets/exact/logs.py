"""Anyone's logs of chat completions → exchanges: a request, the body that answered it, what else is known.

Belongs here: the shapes in which people keep such logs, each one row of a table. Does not belong here: what a body means (`wire.py`),
rebuilding (`reconstruct.py`), printing (`cli/reconstruct.py`).

One record is an object with a request and a response under one of the names below. Each may be the body itself, the body as text
(JSON, or the lines of a stream), a list of a stream's chunks (response), or an envelope with a `body` (and `status`, `headers`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

# where the halves of an exchange stand: this project's recorded traffic; proxies and gateways; batch files (body, response.body); SDK hooks
REQUEST_KEYS = ("request", "request_body", "requestBody", "body", "kwargs")
RESPONSE_KEYS = ("response_body", "response", "responseBody", "completion")
ENVELOPE_KEYS = ("body", "content", "text", "json")
ID_KEYS = ("id", "custom_id", "request_id", "call_id")
STREAM_STARTS = (b"data:", b":", b"event:")
_SHOWN_KEYS = 8


@dataclass(frozen=True, slots=True)
class LoggedExchange:
    """One record read. `body`: the response as it would have come over the wire (verbatim where the log kept it as text)."""

    id: str | None
    request: Mapping[str, Any]
    body: bytes
    content_type: str
    status: int | None


def read_record(record: Any) -> LoggedExchange:
    """Find request and response in a record. Raises ValueError with one line: which half is missing, or what was found instead."""
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object with a request and a response, found {_kind(record)}")
    request, response = _first(record, REQUEST_KEYS), _first(record, RESPONSE_KEYS)
    if request is None and response is None and "choices" in record:
        raise ValueError(
            "this is an answer without its request, and prompt ids come from the request: add it as the key request, or give --request"
        )
    if request is None or response is None:
        half, names = ("request", REQUEST_KEYS) if request is None else ("response", RESPONSE_KEYS)
        found = ", ".join(map(str, list(record)[:_SHOWN_KEYS])) or "nothing"
        raise ValueError(f"the {half} is missing: expected one of the keys {', '.join(names)}; found {found}")
    status, content_type = _of_envelope(record)
    inner_status, inner_type = _of_envelope(response) if isinstance(response, Mapping) else (None, None)
    name = next((record[key] for key in ID_KEYS if isinstance(record.get(key), str)), None)
    return LoggedExchange(
        name, read_request(request), _body(response), content_type or inner_type or "application/json", status or inner_status
    )


def read_request(request: Any) -> Mapping[str, Any]:
    """The body of a chat completion request, out of its envelope. Raises ValueError, one line."""
    request = _loaded(request, "request")
    if isinstance(request, Mapping) and "messages" not in request:
        inner = _first(request, ENVELOPE_KEYS)
        request = request if inner is None else _loaded(inner, "request")
    if not isinstance(request, Mapping):
        raise ValueError(f"the request is {_kind(request)}, expected an object with messages")
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        hint = next((f" (it has {key}: not a chat completion)" for key in ("prompt", "input") if key in request), "")
        raise ValueError(f"the request has no list of messages{hint}")
    return request


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def _loaded(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"the {what} is text that is not JSON ({error})") from None


def _of_envelope(record: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """(HTTP status, content type) where a record or an envelope says so."""
    status = next((record[key] for key in ("status", "status_code") if type(record.get(key)) is int), None)
    headers = record.get("headers")
    named = {str(key).lower(): value for key, value in headers.items()} if isinstance(headers, Mapping) else {}
    content_type = record.get("content_type") or named.get("content-type")
    return status, content_type if isinstance(content_type, str) else None


def _body(response: Any) -> bytes:
    """The wire body: text as it is, an object as JSON, a list of chunks as a stream. JSON strings survive both ways unchanged, so a body
    that a log parsed and wrote again has the same fields."""
    if isinstance(response, str):
        return response.encode("utf-8", "surrogatepass")
    if isinstance(response, list):
        events = (chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in response)
        lines = [event if event.startswith(("data:", ":")) else f"data: {event}" for event in events]
        return ("\n\n".join([*lines, "data: [DONE]"]) + "\n\n").encode("utf-8", "surrogatepass")
    if not isinstance(response, Mapping):
        raise ValueError(f"the response is {_kind(response)}, expected a body")
    inner = None if "choices" in response or "error" in response else _first(response, ENVELOPE_KEYS)
    if isinstance(inner, str | list | Mapping):
        return _body(inner)
    return json.dumps(response).encode()


def _kind(value: Any) -> str:
    return {type(None): "null", list: "a list", str: "text", bool: "a truth value"}.get(type(value), f"a {type(value).__name__}")


# ---------------------------------------------------------------------------------------------------- files
def records_of(handle: IO[bytes]) -> Iterator[bytes]:
    """The records of a file, each as JSON text: JSONL line by line; one object or one array of objects written over several lines; an empty
    file has none. Raises ValueError for a stream's transcript (it has no request in it)."""
    first = next((line for line in handle if line.strip()), b"")
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(STREAM_STARTS):
        raise ValueError("is the transcript of a stream, an answer without its request; give the request with --request FILE")
    if start and (start.startswith(b"[") or not _is_json(start)):
        rest = handle.read()
        try:
            whole = json.loads(start + rest)
        except (ValueError, RecursionError):
            yield from (line for line in (start + rest).splitlines() if line.strip())
            return
        yield from (json.dumps(record).encode() for record in (whole if isinstance(whole, list) else [whole]))
        return
    if start:
        yield start
    yield from (line for line in handle if line.strip())


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
