"""The fault catalogue: each fault is what its name says on the wire, billed as documented, and chosen as the file says."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eagle3_assets_tests.standin.conftest import KEY, Client, MakeStandin, chat, connected, only, settings
from openrouter_standin.openrouter import faults as catalogue
from openrouter_standin.openrouter.refusals import ABSURD_RETRY_AFTER_S
from openrouter_standin.schema.faults import Faults, FaultScript, FaultWindow
from openrouter_standin.service.server import Standin

DROPPED = (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
# fault -> what the client meets: an HTTP status, a lost connection, or a 200
STATUS = {
    **{name: int(name[:3]) for name in catalogue.REFUSALS if not name.startswith("html_")},
    "html_502": 502,
    "html_524": 524,
}
LOST = {"reset_before_headers", "reset", "reset_mid_body", "truncated", "truncated_wrong_length", "hang", "silence"}


def always(fault: str, **server: Any) -> Any:
    return settings(faults=Faults(rates={fault: 1.0}), **server)


async def ask(client: Client, **more: Any) -> tuple[int, dict[str, str], bytes] | str:
    """Status, headers and body, or the name of the error that the client library raised."""
    try:
        return await client.post(chat(**only("verbatim"), **more))
    except DROPPED as error:
        return type(error).__name__


def met(standin: Standin, **more: Any) -> tuple[int, dict[str, str], bytes] | str:
    async def run() -> tuple[int, dict[str, str], bytes] | str:
        async with connected(standin) as client:
            return await ask(client, **more)

    return asyncio.run(run())


def events(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", catalogue.ALL)
def test_every_fault_of_the_catalogue_is_met_and_billed_as_documented(
    fault: str, stream: bool, make_standin: MakeStandin
) -> None:
    standin = make_standin(always(fault, hang_s=0.05))
    answer = met(standin, stream=stream)
    if fault in STATUS:
        assert not isinstance(answer, str) and answer[0] == STATUS[fault]
    elif fault in LOST or (stream and fault == "truncated_wrong_length"):
        assert isinstance(answer, str), answer
    else:
        assert not isinstance(answer, str) and answer[0] == 200
    no_answer = fault in catalogue.REFUSALS | catalogue.SILENT | catalogue.ERRORS
    assert len(standin.ledger.generations) == (0 if no_answer else 1)
    assert (standin.ledger.spent_pico == 0) == (no_answer or fault == "finish_error")  # that one is given back
    assert standin.gateway.account.held_pico == 0 and standin.in_flight == 0


@pytest.mark.parametrize("fault", sorted(catalogue.REFUSALS))
def test_a_refusal_has_a_readable_body_and_no_generation_id(fault: str, make_standin: MakeStandin) -> None:
    answer = met(make_standin(always(fault)))
    assert not isinstance(answer, str)
    status, headers, raw = answer
    assert "x-generation-id" not in headers
    if fault == "403_1010":
        assert headers["content-type"].startswith("text/plain") and raw == b"error code: 1010"
        return
    if "html" in fault:
        assert headers["content-type"].startswith("text/html") and raw.startswith(b"<html>")
        return
    error = json.loads(raw)["error"]
    assert error["message"]
    assert error.get("code", error.get("http_status")) == status
    if fault == "500":
        assert "metadata" not in error and b"Verbatim" not in raw  # masked


def test_each_form_of_retry_after_is_there(make_standin: MakeStandin) -> None:
    def hint(fault: str) -> dict[str, str]:
        answer = met(make_standin(always(fault, retry_after_s=7), folder=None))
        assert not isinstance(answer, str)
        return answer[1]

    assert hint("429")["retry-after"] == "7"
    assert "retry-after" not in hint("429_bare")
    until = email.utils.parsedate_to_datetime(hint("429_date")["retry-after"]).timestamp()
    assert 0 < until - time.time() < 10
    assert hint("429_absurd")["retry-after"] == str(ABSURD_RETRY_AFTER_S)
    platform = hint("429_platform")
    assert {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"} <= set(platform) and "retry-after" not in platform
    assert hint("402_in_flight")["retry-after"] == "7"
    answer = met(make_standin(always("429_availability", retry_after_s=7)))
    assert not isinstance(answer, str)
    error = json.loads(answer[2])["error"]
    assert "code" not in error and error["availability"] | {"retry_after": 7} == error["availability"]


def test_the_four_meanings_of_402_can_be_told_apart(make_standin: MakeStandin) -> None:
    told = set()
    for fault in ("402_in_flight", "402_weight", "402_afford", "402_credits"):
        answer = met(make_standin(always(fault)))
        assert not isinstance(answer, str)
        error = json.loads(answer[2])["error"]
        told.add((error["metadata"]["limit_source"], error["metadata"].get("reason"), "can only afford" in error["message"]))
    assert len(told) == 4


@pytest.mark.parametrize(
    ("fault", "choices"),
    [("error_in_200", "absent"), ("error_choices_null", None), ("error_choices_empty", []), ("error_string_code", "absent")],
)
def test_an_error_inside_a_200_has_the_three_forms(fault: str, choices: Any, make_standin: MakeStandin) -> None:
    answer = met(make_standin(always(fault)))
    assert not isinstance(answer, str)
    body = json.loads(answer[2])
    assert body.get("choices", "absent") == choices
    assert body["error"]["code"] == ("server_error" if fault == "error_string_code" else 502)


def test_a_stream_that_breaks_ends_with_an_error_on_its_last_chunk_and_no_done(make_standin: MakeStandin) -> None:
    answer = met(make_standin(always("finish_error")), stream=True)
    assert not isinstance(answer, str)
    last = events(answer[2])[-1]
    assert last["choices"][0]["finish_reason"] == "error" and last["error"]["code"] == 502
    assert b"[DONE]" not in answer[2] and all("usage" not in event for event in events(answer[2]))


def test_an_error_finish_shows_half_an_answer_and_is_given_back(make_standin: MakeStandin, tmp_path: Path) -> None:
    async def run() -> None:
        standin = make_standin(always("finish_error"))
        async with connected(standin) as client:
            answer = await ask(client)
            assert not isinstance(answer, str)
            body = json.loads(answer[2])
            assert body["choices"][0]["finish_reason"] == body["choices"][0]["native_finish_reason"] == "error"
            assert body["choices"][0]["error"]["code"] == 502 and body["choices"][0]["message"]["reasoning"]
            for _ in range(100):  # the refund comes by a timer of the loop
                if standin.ledger.spent_pico == 0:
                    break
                await asyncio.sleep(0)
            account = standin.ledger.generations[body["id"]]
            assert (account["cost_pico"], account["refund_due"], standin.ledger.spent_pico) == (0, False, 0)
            _, record = await client.get("/api/v1/generation", id=body["id"])
            assert record["data"]["total_cost"] == 0

    asyncio.run(run())


def test_a_refund_that_a_kill_prevented_comes_at_the_next_start(make_standin: MakeStandin) -> None:
    from openrouter_standin.truth.ledger import Ledger

    money = settings().server.money.model_copy(update={"refund_delay_s": 1e6})
    standin = make_standin(always("finish_error", time_scale=1e-4, money=money))
    met(standin)
    assert standin.ledger.spent_pico > 0
    standin.ledger.close()
    again = Ledger(standin.ledger.folder)
    assert again.spent_pico == 0
    again.close()
    assert Ledger(standin.ledger.folder).spent_pico == 0  # once


def test_usage_goes_missing_in_four_ways_and_the_bill_stays(make_standin: MakeStandin) -> None:
    def body(fault: str) -> dict[str, Any]:
        standin = make_standin(always(fault))
        answer = met(standin)
        assert not isinstance(answer, str) and standin.ledger.spent_pico > 0
        standin.ledger.close()
        return dict(json.loads(answer[2]))

    assert "usage" not in body("usage_missing")
    assert body("usage_null")["usage"] is None
    zero = body("usage_zero")
    assert (zero["usage"]["completion_tokens"], zero["usage"]["cost"]) == (0, 0) and zero["choices"][0]["message"]["content"]
    answer = met(make_standin(always("usage_twice")), stream=True)
    assert not isinstance(answer, str)
    assert sum("usage" in event for event in events(answer[2])) == 2


def test_an_empty_stop_says_nothing_and_bills_the_prompt(make_standin: MakeStandin) -> None:
    answer = met(make_standin(always("empty_stop")))
    assert not isinstance(answer, str)
    body = json.loads(answer[2])
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning"], body["choices"][0]["finish_reason"]) == (None, None, "stop")
    assert body["usage"]["completion_tokens"] == 0 and body["usage"]["cost"] > 0


def test_a_truncated_body_with_the_right_length_is_a_whole_response_and_half_a_json(make_standin: MakeStandin) -> None:
    answer = met(make_standin(always("truncated_length")))
    assert not isinstance(answer, str)
    assert int(answer[1]["content-length"]) == len(answer[2])
    with pytest.raises(ValueError):
        json.loads(answer[2])


def test_a_gzipped_body_is_the_same_answer(make_standin: MakeStandin, tmp_path: Path) -> None:
    plain = met(make_standin(settings(), folder=tmp_path / "plain"))
    packed = met(make_standin(settings(gzip=1.0), folder=tmp_path / "packed"))
    assert not isinstance(plain, str) and not isinstance(packed, str)
    assert packed[1]["content-encoding"] == "gzip" and "content-encoding" not in plain[1]
    bodies = [json.loads(raw) for raw in (plain[2], packed[2])]
    assert bodies[0]["choices"] == bodies[1]["choices"]


@pytest.mark.slow
def test_a_slow_body_comes_in_many_pieces(make_standin: MakeStandin) -> None:
    async def run() -> int:
        async with connected(make_standin(always("slow_drip", time_scale=0.02))) as client:
            headers = {"Authorization": f"Bearer {KEY}"}
            async with client.session.post(client.origin + "/api/v1/chat/completions", json=chat(), headers=headers) as response:
                pieces = [piece async for piece, _ in response.content.iter_chunks()]
        assert json.loads(b"".join(pieces))["choices"]
        return len(pieces)

    assert asyncio.run(run()) > 5


@pytest.mark.slow
def test_a_hang_writes_keep_alives_and_never_an_answer_and_a_silence_not_a_byte(make_standin: MakeStandin) -> None:
    async def run(fault: str) -> tuple[bool, bytes]:
        """(headers came, what was read until the connection ended)."""
        got = b""
        async with connected(make_standin(always(fault, hang_s=0.6))) as client:
            headers = {"Authorization": f"Bearer {KEY}"}
            try:
                async with client.session.post(
                    client.origin + "/api/v1/chat/completions", json=chat(), headers=headers
                ) as response:
                    try:
                        async for piece in response.content.iter_any():
                            got += piece
                    except aiohttp.ClientError:
                        pass
                    return True, got
            except DROPPED:
                return False, got

    came, got = asyncio.run(run("hang"))
    assert came and got and not got.strip()
    assert asyncio.run(run("silence")) == (False, b"")


# ------------------------------------------------------------------------------------------------ which request, when
def statuses(standin: Standin, texts: list[str], tries: int) -> dict[str, list[int]]:
    async def run() -> dict[str, list[int]]:
        async with connected(standin) as client:
            return {text: [(await client.post(chat(text)))[0] for _ in range(tries)] for text in texts}

    return asyncio.run(run())


def test_a_script_fails_the_chosen_request_so_often_and_then_it_works(make_standin: MakeStandin) -> None:
    script = (FaultScript(fault="503", times=2, match="sample 7"), FaultScript(fault="429", times=1, nth=1))
    standin = make_standin(settings(faults=Faults(script=script)))
    seen = statuses(standin, ["sample 5", "sample 6", "sample 7"], 3)
    assert seen == {"sample 5": [200, 200, 200], "sample 6": [429, 200, 200], "sample 7": [503, 503, 200]}


def test_a_script_by_share_chooses_the_same_requests_in_any_order(make_standin: MakeStandin, tmp_path: Path) -> None:
    texts = [f"request {k}" for k in range(60)]
    profiles = settings(faults=Faults(script=(FaultScript(fault="502", times=1, share=0.3),)))
    forward = statuses(make_standin(profiles, folder=tmp_path / "a"), texts, 2)
    backward = statuses(make_standin(profiles, folder=tmp_path / "b"), texts[::-1], 2)
    assert forward == backward
    failed = sum(first == 502 for first, _ in forward.values())
    assert 8 <= failed <= 28 and all(second == 200 for _, second in forward.values())


def test_a_window_holds_from_then_to_then_for_its_providers(make_standin: MakeStandin) -> None:
    window = FaultWindow(from_s=100.0, to_s=200.0, rates={"502": 1.0}, providers=("verbatim/int4",))
    standin = make_standin(settings(faults=Faults(schedule=(window,))))
    now = [0.0]
    standin.gateway.clock.now = lambda: now[0]
    standin.gateway.clock.begun = 0.0

    async def run() -> list[int]:
        out = []
        async with connected(standin) as client:
            for at, tag in ((0.0, "verbatim"), (150.0, "verbatim"), (150.0, "injector"), (200.0, "verbatim")):
                now[0] = at
                out.append((await client.post(chat(f"{at}{tag}", **only(tag))))[0])
        return out

    assert asyncio.run(run()) == [200, 502, 200, 200]


def test_a_fault_of_one_provider_falls_through_to_the_next_and_is_told_by_generation(make_standin: MakeStandin) -> None:
    profiles = settings()
    broken = profiles.provider[0].model_copy(update={"faults": {"503": 1.0}, "shed_rate": 0.0})
    profiles = profiles.model_copy(update={"provider": (broken, *profiles.provider[1:])})

    async def run() -> None:
        standin = make_standin(profiles)
        async with connected(standin) as client:
            body = chat(provider={"order": ["verbatim", "stripper"], "allow_fallbacks": True})
            status, headers, raw = await client.post(body)
            assert status == 200 and json.loads(raw)["provider"] == "Stripper"
            _, record = await client.get("/api/v1/generation", id=headers["x-generation-id"])
            tried = [(entry["provider_name"], entry["status"]) for entry in record["data"]["provider_responses"]]
            assert tried == [("Verbatim", 503), ("Stripper", 200)]
            alone, _, _ = await client.post(chat(**only("verbatim")))
            assert alone == 503

    asyncio.run(run())


def test_a_fault_that_falls_through_is_seen_by_no_client_as_long_as_another_endpoint_is_left(make_standin: MakeStandin) -> None:
    profiles = settings()
    first = profiles.provider[0].model_copy(update={"faults": {"502": 0.5, "usage_null": 0.2}, "shed_rate": 0.0})
    standin = make_standin(profiles.model_copy(update={"provider": (first, *profiles.provider[1:])}))

    async def seen(client: Client, **more: Any) -> Counter[str]:
        out: Counter[str] = Counter()
        for k in range(200):
            status, _, raw = await client.post(chat(f"{k}", **more))
            answer = json.loads(raw)
            out[answer["provider"] if status == 200 else str(status)] += 1
            out["usage_null"] += status == 200 and answer["usage"] is None
        return out

    async def run() -> None:
        async with connected(standin) as client:
            both = await seen(client, provider={"order": ["verbatim", "stripper"]})
            assert both["502"] == 0 and 80 < both["Stripper"] < 120 and 25 < both["usage_null"] < 55
            alone = await seen(client, **only("verbatim"))
            assert 80 < alone["502"] < 120 and 25 < alone["usage_null"] < 55

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rates = { 599 = 0.1 }", ["server.faults.rates", "599"]),
        ('script = [{ fault = "429" }]', ["server.faults.script[0]", "match, nth, share"]),
        ("schedule = [{ from_s = 9.0, to_s = 3.0, rates = {} }]", ["to_s = 3", "from_s = 9"]),
    ],
)
def test_a_mistake_in_the_faults_is_one_line(text: str, words: list[str], tmp_path: Path) -> None:
    from openrouter_standin.errors import StandinError
    from openrouter_standin.profiles import DEFAULT_PROFILES, load_profiles

    path = tmp_path / "my.toml"
    path.write_text(DEFAULT_PROFILES.read_text().replace("rates = { 429 = 0.02, 502 = 0.01 }", text))
    with pytest.raises(StandinError) as caught:
        load_profiles(path)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), caught.value
