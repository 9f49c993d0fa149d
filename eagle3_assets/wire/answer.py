"""`Answer`: what has been read of an answer so far; the chunks of a stream, or the one object of a whole body.

Belongs here: the places where servers put texts, ids, counts and errors (docs/research/openrouter-contract.md#1.3, #2.1, #4.3;
docs/research/exactness.md#1.2), and what is odd about them: a `problem` where the answer cannot be believed, a `note` where the
oddity changes nothing. Does not belong here: bytes (`chunks.py`), pieces of texts and of calls (`pieces.py`, `calls.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.wire.calls import Call, Calls, Piece
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.pieces import Text, whole_characters
from eagle3_assets.wire.values import as_count, as_counts, as_text, usd

# Where servers put reasoning, the one that counts first (docs/research/openrouter-contract.md#4.3-3); `thinking`: Ollama. PARTS:
# a part of a list in `content`.
PARTS = "content parts"
REASONING = ("reasoning_details", "reasoning", "reasoning_content", "thinking", PARTS)
_HIDDEN = ("reasoning.summary", "reasoning.encrypted", "redacted_thinking")
_ENDS = ("stop", "tool_calls")


@dataclass(slots=True)
class _Ids:
    """Ids of the output by chunk. A server that sends them with some chunks and not with others has not told us the turn."""

    output: list[int] = field(default_factory=list)
    named: bool = False
    chunks: int = 0  # chunks with ids
    chunks_with_text: int = 0
    holes: int = 0  # chunks with text and without ids
    beside_text: bool = False  # ids came in a chunk with text

    def take(self, ids: list[int] | None, has_text: bool) -> None:
        self.named |= ids is not None
        self.output.extend(ids or ())
        self.chunks += bool(ids)
        self.chunks_with_text += has_text
        self.holes += has_text and not ids
        self.beside_text |= has_text and bool(ids)

    def whole(self, billed: int | None) -> tuple[int, ...] | None:
        """The ids, if they are those of the whole turn: beside every text, or all in one chunk behind it, or as many as billed."""
        if not self.output:
            return () if self.named and not self.chunks_with_text else None
        all_at_once = self.chunks == 1 and not self.beside_text and billed is None
        is_whole = not self.holes or all_at_once or billed == len(self.output)
        return tuple(self.output) if is_whole else None


@dataclass(slots=True)
class Answer:
    """Feed it chunks with `take`, then ask for `fields()`."""

    is_stream: bool = False
    reasoning: dict[str, Text] = field(default_factory=dict)  # place on the wire → its pieces
    content: Text | None = None
    calls: Calls = field(default_factory=Calls)
    finish_reasons: list[str] = field(default_factory=list)
    native_finish_reason: str | None = None
    provider: str | None = None
    model: str | None = None
    generation_id: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] | None = None
    ids: _Ids = field(default_factory=_Ids)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    deltas: list[tuple[str | Call, str, int]] = field(default_factory=list)  # (channel, text, chunk)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_choices: bool = False
    chunk: int = 0
    finishing: set[int] = field(
        default_factory=set
    )  # chunks with a finish reason or the bill: nothing of the model's comes behind them
    messages: set[int] = field(default_factory=set)  # chunks of a stream with a `message` in place of a `delta`

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ------------------------------------------------------------------------------------------ one chunk
    def take(self, chunk: dict[str, Any]) -> None:
        self.chunk += 1
        self.error(chunk.get("error"))
        self.provider = as_text(chunk.get("provider")) or self.provider
        self.model = as_text(chunk.get("model")) or self.model
        self.generation_id = as_text(chunk.get("id")) or self.generation_id
        self.prompt_ids = self.read_ids(chunk, "prompt_token_ids") or self.prompt_ids
        choices = chunk.get("choices")
        choice = self.choice_of(choices) if choices else None
        x_groq = chunk.get("x_groq")
        # Groq sends its usage in x_groq, Moonshot's streams in the choice (pi#2017, AstrBot#6614, go-moonshot#17)
        places = (x_groq, choice if not self.usage else None, chunk)
        for usage in (place.get("usage") for place in places if isinstance(place, dict)):
            if isinstance(usage, dict):
                if not self.usage:  # the first: some servers send a running count with every chunk
                    self.finishing.add(self.chunk)
                self.usage = usage
        if choice is not None:
            self.take_choice(choice, chunk)

    def choice_of(self, choices: Any) -> dict[str, Any] | None:
        """The choice that is read: the one of index 0, which `null` and a missing index mean, too."""
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            self.problem("choices is not a list of objects")
            return None
        first = [choice for choice in choices if choice.get("index") is None or as_count(choice["index"]) == 0]
        if len(first) < len(choices) or len(first) > 1:
            self.problem(f"{len(choices)} choices: only the first is read, and the bill is for all of them")
        return first[0] if first else None

    def take_choice(self, choice: dict[str, Any], chunk: dict[str, Any]) -> None:
        self.has_choices = True
        self.error(choice.get("error"))
        if finish := as_text(choice.get("finish_reason")):
            self.finish_reasons.append(finish)
            self.finishing.add(self.chunk)
        self.native_finish_reason = as_text(choice.get("native_finish_reason")) or self.native_finish_reason
        self.prompt_ids = self.read_ids(choice, "prompt_token_ids") or self.prompt_ids
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            self.logprobs.extend(entry for entry in logprobs["content"] if isinstance(entry, dict))
        message = self.message_of(choice)
        has_text = self.take_message(message)
        # in the choice (vLLM token_ids), in the message, or in the chunk itself (SGLang's output_ids of /generate): once a chunk
        places = (self.output_ids(place) for place in (choice, message, chunk))
        self.ids.take(next((ids for ids in places if ids is not None), None), has_text)

    def message_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The message of a choice; of a stream the delta, unless a message stands in its place."""
        message, piece = choice.get("message"), choice.get("delta")
        piece = piece if isinstance(piece, dict) else {}
        if not isinstance(message, dict):
            return piece
        if self.is_stream and any(value for key, value in piece.items() if key != "role"):
            return piece
        if self.is_stream:
            self.messages.add(self.chunk)
        return message

    def take_message(self, message: dict[str, Any]) -> bool:
        """Texts and calls of a message or delta; returns whether there were any."""
        pieces = {key: message[key] for key in REASONING if isinstance(message.get(key), str)}
        details = self.details(message.get("reasoning_details"))
        if details is not None:
            pieces["reasoning_details"] = details
        content, thought = self.content_of(message.get("content"))
        if thought is not None:
            pieces[PARTS] = thought
        for key, piece in pieces.items():
            self.reasoning.setdefault(key, Text()).add(piece, self.chunk)
        shown = next((pieces[key] for key in REASONING if pieces.get(key)), "")
        self.delta("reasoning", shown)
        if content is not None:
            self.content = self.content or Text()
            self.content.add(content, self.chunk)
            self.delta("content", content)
        if as_text(message.get("refusal")):
            self.problem("the answer is a refusal")
        return bool(self.take_calls(message.get("tool_calls")) or shown or content)

    def content_of(self, content: Any) -> tuple[str | None, str | None]:
        """(text, reasoning) of `message.content`, which may be a list of parts: text, or thinking (Mistral, Anthropic's shape)."""
        if not isinstance(content, list):
            if content is not None and not isinstance(content, str):
                self.problem("message.content is neither text nor null")
            return (content if isinstance(content, str) else None), None
        texts: list[str] = []
        thoughts: list[str] = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in _HIDDEN:
                self.problem(f"{kind}: the reasoning itself is hidden")
            elif kind in ("thinking", "reasoning"):
                thoughts.append(_inner_text(part.get("thinking", part.get("reasoning", part.get("text")))))
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                self.problem(f"message.content has a part of type {str(kind)[:40]!r} without text")
        return "".join(texts), "".join(thoughts) if thoughts else None

    def take_calls(self, entries: Any) -> bool:
        pieces = [Piece.of(entry) for entry in (entries if isinstance(entries, list) else []) if isinstance(entry, dict)]
        if any(piece.was_parsed for piece in pieces):
            self.problem("tool arguments came parsed, not as the model's text")
        again = self.is_stream and self.calls.says_again(pieces)
        if again and (self.chunk in self.messages or self.chunk in self.finishing or all(piece.id for piece in pieces)):
            self.calls.repeats = True
            return False
        # a stream's chunk with a `message` that comes first is a whole body under a stream's header
        grown = self.calls.take_delta(pieces) if self.is_stream else self.calls.take_whole(pieces)
        self.deltas.extend((call, text, self.chunk) for call, text in grown)
        return any(piece.name or piece.arguments for piece in pieces)

    def delta(self, channel: str, text: str) -> None:
        if text:
            self.deltas.append((channel, text, self.chunk))

    def details(self, details: Any) -> str | None:
        """Text of reasoning_details by index; summaries and encrypted reasoning hide what was billed
        (docs/research/openrouter-contract.md#4.3-3)."""
        if not isinstance(details, list):
            return None
        texts: dict[int, str] = {}
        for position, detail in enumerate(details):
            if not isinstance(detail, dict):
                continue
            if detail.get("type") in _HIDDEN:
                self.problem(f"{detail['type']}: the reasoning itself is hidden")
            if isinstance(detail.get("text"), str):
                index = as_count(detail.get("index"))
                index = position if index is None else index
                texts[index] = texts.get(index, "") + detail["text"]
        return "".join(texts[index] for index in sorted(texts)) if texts else None

    # ------------------------------------------------------------------------------------------ ids, errors, counts
    def output_ids(self, place: Mapping[str, Any]) -> list[int] | None:
        """vLLM `token_ids` (in a choice, a stream sends them by chunk), SGLang `response_token_ids` / `output_ids`."""
        found = (self.read_ids(place, key) for key in ("token_ids", "response_token_ids", "output_ids"))
        return next((ids for ids in found if ids is not None), None)

    def read_ids(self, place: Mapping[str, Any], key: str) -> list[int] | None:
        value = place.get(key)
        if value is None:
            return None
        ids = as_counts(value)
        if ids is None:
            self.problem(f"{key} is not a list of token ids")
        return ids

    def error(self, error: Any) -> None:
        if isinstance(error, dict):
            self.problem(f"server error {error.get('code', '')}: {str(error.get('message', ''))[:200]}")
        elif error:
            self.problem(f"server error: {str(error)[:200]}")

    def count(self, value: Any, name: str) -> int | None:
        if value is None:
            return None
        found = as_count(value)
        if found is None:
            self.problem(f"usage.{name} is {str(value)[:40]!r}, not a count")
        return found

    # ------------------------------------------------------------------------------------------ the whole
    def finish_reason(self) -> str | None:
        """The reason that holds. `stop` behind `tool_calls` says nothing else (litellm#27139), nor does either beside the other; a length
        limit beside the end of a turn contradicts it.
        """
        reasons = set(self.finish_reasons)
        if len(reasons) < 2:
            return self.finish_reasons[-1] if self.finish_reasons else None
        if not reasons <= set(_ENDS):
            self.problem(f"two finish reasons: {' and '.join(dict.fromkeys(self.finish_reasons))}")
            return self.finish_reasons[-1]
        self.note(f"finish reasons {' and '.join(dict.fromkeys(self.finish_reasons))}: both end a turn")
        return "tool_calls" if self.calls.opened else "stop"

    def drop_repeats(self, finish: str | None) -> None:
        """Take off a last piece that says a whole text again: some servers close a stream with the whole message. One that is short, and
        alone in it, may be the model's own (`ha`, `ha`); the bill judges either reading.
        """
        places = {**self.reasoning, **({"content": self.content} if self.content else {})}
        again = {place: text for place, text in places.items() if text.says_all_again}
        for place, text in again.items():
            chunk = text.chunks[-1]
            others = any(
                p != place and t.chunks[-1] == chunk and (p == "content" or place == "content") for p, t in again.items()
            )
            closes = chunk in self.messages or (chunk in self.finishing and finish in _ENDS)
            if others or closes or text.repeats_for_sure:
                text.drop_last()
                channel = "content" if place == "content" else "reasoning"
                self.deltas = [d for d in self.deltas if not (d[0] == channel and d[2] == chunk)]
                self.note(f"the last chunk with {channel} says all of it again: it is read once")
        if self.calls.repeats:
            self.note("tool calls came twice: they are read once")

    def channels(self) -> Iterator[tuple[str, str]]:
        """The deltas with calls by their number in the answer."""
        numbers = {id(call): k for k, call in enumerate(self.calls.whole())}
        for channel, text, _ in self.deltas:
            yield (channel if isinstance(channel, str) else f"tool:{numbers[id(channel)]}"), text

    def fields(self) -> Fields:
        if not self.has_choices and not self.problems:
            self.problem("the body has no choices")
        finish = self.finish_reason()
        if finish == "error":
            self.problem("finish reason: error")
        if self.is_stream:
            self.drop_repeats(finish)
        if self.calls.changing_ids:
            self.note("pieces of a tool call came under new ids: the first id is the call's")
        texts = {key: joined for key, text in self.reasoning.items() if (joined := text.joined)}
        if len(set(texts.values())) > 1:
            self.problem(f"{' and '.join(sorted(texts))} differ")
        reasoning = next((texts[key] for key in REASONING if key in texts), "" if self.reasoning else None)
        details = self.usage.get("completion_tokens_details")
        spent = details.get("reasoning_tokens") if isinstance(details, dict) else self.usage.get("reasoning_tokens")
        billed = self.count(self.usage.get("completion_tokens"), "completion_tokens")
        output_ids = self.ids.whole(billed)
        if output_ids is None and self.ids.named:
            self.note(
                f"token ids came with {self.ids.chunks} of {self.ids.chunks_with_text} chunks that hold text: the text is read in their place"
            )
        return Fields(
            reasoning=reasoning,
            content=self.content.joined if self.content else None,
            tool_calls=self.calls.as_tool_calls(),
            finish_reason=finish,
            native_finish_reason=self.native_finish_reason,
            provider=self.provider,
            model=self.model,
            generation_id=self.generation_id,
            billed_prompt=self.count(self.usage.get("prompt_tokens"), "prompt_tokens"),
            billed_completion=billed,
            billed_reasoning=self.count(spent, "reasoning_tokens"),
            cost_usd=usd(self.usage.get("cost")),
            prompt_ids=tuple(self.prompt_ids) if self.prompt_ids is not None else None,
            output_ids=output_ids,
            logprobs=tuple(self.logprobs) or None,
            deltas=tuple(whole_characters(list(self.channels()))),
            problems=tuple(self.problems),
            notes=tuple(self.notes),
        )


def _inner_text(value: Any) -> str:
    """The text of a thinking part, which is a text or a list of text parts."""
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return value if isinstance(value, str) else ""
