"""Claims about anyone's logs: one exchange gives the same row in whatever shape it was kept, and what cannot be read says why."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.cli.main import run
from eagle3_assets.exact.logs import LoggedExchange, read_record, records_of
from eagle3_assets.targets.tokenizer import load_profile
from eagle3_assets_tests.exact.synthetic import Provider, Truth


def exchange() -> tuple[dict[str, Any], str]:
    mini = load_profile("kimi-mini")
    calls = (("f", '{"b": 1, "a": "é😀\\ud83d\\ude00"}'),)
    made = Provider(mini).answer(Truth(reasoning=" Hm,\r\n ok", content="Is \x00 fine?", calls=calls, finish="tool_calls"))
    return made.request, made.body.decode()


def as_stream(body: dict[str, Any]) -> str:
    """The same answer as a server sends it piece by piece, keep-alive comments included."""
    message, out = body["choices"][0]["message"], [": OPENROUTER PROCESSING"]
    common = {key: body[key] for key in ("provider",)}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> None:
        out.append("data: " + json.dumps({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))

    for name in ("reasoning", "content"):
        for piece in message[name]:
            chunk({name: piece})
    chunk({"tool_calls": [{**call, "index": k} for k, call in enumerate(message["tool_calls"])]})
    chunk({}, body["choices"][0]["finish_reason"])
    out.append("data: " + json.dumps({**common, "choices": [], "usage": body["usage"]}))
    return "\n\n".join([*out, "data: [DONE]"]) + "\n\n"


def shapes() -> dict[str, Any]:
    request, body = exchange()
    parsed = json.loads(body)
    stream = as_stream(parsed)
    chunks = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    return {
        "verbatim": {"request": request, "response_body": body},
        "parsed": {"request": request, "response": parsed},
        "parsed, with keys of the log's own": {
            "request": request,
            "response": {**parsed, "text": "x", "content": "y", "body": {}},
        },
        "both as text": {"request_body": json.dumps(request), "response_body": body},
        "stream transcript": {"request": request, "response": stream},
        "stream with its type": {"request": request, "response_body": stream, "content_type": "text/event-stream"},
        "stream chunks": {"request": request, "response": chunks},
        "stream lines": {"request": request, "response": [f"data: {json.dumps(chunk)}" for chunk in chunks]},
        "batch file": {"custom_id": "x", "body": request, "response": {"status_code": 200, "body": parsed}},
        "proxy": {
            "request": {"method": "POST", "headers": {}, "body": json.dumps(request)},
            "response": {"status": 200, "headers": {"Content-Type": "text/event-stream; charset=utf-8"}, "body": stream},
        },
    }


def rebuilt(lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    (tmp_path / "log").write_text("\n".join(lines))
    assert run(["reconstruct", "--profile", "kimi-mini", *more, str(tmp_path / "log")]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_shape_of_one_exchange_gives_the_same_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rebuilt([json.dumps(shape) for shape in shapes().values()], tmp_path, capsys)
    assert len(rows) == len(shapes()) == 10
    assert {json.dumps([row["input_ids"], row["grade"], row["residual"]]) for row in rows} == {
        json.dumps([rows[0]["input_ids"], "C1", {"prompt": 0, "completion": 0, "reasoning": None}])
    }


def test_a_json_file_of_several_lines_and_an_array_are_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = list(shapes().values())[:3]
    (row,) = rebuilt([json.dumps(some[0], indent=2)], tmp_path, capsys)
    rows = rebuilt([json.dumps(some, indent=1)], tmp_path, capsys)
    assert [r["input_ids"] for r in rows] == [row["input_ids"]] * 3 and row["input_ids"]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_bare_body_and_its_request_in_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], streamed: bool) -> None:
    request, body = exchange()
    (tmp_path / "request.json").write_text(json.dumps(request))
    text = as_stream(json.loads(body)) if streamed else body
    (row,) = rebuilt([text], tmp_path, capsys, "--request", str(tmp_path / "request.json"))
    assert row["grade"] == "C1" and row["id"] == str(tmp_path / "log") and row["residual"]["completion"] == 0


def test_a_transcript_without_its_request_is_one_line_that_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.sse").write_text(": OPENROUTER PROCESSING\n\ndata: {}\n\n")
    assert run(["reconstruct", "--profile", "kimi-mini", str(tmp_path / "x.sse")]) == 1
    line = capsys.readouterr().err.strip()
    assert "--request FILE" in line and "\n" not in line


@pytest.mark.parametrize("text", ["{", "[]", '{"prompt": "x"}', '{"messages": "x"}', '{"body": "{"}'])
def test_a_request_file_that_is_none_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "request.json").write_text(text)
    assert run(["reconstruct", "--profile", "kimi-mini", "--request", str(tmp_path / "request.json"), "x"]) == 1
    line = capsys.readouterr().err.strip()
    assert "request.json" in line and "\n" not in line


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([1], "expected an object with a request and a response, found a list"),
        ({"choices": []}, "an answer without its request"),
        ({"request": {"messages": []}, "took_s": 3}, "the response is missing: expected one of the keys response_body, response"),
        ({"response": {}, "x": 1}, "the request is missing"),
        ({"request": {"prompt": "x"}, "response": {}}, "it has prompt: not a chat completion"),
        ({"request": {"input": "x"}, "response": {}}, "it has input: not a chat completion"),
        ({"request": "not json", "response": {}}, "text that is not JSON"),
        ({"request": {"messages": [1]}, "response": {}}, "no list of messages"),
        ({"request": {"messages": []}, "response": 3}, "the response is a int"),
    ],
)
def test_what_is_no_exchange_says_which_half_is_wrong(record: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_record(record)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


KEYS = [
    "request",
    "response",
    "response_body",
    "body",
    "messages",
    "status",
    "headers",
    "id",
    "choices",
    "content",
    "input",
    "output",
    "type",
    "traceId",
    "event",
    "call",
    "usage",
    "kwargs",
    "url",
    "proxy_server_request",
    "log",
    "entries",
    "interactions",
    "samples",
    "eval",
    "events",
    "observations",
    "data",
    "postData",
    "attachments",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["data: {}", "{}", "messages"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON)
@settings(max_examples=300, deadline=None)
def test_any_json_is_an_exchange_or_a_value_error(record: Any) -> None:
    try:
        assert isinstance(read_record(record), LoggedExchange)
    except ValueError as error:
        assert "\n" not in str(error)


@pytest.mark.slow
@given(JSON)
@settings(max_examples=300, deadline=None)
def test_any_container_is_records_or_a_value_error(record: Any) -> None:
    for text in (json.dumps(record), json.dumps([record], indent=1)):
        try:
            assert all(
                b"\n" not in found and found == json.dumps(json.loads(found)).encode()
                for found in records_of(io.BytesIO(text.encode()))
            )
        except ValueError as error:
            assert str(error).startswith("is ")


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([b"{", b"}", b"\n", b"[", b"]", b'"a"', b"1", b",", b":", b" "])).map(b"".join)
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_records_or_a_value_error(data: bytes) -> None:
    try:
        assert all(record.strip() for record in records_of(io.BytesIO(data)))
    except ValueError as error:
        assert str(error).startswith(("is ", "looks like ")) and "\n" not in str(error)
