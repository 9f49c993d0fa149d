"""`[provider.text]`, `[provider.prompt]`, `[provider.billing]`: how one server bends what passes through it.

Belongs here: the settings. Does not belong here: the bending (`bend`, `render`, `bill`), prices and speed (`provider`).
Facts: docs/research/openrouter-contract.md#4.2 and #4.3, docs/research/prompt-side.md#rows, docs/research/exactness.md#1.3.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from openrouter_standin.schema.base import Rate, Table

Side = Literal["none", "left", "right", "both"]


def _span(value: Any) -> Any:
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


Span = Annotated[tuple[int, int], BeforeValidator(_span, json_schema_input_type=int | tuple[int, int])]


class TextRules(Table):
    """Ids -> text. Order of effects, as in a server: decode, inject (the detokenizer), take apart, strip (the parsers)."""

    inject_reasoning_leading: bool = Field(default=False, description="one space after <think>")
    inject_reasoning_trailing: bool = Field(default=False, description="one space before </think> or the tool section")
    inject_content_leading: bool = Field(default=False, description="one space after </think>")
    inject_content_trailing: bool = Field(default=False, description="one space between the content and the tool section")
    inject_between_markers: bool = Field(
        default=False,
        description="one space around each tool marker; only seen where markers stay in the text (a parser of calls drops it)",
    )
    reasoning_parser: bool = Field(default=True, description="false: reasoning, </think> and content all stand in content")
    leak_rate: Rate = Field(
        default=0.0,
        description="share of the tool answers whose section no parser finds: it stays as raw text in content, or in reasoning where "
        "</think> is missing, and finish_reason is stop",
    )
    strip_reasoning: Side = Field(default="none", description="whitespace that the parser takes from the reasoning")
    strip_content: Side = Field(default="none", description="and from the content")
    strip_what: Literal["whitespace", "newlines"] = Field(default="whitespace", description="what the two take away")
    drop_blank_content: bool = Field(
        default=False, description="content of whitespace only in front of a tool section is no content"
    )
    empty_content: Literal["null", "", " ", "(no content)"] = Field(
        default="null", description="what stands for no content in an answer with a tool section"
    )
    narrow_call_pattern: bool = Field(
        default=False,
        description="calls vanish whose arguments have a line break or are no braces, or whose id has more than letters, digits, _ "
        "and dots before its number; finish_reason stays tool_calls",
    )
    cut_calls: Literal["dropped", "partial"] = Field(
        default="dropped", description="a call that the length limit cut: not shown, or as far as it came"
    )
    finish_of_cut_calls: Literal["length", "tool_calls"] = Field(
        default="length", description="finish_reason of an answer cut by length once a call has begun"
    )
    tool_ids: Literal["native", "renumbered", "local", "call_hex", "chatcmpl"] = Field(
        default="native",
        description="as sampled; functions.NAME:N with N counted over the conversation, or anew in each answer; call_<24 hex>; "
        "chatcmpl-tool-<32 hex>",
    )
    tool_name: Literal["whole", "last_segment"] = Field(
        default="whole", description="of the id without functions. and number, or only what follows its last dot"
    )
    strip_arguments: bool = Field(
        default=False, description="outer whitespace of a call's arguments and of its native id is lost"
    )
    empty_arguments: Literal["", "{}"] = Field(default="", description="what stands for no arguments")
    arguments: Literal["verbatim", "compact", "spaced", "ascii", "sorted"] = Field(
        default="verbatim",
        description='as sampled, or parsed and written anew: without spaces; with ", " and ": "; spaced with \\u escapes; spaced with '
        "sorted keys. What is no JSON stays as it is",
    )
    tokens_per_delta: Span = Field(
        default=(1, 1), description="ids in one streamed delta: a number, or [low, high] drawn for each"
    )
    drop_delta_rate: Rate = Field(default=0.0, description="share of a stream's text deltas that get lost on the way")

    @field_validator("tokens_per_delta")
    @classmethod
    def _ordered(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= value[0] <= value[1]:
            raise ValueError("expected a number from 1 on, or [low, high] with 1 <= low <= high")
        return value


class Text(TextRules):
    """`[provider.text]`: for whole answers; `stream` overrides single keys for streamed ones."""

    stream: TextRules = Field(default=TextRules(), description="keys that differ in a streamed answer")

    @cached_property
    def _streamed(self) -> TextRules:
        return self.model_copy(update={key: getattr(self.stream, key) for key in self.stream.model_fields_set})

    def rules(self, *, streamed: bool) -> TextRules:
        return self._streamed if streamed else self


class PromptBending(Table):
    """`[provider.prompt]`: what the server makes of the request (docs/research/prompt-side.md#rows)."""

    tools: Literal["typescript", "compact_json", "spaced_json"] = Field(
        default="typescript", description="declaration in the tool_declare turn"
    )
    history_reasoning: Literal["kept", "dropped"] = Field(default="kept", description="replayed reasoning of an open tool loop")
    history_arguments: Literal["as_sent", "spaced", "compact"] = Field(
        default="as_sent", description="arguments of earlier calls, parsed and written anew; what is no JSON stays as it is"
    )
    history_tool_ids: Literal["as_sent", "renumbered", "call_hex"] = Field(
        default="as_sent", description="ids of earlier calls and of their results"
    )
    injected_system: str = Field(default="", description="a system turn of the provider's own before the first message")
    injected_line: str = Field(
        default="",
        description="a line before the text of the first system message (a date, say); a turn of its own where there is none",
    )
    name_prefix: bool = Field(
        default=False, description='a message name becomes "NAME: " before its text, not the name of the turn'
    )


class Billing(Table):
    """`[provider.billing]`: counts are taken from the ids, by these conventions. Order: count, noise, offset."""

    counts_by: Literal["ids", "kimi-mini", "bytes/4"] = Field(
        default="ids",
        description="the true ids; or the text (of the prompt, and the returned one) in another vocabulary, or a quarter of its bytes",
    )
    counts_end: bool = Field(default=True, description="completion_tokens counts <|im_end|>")
    count_noise: float = Field(
        default=0.0, ge=0, lt=1, description="completion_tokens are off by up to this share, drawn for each answer"
    )
    prompt_offset: int = Field(
        default=0, ge=-1_000_000, le=1_000_000, description="added to prompt_tokens (a stub that is counted too)"
    )
    completion_offset: int = Field(
        default=0, ge=-1_000_000, le=1_000_000, description="added to completion_tokens (+1: the prefilled <think> is billed)"
    )
    reasoning_tokens: Literal["with_close", "text", "plus_one", "estimate", "zero", "null"] = Field(
        default="with_close",
        description="R and one for </think>; R; with_close + 1; ceil(characters / 4) of the returned text; 0; null",
    )
