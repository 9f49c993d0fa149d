"""What goes wrong at the stand-in, as the official `openrouter` package tells it: typed errors, retries, errors inside a 200."""

from __future__ import annotations

import json
import time

import pytest

from eagle3_assets_tests.standin.conftest import SLUG, MakeStandin, served, settings
from eagle3_assets_tests.standin.sdk_openrouter import HI, client, with_faults
from openrouter_standin.schema.faults import Faults, FaultScript
from openrouter_standin.schema.server import Money

pytest.importorskip("openrouter")
from openrouter import errors
from openrouter.utils import BackoffStrategy, RetryConfig

TYPED = {
    "400": errors.BadRequestResponseError,
    "401": errors.UnauthorizedResponseError,
    "402_in_flight": errors.PaymentRequiredResponseError,
    "402_weight": errors.PaymentRequiredResponseError,
    "402_afford": errors.PaymentRequiredResponseError,
    "402_credits": errors.PaymentRequiredResponseError,
    "403": errors.ForbiddenResponseError,
    "404": errors.NotFoundResponseError,
    "408": errors.RequestTimeoutResponseError,
    "413": errors.PayloadTooLargeResponseError,
    "422": errors.UnprocessableEntityResponseError,
    "429": errors.TooManyRequestsResponseError,
    "429_bare": errors.TooManyRequestsResponseError,
    "429_date": errors.TooManyRequestsResponseError,
    "429_platform": errors.TooManyRequestsResponseError,
    "500": errors.InternalServerResponseError,
    "502": errors.BadGatewayResponseError,
    "503": errors.ServiceUnavailableResponseError,
    "524": errors.EdgeNetworkTimeoutResponseError,
    "529": errors.ProviderOverloadedResponseError,
    # no typed error for this route: the package's default one
    "504": errors.OpenRouterDefaultError,
    "html_502": errors.OpenRouterDefaultError,
    "html_524": errors.OpenRouterDefaultError,
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", TYPED)
def test_every_refusal_is_the_typed_error_of_its_code(fault: str, stream: bool, make_standin: MakeStandin) -> None:
    standin = make_standin(with_faults(rates={fault: 1.0}))
    with served(standin) as origin, client(origin) as api:
        with pytest.raises(errors.OpenRouterError) as caught:
            api.chat.send(model=SLUG, messages=HI, stream=stream)
    error = caught.value
    assert type(error) is TYPED[fault]
    code = int(fault.removeprefix("html_")[:3])
    assert error.status_code == code and standin.ledger.spent_pico == 0
    if type(error) is not errors.OpenRouterDefaultError:
        assert error.data.error.code == code and error.data.error.message
        assert bool(error.data.user_id) == (code != 401)


def test_the_example_of_an_availability_error_is_no_error_of_the_package(make_standin: MakeStandin) -> None:
    """The documentation's example has no `code`, the package requires one (docs/research/openrouter-contract.md#2.1, form 2):
    both are served."""
    with served(make_standin(with_faults(rates={"429_availability": 1.0}))) as origin, client(origin) as api:
        with pytest.raises(errors.ResponseValidationError) as caught:
            api.chat.send(model=SLUG, messages=HI)
    assert json.loads(caught.value.body)["error"]["availability"]["code"] == "capacity_exhausted"


@pytest.mark.slow
def test_a_wrong_key_is_unauthorized_on_every_route_that_needs_one(make_standin: MakeStandin) -> None:
    with served(make_standin()) as origin, client(origin, "sk-wrong") as api:
        for ask in (
            lambda: api.chat.send(model=SLUG, messages=HI),
            lambda: api.credits.get_credits(),
            lambda: api.api_keys.get_current_key_metadata(),
            lambda: api.generations.get_generation(id="gen-0-none"),
        ):
            with pytest.raises(errors.UnauthorizedResponseError, match="User not found"):
                ask()


def test_credits_may_be_forbidden_for_an_inference_key(make_standin: MakeStandin) -> None:
    standin = make_standin(settings(money=Money(credits_need_management_key=True)))
    standin.management_key = "sk-standin-mgmt-test"
    with served(standin) as origin, client(origin) as api, client(origin, standin.management_key) as manager:
        with pytest.raises(errors.ForbiddenResponseError, match="management keys"):
            api.credits.get_credits()
        assert manager.credits.get_credits().data.total_credits == 25.0


def test_a_provider_without_room_says_when_to_come_back(make_standin: MakeStandin) -> None:
    profiles = settings()
    slow = profiles.provider[0].model_copy(update={"requests_per_s": 0.25, "burst": 1, "shed_rate": 0.0})
    standin = make_standin(profiles.model_copy(update={"provider": (slow,)}))
    clock = standin.gateway.clock
    clock.scale, clock.now, clock.begun = 1e-9, lambda: 0.0, 0.0  # the first answer waits for nothing, and no time goes by
    with served(standin) as origin, client(origin) as api:
        assert api.chat.send(model=SLUG, messages=HI).choices
        clock.scale = 1.0  # hints are told in real seconds
        with pytest.raises(errors.TooManyRequestsResponseError) as caught:
            api.chat.send(model=SLUG, messages=HI)
    availability = json.loads(caught.value.body)["error"]["availability"]
    assert caught.value.headers["retry-after"] == "4" and availability["retry_after"] == 4
    assert (availability["code"], availability["affected_providers"]) == ("capacity_exhausted", ["Verbatim"])


def test_its_own_retry_waits_as_told_and_then_gets_the_answer(make_standin: MakeStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (FaultScript(fault="503", nth=0, times=2), FaultScript(fault="429", nth=1, times=1))
    profiles = settings(faults=Faults(script=script), retry_after_s=7)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    retry = RetryConfig("backoff", BackoffStrategy(10, 50, 1.0, 60_000, 0), False, ["429", "5XX"])
    with served(make_standin(profiles)) as origin, client(origin) as api:
        assert api.chat.send(model=SLUG, messages=HI, retries=retry).choices
        assert api.chat.send(model=SLUG, messages=[{"role": "user", "content": "Another"}], retries=retry).choices
    assert slept == [0.01, 0.01, 7.0]  # a 503 of one provider gives no hint, the 429 does


def test_an_error_inside_a_200_fails_validation_and_a_stream_tells_it_typed(make_standin: MakeStandin) -> None:
    with served(make_standin(with_faults(rates={"error_in_200": 1.0}))) as origin, client(origin) as api:
        with pytest.raises(errors.ResponseValidationError):
            api.chat.send(model=SLUG, messages=HI)
        (chunk,) = api.chat.send(model=SLUG, messages=HI, stream=True)
    assert (chunk.error.code, chunk.error.metadata.error_type) == (502, "provider_unavailable")
    assert chunk.choices[0].finish_reason == "error"


def test_an_answer_that_broke_off_is_a_valid_result_that_says_error(make_standin: MakeStandin) -> None:
    with served(make_standin(with_faults(rates={"finish_error": 1.0}))) as origin, client(origin) as api:
        assert api.chat.send(model=SLUG, messages=HI).choices[0].finish_reason == "error"
        *_, last = api.chat.send(model=SLUG, messages=HI, stream=True)
    assert last.choices[0].finish_reason == "error" and last.error.code == 502
