"""OpenRouter: where the key may go, what is sent, what a request may cost at most, the two look-ups about money.

Belongs here: `ApiKey`, the base URL rule, the request of a prompt, `/key`, `/generation`.
Does not belong here: routing policy (`routing.py`), meaning of answers (`outcomes.py`), retries (`collector.py`).
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import re
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

import aiohttp

from eagle3_assets.campaign import DEFAULT_BASE_URL, URL_VARIABLE, Campaign, Dataset
from eagle3_assets.collect.servers.exchange import read_at_most
from eagle3_assets.collect.servers.routing import PER_MILLION, Replay, Routing
from eagle3_assets.errors import WireError
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire.completion import as_dict
from eagle3_assets.wire.journal import dump_json, load_json

KEY_VARIABLE = "OPENROUTER_API_KEY"
USER_AGENT = f"eagle3-assets/{importlib.metadata.version('eagle3-assets')}"

# A prompt has no more tokens than its JSON has bytes (a byte-level vocabulary: every token is at least one byte; keys, quotes and
# braces outweigh the markers). What a server may add by itself (a default system line, the thinking stub) is below this.
SERVER_TOKENS = 256
LOOK_UP_BYTES = 1 << 20  # far more than a look-up has to say
HIDDEN = b"[key hidden]"
# Message fields that are sent. `name` is left out: it would be rendered as a prefix of the content
# (docs/research/openrouter-contract.md#1.1).
_MESSAGE_FIELDS = ("role", "content", "reasoning", "reasoning_details", "tool_calls", "tool_call_id")
_REPLAYED: dict[Replay, tuple[str, ...]] = {
    "both": ("reasoning", "reasoning_details"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
    "reasoning_details": ("reasoning_details",),
    "none": (),
}


_ESCAPE = re.compile(rb"\\u00")  # twice as fast as `in`, for which backslashes are too frequent


class ApiKey:
    """A key that does not show itself: not in repr, str, format, pickles or dataclass dumps. `reveal()` is for request headers
    only.
    """

    __slots__ = ("_escaped", "_is_escapable", "_secret", "_value")

    def __init__(self, value: str) -> None:
        value = value.strip()
        if not value or not value.isascii() or not value.isprintable() or " " in value:
            raise WireError(
                "the API key is empty or holds characters that no key has; set it again without quotes or line breaks"
            )
        self._value, self._secret = value, value.encode()
        self._is_escapable = any(character in value for character in '/"\\')
        # Every character as itself or as a JSON escape, which a string inside a string (tool arguments) escapes again.
        self._escaped = re.compile("".join(_spellings(character) for character in value).encode())

    @classmethod
    def from_environment(cls) -> ApiKey:
        """OPENROUTER_API_KEY. Raises WireError naming the variable."""
        value = os.environ.get(KEY_VARIABLE)
        if not value:
            raise WireError(
                f"{KEY_VARIABLE} is not set; export {KEY_VARIABLE}=<your key> (https://openrouter.ai/keys) and run again"
            )
        try:
            return cls(value)
        except WireError as error:
            raise WireError(f"{KEY_VARIABLE}: {error}") from None

    def reveal(self) -> str:
        return self._value

    def hide_in(self, data: bytes) -> bytes:
        """`data` with the key blotted out, JSON-escaped or not: some servers echo what they refuse, and some lie."""
        if self._secret in data:
            data = data.replace(self._secret, HIDDEN)
        # The pattern is slow, and most bodies hold no such escape.
        may_hold = (b"00" in data and _ESCAPE.search(data)) or (self._is_escapable and b"\\" in data)
        return self._escaped.sub(HIDDEN, data) if may_hold else data

    def hide_in_text(self, text: str) -> str:
        return self.hide_in(text.encode("utf-8", "backslashreplace")).decode()

    def __repr__(self) -> str:
        return "ApiKey(hidden)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an ApiKey is never written anywhere")


def _spellings(character: str) -> str:
    """A pattern for one character of a key in JSON. The number of backslashes is bounded: so is the time of the search."""
    short = rf"\\{{1,8}}{re.escape(character)}|" if character in '/"\\' else ""
    return rf"(?:{re.escape(character)}|{short}\\{{1,8}}u00(?i:{ord(character):02x}))"


def allowed_base_url(campaign: Campaign) -> str:
    """Where the key may go: openrouter.ai, or OPENROUTER_BASE_URL of the environment (https or loopback). Raises WireError.

    A campaign file never names this host. The stand-in of an embedded campaign has its own address and cannot be overridden.
    """
    if campaign.server.kind == "embedded":
        raise WireError(f"{campaign.path}: server.kind is embedded: its prompts go to the stand-in only, never to another host")
    url = (os.environ.get(URL_VARIABLE) or DEFAULT_BASE_URL).rstrip("/")
    guard_url(url, what=URL_VARIABLE)
    return url


def guard_url(url: str, *, what: str) -> None:
    """Refuse a URL that a key must not be sent to. Raises WireError."""
    parts = urlsplit(url)
    if not parts.hostname or parts.username or parts.password or parts.query or parts.fragment:
        raise WireError(f"{what}: expected a plain URL such as {DEFAULT_BASE_URL}, found one without a host or with extra parts")
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname)):
        return
    raise WireError(f"{what} = {url!r}: expected https, or http on a loopback address; the key is not sent in the clear")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def request_headers(key: ApiKey, campaign: Campaign) -> dict[str, str]:
    """Headers of a completion request. Cached answers would be duplicates with an empty bill: the cache is off
    (docs/research/openrouter-contract.md#4.3, 14). Who asks is said as OpenRouter wants it (its page "App Attribution":
    `HTTP-Referer`, `X-OpenRouter-Title`), and a client without a name is what edge servers turn away first.
    """
    headers = {
        "Authorization": f"Bearer {key.reveal()}",
        "Content-Type": "application/json",
        "X-OpenRouter-Cache": "false",
        "User-Agent": USER_AGENT,
        "X-OpenRouter-Title": campaign.campaign.title or f"eagle3_assets {campaign.name}",
    }
    if campaign.campaign.url:
        headers["HTTP-Referer"] = campaign.campaign.url
    return headers


# ---------------------------------------------------------------------------------------------------- requests
def build_request(campaign: Campaign, dataset: Dataset, prompt: Prompt, routing: Routing) -> dict[str, Any]:
    """The JSON that is sent for one prompt. Sampling and max_tokens are always explicit; `models` (silent fallback to another
    model) is never sent; editing of prompts by the gateway is switched off (docs/research/openrouter-contract.md#1.1).
    """
    sampling = campaign.sampling_of(dataset)
    request: dict[str, Any] = {
        "model": campaign.target.model,
        "messages": [replay_message(message, routing.form.replay) for message in prompt.messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stream": routing.form.stream,
        "reasoning": {"enabled": campaign.target.thinking},
        "usage": {"include": True},
        "plugins": [{"id": "context-compression", "enabled": False}],
        "provider": routing.provider_object,
    }
    if prompt.tools:
        request["tools"] = list(prompt.tools)
    if routing.form.logprobs:
        request["logprobs"] = True
    return request


def replay_message(message: dict[str, Any], how: Replay = "both") -> dict[str, Any]:
    """A message of the history as OpenRouter takes it: reasoning goes back in the fields that `how` names
    (docs/research/openrouter-contract.md#3.3)."""
    out = {name: message[name] for name in _MESSAGE_FIELDS if name in message}
    reasoning = message.get("reasoning_content")
    if message.get("role") == "assistant" and isinstance(reasoning, str):
        details = [{"type": "reasoning.text", "text": reasoning, "format": "unknown", "index": 0}]
        for name in _REPLAYED[how]:
            out.setdefault(name, details if name == "reasoning_details" else reasoning)
    return out


def most_it_can_cost(request: dict[str, Any], routing: Routing) -> float:
    """USD that bound the price of `request`: every byte a prompt token, every allowed completion token used, at the highest
    prices that `provider.max_price` lets through.
    """
    sent = {name: request[name] for name in ("messages", "tools") if name in request}
    prompt_tokens = len(dump_json(sent)) + SERVER_TOKENS
    return (
        prompt_tokens * routing.max_prompt_price
        + int(request["max_tokens"]) * routing.max_completion_price
        + routing.max_request_price
    )


def most_it_could_cost(request: dict[str, Any]) -> float:
    """The same bound for a request that was sent earlier, from the `provider.max_price` that it carried (USD per million tokens,
    `request` in USD). Raises ValueError when it carried none.
    """
    prices = as_dict(as_dict(request.get("provider")).get("max_price"))
    try:
        prompt, completion = (float(prices[name]) / PER_MILLION for name in ("prompt", "completion"))
        bound = Routing((), (), {}, prompt, completion, float(prices.get("request", 0.0)))
        return most_it_can_cost(request, bound)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a request without {error}") from None


# ---------------------------------------------------------------------------------------------------- look-ups
async def check_key(session: aiohttp.ClientSession, base_url: str, key: ApiKey, *, timeout_s: float = 30.0) -> dict[str, Any]:
    """GET /key: limit, usage, limit_remaining … of the key (docs/research/openrouter-contract.md#1.5). Raises WireError when it
    is refused or unreachable."""
    guard_url(base_url, what=URL_VARIABLE)
    word = await ask_key(session, base_url, key, timeout_s=timeout_s)
    if word.kind == "refused":
        raise WireError(key_refused_line(word.status))
    if word.kind == "unknown":
        raise WireError(f"{base_url}/key: expected HTTP 200 with the key's limits, found {word.shown}; run again later")
    return word.data


@dataclass(frozen=True, slots=True)
class KeyWord:
    """What `/key` says of the key: good (`data`: its limits), refused, or nothing that can be relied on (an edge's page, no answer)."""

    kind: Literal["good", "refused", "unknown"]
    status: int
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return f"HTTP {self.status}" if self.status else "no answer"


async def ask_key(session: aiohttp.ClientSession, base_url: str, key: ApiKey, *, timeout_s: float = 30.0) -> KeyWord:
    """GET /key. A 401 or 403 counts as a refusal only where it is OpenRouter's own JSON: pages of edge servers say nothing of a key."""
    status, value = await _get(session, f"{base_url}/key", key, timeout_s)
    data = value.get("data")
    if status == 200 and isinstance(data, dict):
        return KeyWord("good", status, data)
    return KeyWord("refused" if status in (401, 403) and "error" in value else "unknown", status)


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What /key says of a key, in USD; None = no limit, or not said. `left_usd`: the least of the key's own limit and the budgets
    that hold for it.
    """

    limit_usd: float | None
    left_usd: float | None
    used_usd: float | None

    @classmethod
    def of(cls, data: dict[str, Any]) -> KeyFacts:
        """From the `data` of /key (docs/research/openrouter-contract.md#1.5)."""
        lefts = [_usd(data.get("limit_remaining")), _usd(as_dict(data.get("effective_budget")).get("remaining_usd"))]
        known = [left for left in lefts if left is not None]
        return cls(_usd(data.get("limit")), min(known) if known else None, _usd(data.get("usage")))


def _usd(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and -1e9 < value < 1e9
    return float(value) if is_number else None


def key_refused_line(status: int) -> str:
    return f"the server refused the key (HTTP {status}); check {KEY_VARIABLE}; no further request was sent, run again to resume"


async def look_at_usage(
    session: aiohttp.ClientSession, base_url: str, key: ApiKey, route: str, *, timeout_s: float = 30.0
) -> tuple[int, float | None]:
    """(HTTP status, USD used in all) as `/key` (this key) or `/credits` (the account; a management key may be needed) says
    (docs/research/openrouter-contract.md#1.4, #1.5). None when it does not say so; status 0 when nobody answers.
    """
    status, value = await _get(session, f"{base_url}/{route}", key, timeout_s)
    usage = as_dict(value.get("data")).get({"key": "usage", "credits": "total_usage"}[route]) if status == 200 else None
    return status, float(usage) if isinstance(usage, (int, float)) and not isinstance(usage, bool) and 0 <= usage < 4e6 else None


async def look_up_cost(
    session: aiohttp.ClientSession, base_url: str, key: ApiKey, generation_id: str, *, timeout_s: float = 30.0
) -> float | None:
    """`total_cost` in USD that /generation reports for a lost answer, or None while it is not known
    (docs/research/openrouter-contract.md#1.6)."""
    status, value = await _get(session, f"{base_url}/generation", key, timeout_s, params={"id": generation_id})
    cost = as_dict(value.get("data")).get("total_cost") if status == 200 else None
    return float(cost) if isinstance(cost, (int, float)) and not isinstance(cost, bool) and 0 <= cost < 1e6 else None


async def _get(
    session: aiohttp.ClientSession, url: str, key: ApiKey, timeout_s: float, params: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """(status, JSON object or {}); (0, {}) when the server cannot be reached."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    headers = {"Authorization": f"Bearer {key.reveal()}", "User-Agent": USER_AGENT}
    try:
        async with session.get(url, params=params, headers=headers, allow_redirects=False, timeout=timeout) as response:
            status, body = response.status, await read_at_most(response, LOOK_UP_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0, {}
    try:
        value = load_json(body)
    except ValueError:
        value = {}
    return status, value if isinstance(value, dict) else {}
