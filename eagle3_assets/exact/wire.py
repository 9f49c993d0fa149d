"""Wire bytes → `Fields`: a body taken apart, nothing changed, nothing raised.

Belongs here: JSON with keep-alive whitespace, SSE transcripts, the places where servers put ids, counts and errors
(openrouter-contract.md 1.3, 2.1, 4.3; exactness.md 1.2). Does not belong here: what the fields mean for ids (`hypotheses.py`),
retries (`collect`). What cannot be read ends up in `Fields.problems`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from eagle3_assets.exact.fields import Fields, ToolCall

_MAX_COUNT = 2**31 - 1  # counts are stored as int32
_MAX_USD = 1e6


def parse_fields(body: bytes, content_type: str = "application/json") -> Fields:
    """Take a response body apart. Never raises: what is wrong is listed in `problems`, what is missing stays None."""
    answer = _Answer()
    text = body.strip()
    if "event-stream" in content_type.lower() or text.startswith((b"data:", b":", b"event:")):
        _read_stream(body, answer)
    else:
        chunk = _load(text)
        if isinstance(chunk, dict):
            answer.take(chunk)
        else:
            answer.problem("the body is empty" if not text else f"the body is not a JSON object: {_shown(text)}")
    return answer.fields()


def _load(data: bytes) -> Any:
    """Parsed JSON, or None. orjson refuses lone surrogates and NaN; the standard library reads them, later stages judge them."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None


def _shown(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", "replace"))


# ---------------------------------------------------------------------------------------------------- streams
def _read_stream(body: bytes, answer: _Answer) -> None:
    finished = False
    for data in _events(body):
        if data.strip() == b"[DONE]":
            finished = True
            continue
        chunk = _load(data)
        if isinstance(chunk, dict):
            answer.take(chunk)
        else:
            answer.problem(f"a stream event is not a JSON object: {_shown(data)}")
    if not finished and answer.finish_reason is None:
        answer.problem("the stream ends without [DONE] and without a finish reason")


def _events(body: bytes) -> Iterator[bytes]:
    """The data of each server-sent event; comments (`: OPENROUTER PROCESSING`) and other fields are skipped."""
    lines: list[bytes] = []
    for raw in [*body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), b""]:
        if raw.startswith(b"data:"):
            lines.append(raw[5:].removeprefix(b" "))
        elif not raw.strip() and lines:
            joined = b"\n".join(lines)
            # some servers leave out the blank line between events
            yield from [joined] if len(lines) == 1 or _load(joined) is not None else lines
            lines = []


# ---------------------------------------------------------------------------------------------------- one answer
@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class _Answer:
    """What has been read so far; a non-stream body is one chunk with `message` in the place of `delta`."""

    reasoning: dict[str, str] = field(default_factory=dict)  # field name on the wire → text
    content: str | None = None
    calls: dict[int, _Call] = field(default_factory=dict)
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    provider: str | None = None
    model: str | None = None
    generation_id: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] | None = None
    output_ids: list[int] | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    deltas: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    choices_seen: bool = False

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def take(self, chunk: dict[str, Any]) -> None:
        self.error(chunk.get("error"))
        self.provider = _string(chunk.get("provider")) or self.provider
        self.model = _string(chunk.get("model")) or self.model
        self.generation_id = _string(chunk.get("id")) or self.generation_id
        self.prompt_ids = self.ids(chunk, "prompt_token_ids") or self.prompt_ids
        x_groq = chunk.get("x_groq")  # Groq sends its usage here too
        for usage in (x_groq.get("usage") if isinstance(x_groq, dict) else None, chunk.get("usage")):
            if isinstance(usage, dict):
                self.usage = usage
        choices = chunk.get("choices")
        if choices is None or choices == []:
            return
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            return self.problem("choices is not a list of objects")
        others = [choice for choice in choices if choice.get("index", 0) != 0]
        if others:
            self.problem(f"{len(choices)} choices: only the first is read, and the bill is for all of them")
        for choice in choices:
            if choice.get("index", 0) == 0:
                self.take_choice(choice)
                break
        # ids in the place of the chunk itself (SGLang's response_token_ids, output_ids of /generate)
        self.append_ids(chunk)

    def take_choice(self, choice: dict[str, Any]) -> None:
        self.choices_seen = True
        self.error(choice.get("error"))
        finish = _string(choice.get("finish_reason"))
        if finish and self.finish_reason not in (None, finish):
            self.problem(f"two finish reasons: {self.finish_reason} and {finish}")
        self.finish_reason = finish or self.finish_reason
        self.native_finish_reason = _string(choice.get("native_finish_reason")) or self.native_finish_reason
        self.prompt_ids = self.ids(choice, "prompt_token_ids") or self.prompt_ids
        self.append_ids(choice)
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            self.logprobs.extend(entry for entry in logprobs["content"] if isinstance(entry, dict))
        message = choice.get("message") if isinstance(choice.get("message"), dict) else choice.get("delta")
        if isinstance(message, dict):
            self.take_message(message)

    def take_message(self, message: dict[str, Any]) -> None:
        pieces = {key: message[key] for key in ("reasoning", "reasoning_content") if isinstance(message.get(key), str)}
        details = self.details(message.get("reasoning_details"))
        if details is not None:
            pieces["reasoning_details"] = details
        for key, piece in pieces.items():
            self.reasoning[key] = self.reasoning.get(key, "") + piece
        shown = next((pieces[key] for key in ("reasoning_details", "reasoning", "reasoning_content") if pieces.get(key)), None)
        if shown:
            self.deltas.append(("reasoning", shown))
        content = message.get("content")
        if isinstance(content, list):  # text parts
            content = "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
        if isinstance(content, str):
            self.content = (self.content or "") + content
            if content:
                self.deltas.append(("content", content))
        elif content is not None:
            self.problem("message.content is neither text nor null")
        if isinstance(message.get("refusal"), str) and message["refusal"]:
            self.problem("the answer is a refusal")
        self.append_ids(message)
        calls = message.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else []):
            if isinstance(call, dict):
                self.take_call(position, call)

    def take_call(self, position: int, call: dict[str, Any]) -> None:
        index = call["index"] if isinstance(call.get("index"), int) else position
        merged = self.calls.setdefault(index, _Call())
        merged.id = merged.id or _string(call.get("id")) or ""
        function = call.get("function")
        if not isinstance(function, dict):
            return
        merged.name = merged.name or _string(function.get("name")) or ""
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            self.problem("tool arguments came parsed, not as the model's text")
            arguments = json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, str) and arguments:
            merged.arguments += arguments
            self.deltas.append((f"tool:{index}", arguments))

    def details(self, details: Any) -> str | None:
        """Text of reasoning_details by index; summaries and encrypted reasoning hide what was billed (contract 4.3 #3)."""
        if not isinstance(details, list):
            return None
        texts: dict[int, str] = {}
        for position, detail in enumerate(details):
            if not isinstance(detail, dict):
                continue
            if detail.get("type") in ("reasoning.summary", "reasoning.encrypted"):
                self.problem(f"{detail['type']}: the reasoning itself is hidden")
            if isinstance(detail.get("text"), str):
                index = detail["index"] if isinstance(detail.get("index"), int) else position
                texts[index] = texts.get(index, "") + detail["text"]
        return "".join(texts[index] for index in sorted(texts)) if texts else None

    # ------------------------------------------------------------------------------------------ ids, errors
    def append_ids(self, place: Mapping[str, Any]) -> None:
        """vLLM `token_ids` (in a choice, a stream sends them by chunk), SGLang `response_token_ids` / `output_ids`."""
        for key in ("token_ids", "response_token_ids", "output_ids"):
            ids = self.ids(place, key)
            if ids is not None:
                self.output_ids = [*(self.output_ids or []), *ids]
                return

    def ids(self, place: Mapping[str, Any], key: str) -> list[int] | None:
        value = place.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(k) is int and 0 <= k <= _MAX_COUNT for k in value):
            self.problem(f"{key} is not a list of token ids")
            return None
        return value

    def error(self, error: Any) -> None:
        if isinstance(error, dict):
            self.problem(f"server error {error.get('code', '')}: {str(error.get('message', ''))[:200]}")
        elif error:
            self.problem(f"server error: {str(error)[:200]}")

    def count(self, value: Any, name: str) -> int | None:
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            self.problem(f"usage.{name} is {str(value)[:40]!r}, not a count")
            return None
        return value

    def fields(self) -> Fields:
        if not self.choices_seen and not self.problems:
            self.problem("the body has no choices")
        if self.finish_reason == "error":
            self.problem("finish reason: error")
        texts = {key: text for key, text in self.reasoning.items() if text}
        if len(set(texts.values())) > 1:
            self.problem(f"{' and '.join(sorted(texts))} differ")
        reasoning = next(
            (self.reasoning[k] for k in ("reasoning_details", "reasoning", "reasoning_content") if texts.get(k)), None
        )
        if reasoning is None and self.reasoning:
            reasoning = ""
        details = self.usage.get("completion_tokens_details")
        spent = details.get("reasoning_tokens") if isinstance(details, dict) else self.usage.get("reasoning_tokens")
        cost = self.usage.get("cost")
        calls = [self.calls[index] for index in sorted(self.calls)]
        return Fields(
            reasoning=reasoning,
            content=self.content,
            tool_calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in calls),
            finish_reason=self.finish_reason,
            native_finish_reason=self.native_finish_reason,
            provider=self.provider,
            model=self.model,
            generation_id=self.generation_id,
            billed_prompt=self.count(self.usage.get("prompt_tokens"), "prompt_tokens"),
            billed_completion=self.count(self.usage.get("completion_tokens"), "completion_tokens"),
            billed_reasoning=self.count(spent, "reasoning_tokens"),
            cost_usd=usd(cost),
            prompt_ids=tuple(self.prompt_ids) if self.prompt_ids is not None else None,
            output_ids=tuple(self.output_ids) if self.output_ids is not None else None,
            logprobs=tuple(self.logprobs) or None,
            deltas=tuple(self.deltas),
            problems=tuple(self.problems),
        )


def usd(value: Any) -> float | None:
    """A price that can be one: a number from 0 to a million USD (the bounds of `collect`); anything else is unknown."""
    return float(value) if type(value) in (int, float) and 0 <= value < _MAX_USD else None


def storable(text: str | None) -> str | None:
    """`text` as UTF-8 can hold it: a lone surrogate becomes `?`. Names and ids only, never text that has token ids."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
