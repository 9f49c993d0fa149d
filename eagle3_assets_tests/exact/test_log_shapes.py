"""Claims about the shapes of logs: LiteLLM, OpenHands, Langfuse, batches, cassettes, archives and evaluations give the same row as the bytes
themselves, and a shape that nobody knows is named."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_assets.cli.main import run
from eagle3_assets.exact.logs import read_record
from eagle3_assets.exact.logs.halves import created_of, seconds_of
from eagle3_assets_tests.exact.test_logs import as_stream, exchange

AT = 1_770_000_000
ISO = "2026-02-02T02:40:00Z"  # the same moment


def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    request, body = exchange()
    return {"model": "kimi-mini", "max_tokens": 900, **request}, json.loads(body)


def single_records() -> dict[str, Any]:
    request, body = parts()
    parameters = {key: value for key, value in request.items() if key not in ("messages", "model")}
    message, usage = body["choices"][0]["message"], body["usage"]
    return {
        "litellm payload": {
            "id": "chatcmpl-1",
            "call_type": "acompletion",
            "status": "success",
            "custom_llm_provider": "fireworks_ai",
            "startTime": AT - 3.5,
            "endTime": AT + 0.0,
            "model": "kimi-mini",
            "api_base": "https://api.example.org/v1",
            "messages": request["messages"],
            "model_parameters": parameters,
            "response": body,
        },
        "litellm spend log": {
            "request_id": "chatcmpl-1",
            "call_type": "acompletion",
            "startTime": ISO,
            "endTime": ISO,
            "custom_llm_provider": "fireworks_ai",
            "messages": {},
            "proxy_server_request": json.dumps(request),
            "response": json.dumps(body),
        },
        "openhands": {
            "messages": request["messages"],
            "response": body,
            "args": [],
            "kwargs": parameters | {"model": "kimi-mini"},
            "timestamp": AT + 0.5,
            "cost": 0.1,
        },
        "langfuse": {
            "id": "obs-1",
            "traceId": "trace-1",
            "type": "GENERATION",
            "startTime": ISO,
            "model": "kimi-mini",
            "modelParameters": {"max_tokens": 900},
            "input": request["messages"],
            "output": message,
            "usageDetails": {"input": usage["prompt_tokens"], "output": usage["completion_tokens"], "total": 1},
        },
        "langfuse, texts": {
            "id": "obs-1",
            "traceId": "trace-1",
            "startTime": ISO,
            "model": "kimi-mini",
            "modelParameters": json.dumps({"max_tokens": 900}),
            "input": json.dumps({"messages": request["messages"]}),
            "output": json.dumps(message),
            "usage": {"input": usage["prompt_tokens"], "output": usage["completion_tokens"], "unit": "TOKENS"},
        },
        "inspect_ai event": {"event": "model", "timestamp": ISO, "output": {}, "call": {"request": request, "response": body}},
        "helicone": {"providerRequest": {"url": "x", "json": request}, "providerResponse": {"status": 200, "json": body}},
    }


def files() -> dict[str, str]:
    request, body = parts()
    asked, answered = json.dumps(request), json.dumps(body)
    python = {
        "request": {"method": "POST", "uri": "https://api.example.org/v1/chat/completions", "body": asked, "headers": {}},
        "response": {
            "status": {"code": 200, "message": "OK"},
            "headers": {"Content-Type": ["application/json"], "Date": ["Mon, 02 Feb 2026 02:40:00 GMT"]},
            "body": {"string": answered},
        },
    }
    pydantic = {"request": {"uri": "x", "parsed_body": request}, "response": {"status": {"code": 200}, "parsed_body": body}}
    packed = {"request": {"body": asked}, "response": {"body": {"string": gzip.compress(answered.encode())}}}
    go = {
        "id": 0,
        "request": {"url": "https://api.example.org/v1/chat/completions", "body": asked},
        "response": {
            "status": "200 OK",
            "code": 200,
            "headers": {"Content-Type": ["text/event-stream"]},
            "body": as_stream(body),
        },
    }
    ruby = {
        "request": {"method": "post", "uri": "x", "body": {"encoding": "UTF-8", "string": asked}},
        "response": {
            "status": {"code": 200, "message": "OK"},
            "body": {"encoding": "ASCII-8BIT", "base64_string": base64.b64encode(answered.encode()).decode()},
        },
        "recorded_at": "Mon, 02 Feb 2026 02:40:00 GMT",
    }
    entry = {
        "startedDateTime": ISO,
        "request": {"method": "POST", "url": "https://api.example.org/v1", "headers": [], "postData": {"text": asked}},
        "response": {
            "status": 200,
            "headers": [{"name": "Content-Type", "value": "application/json"}],
            "content": {
                "mimeType": "application/json",
                "encoding": "base64",
                "text": base64.b64encode(answered.encode()).decode(),
            },
        },
    }
    page = {"request": {"method": "GET", "url": "https://x/"}, "response": {"status": 200, "content": {"text": "<html>"}}}
    har = {"log": {"version": "1.2", "entries": [page, entry]}}
    long = "attachment://0123"
    short = {**request, "messages": [{**request["messages"][0], "content": long}, *request["messages"][1:]]}
    event = {"event": "model", "timestamp": ISO, "output": {}, "call": {"request": short, "response": body}}
    sample = {
        "id": 7,
        "epoch": 1,
        "events": [{"event": "state"}, event],
        "attachments": {"0123": request["messages"][0]["content"]},
    }
    inspect = {"version": 2, "status": "success", "eval": {"model": "x"}, "samples": [sample]}
    trace = {"id": "t", "observations": [{"type": "SPAN", "input": 1, "output": 2}, single_records()["langfuse"]]}
    return {
        "vcr.py": yaml.safe_dump({"interactions": [python], "version": 1}),
        "vcr.py, parsed": yaml.safe_dump({"interactions": [pydantic], "version": 1}),
        "vcr.py, compressed": yaml.safe_dump({"interactions": [packed], "version": 1}),
        "go-vcr": "---\n" + yaml.safe_dump({"version": 2, "interactions": [go]}, sort_keys=False),
        "ruby": yaml.safe_dump({"http_interactions": [ruby], "recorded_with": "VCR 6.3"}),
        "cassette as JSON": json.dumps({"http_interactions": [ruby]}),
        "har": json.dumps(har, indent=2),
        "har on one line": json.dumps(har),
        "inspect_ai": json.dumps(inspect, indent=1),
        "langfuse trace": json.dumps(trace),
        "langfuse page": json.dumps({"data": trace["observations"], "meta": {}}),
    }


def row_of(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    (tmp_path / "log").write_text(text)
    assert run(["reconstruct", "--profile", "kimi-mini", *more, str(tmp_path / "log")]) == 0, capsys.readouterr().err
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return dict(row)


@pytest.fixture
def plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The row of the bytes themselves."""
    request, body = parts()
    row = row_of(json.dumps({"request": request, "response_body": json.dumps(body)}), tmp_path, capsys)
    assert row["grade"] == "C1" and row["residual"]["completion"] == 0
    return row


def test_every_kind_of_record_gives_the_row_of_the_bytes(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, record in single_records().items():
        row = row_of(json.dumps(record), tmp_path, capsys)
        assert (name, row["input_ids"], row["residual"], row["grade"]) == (name, plain["input_ids"], plain["residual"], "C1")


def test_every_kind_of_file_gives_the_row_of_the_bytes(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files().items():
        row = row_of(text, tmp_path, capsys)
        assert (name, row["input_ids"], row["residual"], row["grade"]) == (name, plain["input_ids"], plain["residual"], "C1")


def test_a_batchs_answers_find_their_requests_by_custom_id(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request, body = parts()
    asked = [{"custom_id": f"c{k}", "method": "POST", "url": "/v1/chat/completions", "body": request} for k in range(3)]
    (tmp_path / "batch.jsonl").write_text("\n".join(map(json.dumps, asked)))
    answered = {"id": "batch_req_1", "custom_id": "c2", "response": {"status_code": 200, "body": body}, "error": None}
    more = ("--request", str(tmp_path / "batch.jsonl"))
    row = row_of(json.dumps(answered), tmp_path, capsys, *more)
    assert row["id"] == "c2" and row["input_ids"] == plain["input_ids"]
    lost = row_of(json.dumps({**answered, "custom_id": "c9"}), tmp_path, capsys, *more)
    assert lost["grade"] == "Q" and "custom_id 'c9' is in no line of the request file" in lost["reasons"][0]


def test_a_batch_that_names_an_id_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = json.dumps({"custom_id": "c", "body": parts()[0]})
    (tmp_path / "batch.jsonl").write_text(f"{line}\n{line}\n")
    assert run(["reconstruct", "--profile", "kimi-mini", "--request", str(tmp_path / "batch.jsonl"), "x"]) == 1
    assert "custom_id 'c' stands there twice" in capsys.readouterr().err


def test_an_assumed_finish_reason_is_said_and_keeps_a_row_at_c1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {key: value for key, value in single_records()["langfuse"].items() if key != "modelParameters"}
    row = row_of(json.dumps(record), tmp_path, capsys)
    assert row["grade"] == "C1" and any("'tool_calls' was assumed" in reason for reason in row["reasons"])


def test_an_answer_that_met_its_limit_was_cut() -> None:
    record = {**single_records()["langfuse"], "modelParameters": {"max_tokens": 5}}
    assert json.loads(read_record(record).body)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("record", "at", "provider"),
    [
        ({}, None, None),
        ({"provider": "Chutes", "timestamp": ISO}, AT, "Chutes"),
        ({"url": "https://api.moonshot.ai/v1/chat/completions", "timestamp": AT * 1000}, AT, "api.moonshot.ai"),
        ({"url": "https://openrouter.ai/api/v1/chat/completions", "custom_llm_provider": "openrouter"}, None, None),
        ({"headers": {"Date": "Mon, 02 Feb 2026 02:40:00 GMT"}}, AT, None),
        ({"timestamp": "yesterday", "provider": 7}, None, None),
    ],
)
def test_a_log_says_when_and_who(record: dict[str, Any], at: float | None, provider: str | None) -> None:
    request, body = exchange()
    found = read_record({"request": request, "response_body": body, **record})
    assert (found.at, found.provider) == (at, provider)


def test_the_answer_itself_knows_best_when_it_came() -> None:
    request, body = exchange()
    stamped = json.dumps({"created": AT, **json.loads(body)})
    assert read_record({"request": request, "response_body": stamped, "timestamp": "2020-01-01T00:00:00Z"}).at == AT
    assert created_of(b'{"choices": [{"message": {"content": "{\\"created\\": 1770000001}"}}]}') is None


@pytest.mark.parametrize("value", [None, True, "", "x", [], 3, -1e30, float("nan"), 1e30, "9999-12-31T23:59:59"])
def test_what_is_no_moment_is_none(value: Any) -> None:
    assert seconds_of(value) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("PK\x03\x04zip", "inspect log convert"),
        ("HTTP/1.1 200 OK\ncontent-type: x\n\n{}", "curl -i"),
        ("interactions: []\nversion: 1\n", "a cassette without interactions"),
        ("interactions:\n- !ruby/object:X {}\n", "looks like a YAML cassette and is none"),
        ("version: 3\nservices: {}\n", "is YAML without interactions"),
        (json.dumps({"log": {"entries": []}}), "no request posts messages"),
        (json.dumps({"eval": {}, "samples": [{}]}, indent=1), "without model events"),
        (json.dumps({"observations": [{"type": "SPAN"}]}, indent=1), "without generations"),
    ],
)
def test_a_file_without_an_exchange_is_one_line(text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(text)
    assert run(["reconstruct", "--profile", "kimi-mini", str(tmp_path / "log")]) == 1
    said = capsys.readouterr().err.strip()
    assert line in said and "\n" not in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"attributes": {"gen_ai.request.model": "x"}}, "an OpenTelemetry span"),
        ({"messages": [{"role": "user"}], "cost": 1}, "messages without an answer of the API beside them"),
        ({"event": "model", "output": {}}, "--log-model-api"),
        ({"proxy_server_request": "{}", "messages": {}, "response": {"choices": []}}, "store_prompts_in_spend_logs"),
        ({"alpha": 1, "beta": 2}, "found alpha, beta"),
    ],
)
def test_a_shape_that_cannot_be_read_says_what_stands_there(record: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_record(record)
    assert words in str(caught.value) and "\n" not in str(caught.value)
