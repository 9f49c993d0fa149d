"""`[source]`: where answers come from.

Belongs here: settings of sources. Does not belong here: the sources (`source`, `live`, `replay`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from openrouter_standin.schema.base import Rate, Table

Answers = Literal["bank", "live", "replay"]
Edge = dict[str, Rate]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
_EDGE = "whitespace -> share of the texts of this kind that have it there; the rest has none"


def _at_most_one(shares: dict[str, float]) -> None:
    total = sum(shares.values())
    if total > 1 + 1e-9:
        raise ValueError(f"the shares of {', '.join(map(repr, shares))} add up to {total:g}; expected at most 1")


class Cut(Table):
    """`[source.replay.habits.cut]`: shares of answers that end early, as max_tokens ends them: no <|im_end|>, nothing behind the
    cut."""

    reasoning: Rate = Field(default=0.005, description="of the answers with reasoning: inside it, so no </think> either")
    content: Rate = Field(default=0.005, description="of the answers with content: inside it")
    arguments: Rate = Field(
        default=0.005, description="of the answers with calls: inside the arguments of one, which never gets its end marker"
    )

    @model_validator(mode="after")
    def _at_most_all(self) -> Cut:
        _at_most_one(self.model_dump())
        return self


class Habits(Table):
    """`[source.replay.habits]`: what a sampling model does that a re-encoder of its text does not expect. Shares are drawn for
    each answer and each habit apart. With everything 0 and every edge table empty each text is exactly what the encoder gives
    for it."""

    non_canonical: Rate = Field(default=0.03, description="answers with a place spelled with other ids than the encoder's")
    regions: float = Field(default=1.5, ge=1, le=100, description="mean number of such places in such an answer")
    reasoning_leading: Edge = Field(default={" ": 0.97}, description=f"behind <think>: {_EDGE}")
    reasoning_trailing: Edge = Field(default={"\n": 0.05}, description=f"before </think>: {_EDGE}")
    content_leading: Edge = Field(default={" ": 0.4, "\n\n": 0.05}, description=f"behind </think>: {_EDGE}")
    content_trailing: Edge = Field(default={"\n": 0.02}, description=f"before the calls or the end: {_EDGE}")
    literal_markers: Rate = Field(default=0.01, description="answers that write a marker's name (</think>) as ordinary text")
    split_characters: Rate = Field(
        default=0.02, description="answers with an extra line of characters that several ids share (rare emoji, rare Han)"
    )
    empty_reasoning: Rate = Field(default=0.02, description="of the thinking answers: </think> comes first")
    implicit_end: Rate = Field(
        default=0.02, description="of the thinking answers with calls: the section begins without </think> before it"
    )
    no_content: Rate = Field(default=0.02, description='of the answers with calls: the content is "(no content)"')
    odd_tool_ids: Rate = Field(
        default=0.01, description="of the answers with calls: headers such as functionsexec5, call00003 or a bare 3"
    )
    cut: Cut = Cut()

    @model_validator(mode="after")
    def _exclusive(self) -> Habits:
        _at_most_one({"implicit_end": self.implicit_end, "no_content": self.no_content})
        return self

    @field_validator("reasoning_leading", "reasoning_trailing", "content_leading", "content_trailing")
    @classmethod
    def _whitespace(cls, edge: Edge) -> Edge:
        for text in edge:
            if text and not text.isspace():
                raise ValueError(f"the key {text!r} is not whitespace; these tables are about the edges of a text")
        _at_most_one(edge)
        return edge


class Replay(Table):
    """`[source.replay]`: a bank that is made when the server starts. Answer number n is a function of (this table, the text,
    n)."""

    seed: int = Field(default=0, description="of the bank")
    answers: int = Field(default=2000, ge=1, le=1_000_000, description="size of the bank; about 8 bytes of memory for each token")
    tokenizer: str = Field(
        default="kimi-mini",
        min_length=1,
        description="kimi-mini, or a folder: Kimi's tiktoken.model with special_tokens.json or tokenizer_config.json, or any "
        "byte-level BPE's tokenizer.json (markers of Kimi's that it lacks get ids behind its vocabulary); relative to this file",
    )
    text: tuple[str, ...] = Field(
        default=(),
        description="files or globs, UTF-8, relative to this file, cut into passages at blank lines; none: the built-in text",
    )
    mean_tokens: int = Field(default=3500, ge=16, description="of an answer, before cuts; at most max_tokens / 2")
    sigma: float = Field(default=0.8, ge=0, le=3, description="of the log-normal law of the length; 0 = all alike")
    max_tokens: int = Field(default=16_384, ge=256, le=262_144, description="no answer is longer")
    instant: Rate = Field(default=0.1, description="share of answers of a model that does not think")
    reasoning_share: Rate = Field(default=0.6, description="of the text of a thinking answer that also has content")
    tool_answers: Rate = Field(default=0.4, description="share of answers with tool calls")
    content_with_calls: Rate = Field(default=0.3, description="share of those that say something before the calls")
    tools: tuple[ToolName, ...] = Field(
        default=("get_weather", "search_web", "read_file", "run_command"),
        min_length=1,
        description="names that calls go to; a request that declares none of them gets its own names put in",
    )
    habits: Habits = Habits()

    @model_validator(mode="after")
    def _possible(self) -> Replay:
        if self.mean_tokens > self.max_tokens // 2:
            raise ValueError(
                f"mean_tokens = {self.mean_tokens} needs max_tokens >= {2 * self.mean_tokens}, found {self.max_tokens}"
            )
        return self


class Source(Table):
    """`[source]`: where answers come from. The shares say how often a request with declared tools gets a call from the bank; a
    live model decides that itself."""

    kind: Answers = Field(
        default="bank",
        description="bank replays committed answers; live samples kimi-mini (loads torch in the server process); replay makes a "
        "bank of its own from text (`[source.replay]`)",
    )
    slots: int = Field(default=32, ge=1, le=512, description="live: answers sampled at once; others wait")
    synthetic_logprobs: bool = Field(
        default=False,
        description="bank and replay: they have no log-probabilities; true makes them up (tokens and bytes are true, the numbers "
        "mean nothing)",
    )
    tool_share_after_user: Rate = Field(default=0.8, description="share of calls when the last message is the user's")
    tool_share_after_tool: Rate = Field(default=0.3, description="share of further calls when it is a tool's result")
    replay: Replay = Replay()
