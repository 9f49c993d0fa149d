"""Claims about circuits: who is left out, for how long, and how a provider comes back."""

from __future__ import annotations

from eagle3_assets.collect.servers.breaker import (
    Breaker,
    Change,
    Circuit,
    after_answer,
    after_failure,
    after_silence,
    choose,
    is_due,
    pause_s,
)
from eagle3_assets.collect.servers.routing import resolve
from eagle3_assets_tests.collect.samples import a_campaign, a_snapshot, an_endpoint

SNAPSHOT = a_snapshot(
    an_endpoint(), an_endpoint("Novita", "novita/int4"), an_endpoint("Novita", "novita/fp8", quantization="fp8")
)
ROUTING = resolve(a_campaign(), SNAPSHOT)


def fail(circuit: Circuit, times: int, *, now_s: float = 0.0, is_probe: bool = False) -> Circuit:
    for _ in range(times):
        circuit = after_failure(circuit, kind="refused", why="key", is_probe=is_probe, now_s=now_s)
    return circuit


def test_one_failure_is_weather_three_in_a_row_open_the_circuit_and_an_answer_between_forgets_them() -> None:
    assert fail(Circuit(), 2).state == "closed"
    assert fail(Circuit(), 3).state == "open"
    assert fail(after_answer(fail(Circuit(), 2), is_probe=False), 2).state == "closed"


def test_an_open_circuit_hears_nothing_of_requests_from_before() -> None:
    opened = fail(Circuit(), 3, now_s=100.0)
    assert fail(opened, 500, now_s=104.0) == opened and after_answer(opened, is_probe=False) == opened
    assert not is_due(opened, 104.9) and is_due(opened, 105.0)


def test_each_probe_that_fails_doubles_the_pause_up_to_five_minutes_and_one_that_succeeds_ends_it() -> None:
    circuit, now = fail(Circuit(), 3), 0.0
    pauses = []
    for _ in range(9):
        now = circuit.probe_at_s
        circuit = fail(Circuit("half_open", circuit.failures, circuit.openings), 1, now_s=now, is_probe=True)
        pauses.append(circuit.probe_at_s - now)
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300] == [pause_s(n) for n in range(2, 11)]
    half = Circuit("half_open", circuit.failures, circuit.openings)
    assert after_answer(half, is_probe=False) == half and after_answer(half, is_probe=True) == Circuit()


def test_a_probe_that_tells_nothing_is_sent_again_after_the_same_pause() -> None:
    half = Circuit("half_open", 3, 2, 10.0, "key")
    again = after_silence(half, now_s=50.0)
    assert (again.state, again.probe_at_s) == ("open", 60.0) and after_silence(Circuit(), now_s=50.0) == Circuit()


def test_all_endpoints_of_a_provider_are_left_out_together_and_the_price_bound_stays() -> None:
    choice = choose(ROUTING, {"novita": Circuit("open", 3, 1, 50.0)}, now_s=1.0)
    assert choice.routing is not None and choice.is_reduced
    assert choice.routing.provider_object == {**ROUTING.provider_object, "only": ["chutes/int4"]}
    assert choice.routing.max_completion_price == ROUTING.max_completion_price


def test_a_probe_is_pinned_and_only_one_request_is_a_probe() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed("Novita", kind="refused", why="key", probes=None, now_s=0.0)
    probe, other = (breaker.choose(ROUTING, now_s=5.0) for _ in range(2))
    assert probe.routing is not None and other.routing is not None
    assert (probe.probes, probe.routing.provider_object["only"]) == ("novita", ["novita/int4", "novita/fp8"])
    assert (other.probes, other.routing.provider_object["only"]) == (None, ["chutes/int4"])


def test_a_row_avoids_who_failed_it_where_there_are_others_and_never_asks_who_refused_it() -> None:
    avoided = choose(ROUTING, {}, avoids={"novita"}, now_s=0.0)
    assert avoided.routing is not None and avoided.routing.provider_object["only"] == ["chutes/int4"]
    alone = choose(ROUTING, {}, refused_by={"chutes"}, avoids={"novita"}, now_s=0.0)
    assert alone.routing is not None and alone.routing.provider_object["only"] == ["novita/int4", "novita/fp8"]
    nobody = choose(ROUTING, {"novita": Circuit("open", 3, 1, 7.0)}, refused_by={"chutes"}, now_s=4.0)
    assert nobody.routing is None and nobody.wait_s == 3.0


def test_every_change_is_told_once_with_its_reason() -> None:
    told: list[Change] = []
    breaker = Breaker(told.append)
    for now in (0.0, 0.1, 0.2, 0.3):
        breaker.failed("Novita", kind="refused", why="401: bad key", probes=None, now_s=now)
    breaker.choose(ROUTING, now_s=6.0)
    breaker.answered("Novita", probes="novita")
    assert [(c.provider, c.before, c.after, c.pause_s) for c in told] == [
        ("Novita", "closed", "open", 5.0), ("Novita", "open", "half_open", 0.0), ("Novita", "half_open", "closed", 0.0),
    ]  # fmt: skip
    assert told[0].why == "401: bad key" and breaker.left_out == {}
