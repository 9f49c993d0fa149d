"""Stand-in profiles: one TOML file = one simulated OpenRouter (how each provider bends the text, the prompt and the bill).

Belongs here: the documented schema of that file and its reading; unknown keys are refused with one line.
Does not belong here: the bending itself (`bend`, `render`), wire profiles (what was *learned* of a real provider: room `exact`).

A file holds `[model]`, `[server]` (with `[server.faults]`), `[source]`, `[engine]` and one `[[provider]]` per endpoint; every key
is described on its field below, `profiles/default.toml` is a complete example.
"""

from __future__ import annotations

import hashlib
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from eagle3_assets.errors import WireError

DEFAULT_PROFILES = Path(__file__).parent / "profiles" / "default.toml"
PICO = 10**12  # money is counted in whole picodollars (10^-12 USD): six decimals of a price per million are exact

Rate = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Table):
    """`[model]`: what is sold. OpenRouter answers with the dated slug whatever was asked for (openrouter-contract 1.3)."""

    slug: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="what a request asks for")
    dated_slug: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="what a response says")
    name: str
    created: int = Field(description="unix seconds, for /models")
    context_length: int = Field(ge=1, description="tokens; a longer prompt is a 400")


class Faults(_Table):
    """`[server.faults]`: shares of requests that fail, decided by (seed, request, attempt), so a retry is drawn anew."""

    rate_429: Rate = Field(default=0.0, description="capacity_exhausted, with Retry-After")
    rate_500: Rate = Field(default=0.0, description="masked internal error")
    rate_502: Rate = Field(default=0.0, description="provider unavailable")
    rate_reset: Rate = Field(default=0.0, description="connection reset after headers and keep-alive; billed")
    rate_truncated: Rate = Field(default=0.0, description="body cut in the middle; billed")
    rate_error_in_200: Rate = Field(default=0.0, description="an error object in a 200 body; not billed")

    @model_validator(mode="after")
    def _at_most_all(self) -> Faults:
        total = sum(self.model_dump().values())
        if total > 1:
            raise ValueError(f"the rates add up to {total:g}; expected at most 1")
        return self

    def drawn(self, chance: float) -> str | None:
        """The fault that a draw in [0, 1) falls on: 429, 500, 502, reset, truncated, error_in_200; None for a good answer."""
        edge = 0.0
        for key, rate in self.model_dump().items():
            edge += rate
            if chance < edge:
                return str(key).removeprefix("rate_")
        return None


class Server(_Table):
    """`[server]`."""

    seed: int = Field(default=0, description="joined with the seed that the launcher passes")
    credit_usd: float = Field(
        default=25.0, ge=0, description="credit of the account; spent for good (the ledger survives a restart)"
    )
    time_scale: float = Field(default=0.02, ge=0, description="real seconds per simulated second")
    keep_alive_s: float = Field(default=0.5, gt=0, description="simulated seconds between keep-alive writes")
    generation_delay_s: Seconds = Field(default=1.0, description="simulated seconds until /generation knows an id")
    retry_after_s: int = Field(default=1, ge=0, description="the Retry-After of a 429, real seconds")
    idle_exit_s: Seconds = Field(default=900.0, description="a detached server ends after so many real idle seconds; 0 = never")
    faults: Faults = Faults()


Answers = Literal["bank", "live"]


class Source(_Table):
    """`[source]`: where answers come from. The shares say how often a request with declared tools gets a call from the bank; a live
    model decides that itself."""

    kind: Answers = Field(
        default="bank", description="bank replays committed answers; live samples kimi-mini (loads torch in the server process)"
    )
    slots: int = Field(default=32, ge=1, le=512, description="live: answers sampled at once; others wait")
    synthetic_logprobs: bool = Field(
        default=False,
        description="bank: it has no log-probabilities; true makes them up (tokens and bytes are true, the numbers mean nothing)",
    )
    tool_share_after_user: Rate = Field(default=0.8, description="share of calls when the last message is the user's")
    tool_share_after_tool: Rate = Field(default=0.3, description="share of further calls when it is a tool's result")


class Latency(_Table):
    """`[provider.latency]`, in simulated seconds."""

    ttft_median_s: float = Field(default=1.0, gt=0, description="time to first token, log-normal")
    ttft_sigma: float = Field(default=0.5, ge=0)
    tokens_per_s: float = Field(default=60.0, gt=0)


class Text(_Table):
    """`[provider.text]`: ids -> text. Order of effects: decode, strip, inject."""

    inject_reasoning_leading: bool = Field(default=False, description="one space after <think>")
    inject_reasoning_trailing: bool = Field(default=False, description="one space before </think> or the tool section")
    inject_content_leading: bool = Field(default=False, description="one space after </think>")
    strip: bool = Field(default=False, description="both sides of reasoning and content, and of tool arguments")
    tool_ids: Literal["native", "renumbered", "call_hex"] = Field(
        default="native", description="as sampled; functions.NAME:N with N counted anew over the conversation; call_<24 hex>"
    )
    tokens_per_delta: int = Field(default=1, ge=1, description="ids in one streamed delta")


class PromptBending(_Table):
    """`[provider.prompt]`: what the server makes of the request (prompt-side.md)."""

    tools: Literal["typescript", "compact_json"] = Field(default="typescript", description="declaration in the tool_declare turn")
    history_reasoning: Literal["kept", "dropped"] = Field(default="kept", description="replayed reasoning of an open tool loop")


class Billing(_Table):
    """`[provider.billing]`: counts are taken from the ids, by these conventions."""

    counts_end: bool = Field(default=True, description="completion_tokens counts <|im_end|>")
    reasoning_tokens: Literal["with_close", "text", "estimate", "zero"] = Field(
        default="with_close", description="R + 1, R, ceil(characters / 4) of the returned text, or 0"
    )


class LogprobEntries(_Table):
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


class Provider(_Table):
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


class Engine(_Table):
    """`[engine]`: the servers that return ids, vLLM under /engine/v1 and SGLang under /sglang."""

    model: str
    prompt: PromptBending = PromptBending()
    latency: Latency = Latency()


class Profiles(_Table):
    """The whole file."""

    model: Model
    server: Server = Server()
    source: Source = Source()
    engine: Engine
    provider: tuple[Provider, ...] = Field(min_length=1)
    sha256: str = Field(default="", description="of the file (set by load_profiles)")

    @model_validator(mode="after")
    def _unique(self) -> Profiles:
        tags = [p.tag for p in self.provider]
        for tag in tags:
            if tags.count(tag) > 1:
                raise ValueError(f"provider.tag = {tag!r} appears {tags.count(tag)} times: tags must be unique")
        return self


def load_profiles(path: Path | None = None) -> Profiles:
    """Read and validate a stand-in profiles file (default: the built-in one). Raises WireError with one line."""
    path = path or DEFAULT_PROFILES
    try:
        data = path.read_bytes()
        raw = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise WireError(f"{path}: cannot be read ({error.strerror}); give a stand-in profiles TOML") from None
    except ValueError as error:
        raise WireError(f"{path}: is not valid TOML ({error})") from None
    if "sha256" in raw:
        raise WireError(f"{path}: unknown key 'sha256'")
    try:
        return Profiles.model_validate({**raw, "sha256": hashlib.sha256(data).hexdigest()})
    except ValidationError as error:
        raise WireError(f"{path}: {_first_mistake(error, raw)}") from None


def answering(profiles: Profiles, answers: Answers | None) -> Profiles:
    """The same profiles with another `source.kind` (None: as they are)."""
    if answers is None:
        return profiles
    return profiles.model_copy(update={"source": profiles.source.model_copy(update={"kind": answers})})


def _first_mistake(error: ValidationError, raw: dict[str, Any]) -> str:
    first = error.errors()[0]
    where = _where(first["loc"], raw)
    if first["type"] == "extra_forbidden":
        return f"unknown key {where}; known keys: {', '.join(_known_keys(first['loc'][:-1]))}"
    if first["type"] == "missing":
        return f"{where} is missing"
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = repr(first["input"])
    found = f" = {shown if len(shown) < 60 else shown[:57] + '...'}" if where and not isinstance(first["input"], dict) else ""
    return f"{where}{found}: {message[0].lower()}{message[1:]}" if where else message


def _where(loc: tuple[int | str, ...], raw: Any) -> str:
    """`provider[1] (Injector).text.strip` for a pydantic location."""
    out = ""
    for part in loc:
        if isinstance(part, int):
            raw = raw[part] if isinstance(raw, list) else None
        else:
            raw = raw.get(part) if isinstance(raw, dict) else None
        if isinstance(part, int):
            name = raw.get("name") if isinstance(raw, dict) else None
            out += f"[{part}]" + (f" ({name})" if name else "")
        else:
            out += ("." if out else "") + part
    return out


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    table: Any = Profiles
    for part in loc:
        if isinstance(part, str):
            annotation = table.model_fields[part].annotation
            options = (annotation, *getattr(annotation, "__args__", ()))
            table = next(a for a in options if isinstance(a, type) and issubclass(a, BaseModel))
    return [key for key in table.model_fields if key != "sha256"]
