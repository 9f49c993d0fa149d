"""What an exchange means: one table of outcomes, and the reading of a body that picks the row.

Belongs here: `TABLE` (outcome, retry class, money, what to do), the mapping of HTTP statuses and error types to its rows.
Does not belong here: acting on it (`collector.py`).

Source of every row: docs/research/openrouter-contract.md#2.1 (body shapes), #2.2 (codes), #2.4 (the four kinds of 402), #2.5
(billing), #4.3 (15-17).
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_assets.collect.servers.exchange import Exchange
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire.completion import (
    NotACompletion,
    as_dict,
    completion_tokens,
    first_choice,
    parse_completion,
    reasoning_text,
    usage_of,
)
from eagle3_assets.wire.wire_answer import Outcome, RetryClass, WireAnswer


@dataclass(frozen=True, slots=True)
class Handling:
    """One row. `money`: billed = by usage.cost, free = not billed, unknown = perhaps billed, the reservation stays.

    `then`: done, retry (counts against `collect.attempts`), slow (retry later with fewer in flight; does not count), elsewhere (another
    provider is asked; does not count), ask_key (nothing is sent until `/key` says whether the key is good; does not count), give_up
    (never again), stop (the run ends, WireError), stop_budget (the run ends, BudgetStop). `systematic`: a series of these without
    one finished answer means that the settings are wrong, not the prompts.
    """

    outcome: Outcome
    retry_class: RetryClass | None
    money: Literal["billed", "free", "unknown"]
    then: Literal["done", "retry", "slow", "elsewhere", "ask_key", "give_up", "stop", "stop_budget"]
    systematic: bool = False


TABLE: dict[str, Handling] = {
    "finished": Handling("finished", None, "billed", "done"),
    # transport
    "connect_failed": Handling("failed", "transient", "free", "retry"),
    "reset": Handling("ambiguous", "transient", "unknown", "retry"),
    "timeout": Handling("ambiguous", "transient", "unknown", "retry"),
    # keep-alives only (docs/research/openrouter-contract.md#0.6): nobody answers any more
    "silent": Handling("ambiguous", "transient", "unknown", "retry"),
    "broken_response": Handling("ambiguous", "transient", "unknown", "retry"),
    "truncated": Handling("ambiguous", "transient", "unknown", "retry"),  # also JSON or SSE that ends early, or an empty body
    "cancelled": Handling("ambiguous", "transient", "unknown", "retry"),  # a dropped non-streamed request is billed in full (2.5)
    "html": Handling("ambiguous", "transient", "unknown", "retry"),  # an edge answered for a server that may have done the work
    "no_choices": Handling("ambiguous", "transient", "unknown", "retry"),
    # Whole for HTTP, perhaps billed, and of no use. The class `content` bounds them by `collect.attempts` over all runs together:
    # a server that does this to a prompt every time is not paid for it every time somebody runs again.
    "oversized": Handling("ambiguous", "content", "unknown", "retry", systematic=True),  # exchange.MOST_BODY_BYTES
    "unreadable": Handling("ambiguous", "content", "unknown", "retry", systematic=True),  # whole JSON that is no completion
    "key_echoed": Handling("failed", "content", "billed", "retry", systematic=True),  # the key was hidden: not the bytes received
    # statuses
    "bad_request": Handling("failed", "permanent", "free", "give_up", systematic=True),
    "too_large": Handling("failed", "permanent", "free", "give_up"),
    "unprocessable": Handling("failed", "permanent", "free", "give_up", systematic=True),
    "moderated": Handling("failed", "permanent", "free", "give_up"),
    # Not the last word: OpenRouter says so of good keys at times (RooCodeInc/Roo-Code#6459). `/key` has it.
    "key_refused": Handling("failed", "transient", "free", "ask_key"),
    "forbidden": Handling("failed", "transient", "free", "ask_key"),
    "credit_doubted": Handling("failed", "transient", "free", "ask_key"),  # a 402 that names no limit of ours
    "edge_page": Handling(
        "failed", "transient", "free", "ask_key"
    ),  # an edge server stands in front: the request did not get there
    "redirected": Handling("failed", "transient", "free", "stop"),
    "no_credit": Handling("failed", "transient", "free", "stop_budget"),
    "in_flight_budget": Handling("failed", "transient", "free", "slow"),
    "no_endpoint": Handling("failed", "transient", "free", "retry", systematic=True),
    "gateway_timeout": Handling("ambiguous", "transient", "unknown", "retry"),
    "rate_limited": Handling("failed", "transient", "free", "slow"),
    "server_error": Handling("failed", "transient", "free", "retry"),
    "provider_down": Handling("failed", "transient", "free", "retry"),
    # The provider's own account, key or parser, not ours (docs/design.md#rule-15): others may still answer.
    "provider_refused": Handling("failed", "transient", "free", "elsewhere"),
    "row_refused": Handling("failed", "transient", "free", "elsewhere"),  # what would be permanent if no other provider were left
    "overloaded": Handling("failed", "transient", "free", "slow"),
    # a whole body that is no usable answer
    "error_finish": Handling("failed", "transient", "free", "retry"),
    "no_finish_reason": Handling("failed", "content", "billed", "retry"),
    "empty": Handling("failed", "content", "billed", "retry"),
    "content_filter": Handling("failed", "content", "billed", "retry"),
    "wrong_model": Handling("failed", "content", "billed", "retry", systematic=True),
    "wrong_provider": Handling("failed", "content", "billed", "retry", systematic=True),
}

_STATUS: dict[int, str] = {
    400: "bad_request", 401: "key_refused", 402: "credit_doubted", 403: "forbidden", 404: "no_endpoint",
    408: "gateway_timeout", 413: "too_large", 422: "unprocessable", 429: "rate_limited", 499: "gateway_timeout",
    500: "server_error", 502: "provider_down", 503: "overloaded", 504: "gateway_timeout",
    520: "gateway_timeout", 521: "provider_down", 522: "gateway_timeout", 523: "provider_down", 524: "gateway_timeout",
    529: "overloaded",
}  # fmt: skip

# error_type (2.1) where a body carries no numeric code, or one that says less.
_ERROR_TYPE: dict[str, str] = {
    "context_length_exceeded": "bad_request", "max_tokens_exceeded": "bad_request", "token_limit_exceeded": "bad_request",
    "string_too_long": "bad_request", "invalid_request": "bad_request", "invalid_prompt": "bad_request",
    "authentication": "key_refused", "payment_required": "credit_doubted",
    "content_policy_violation": "moderated", "refusal": "moderated",
    "not_found": "no_endpoint", "payload_too_large": "too_large", "unprocessable": "unprocessable",
    "rate_limit_exceeded": "rate_limited", "provider_overloaded": "overloaded", "provider_unavailable": "provider_down",
    "server": "server_error", "server_error": "server_error", "timeout": "gateway_timeout",
}  # fmt: skip

# metadata.limit_source / reason of 402 and 403 (2.2, 2.4).
_LIMIT: dict[str, str] = {
    "openrouter_in_flight_budget": "in_flight_budget", "in_flight_budget_exhausted": "in_flight_budget",
    "openrouter_credits": "no_credit", "weight_exceeds_budget": "no_credit", "openrouter_key_limit": "no_credit",
    "openrouter_guardrail_budget": "no_credit", "openrouter_workspace_budget": "no_credit",
}  # fmt: skip

# 403 in words alone: a key with a limit, which the README recommends, says so without metadata (MCPJam#1287, Roo-Code#515, ClawQL#876).
_NO_MONEY = re.compile(
    r"\b(key|spend(ing)?|credit|budget|usage)s?\b[^.]{0,40}\b(limit|quota)s?\b[^.]{0,40}\b(exceeded|reached|used up)\b"
    r"|\binsufficient (credits?|funds|balance)\b",
    re.IGNORECASE,
)
_OURS = (401, 402, 403)  # statuses that speak of a key or of money: whose, the error says
_OF_A_PROVIDER = "provider returned error"  # OpenRouter's words where a provider's error is passed on, named or not
# Pages of an edge server (Cloudflare): HTML of any status, or its one line of text ("error code: 1010", 1015 for a rate limit).
_EDGE_LINE = re.compile(rb"\s*error code: 1\d{3}\b", re.IGNORECASE)
_EDGE_TITLE = re.compile(rb"<[^>]*>")
_EDGE_KNOWS_BETTER = {408, 429, 499, 503}  # what these say is true whoever says it


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one exchange. `cost_usd` is what it settles for, None while unknown; `message` is the server's own words; `provider`
    is whom a failure speaks of, None where it names nobody."""

    reason: str
    completion: dict[str, Any] | None = None
    cost_usd: float | None = None
    retry_after_s: float | None = None
    message: str = ""
    provider: str | None = None

    @property
    def handling(self) -> Handling:
        return TABLE[self.reason]


def classify(
    exchange: Exchange,
    *,
    is_asked_model: Callable[[str | None], bool] = lambda model: True,
    is_eligible: Callable[[str | None], bool] = lambda provider: True,
    asked_model: object = None,
) -> Finding:
    """Judge an exchange. The two predicates verify `model` and `provider` of the body; `asked_model` is named where it is another."""
    completion, no_completion = _whole_completion(exchange)
    reason = exchange.fault or _reason_of_answer(exchange, completion)
    if reason == "truncated" and exchange.fault is None and no_completion:
        reason = "unreadable"
    if reason == "finished" and completion is not None:
        if not is_asked_model(completion.get("model")):
            reason = "wrong_model"
        elif not is_eligible(completion.get("provider")):
            reason = "wrong_provider"
    return Finding(
        reason,
        None if exchange.fault else completion,
        _cost(completion, TABLE[reason]),
        _retry_after(exchange, completion),
        _wrong_model(asked_model, completion) if reason == "wrong_model" else _message(completion, exchange),
        None if reason == "finished" or exchange.fault else _blamed(completion),
    )


def to_answer(
    prompt: Prompt,
    exchange: Exchange,
    finding: Finding,
    *,
    source: Literal["openrouter", "engine"],
    request_id: str,
    request: dict[str, Any],
    shard: str,
    attempt: int,
    started_at: float,
    server: str | None = None,
) -> WireAnswer:
    """The record of a judged exchange."""
    handling, completion = finding.handling, finding.completion or {}
    provider, model, generation_id = (_text(completion.get(name)) for name in ("provider", "model", "id"))
    return WireAnswer(
        request_id=request_id,
        sample_id=prompt.sample_id,
        turn=prompt.turn,
        attempt=attempt,
        dataset=prompt.dataset,
        shard=shard,
        source=source,
        request=request,
        status=exchange.status,
        body=exchange.body,
        outcome=handling.outcome,
        headers=exchange.headers,
        provider=provider,
        model=model,
        generation_id=exchange.headers.get("x-generation-id") or generation_id,
        started_at=started_at,
        finished_at=time.time(),
        cost_usd=finding.cost_usd,
        reason=None if finding.reason == "finished" else finding.reason,
        retry_class=handling.retry_class,
        server=server,
        completion_tokens=completion_tokens(completion) if handling.outcome == "finished" else None,
    )


def _whole_completion(exchange: Exchange) -> tuple[dict[str, Any] | None, bool]:
    """The body, or None; and whether it is something whole that is no completion."""
    try:
        return parse_completion(exchange.body, exchange.headers.get("content-type", "")), False
    except ValueError as error:
        return None, isinstance(error, NotACompletion)


def _reason_of_answer(exchange: Exchange, completion: dict[str, Any] | None) -> str:
    status = exchange.status
    error = (completion or {}).get("error")
    if 200 <= status < 300 and not error:  # a 201 or 206 with a whole answer is an answer, and paid for
        return _reason_of_success(exchange, completion)
    if 300 <= status < 400:
        return "redirected"
    if not error and _is_edge_page(exchange) and status not in _EDGE_KNOWS_BETTER:
        return "html" if status >= 500 else "edge_page"
    return _reason_of_error(status, as_dict(error), _blamed(completion))


def _is_edge_page(exchange: Exchange) -> bool:
    is_html = exchange.headers.get("content-type", "").startswith("text/html") or exchange.body.lstrip()[:1] == b"<"
    return is_html or _EDGE_LINE.match(exchange.body) is not None


def _blamed(completion: dict[str, Any] | None) -> str | None:
    """The provider that an error speaks of: `error.metadata.provider_name` (2.1), or the places where other forms put it. An error in a
    choice is of whoever wrote the answer."""
    body = completion or {}
    error = as_dict(body.get("error"))
    choice = first_choice(body) if not error else None
    if choice is not None and (choice.get("finish_reason") == "error" or choice.get("error")):
        error = as_dict(choice.get("error"))
    elif not error:
        return None
    metadata = as_dict(error.get("metadata"))
    places = (metadata.get("provider_name"), metadata.get("provider"), error.get("provider_name"), body.get("provider"))
    return next((name.strip() for name in places if isinstance(name, str) and name.strip()), None)


def _reason_of_error(status: int, error: dict[str, Any], provider: str | None) -> str:
    metadata = as_dict(error.get("metadata"))
    code = status if not 200 <= status < 300 else _number(error.get("code")) or _number(error.get("http_status")) or 0
    for value in (metadata.get("reason"), metadata.get("limit_source")) if code in (402, 403) else ():
        if isinstance(value, str) and value in _LIMIT:
            return _LIMIT[value]
    if code == 403 and (metadata.get("reasons") or "flagged_input" in metadata or "patterns" in metadata):
        return "moderated"
    named = _ERROR_TYPE.get(str(metadata.get("error_type") or error.get("error_type") or error.get("code") or ""))
    if code == 403 and named == "moderated":
        return named
    message = _shown(error.get("message"))
    is_of_ours = code in _OURS or named in ("key_refused", "credit_doubted")
    if is_of_ours and (provider or message.casefold().startswith(_OF_A_PROVIDER)):
        return "provider_refused"
    if code == 403 and _NO_MONEY.search(message):
        return "no_credit"
    if code in _STATUS:
        return _STATUS[code]
    return named or ("bad_request" if 400 <= code < 500 else "server_error")


def _reason_of_success(exchange: Exchange, completion: dict[str, Any] | None) -> str:
    if completion is None:
        return "html" if exchange.body.lstrip()[:1] == b"<" else "truncated"
    choice = first_choice(completion)
    if choice is None:
        return "no_choices"
    finish = choice.get("finish_reason")
    if finish == "error" or choice.get("error"):
        return "error_finish"
    message = as_dict(choice.get("message"))
    if not (message.get("content") or message.get("tool_calls") or reasoning_text(message)):
        return "empty"
    if finish == "content_filter":
        return "content_filter"
    return "finished" if finish else "no_finish_reason"


def _cost(completion: dict[str, Any] | None, handling: Handling) -> float | None:
    """`usage.cost` where there is one (a failed answer may state its price, too), else 0 for rows that are not billed. Whether a
    claim of 0 is believed depends on the price list (`collector.py`)."""
    cost = usage_of(completion or {}).get("cost")
    if isinstance(cost, (int, float)) and not isinstance(cost, bool) and 0 <= cost < 1e6:
        return float(cost)
    return 0.0 if handling.money == "free" else None


def _retry_after(exchange: Exchange, completion: dict[str, Any] | None) -> float | None:
    """Seconds asked for by the `Retry-After` header (seconds or a date) or `error.availability.retry_after`; never negative."""
    value: Any = exchange.headers.get("retry-after")
    if value is None:
        value = as_dict(as_dict((completion or {}).get("error")).get("availability")).get("retry_after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        try:
            seconds = email.utils.parsedate_to_datetime(str(value)).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None


def _message(completion: dict[str, Any] | None, exchange: Exchange) -> str:
    error = (completion or {}).get("error")
    if not error:
        is_page = completion is None and exchange.status >= 400 and _is_edge_page(exchange)
        return _shown(_EDGE_TITLE.sub(b" ", exchange.body[:600]).decode("utf-8", "replace")) if is_page else ""
    if not isinstance(error, dict):
        return _shown(error)
    provider = _shown(_blamed(completion))
    return f"{provider}: {_shown(error.get('message'))}" if provider else _shown(error.get("message"))


def _wrong_model(asked: object, completion: dict[str, Any] | None) -> str:
    return f"asked for {_shown(asked)}, answered by {_shown((completion or {}).get('model')) or 'a model without a name'}"


def _shown(text: object) -> str:
    """A server's words on one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text or "")[:300]).split())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) else None
