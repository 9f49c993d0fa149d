"""Wire bytes → `Fields`: a body taken apart, nothing changed, nothing raised.

Belongs here: the two doors of the room, for bytes and for a completion that is read already. Does not belong here: what the fields mean
for ids (`exact.hypotheses`), retries (`collect`). What cannot be read ends up in `Fields.problems`.
"""

from __future__ import annotations

from typing import Any

from eagle3_assets.wire.answer import Answer
from eagle3_assets.wire.chunks import DONE, events, is_stream, read_json
from eagle3_assets.wire.fields import Fields


def parse_fields(body: bytes, content_type: str = "application/json") -> Fields:
    """Take a response body apart. Never raises: what is wrong is listed in `problems`, what is missing stays None."""
    text = body.strip()
    answer = Answer(is_stream=is_stream(text, content_type))
    if answer.is_stream:
        _read_stream(body, answer)
    else:
        _read(text, answer, f"the body is not a JSON object: {_shown(text)}" if text else "the body is empty")
    return answer.fields()


def fields_of(completion: dict[str, Any]) -> Fields:
    """The same for a completion object in memory."""
    answer = Answer()
    answer.take(completion)
    return answer.fields()


def _read_stream(body: bytes, answer: Answer) -> None:
    is_finished = False
    for data in events(body):
        if data.strip() == DONE:
            is_finished = True
        else:
            _read(data, answer, f"a stream event is not a JSON object: {_shown(data)}")
    if not is_finished and not answer.finish_reasons:
        answer.problem("the stream ends without [DONE] and without a finish reason")


def _read(data: bytes, answer: Answer, otherwise: str) -> None:
    chunk = read_json(data)
    if isinstance(chunk, dict):
        answer.take(chunk)
    else:
        answer.problem(otherwise)


def _shown(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", "replace"))
