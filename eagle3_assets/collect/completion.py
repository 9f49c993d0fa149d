"""A response body as one completion object: just enough for the collector to judge, bill and continue a conversation.

Belongs here: JSON or SSE bytes -> one dict in the shape of `chat.completion`; its message as history.
Does not belong here: anything about token ids or the meaning of whitespace (`exact` reads the same bytes for itself).
"""

from __future__ import annotations

from typing import Any

from eagle3_assets.collect.journal import TooDeep, load_json


class NotACompletion(ValueError):
    """Whole JSON, and still no completion: no half of something that a further request would bring whole."""


def parse_completion(body: bytes, content_type: str) -> dict[str, Any]:
    """The body as a dict. A stream is merged; one that ends without a finish reason or an error counts as torn.

    Keep-alive whitespace before the JSON is fine (contract 0.6). Bytes that are not UTF-8 are read as U+FFFD: the answer around
    them is whole and paid for, so it is kept once and not bought again; the bytes stay as received, and `exact`, which reads
    them for itself, puts such a row aside. Raises ValueError when the body is not one whole completion, NotACompletion when it
    is whole and something else.
    """
    if is_stream(body, content_type):
        return _merge_stream(body)
    return _load_object(body)


def is_stream(body: bytes, content_type: str) -> bool:
    return content_type.startswith("text/event-stream") or body.lstrip()[:5] in (b"data:", b": OPE")


def _load_object(data: bytes) -> dict[str, Any]:
    try:
        try:
            value = load_json(data)
        except TooDeep:
            raise
        except ValueError:
            if data.lstrip()[:1] not in (b"", b"{"):
                raise NotACompletion("not JSON") from None
            mended = data.decode("utf-8", "replace").encode()
            if mended == data:
                raise
            value = load_json(mended)
    except TooDeep as error:
        raise NotACompletion(str(error)) from None
    if not isinstance(value, dict):
        raise NotACompletion("not a JSON object")
    return value


def as_dict(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one: a server may send anything anywhere, and a paid body must still be filed."""
    return value if isinstance(value, dict) else {}


def first_choice(completion: dict[str, Any]) -> dict[str, Any] | None:
    choices = completion.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def completion_tokens(completion: dict[str, Any]) -> int:
    """Billed completion tokens; else the number of ids an engine or an import gives; else 0. A count that no answer can have is
    none.
    """
    billed = as_dict(completion.get("usage")).get("completion_tokens")
    if isinstance(billed, int) and not isinstance(billed, bool) and 0 <= billed < 2**31:
        return billed
    choice = first_choice(completion) or {}
    ids = choice.get("token_ids", choice.get("response_token_ids"))
    return len(ids) if isinstance(ids, list) else 0


def reasoning_text(message: dict[str, Any]) -> str | None:
    """Precedence of contract 4.3 row 3: texts of `reasoning_details`, else `reasoning`, else `reasoning_content`."""
    details = message.get("reasoning_details")
    if isinstance(details, list):
        texts = [d["text"] for d in details if isinstance(d, dict) and isinstance(d.get("text"), str)]
        if texts:
            return "".join(texts)
    for name in ("reasoning", "reasoning_content"):
        if isinstance(message.get(name), str):
            return str(message[name])
    return None


def history_message(completion: dict[str, Any]) -> dict[str, Any]:
    """The answer as an assistant message of a later turn's history: `reasoning_content` holds the reasoning."""
    message = as_dict((first_choice(completion) or {}).get("message"))
    out: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    reasoning = reasoning_text(message)
    if reasoning is not None:
        out["reasoning_content"] = reasoning
    if isinstance(message.get("tool_calls"), list) and message["tool_calls"]:
        out["tool_calls"] = [{k: v for k, v in as_dict(call).items() if k != "index"} for call in message["tool_calls"]]
    return out


# ---------------------------------------------------------------------------------------------------- streams
def _merge_stream(body: bytes) -> dict[str, Any]:
    out: dict[str, Any] = {}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    choice: dict[str, Any] = {"index": 0, "finish_reason": None, "message": message}
    for line in body.split(b"\n"):
        data = line.strip()
        if not data.startswith(b"data:") or data[5:].strip() == b"[DONE]":
            continue  # comments are keep-alives
        chunk = _load_object(data[5:])
        for name in ("id", "model", "provider", "usage", "error", "created", "prompt_token_ids"):
            if chunk.get(name) is not None:
                out[name] = chunk[name]
        part = first_choice(chunk)
        if part is not None:
            _add_delta(message, as_dict(part.get("delta")))
            for name in ("finish_reason", "native_finish_reason", "error"):
                if part.get(name) is not None:
                    choice[name] = part[name]
            if isinstance(part.get("token_ids"), list):
                choice["token_ids"] = choice.get("token_ids", []) + part["token_ids"]
    if choice["finish_reason"] is None and "error" not in out:
        raise ValueError("the stream ends without a finish reason")
    out["choices"] = [choice]
    return out


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("content", "reasoning", "reasoning_content"):
        if isinstance(delta.get(name), str):
            message[name] = (message.get(name) or "") + delta[name]
    for detail in _objects(delta.get("reasoning_details")):
        if isinstance(detail.get("text"), str):
            message.setdefault("reasoning_details", []).append(detail)
    calls: dict[Any, dict[str, Any]] = {call["index"]: call for call in message.get("tool_calls", ())}
    for call in _objects(delta.get("tool_calls")):
        index = call.get("index") if isinstance(call.get("index"), int) else len(calls)
        if index not in calls:
            calls[index] = {"index": index, "id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            message.setdefault("tool_calls", []).append(calls[index])
        known, function = calls[index], as_dict(call.get("function"))
        known["id"] = call.get("id") or known["id"]
        for name in ("name", "arguments"):
            known["function"][name] += function[name] if isinstance(function.get(name), str) else ""


def _objects(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
