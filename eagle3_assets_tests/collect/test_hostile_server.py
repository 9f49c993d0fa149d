"""Claims about a server that lies, breaks or floods: paid bytes are kept, nothing is bought without end, the key is written
nowhere.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.collect.run import attempt
from eagle3_assets.collect.run.attempt import Attempt
from eagle3_assets.collect.servers import exchange, openrouter
from eagle3_assets.collect.servers.exchange import Exchange, new_session
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.errors import WireError
from eagle3_assets.wire import journal
from eagle3_assets_tests.collect.fake_openrouter import COST, FakeOpenRouter, completion
from eagle3_assets_tests.collect.run.test_collector import Desk, prompts, run
from eagle3_assets_tests.collect.samples import KEY, MODEL, a_campaign, a_dataset, a_prompt

WHOLE = json.dumps(completion(1)).encode()
JSON = {"content-type": "application/json"}


# ---------------------------------------------------------------------------------------------------- whatever judging does
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"code": "\xc2\xb2", "message": "x"}}',  # a superscript two is a digit, and no number
        b'{"error": {"code": "' + b"9" * 5000 + b'"}}',
        b'{"error": {"availability": {"retry_after": 1' + b"0" * 400 + b"}}}",
        WHOLE.replace(b'"completion_tokens": 12', b'"completion_tokens": 1' + b"0" * 400),
    ],
)
def test_numbers_that_are_none_do_not_break_the_reader(tmp_path: Path, body: bytes) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw, server.scripts = {"odd": (200, body, {})}, {"q0": ["odd"]}
        (result,) = await d.collect(server, d.job(prompts(1)))
        assert result.finished == 1 and d.answers()[0].body.startswith((body, b'{"id"'))

    run(tmp_path, story)


@pytest.mark.parametrize("backend", ["openrouter", "engine"])
def test_an_error_of_ours_in_judging_keeps_the_paid_bytes_as_a_recorded_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    def broken(*args: Any, **more: Any) -> Any:
        raise RuntimeError(f"a mistake of ours that shows {KEY}")

    campaign = a_campaign(a_dataset(backend=backend), engine=({"kind": "vllm", "base_url": "embedded"},))

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        monkeypatch.setattr(attempt, "classify", broken)
        (result,) = await d.collect(server, d.job(prompts(1)))
        answers = d.answers()
        assert len(answers) == len(server.requests) == 3  # collect.attempts
        assert {(a.outcome, a.reason, a.retry_class) for a in answers} == {("ambiguous", "unreadable", "content")}
        assert all(json.loads(a.body)["choices"] for a in answers)
        assert result.failed == 1 and result.complete
        if backend == "openrouter":
            assert d.totals.committed_usd >= server.spent > 0
        await d.collect(server, d.job(prompts(1)))
        assert len(server.requests) == 3  # and never again

    run(tmp_path, story, campaign=campaign)


def test_an_error_after_the_record_leaves_the_money_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        def broken(*args: Any) -> Any:
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr("eagle3_assets.collect.run.collector._Run.settle_prompt", broken)
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            await d.collect(server, d.job(prompts(1)))
        assert len(d.answers()) == 1 and d.totals.spent_usd == pytest.approx(COST) and d.totals.ambiguous_usd == 0

    run(tmp_path, story)


def test_whatever_the_http_library_raises_is_a_recorded_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> Exchange:
        async with FakeOpenRouter() as server, new_session() as session:

            async def broken(*args: Any) -> None:
                raise AssertionError("inside the HTTP library")

            monkeypatch.setattr(exchange, "_receive", broken)
            payload = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
            return await exchange.send(session, f"{server.base_url}/chat/completions", payload, headers=JSON | AUTH, timeout_s=5)

    assert asyncio.run(story()).fault == "broken_response"


AUTH = {"Authorization": "Bearer x"}


def test_a_chain_whose_answer_has_an_impossible_shape_ends_and_does_not_poison_its_shard(tmp_path: Path) -> None:
    tools = [{"id": "functions.f:0", "function": "not an object"}]
    choice = {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None, "tool_calls": tools}}
    follow_ups = (({"role": "tool", "content": "1", "tool_call_id": "a", "for_call": {"name": "f", "arguments": "{}"}},),)

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw = {"odd": (200, json.dumps(completion(1, choices=[choice])).encode(), {})}
        server.scripts = {"q": ["odd"]}
        for _ in range(2):
            (result,) = await d.collect(server, d.job([a_prompt("q", 1, follow_ups=follow_ups)]))
            assert result.finished == 1 and result.complete and len(server.requests) == 1

    run(tmp_path, story, campaign=a_campaign(a_dataset(turns="chain")))


# ---------------------------------------------------------------------------------------------------- whole answers
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, WHOLE.replace(b" Oi 1!", b" Oi \xff!")),
        (201, WHOLE),
        (206, WHOLE),
        (206, WHOLE.replace(b" Oi 1!", b" Oi \xc3!")),
    ],
)
def test_a_whole_answer_in_an_odd_wrapping_is_kept_byte_for_byte_and_not_bought_again(
    tmp_path: Path, status: int, body: bytes
) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw, server.default = {"odd": (status, body, {})}, "odd"
        for _ in range(2):
            (result,) = await d.collect(server, d.job(prompts(1)))
            assert result.finished == 1 and result.complete
        (answer,) = d.answers()
        assert answer.body == body and (answer.outcome, answer.status, answer.cost_usd) == ("finished", status, COST)
        assert len(server.requests) == 1 and d.totals.spent_usd == COST

    run(tmp_path, story)


def test_a_stream_with_a_byte_that_is_not_utf8_is_whole() -> None:
    body = b'data: {"choices":[{"delta":{"content":"a\xff"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    answer, finding = the_attempt().judge(Exchange(200, {"content-type": "text/event-stream"}, body))
    assert finding.reason == "finished" and answer.body == body


@pytest.mark.parametrize(
    "body", [b"[]", b"Hello there", b"\xff\xfe\x00", b'"' + b"x" * 100 + b'"', b"3", b"[" * 50_000 + b"]" * 50_000]
)
def test_a_whole_body_that_is_no_completion_is_paid_for_a_bounded_number_of_times_over_all_runs(
    tmp_path: Path, body: bytes
) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw, server.default = {"odd": (200, body, {})}, "odd"
        for _ in range(3):
            (result,) = await d.collect(server, d.job(prompts(1)))
        assert len(server.requests) == 3 and result.failed == 1 and result.reasons == {"unreadable": 1}
        assert [a.body for a in d.answers()] == [body] * 3
        assert d.totals.ambiguous_usd > 3 * 0.002

    run(tmp_path, story)


# ---------------------------------------------------------------------------------------------------- bodies without end
@pytest.mark.parametrize("packed", [False, True])
def test_a_body_beyond_the_bound_is_not_read_to_its_end_and_not_asked_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(exchange, "MOST_BODY_BYTES", 1 << 20)
    flood = b'{"choices":"' + b"x" * (3 << 20) + b'"}'
    sent = (200, gzip.compress(flood), {"Content-Encoding": "gzip"}) if packed else (200, flood, {})

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw, server.default = {"flood": sent}, "flood"
        for _ in range(2):
            (result,) = await d.collect(server, d.job(prompts(1)))
        assert len(server.requests) == 3 and result.failed == 1 and result.reasons == {"oversized": 1}
        for answer in d.answers():
            assert (answer.outcome, answer.reason, answer.cost_usd) == ("ambiguous", "oversized", None)
            assert answer.body == flood[: exchange.KEPT_OF_OVERSIZED]
        assert d.totals.committed_usd >= server.spent

    run(tmp_path, story)


def test_the_bound_lets_the_longest_sensible_answer_through() -> None:
    assert exchange.MOST_BODY_BYTES == 64 << 20


def test_a_look_up_that_never_ends_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openrouter, "LOOK_UP_BYTES", 1000)

    async def story() -> None:
        async with FakeOpenRouter() as server, new_session() as session:
            server.generation_body = b'{"data":{"total_cost":0.5,"x":"' + b"x" * 5000 + b'"}}'
            assert await openrouter.look_up_cost(session, server.base_url, ApiKey(KEY), "gen-1") is None

    asyncio.run(story())


@pytest.mark.parametrize(
    "said", [b'{"data": [1]}', b'{"data": "x"}', b"[]", b'{"data": {"total_cost": [1]}}', b'{"data": {"total_cost": NaN}}']
)
def test_a_look_up_of_the_wrong_shape_is_no_cost_and_nobodys_exception(tmp_path: Path, said: bytes) -> None:
    unheard: list[dict[str, Any]] = []

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        server.generation_body, server.scripts = said, {"q0": ["no_usage"]}
        (result,) = await d.collect(server, d.job(prompts(1)))
        assert result.finished == 1 and d.totals.spent_usd == 0 and d.totals.ambiguous_usd > 0.002

    run(tmp_path, story)
    assert unheard == []


def test_an_error_in_a_look_up_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any, **more: Any) -> float:
        raise RuntimeError("a mistake of ours")

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        monkeypatch.setattr("eagle3_assets.collect.run.bills.look_up_cost", broken)
        server.scripts = {"q0": ["no_usage"]}
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            await d.collect(server, d.job(prompts(1)))

    run(tmp_path, story)


# ---------------------------------------------------------------------------------------------------- the key
ESCAPED = KEY.replace("-", "\\u002d")
TWICE = KEY.replace("-", "\\\\u002D").replace("o", "\\\\u006f")
ALL_ESCAPED = "".join(f"\\u{ord(c):04X}" for c in KEY)


def with_key(where: str, spelled: str) -> bytes:
    body = completion(1)
    if where == "content":
        body["choices"][0]["message"]["content"] = "my key is @@"
    elif where == "arguments":
        body["choices"][0]["message"]["tool_calls"] = [{"id": "x", "function": {"name": "f", "arguments": '{"a": "@@"}'}}]
    elif where == "a name":
        body["@@"] = 1
    else:
        body[where] = "@@"
    return json.dumps(body).replace("@@", spelled).encode()


@pytest.mark.slow
@pytest.mark.parametrize("spelled", [KEY, ESCAPED, TWICE, ALL_ESCAPED], ids=["plain", "escaped", "twice", "all"])
@pytest.mark.parametrize("where", ["id", "provider", "model", "content", "arguments", "a name"])
def test_an_answer_that_echoes_the_key_is_marked_and_written_without_it(tmp_path: Path, where: str, spelled: str) -> None:
    body = with_key(where, spelled)

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw, server.scripts = {"liar": (200, body, {})}, {"q0": ["liar"]}
        (result,) = await d.collect(server, d.job(prompts(1)))
        first, second = d.answers()
        assert first.outcome == "failed" and b"[key hidden]" in first.body and first.cost_usd == COST
        assert first.reason == {"provider": "wrong_provider", "model": "wrong_model"}.get(where, "key_echoed")
        assert result.finished == 1 and second.outcome == "finished"
        assert not any(shows_key(value) for a in d.answers() for value in (a.body.decode(), a.provider, a.model, a.generation_id))

    run(tmp_path, story)  # run() looks for the plain key in everything written


def shows_key(text: str | None) -> bool:
    for _ in range(3):
        if text is not None and KEY in text:
            return True
        text = text and _unescaped(text)
    return False


def _unescaped(text: str) -> str:
    import re

    return re.sub(r"\\+u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)


@pytest.mark.parametrize("header", ["X-Generation-Id", "X-Ratelimit-Limit", "Retry-After"])
def test_a_header_that_echoes_the_key_is_hidden_and_the_answer_kept(tmp_path: Path, header: str) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw, server.scripts = {"liar": (200, WHOLE, {header: f"a{KEY}b"})}, {"q0": ["liar"]}
        await d.collect(server, d.job(prompts(1)))
        (answer,) = d.answers()
        assert answer.outcome == "finished" and answer.body == WHOLE and "a[key hidden]b" in answer.headers.values()

    run(tmp_path, story)


def test_a_key_spelled_by_the_pieces_of_a_stream_is_found_when_they_are_put_together(tmp_path: Path) -> None:
    pieces = [KEY[:5], KEY[5:9], KEY[9:]]
    chunks = [{"model": MODEL, "provider": "Chutes", "choices": [{"delta": {"content": piece}}]} for piece in pieces]
    chunks.append({"usage": {"cost": COST}, "choices": [{"delta": {}, "finish_reason": "stop"}]})
    body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)

    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw, server.scripts = {"liar": (200, body, {"Content-Type": "text/event-stream"})}, {"q0": ["liar"]}
        await d.collect(server, d.job(prompts(1)))
        first = d.answers()[0]
        assert (first.outcome, first.reason, first.cost_usd) == ("failed", "key_echoed", COST)
        assert json.loads(first.body)["choices"][0]["message"]["content"] == "[key hidden]"

    run(tmp_path, story)


def test_a_key_in_another_encoding_of_json_is_found_when_it_is_read(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        body = with_key("id", KEY).decode().encode("utf-16-le")
        server.raw, server.scripts = {"liar": (200, body, {})}, {"q0": ["liar"]}
        await d.collect(server, d.job(prompts(1)))
        first = d.answers()[0]
        assert (first.reason, first.generation_id) == ("key_echoed", "[key hidden]") and KEY.encode("utf-16-le") not in first.body

    run(tmp_path, story)


def test_a_refusal_that_echoes_the_escaped_key_shows_it_nowhere(tmp_path: Path) -> None:
    async def story(d: Desk, server: FakeOpenRouter) -> None:
        server.raw = {"401": (401, b'{"error":{"code":401,"message":"no such key ' + ESCAPED.encode() + b'"}}', {})}
        server.default = "401"
        with pytest.raises(WireError, match=r"no such key \[key hidden\]"):
            await d.collect(server, d.job(prompts(1)))

    run(tmp_path, story)


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda t: json.dumps(t).encode()))
def test_bytes_without_the_key_are_never_changed(data: bytes) -> None:
    assert ApiKey(KEY).hide_in(data) == data


@given(st.data())
def test_however_json_spells_the_key_it_is_found(data: st.DataObject) -> None:
    key = 'sk/or"v1\\x'
    forms = [data.draw(st.sampled_from([json.dumps(c)[1:-1], f"\\u{ord(c):04x}", "\\/" if c == "/" else c])) for c in key]
    assert ApiKey(key).hide_in(("a" + "".join(forms) + "b").encode()) == b"a[key hidden]b"


def the_attempt() -> Attempt:
    return Attempt(a_prompt(), "00", "openrouter", {"model": MODEL}, 1)


def test_an_answer_without_the_key_is_stored_byte_for_byte(tmp_path: Path) -> None:
    body = b"\n  " + WHOLE.replace(b" Oi 1!", b"caf\\u00e9 \\u002d sk-or-v1 \xff")
    answer, finding = the_attempt().judge(Exchange(200, dict(JSON), body), key=ApiKey(KEY))
    assert finding.reason == "finished" and answer.body == body
    assert journal.decode_line(journal.encode_line(answer)) == answer
