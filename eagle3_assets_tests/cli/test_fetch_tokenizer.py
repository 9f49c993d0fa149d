"""Claims about `eagle3 fetch-tokenizer`: pinned, atomic, resumable; every failure is one line. Against a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.cli.fetch_tokenizer import fetch_file, file_url
from eagle3_assets.cli.main import run
from eagle3_assets.errors import ExactError
from eagle3_assets.targets.facts import HubFile
from eagle3_assets.targets.profile_facts import PROFILES_DIR, profile_facts
from eagle3_assets.targets.tokenizer import load_profile


class Hub(ThreadingHTTPServer):
    """`files`: path → body. `faults`: path → what goes wrong there, once. Remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.headers_seen: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, wanted = self.server, self.headers.get("Range")
        hub.asked.append((self.path, wanted))
        hub.headers_seen.append({k.lower(): v for k, v in self.headers.items()})
        fault = hub.faults.pop(self.path, None)
        if isinstance(fault, int):
            return self.send_error(fault)
        if isinstance(fault, str):
            self.send_response(302)
            self.send_header("Location", fault)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if self.path not in hub.files:
            return self.send_error(404)
        body, start = hub.files[self.path], int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(body):
            return self.send_error(416)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : start + len(body) // 3] if fault == ("cut",) else body[start:])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mine(hub: Hub, tmp_path: Path) -> bytes:
    """A profile of the data root with kimi-mini's ranks, served by the hub; returns the ranks."""
    ranks = load_profile("kimi-mini").ranks_path.read_bytes()
    text = (PROFILES_DIR / "kimi-mini" / "profile.toml").read_text()
    text = text.replace('name = "kimi-mini"', 'name = "mine"\nhub = "me/mine"').replace(
        'folders = ["kimi-mini"]', 'folders = ["mine"]'
    )
    text = text.replace('package_folder = "kimi_mini/data"\n', "")
    text += f'\n[[files]]\nname = "tiktoken.model"\nsha256 = "{hashlib.sha256(ranks).hexdigest()}"\n'
    text += '\n[[files]]\nname = "tokenizer_config.json"\noptional = true\n'
    folder = tmp_path / "data" / "tokenizers" / "mine"
    folder.mkdir(parents=True)
    (folder / "profile.toml").write_text(text)
    hub.files["/me/mine/resolve/main/tiktoken.model"] = ranks
    return ranks


RANKS = "/me/mine/resolve/main/tiktoken.model"


def test_a_profiles_files_are_fetched_verified_and_then_kept(
    hub: Hub, mine: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fetch-tokenizer", "mine"]) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "data" / "tokenizers" / "mine"
    assert (folder / "tiktoken.model").read_bytes() == mine and load_profile("mine").encode("The user")
    assert "as pinned" in out and "the hub has none, not needed" in out and "end of turn <|im_end|> = 2050" in out
    assert not any("authorization" in headers for headers in hub.headers_seen)
    asked = len(hub.asked)
    assert run(["fetch-tokenizer", "mine"]) == 0
    assert "already there" in capsys.readouterr().out and RANKS not in [path for path, _ in hub.asked[asked:]]


def test_an_interrupted_download_goes_on_where_it_stopped(
    hub: Hub, mine: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults[RANKS] = ("cut",)
    assert run(["fetch-tokenizer", "mine"]) == 1
    line = capsys.readouterr().err.strip()
    assert "run again to go on" in line and "\n" not in line
    folder = tmp_path / "data" / "tokenizers" / "mine"
    part = folder / ".tiktoken.model.part"
    assert part.stat().st_size == len(mine) // 3 and not (folder / "tiktoken.model").exists(), "a torn file never gets its name"
    assert run(["fetch-tokenizer", "mine"]) == 0
    assert (RANKS, f"bytes={len(mine) // 3}-") in hub.asked and not part.exists()
    assert (folder / "tiktoken.model").read_bytes() == mine


def test_a_file_that_is_not_the_pinned_one_is_refused_and_not_kept(
    hub: Hub, mine: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files[RANKS] = mine[:-1] + b"0"
    assert run(["fetch-tokenizer", "mine"]) == 1
    assert "sha256 is" in capsys.readouterr().err
    folder = tmp_path / "data" / "tokenizers" / "mine"
    assert [path.name for path in folder.iterdir()] == ["profile.toml"]
    hub.files[RANKS] = mine
    (folder / "tiktoken.model").write_bytes(b"damaged")
    assert run(["fetch-tokenizer", "mine"]) == 0 and (folder / "tiktoken.model").read_bytes() == mine


def test_a_config_that_names_other_tokens_is_refused(hub: Hub, mine: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"added_tokens_decoder": {"2050": {"content": "<|end_of_msg|>"}}}
    hub.files["/me/mine/resolve/main/tokenizer_config.json"] = json.dumps(config).encode()
    assert run(["fetch-tokenizer", "mine"]) == 1
    assert "id 2050 is '<|end_of_msg|>', the profile says '<|im_end|>'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "line"),
    [(404, "no such file"), (401, "asks for a login"), (503, "run again later"), ("http://example.org/x", "not https")],
)
def test_what_the_hub_refuses_is_one_line_with_advice(
    hub: Hub, mine: bytes, fault: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults[RANKS] = fault
    assert run(["fetch-tokenizer", "mine"]) == 1
    err = capsys.readouterr().err.strip()
    assert line in err and "\n" not in err


def test_a_redirect_to_the_hubs_storage_is_followed(hub: Hub, mine: bytes, tmp_path: Path) -> None:
    hub.files["/storage"] = mine
    hub.faults[RANKS] = f"{hub.url}/storage"
    assert run(["fetch-tokenizer", "mine", "--to", str(tmp_path / "to")]) == 0
    assert (tmp_path / "to" / "tiktoken.model").read_bytes() == mine


def test_a_part_longer_than_the_file_is_fetched_anew(hub: Hub, mine: bytes, tmp_path: Path) -> None:
    (tmp_path / ".x.part").write_bytes(mine + b"more")
    pin = hashlib.sha256(mine).hexdigest()
    assert "as pinned" in fetch_file(hub.url + RANKS, tmp_path / "x", HubFile(name="x", sha256=pin), lambda got, total: None)


def test_nobody_listening_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = Hub()
    closed.server_close()
    monkeypatch.setenv("HF_ENDPOINT", closed.url)
    monkeypatch.setenv("no_proxy", "*")
    assert run(["fetch-tokenizer", "kimi-k2.5", "--to", str(tmp_path)]) == 1
    assert "not reached" in capsys.readouterr().err


@pytest.mark.parametrize("endpoint", ["http://example.org", "ftp://127.0.0.1", "nonsense", "http://127.0.0.1.example.org"])
def test_an_endpoint_that_is_neither_https_nor_here_is_refused(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ExactError, match="HF_ENDPOINT"):
        file_url("a/b", "main", "f")


def test_the_real_profiles_ask_the_publishers_repository_for_pinned_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    for name in ("kimi-k2.5", "kimi-k2-thinking", "kimi-k2-instruct", "qwen3"):
        facts = profile_facts(name)
        pinned = {file.name: file.sha256 for file in facts.files}
        assert pinned[facts.tokenizer.ranks_file] == facts.tokenizer.ranks_sha256
    url = file_url("moonshotai/Kimi-K2.5", "refs/pr/1", "tiktoken.model")
    assert url == "https://huggingface.co/moonshotai/Kimi-K2.5/resolve/refs%2Fpr%2F1/tiktoken.model"


def test_kimi_mini_ships_with_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fetch-tokenizer", "kimi-mini"]) == 0
    assert "nothing is to be fetched" in capsys.readouterr().out
