"""Providers that misbehave are left out for a while: a circuit for each provider, and who may take the next request.

Belongs here: the state machine of one circuit as plain functions, the choice among providers for one request, the record of what changed.
Does not belong here: what an error means (`run/outcomes.py`), sending, waiting (`run/collector.py`).

An error that names a provider is about that provider (docs/design.md#rule-15): OpenRouter passes on what a provider's own
account, key or parser said, with its status (OpenRouterTeam/ai-sdk-provider#24: a 401 of the provider's key; OmniRoute#3044: a
400 of one provider that others take). A circuit is closed (asked), open (left out), half open (one request tries it, pinned to
it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from eagle3_assets.collect.servers.endpoint import Endpoint
from eagle3_assets.collect.servers.routing import Routing

log = logging.getLogger(__name__)

State = Literal["closed", "open", "half_open"]
Kind = Literal["refused", "row", "down"]

# Failures in a row, without an answer between, that open a circuit. An account that refuses does so every time: three are enough, and
# not one, because single ones are weather. Rows may be at fault themselves, and a server that is down is left by OpenRouter, too.
OPENS_AFTER: dict[Kind, int] = {"refused": 3, "row": 8, "down": 8}
PROBE_WAIT_S = 0.5  # while a probe is under way, nobody knows how long
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0  # doubled with every probe that fails


@dataclass(frozen=True, slots=True)
class Circuit:
    """One provider. `failures` in a row since its last answer, `openings` in a row likewise; times are of a monotonic clock (s)."""

    state: State = "closed"
    failures: int = 0
    openings: int = 0
    probe_at_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a circuit, for people. `pause_s`: how long the provider is left out, 0 where it is asked again."""

    provider: str
    before: State
    after: State
    why: str
    pause_s: float


def pause_s(openings: int, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> float:
    """Seconds until the next probe after so many openings in a row."""
    return min(longest_s, first_s * 2.0 ** min(openings - 1, 20))


def after_failure(
    circuit: Circuit, *, kind: Kind, why: str, is_probe: bool, now_s: float, first_s: float = FIRST_PAUSE_S
) -> Circuit:
    """An open circuit learns nothing from requests that were sent before it opened; a probe that fails opens it for longer."""
    if circuit.state == "open" or (circuit.state == "half_open" and not is_probe):
        return circuit
    failures = circuit.failures + 1
    if circuit.state == "closed" and failures < OPENS_AFTER[kind]:
        return replace(circuit, failures=failures, why=why)
    openings = circuit.openings + 1
    return Circuit("open", failures, openings, now_s + pause_s(openings, first_s), why)


def after_answer(circuit: Circuit, *, is_probe: bool) -> Circuit:
    """An answer that was under way when the circuit opened does not close it; that of a probe does."""
    return Circuit() if circuit.state == "closed" or is_probe else circuit


def after_silence(circuit: Circuit, *, now_s: float, first_s: float = FIRST_PAUSE_S) -> Circuit:
    """A probe that told nothing about the provider (a full account, a lost connection): it is tried again after the same pause."""
    if circuit.state != "half_open":
        return circuit
    return replace(circuit, state="open", probe_at_s=now_s + pause_s(max(1, circuit.openings), first_s))


def is_due(circuit: Circuit, now_s: float) -> bool:
    return circuit.state == "open" and now_s >= circuit.probe_at_s


@dataclass(frozen=True, slots=True)
class Choice:
    """How one request goes out. `routing` None: nobody may be asked for `wait_s`, with this row or (`is_for_all`) with any. `probes`: the
    provider that this request tries."""

    routing: Routing | None
    wait_s: float = 0.0
    probes: str | None = None
    is_reduced: bool = False
    is_for_all: bool = False


def choose(
    routing: Routing,
    circuits: Mapping[str, Circuit],
    *,
    refused_by: Iterable[str] = (),
    avoids: Iterable[str] = (),
    now_s: float,
) -> Choice:
    """Who may take a row: not those who refused this row (`refused_by`), not those left out; not those of `avoids` where there are others.
    Names are folded display names. A provider whose pause is over gets this row alone."""
    refused, avoided = frozenset(refused_by), frozenset(avoids)
    if not refused and not avoided and all(circuit.state == "closed" for circuit in circuits.values()):
        return Choice(routing)
    left = [e for e in routing.eligible if folded(e.provider_name) not in refused]
    named = {folded(e.provider_name): circuits.get(folded(e.provider_name), Circuit()) for e in left}
    due = next((name for name, circuit in named.items() if is_due(circuit, now_s)), None)
    if due is not None:
        return Choice(_among(routing, [e for e in left if folded(e.provider_name) == due]), probes=due, is_reduced=True)
    asked = [e for e in left if named[folded(e.provider_name)].state == "closed"]
    preferred = [e for e in asked if folded(e.provider_name) not in avoided] or asked
    if preferred:
        return Choice(_among(routing, preferred), is_reduced=len(preferred) < len(routing.eligible))
    waits = [circuit.probe_at_s - now_s for circuit in named.values() if circuit.state == "open"]
    everybody = (circuits.get(folded(e.provider_name), Circuit()) for e in routing.eligible)
    is_for_all = all(circuit.state != "closed" for circuit in everybody)
    return Choice(None, wait_s=max(0.0, min(waits)) if waits else PROBE_WAIT_S, is_for_all=is_for_all)


def folded(name: str) -> str:
    return name.casefold()


def _among(routing: Routing, endpoints: list[Endpoint]) -> Routing:
    """The same policy (its price bound, too) over some of its endpoints: `provider.only` names those that may answer."""
    if len(endpoints) == len(routing.eligible):
        return routing
    allowed = {**routing.provider_object, "only": [endpoint.tag for endpoint in endpoints]}
    return replace(routing, eligible=tuple(endpoints), provider_object=allowed)


class Breaker:
    """The circuits of one run. `on_change` hears of every change."""

    def __init__(self, on_change: Callable[[Change], None] | None = None, *, first_s: float = FIRST_PAUSE_S) -> None:
        self._circuits: dict[str, Circuit] = {}
        self._names: dict[str, str] = {}  # folded -> as written
        self._on_change, self._first_s = on_change, first_s

    def choose(self, routing: Routing, *, refused_by: Iterable[str] = (), avoids: Iterable[str] = (), now_s: float) -> Choice:
        choice = choose(routing, self._circuits, refused_by=refused_by, avoids=avoids, now_s=now_s)
        if choice.probes is not None:
            circuit = self._circuits[choice.probes]
            self._set(choice.probes, replace(circuit, state="half_open"), circuit.why)
        return choice

    def failed(self, provider: str, *, kind: Kind, why: str, probes: str | None, now_s: float) -> None:
        name = folded(provider)
        self._names.setdefault(name, provider)
        circuit = self._circuits.get(name, Circuit())
        after = after_failure(circuit, kind=kind, why=why, is_probe=probes == name, now_s=now_s, first_s=self._first_s)
        self._set(name, after, why)

    def answered(self, provider: str | None, *, probes: str | None) -> None:
        """A finished answer; one of a provider that was never in trouble costs one look into a dictionary."""
        if provider is not None and (circuit := self._circuits.get(folded(provider))) is not None:
            name = folded(provider)
            self._set(name, after_answer(circuit, is_probe=probes == name), "it answers again")

    def told_nothing(self, probes: str, *, now_s: float) -> None:
        """The request that tried `probes` is over; nothing changes where its outcome was heard already."""
        if (circuit := self._circuits.get(probes)) is not None:
            self._set(probes, after_silence(circuit, now_s=now_s, first_s=self._first_s), circuit.why)

    @property
    def left_out(self) -> dict[str, str]:
        """Provider -> why, of those that are not asked now."""
        return {self._names[name]: circuit.why for name, circuit in self._circuits.items() if circuit.state != "closed"}

    def _set(self, name: str, after: Circuit, why: str) -> None:
        before = self._circuits.get(name, Circuit())
        if after.state == "closed" and after.failures == 0:
            self._circuits.pop(name, None)
        else:
            self._circuits[name] = after
        if before.state == after.state:
            return
        pause = pause_s(after.openings, self._first_s) if after.state == "open" else 0.0
        change = Change(self._names.get(name, name), before.state, after.state, why, pause)
        log.warning("provider %s: %s -> %s (%s)", change.provider, change.before, change.after, why)
        if self._on_change is not None:
            self._on_change(change)
