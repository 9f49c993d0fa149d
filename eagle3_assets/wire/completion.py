"""A response body as one completion object: just enough for the collector to judge, bill and continue a conversation.

Belongs here: JSON or SSE bytes -> one dict in the shape of `chat.completion`; its message as history.
Does not belong here: how pieces of a stream are joined and where servers put things (`eagle3_assets.wire`, which `exact` reads with, too);
anything about token ids or the meaning of whitespace.
"""

from __future__ import annotations

from typing import Any

from eagle3_assets.wire.answer import PARTS, REASONING, Answer
from eagle3_assets.wire.chunks import DONE, events, is_stream
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.journal import TooDeep, load_json
from eagle3_assets.wire.parse import fields_of
from eagle3_assets.wire.values import as_count


class NotACompletion(ValueError):
    """Whole JSON, and still no completion: no half of something that a further request would bring whole."""


def parse_completion(body: bytes, content_type: str) -> dict[str, Any]:
    """The body as a dict. A stream is merged; one that ends without a finish reason or an error counts as torn.

    Keep-alive whitespace before the JSON is fine (docs/research/openrouter-contract.md#0.6). Bytes that are not UTF-8 are read as
    U+FFFD: the answer around them is whole and paid for, so it is kept once and not bought again; the bytes stay as received, and
    `exact`, which reads them for itself, puts such a row aside. Raises ValueError when the body is not one whole completion,
    NotACompletion when it is whole and something else.
    """
    if is_stream(body, content_type):
        return _merge_stream(body)
    return _load_object(body)


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


def usage_of(completion: dict[str, Any]) -> dict[str, Any]:
    """The bill: of the completion, else (Moonshot: pi#2017) of its choice, else Groq's own."""
    places = (completion, first_choice(completion) or {}, as_dict(completion.get("x_groq")))
    return next((usage for place in places if (usage := as_dict(place.get("usage")))), {})


def completion_tokens(completion: dict[str, Any]) -> int:
    """Billed completion tokens; else the number of ids an engine or an import gives; else 0. A count that no answer can have is
    none.
    """
    billed = as_count(usage_of(completion).get("completion_tokens"))
    if billed is not None:
        return billed
    choice = first_choice(completion) or {}
    ids = choice.get("token_ids", choice.get("response_token_ids"))
    return len(ids) if isinstance(ids, list) else 0


def reasoning_text(message: dict[str, Any]) -> str | None:
    """Precedence of docs/research/openrouter-contract.md#4.3-3: texts of `reasoning_details`, else `reasoning`, else
    `reasoning_content`, else `thinking`."""
    details = message.get("reasoning_details")
    if isinstance(details, list):
        texts = [d["text"] for d in details if isinstance(d, dict) and isinstance(d.get("text"), str)]
        if texts:
            return "".join(texts)
    return next((message[name] for name in REASONING if isinstance(message.get(name), str)), None)


def history_message(completion: dict[str, Any]) -> dict[str, Any]:
    """The answer as an assistant message of a later turn's history: `reasoning_content` holds the reasoning."""
    fields = fields_of(completion)
    out: dict[str, Any] = {"role": "assistant", "content": fields.content}
    if fields.reasoning is not None:
        out["reasoning_content"] = fields.reasoning
    if fields.tool_calls:
        out["tool_calls"] = _tool_calls(fields)
    return out


def _tool_calls(fields: Fields) -> list[dict[str, Any]]:
    return [
        {"id": call.id or None, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in fields.tool_calls
    ]


# ---------------------------------------------------------------------------------------------------- streams
def _merge_stream(body: bytes) -> dict[str, Any]:
    out: dict[str, Any] = {}
    choice: dict[str, Any] = {"index": 0}
    answer = Answer(is_stream=True)
    for data in events(body):
        if data.strip() == DONE:
            continue
        chunk = _load_object(data)
        answer.take(chunk)
        for name in ("id", "model", "provider", "error", "created", "prompt_token_ids"):
            if chunk.get(name) is not None:
                out[name] = chunk[name]
        part = first_choice(chunk) or {}
        for name in ("native_finish_reason", "error"):
            if part.get(name) is not None:
                choice[name] = part[name]
    fields = answer.fields()
    if fields.finish_reason is None and "error" not in out:
        raise ValueError("the stream ends without a finish reason")
    choice |= {"finish_reason": fields.finish_reason, "message": _message(answer, fields)}
    if fields.output_ids is not None:
        choice["token_ids"] = list(fields.output_ids)
    return {**out, **({"usage": answer.usage} if answer.usage else {}), "choices": [choice]}


def _message(answer: Answer, fields: Fields) -> dict[str, Any]:
    """The message of a stream with every text that it brought: one of them may hold what must not be stored (the key)."""
    message: dict[str, Any] = {"role": "assistant", "content": fields.content}
    for place, text in answer.reasoning.items():
        if place == "reasoning_details":
            message[place] = [{"type": "reasoning.text", "text": text.joined}] if text.pieces else []
        else:
            message["reasoning" if place == PARTS else place] = text.joined
    if fields.tool_calls:
        message["tool_calls"] = [{"index": k, **call} for k, call in enumerate(_tool_calls(fields))]
    return message
