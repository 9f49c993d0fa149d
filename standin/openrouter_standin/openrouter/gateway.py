"""What OpenRouter decides before the first byte: key, request, money, route, fault. Ends in a `Refusal` or an `Admitted`.

Belongs here: the order of the checks. Does not belong here: a refusal's words (`refusals`), sockets, waiting, bending.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass, replace

from openrouter_standin.clock import Clock
from openrouter_standin.openrouter import refusals
from openrouter_standin.openrouter.account import Account, Hold
from openrouter_standin.openrouter.faults import FaultBook
from openrouter_standin.openrouter.response_cache import ResponseCache
from openrouter_standin.openrouter.routing import AllBusy, NoEndpoint, Tried, pass_on, route
from openrouter_standin.openrouter.traffic import Bucket, Traffic
from openrouter_standin.request import BadRequest, ChatRequest, read_request
from openrouter_standin.schema.faults import FaultName
from openrouter_standin.schema.provider import Provider
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Ids

UNWRITABLE = (ValueError, TypeError, LookupError, AttributeError)  # what a template says to a declaration of tools that is none


@dataclass
class Admitted:
    """A request that will be answered. `provider`: as it is at this moment of the run. `fault`: None, or one that is no refusal."""

    request: ChatRequest
    attempt: int
    provider: Provider
    tried: tuple[Tried, ...]
    prompt_ids: Ids
    fault: FaultName | None
    hold: Hold
    slot: asyncio.Future[None] | None

    @property
    def tried_statuses(self) -> tuple[tuple[str, int], ...]:
        return tuple((tried.name, tried.status) for tried in self.tried)


def check_key(authorization: str | None, *keys: str) -> None:
    """Raises Refusal 401 unless one of `keys` is given."""
    if not authorization or not authorization.startswith("Bearer "):
        raise refusals.unauthorized("No auth credentials found")
    given = authorization.removeprefix("Bearer ").strip().encode("utf-8", "replace")
    if not any(hmac.compare_digest(given, key.encode()) for key in keys):
        raise refusals.unauthorized("User not found.")


def parse(body: bytes, slugs: tuple[str, ...]) -> ChatRequest:
    """The request, asking for the first model of its list that is sold here (a silent fallback). Raises Refusal 400 for a bad body,
    or when no model is known."""
    try:
        request = read_request(body)
    except BadRequest as error:
        raise refusals.bad_request(str(error)) from None
    if request.model.partition(":")[0] in slugs:
        return request
    for model in request.models:
        if model.partition(":")[0] in slugs:
            return replace(request, model=model)
    named = next(iter(request.models), "undefined")
    raise refusals.bad_request(f"{named} is not a valid model ID", None)


class Gateway:
    """The state between requests, and the decisions over it."""

    def __init__(self, generator: Generator, ledger: Ledger, clock: Clock) -> None:
        server = generator.profiles.server
        self.generator, self.ledger, self.clock = generator, ledger, clock
        self.account = Account(server, ledger, clock)
        self.traffic = Traffic(clock)
        self.faults = FaultBook(server.faults, generator.seed)
        self.cache = ResponseCache(clock)
        limits = server.limits
        self._platform = Bucket(limits.requests_per_s, limits.burst) if limits.requests_per_s else None
        for account in ledger.generations.values():
            self.traffic.answers[str(account.get("tag", "")).partition("#")[0]] += 1

    def providers(self) -> list[Provider]:
        """As they are at this moment of the run."""
        now_s, answers = self.clock.now_s, self.traffic.answers
        return [provider.at(answers[provider.tag], now_s) for provider in self.generator.profiles.provider]

    def endpoint_names(self, request: ChatRequest, attempt: int) -> list[str]:
        """Who could serve this request now, for `openrouter_metadata`."""
        try:
            endpoints = route(request, self.providers(), seed=self.generator.seed, attempt=attempt, traffic=self.traffic)
        except NoEndpoint:  # the endpoint that answered has changed since
            return []
        return [provider.name for provider in endpoints]

    def admit(self, request: ChatRequest) -> Admitted:
        """Limits, money, route, room, pre-authorisation, fault: in this order. Counts the attempt. Raises Refusal."""
        self._check_platform()
        balance = self._check_money()
        attempt = self.ledger.next_attempt(request.hash)
        provider, tried = self._endpoint(request, attempt)
        try:
            prompt_ids, estimate = self._weigh(request, provider, balance)
        except refusals.Refusal:
            self.traffic.not_asked(provider)
            raise
        server = self.generator.profiles.server
        fault = self.faults.choose(request, provider, attempt=attempt, now_s=self.clock.now_s)
        if fault is not None:
            model, pause = request.model, server.retry_after_s
            if (refusal := refusals.of_fault(fault, provider, model=model, retry_after_s=pause)) is not None:
                raise refusal
        self.traffic.answers[provider.tag] += 1
        slots = self.traffic.slots(provider)
        slot = None if slots is None else slots.take()
        return Admitted(request, attempt, provider, tried, prompt_ids, fault, self.account.hold(estimate), slot)

    def _weigh(self, request: ChatRequest, provider: Provider, balance: int) -> tuple[Ids, int]:
        """Prompt ids, and picodollars to hold. Raises Refusal: the endpoint never hears of such a request."""
        try:
            prompt_ids = self.generator.prompt_ids(request, provider)
        except UNWRITABLE as error:
            raise refusals.template_failed(provider, error) from None
        longest = self.generator.context_length
        if len(prompt_ids) > longest:
            message = f"This endpoint's maximum context length is {longest} tokens. However, you requested about {len(prompt_ids)} tokens."
            raise refusals.bad_request(message, "context_length_exceeded")
        _preauthorise(request, provider, len(prompt_ids), balance, self.account.key_left_pico)
        return prompt_ids, self._estimate(request, provider, len(prompt_ids))

    def leave(self, admitted: Admitted, cost_pico: int) -> None:
        """The request is over: its slot is free, the hold becomes what it cost."""
        self.account.release(admitted.hold, cost_pico)
        if admitted.slot is not None:
            self.traffic.give_back(admitted.provider, admitted.slot)

    def _check_platform(self) -> None:
        if self._platform is not None and not self._platform.take(self.clock.now_s):
            raise refusals.platform_limit(self._platform.per_s, self.clock.real(self._platform.wait_s()))

    def _check_money(self) -> int:
        """The balance, in picodollars."""
        balance, key_left = self.account.balance_pico, self.account.key_left_pico
        money = self.generator.profiles.server.money
        if balance <= 0:
            raise refusals.no_credits()
        if key_left is not None and key_left <= 0:
            raise refusals.key_spent(money.key_limit_status, money.key_limit_usd or 0.0)
        return balance

    def _endpoint(self, request: ChatRequest, attempt: int) -> tuple[Provider, tuple[Tried, ...]]:
        seed, traffic = self.generator.seed, self.traffic
        try:
            endpoints = route(request, self.providers(), seed=seed, attempt=attempt, traffic=traffic)
            return pass_on(endpoints, seed=seed, request_hash=request.hash, attempt=attempt, traffic=traffic)
        except NoEndpoint as error:
            raise refusals.no_endpoint(
                str(error), model=request.model, constraint=error.constraint, detail=error.detail, excluded=error.excluded
            ) from None
        except AllBusy as error:
            hints = [tried.hint_s for tried in error.tried]
            known = [hint for hint in hints if hint is not None]
            hint = self.clock.real(min(known)) if len(known) == len(hints) else None
            tried = tuple((one.name, one.status) for one in error.tried)
            raise refusals.capacity_exhausted(tried[-1][1], request.model, tried, hint) from None

    def _estimate(self, request: ChatRequest, provider: Provider, prompt_tokens: int) -> int:
        """What this request may cost, for the in-flight budget (docs/research/openrouter-contract.md#2.4). Raises Refusal."""
        budget = self.account.in_flight_budget_pico
        if budget is None:
            return 0
        money = self.generator.profiles.server.money
        completion = min(request.max_tokens or money.in_flight_token_cap, money.in_flight_token_cap)
        estimate = prompt_tokens * provider.prompt_pico + completion * provider.completion_pico
        if estimate > budget:
            raise refusals.too_heavy(budget)
        held = self.account.in_flight_pico
        if held + estimate > budget:
            raise refusals.in_flight(money.in_flight_retry_after_s, budget, held)
        return estimate


def _preauthorise(request: ChatRequest, provider: Provider, prompt_tokens: int, balance: int, key_left: int | None) -> None:
    """402 when prompt + max_tokens (or the endpoint's maximum) costs more than the balance or the key's limit leaves
    (docs/research/openrouter-contract.md#2.4)."""
    wanted = request.max_tokens or provider.max_completion_tokens
    spendable = balance if key_left is None else min(balance, key_left)
    left = spendable - prompt_tokens * provider.prompt_pico
    if wanted * provider.completion_pico <= left:
        return
    affordable = max(0, left // provider.completion_pico) if provider.completion_pico else 0
    source = "openrouter_credits" if spendable == balance else "openrouter_key_limit"
    raise refusals.cannot_afford(wanted, affordable, spendable, source)
