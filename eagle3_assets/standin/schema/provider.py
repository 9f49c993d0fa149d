"""`[[provider]]` and `[engine]`: how one server bends the text, the prompt and the bill, what it costs and how fast it is.

Belongs here: settings of a single server. Does not belong here: the bending (`bend`, `render`), routing.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

from pydantic import Field, field_validator

from eagle3_assets.standin.schema.base import Rate, Table


class Latency(Table):
    """`[provider.latency]`, in simulated seconds."""

    ttft_median_s: float = Field(default=1.0, gt=0, description="time to first token, log-normal")
    ttft_sigma: float = Field(default=0.5, ge=0)
    tokens_per_s: float = Field(default=60.0, gt=0)


class Text(Table):
    """`[provider.text]`: ids -> text. Order of effects: decode, strip, inject."""

    inject_reasoning_leading: bool = Field(default=False, description="one space after <think>")
    inject_reasoning_trailing: bool = Field(default=False, description="one space before </think> or the tool section")
    inject_content_leading: bool = Field(default=False, description="one space after </think>")
    strip: bool = Field(default=False, description="both sides of reasoning and content, and of tool arguments")
    tool_ids: Literal["native", "renumbered", "call_hex"] = Field(
        default="native", description="as sampled; functions.NAME:N with N counted anew over the conversation; call_<24 hex>"
    )
    tokens_per_delta: int = Field(default=1, ge=1, description="ids in one streamed delta")


class PromptBending(Table):
    """`[provider.prompt]`: what the server makes of the request (prompt-side.md)."""

    tools: Literal["typescript", "compact_json"] = Field(default="typescript", description="declaration in the tool_declare turn")
    history_reasoning: Literal["kept", "dropped"] = Field(default="kept", description="replayed reasoning of an open tool loop")


class Billing(Table):
    """`[provider.billing]`: counts are taken from the ids, by these conventions."""

    counts_end: bool = Field(default=True, description="completion_tokens counts <|im_end|>")
    reasoning_tokens: Literal["with_close", "text", "estimate", "zero"] = Field(
        default="with_close", description="R + 1, R, ceil(characters / 4) of the returned text, or 0"
    )


class LogprobEntries(Table):
    """`[provider.logprob_entries]`: what stands in `logprobs.content`. Which providers do which is not known (openrouter-contract 3.4 and 6);
    each of these is reported of some server (exactness.md 1.3 and 2c)."""

    cover: Literal["all", "content"] = Field(
        default="all",
        description="an entry for every sampled id, markers and tool calls too (vLLM), or for ids of the content only",
    )
    end: bool = Field(default=True, description="all: an entry for <|im_end|>, too")
    bytes: Literal["exact", "replaced", "null"] = Field(
        default="exact", description="of the id; of its text, so U+FFFD for a part of a character (vLLM); or null"
    )


class Provider(Table):
    """`[[provider]]`: one endpoint. Prices in USD per million tokens."""

    name: str = Field(description="display name, as in the response")
    tag: str = Field(pattern=r"^[a-z0-9-]+(/[a-z0-9.-]+)?$", description="slug or slug/variant")
    quantization: str | None = None
    status: int = Field(default=0, le=0, description="0 normal, lower is worse")
    price_prompt: Decimal = Field(ge=0)
    price_completion: Decimal = Field(ge=0)
    max_completion_tokens: int = Field(default=65_536, ge=1)
    uptime: float = Field(default=99.9, ge=0, le=100, description="percent, for the endpoints listing")
    shed_rate: Rate = Field(
        default=0.0, description="share of requests this one refuses before the first byte while another endpoint is left"
    )
    may_collect_data: bool = Field(default=False, description='refused when the request says data_collection = "deny"')
    supported_parameters: tuple[str, ...] = (
        "max_tokens", "temperature", "top_p", "tools", "tool_choice", "reasoning", "include_reasoning", "seed", "stop",
    )  # fmt: skip
    logprobs: bool = Field(
        default=False, description="serves logprobs and top_logprobs, and says so; else it drops them silently"
    )
    logprob_entries: LogprobEntries = LogprobEntries()
    latency: Latency = Latency()
    text: Text = Text()
    prompt: PromptBending = PromptBending()
    billing: Billing = Billing()

    @field_validator("price_prompt", "price_completion", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        return str(value) if isinstance(value, float) else value

    @field_validator("price_prompt", "price_completion")
    @classmethod
    def _exact(cls, value: Decimal) -> Decimal:
        if value * 10**6 != int(value * 10**6):
            raise ValueError(f"has more than six decimals ({value}); money is counted in whole picodollars a token")
        return value

    @property
    def declared_parameters(self) -> tuple[str, ...]:
        """`supported_parameters` of the endpoint: the listed ones, and what `logprobs` adds."""
        more = ("logprobs", "top_logprobs") if self.logprobs else ()
        return tuple(dict.fromkeys((*self.supported_parameters, *more)))

    @property
    def slug(self) -> str:
        return self.tag.split("/")[0]

    @property
    def prompt_pico(self) -> int:
        """Picodollars per prompt token."""
        return int(self.price_prompt * 10**6)

    @property
    def completion_pico(self) -> int:
        """Picodollars per completion token."""
        return int(self.price_completion * 10**6)


class Engine(Table):
    """`[engine]`: the servers that return ids, vLLM under /engine/v1 and SGLang under /sglang."""

    model: str
    prompt: PromptBending = PromptBending()
    latency: Latency = Latency()
