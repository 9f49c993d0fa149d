"""`[[provider]]` and `[engine]`: what one server costs, how fast it is, how it bends, and how all that changes in mid-run.

Belongs here: settings of a single server. Does not belong here: the tables of bending (`bending`), what is done with any of it.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from openrouter_standin.schema.base import Rate, Seconds, Table
from openrouter_standin.schema.bending import Billing, PromptBending, Text
from openrouter_standin.schema.faults import Rates, at_most_one

__all__ = ["Billing", "Change", "Engine", "Latency", "LogprobEntries", "PromptBending", "Provider", "Text"]


def _as_written(value: Any) -> Any:
    return str(value) if isinstance(value, float) else value


Price = Annotated[Decimal, BeforeValidator(_as_written, json_schema_input_type=float), Field(ge=0, le=10**6)]


class Latency(Table):
    """`[provider.latency]`, in simulated seconds."""

    ttft_median_s: float = Field(default=1.0, gt=0, le=1e6, description="time to first token, log-normal")
    ttft_sigma: float = Field(default=0.5, ge=0, le=5)
    tokens_per_s: float = Field(default=60.0, ge=1e-3, le=1e9)


class LogprobEntries(Table):
    """`[provider.logprob_entries]`: what stands in `logprobs.content`. Which providers do which is not known
    (docs/research/openrouter-contract.md#3.4 and #6); each of these is reported of some server (docs/research/exactness.md#1.3
    and #2c)."""

    cover: Literal["all", "content"] = Field(
        default="all",
        description="an entry for every sampled id, markers and tool calls too (vLLM), or for ids of the content only",
    )
    end: bool = Field(default=True, description="all: an entry for <|im_end|>, too")
    bytes: Literal["exact", "replaced", "null"] = Field(
        default="exact", description="of the id; of its text, so U+FFFD for a part of a character (vLLM); or null"
    )


def _six_decimals(value: Decimal | None) -> Decimal | None:
    if value is not None and value * 10**6 != int(value * 10**6):
        raise ValueError(f"has more than six decimals ({value}); money is counted in whole picodollars a token")
    return value


class Change(Table):
    """`[[provider.change]]`: from here on the endpoint is another one (an upgrade, a new price). Given keys override, tables key by key;
    the changes of a provider come in the order of the file, each on top of those before it."""

    after_answers: int | None = Field(default=None, ge=0, description="so many answers of this provider have begun")
    at_s: Seconds | None = Field(
        default=None, description="so many simulated seconds since the start; with both, both must be reached"
    )
    quantization: str | None = None
    status: int = Field(default=0, le=0)
    price_prompt: Price = Decimal(0)
    price_completion: Price = Decimal(0)
    max_completion_tokens: int = Field(default=65_536, ge=1)
    silent_max_tokens: int | None = Field(default=None, ge=1)
    uptime: float = Field(default=99.9, ge=0, le=100)
    shed_rate: Rate = 0.0
    capacity: int | None = Field(default=None, ge=1)
    tool_quality: Rate = 1.0
    faults: Rates = Field(default={})
    logprobs: bool = False
    logprob_entries: LogprobEntries = LogprobEntries()
    latency: Latency = Latency()
    text: Text = Text()
    prompt: PromptBending = PromptBending()
    billing: Billing = Billing()

    _exact = field_validator("price_prompt", "price_completion")(_six_decimals)
    _at_most_all = field_validator("faults")(at_most_one)

    @model_validator(mode="after")
    def _timed(self) -> Change:
        if self.after_answers is None and self.at_s is None:
            raise ValueError("expected after_answers or at_s: when the change comes")
        if not self.overrides:
            raise ValueError("changes nothing; give the keys that change")
        return self

    def reached(self, answers: int, now_s: float) -> bool:
        return (self.after_answers is None or answers >= self.after_answers) and (self.at_s is None or now_s >= self.at_s)

    @property
    def overrides(self) -> dict[str, Any]:
        """The given keys, nested as in the file."""
        given = self.model_dump(exclude_unset=True)
        return {key: value for key, value in given.items() if key not in ("after_answers", "at_s")}


class Provider(Table):
    """`[[provider]]`: one endpoint. Prices in USD per million tokens; times in simulated seconds."""

    name: str = Field(description="display name, as in the response")
    tag: str = Field(pattern=r"^[a-z0-9-]+(/[a-z0-9.-]+)?$", description="slug or slug/variant")
    quantization: str | None = None
    status: int = Field(default=0, le=0, description="0 normal, lower is worse")
    price_prompt: Price
    price_completion: Price
    max_completion_tokens: int = Field(default=65_536, ge=1)
    silent_max_tokens: int | None = Field(
        default=None, ge=1, description="answers are cut here whatever the endpoint promises and the request asks for"
    )
    uptime: float = Field(default=99.9, ge=0, le=100, description="percent, for the endpoints listing")
    shed_rate: Rate = Field(
        default=0.0, description="share of requests this one refuses before the first byte while another endpoint is left"
    )
    capacity: int | None = Field(default=None, ge=1, description="answers made at once, the others wait; unset = any number")
    max_queue: int | None = Field(default=None, ge=0, description="requests that may wait, more are refused; unset = any number")
    requests_per_s: float | None = Field(
        default=None,
        ge=1e-6,
        le=1e9,
        description="refill of the token bucket that upstream 429s come from; unset = none",
    )
    burst: int = Field(default=1, ge=1, description="size of that bucket")
    outages: tuple[tuple[Seconds, Seconds], ...] = Field(default=(), description="[from, to] since the start: refuses everything")
    tool_quality: Rate = Field(
        default=1.0,
        description="share of well-formed calls; requests with tools are re-ordered by it (docs/research/openrouter-contract.md#1.2 c)",
    )
    cancels_streams: bool = Field(
        default=True, description="a stream that its client leaves stops billing (docs/research/openrouter-contract.md#2.5)"
    )
    faults: Rates = Field(
        default={},
        description="fault -> share of this endpoint's requests; 429, 500, 502, 503, 529 fall through to the next endpoint, if there is one",
    )
    zdr: bool = Field(default=False, description="zero data retention: what a request with zdr = true asks for")
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
    change: tuple[Change, ...] = Field(default=(), description="what becomes of it in mid-run")

    _version: int = PrivateAttr(default=0)
    _exact = field_validator("price_prompt", "price_completion")(_six_decimals)
    _at_most_all = field_validator("faults")(at_most_one)

    @field_validator("outages")
    @classmethod
    def _forward(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        for begin, end in value:
            if begin >= end:
                raise ValueError(f"[{begin:g}, {end:g}]: expected [from, to] with from < to")
        return value

    @model_validator(mode="after")
    def _changes_fit(self) -> Provider:
        _ = self.versions
        return self

    @property
    def version(self) -> int:
        """How many of its changes this one has behind it."""
        return self._version

    @cached_property
    def versions(self) -> tuple[Provider, ...]:
        """Index = changes applied. Each is whole, and has no further changes of its own."""
        out = [self]
        keys = self.model_dump(exclude_unset=True, exclude={"change"})
        for number, change in enumerate(self.change, 1):
            keys = _joined(keys, change.overrides)
            later = Provider.model_validate(keys)
            later._version = number
            out.append(later)
        return tuple(out)

    def at(self, answers: int, now_s: float) -> Provider:
        """The endpoint as it is once `answers` of its answers have begun, `now_s` simulated seconds after the start. Changes are taken
        in order, up to the first that is not reached."""
        reached = 0
        for change in self.change:
            if not change.reached(answers, now_s):
                break
            reached += 1
        return self.versions[reached] if reached else self

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


def _joined(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, tables key by key."""
    out = dict(below)
    for key, value in above.items():
        out[key] = _joined(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


class Engine(Table):
    """`[engine]`: the servers that return ids, vLLM under /engine/v1 and SGLang under /sglang."""

    model: str
    prompt: PromptBending = PromptBending()
    latency: Latency = Latency()
