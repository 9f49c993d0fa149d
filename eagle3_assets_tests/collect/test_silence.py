"""Claims about hung requests: keep-alives are no answer, a slow answer is no silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from eagle3_assets.collect.servers import exchange
from eagle3_assets.collect.servers.exchange import Exchange, new_session, says_something
from eagle3_assets.wire import journal
from eagle3_assets_tests.collect.fake_openrouter import FakeOpenRouter, completion
from eagle3_assets_tests.collect.run.test_collector import Desk, run
from eagle3_assets_tests.collect.samples import a_campaign, a_prompt

WHOLE = json.dumps(completion(1)).encode()
GAP_S, SILENCE_S = 0.05, 0.25


@pytest.mark.parametrize(
    ("chunks", "heard"),
    [
        ([b"\n         \n", b"   ", b"\r\n"], [False, False, False]),
        ([b" ", b"{"], [False, True]),
        ([b": OPENROUTER PROCESSING\n\n", b": OPENROUTER PROCESSING\r\n\r\n"], [False, False]),
        ([b": OPENROUTER PRO", b"CESSING\n", b"\n"], [False, False, False]),  # a comment in two pieces
        ([b": OPENROUTER PROCESSING\n\ndata: {}\n\n"], [True]),
        ([b": OPEN", b"ROUTER\n\nda", b"ta: {}\n"], [False, True, True]),
        ([b'{"content": "a: b', b"\\n: c"], [True, True]),
    ],
)
def test_blank_lines_and_comments_are_no_answer_however_they_are_cut(chunks: list[bytes], heard: list[bool]) -> None:
    begun, found = b"", []
    for chunk in chunks:
        is_answer, begun = says_something(chunk, begun)
        found.append(is_answer)
    assert found == heard


async def keep_alives(what: bytes) -> AsyncIterator[bytes]:
    while True:
        yield what
        await asyncio.sleep(GAP_S)


async def drip(body: bytes, pieces: int) -> AsyncIterator[bytes]:
    size = len(body) // pieces + 1
    for at in range(0, len(body), size):
        yield body[at : at + size]
        await asyncio.sleep(GAP_S)


def ask(pieces: Callable[[], AsyncIterator[bytes]], *, timeout_s: float = 20.0, silence_s: float | None = SILENCE_S) -> Exchange:
    """One exchange with a server that sends these pieces."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "X-Generation-Id": "gen-1"})
        await response.prepare(request)
        async for piece in pieces():
            await response.write(piece)
        return response

    async def story() -> Exchange:
        app = web.Application()
        app.router.add_post("/", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            async with new_session() as session:
                return await exchange.send(session, url, b"{}", headers={}, timeout_s=timeout_s, silence_s=silence_s)
        finally:
            await runner.cleanup()

    return asyncio.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize("what", [b"\n         \n", b": OPENROUTER PROCESSING\n\n"])
def test_a_request_that_brings_only_keep_alives_is_given_up_with_what_it_brought(what: bytes) -> None:
    got = ask(lambda: keep_alives(what))
    assert got.fault == "silent" and got.status == 200 and got.headers["x-generation-id"] == "gen-1"
    assert got.body.startswith(what * 2)


@pytest.mark.slow
def test_an_answer_that_drips_for_longer_than_the_silence_is_received_whole() -> None:
    got = ask(lambda: drip(WHOLE, 12))  # twelve gaps are more than twice the silence
    assert got.fault is None and got.body == WHOLE


@pytest.mark.slow
def test_the_whole_of_a_request_is_bounded_even_while_bytes_drip() -> None:
    got = ask(lambda: drip(WHOLE, 200), timeout_s=0.3, silence_s=None)
    assert got.fault == "timeout" and 0 < len(got.body) < len(WHOLE)


def test_a_stream_is_silent_after_minutes_and_a_whole_answer_only_after_its_time() -> None:
    limits = a_campaign(collect={"timeout_s": 900.0}).collect
    assert (limits.silence_of(stream=True), limits.silence_of(stream=False)) == (300.0, 900.0)
    said = a_campaign(collect={"timeout_s": 900.0, "silence_s": 60.0}).collect
    assert said.silence_of(stream=True) == said.silence_of(stream=False) == 60.0
    assert a_campaign(collect={"timeout_s": 20.0}).collect.silence_of(stream=True) == 20.0


@pytest.mark.slow
def test_a_hung_request_is_recorded_as_ambiguous_and_its_prompt_asked_again(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.scripts = {"q0": ["hang"]}
        (result,) = await d.collect(server, d.job([a_prompt(f"q{n}", n) for n in range(3)]))
        assert (result.finished, result.ambiguous) == (3, 1)
        (lost,) = [a for a in d.answers() if a.outcome != "finished"]
        assert (lost.outcome, lost.reason, lost.retry_class) == ("ambiguous", "silent", "transient")
        assert journal.best(d.answers())[f"{0:032x}", 0].attempt == 2

    campaign: Any = a_campaign(collect={"silence_s": 0.2})
    run(tmp_path, story, campaign=campaign)
