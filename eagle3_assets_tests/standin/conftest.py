"""Fixtures of this room: a server in this process over a small bank, recorded rows, Kimi's real tokenizer files."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import tiktoken
from aiohttp import web

from eagle3_assets_tests.conftest import shared_data
from openrouter_standin.answers.source import Bank
from openrouter_standin.profiles import Profiles, load_profiles
from openrouter_standin.schema.faults import Faults
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Vocabulary

KEY, TRUTH_TOKEN = "sk-standin-test", "truth-token-of-the-test"
SLUG = "eagle3/kimi-mini"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class FakeAnswer:
    """The smallest thing that is a bank's answer."""

    def __init__(
        self,
        ids: tuple[int, ...],
        thinking: bool = True,
        tool_names: tuple[str, ...] = (),
        *,
        prompt: str = "",
        temperature: float = 1.0,
    ) -> None:
        self.ids, self.thinking, self.tool_names, self.prompt, self.temperature = ids, thinking, tool_names, prompt, temperature


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    from kimi_mini.tokenizer import load_encoding

    return Vocabulary.of(load_encoding())


def spell(v: Vocabulary, reasoning: str | None, content: str, *calls: tuple[str, str], closed: bool = True) -> tuple[int, ...]:
    """Ids of an answer; reasoning None means instant mode."""
    ids: list[int] = []
    if reasoning is not None:
        ids += [*v.encode_text(reasoning), *([v.close_think] if closed else [])]
    ids += v.encode_text(content)
    if calls:
        ids.append(v.section_begin)
        for header, arguments in calls:
            ids += [v.call_begin, *v.encode_text(header), v.argument_begin, *v.encode_text(arguments), v.call_end]
        ids.append(v.section_end)
    return (*ids, v.im_end)


@pytest.fixture(scope="session")
def answers(vocabulary: Vocabulary) -> tuple[FakeAnswer, ...]:
    v = vocabulary
    call = ("functions.get_weather:0", '{"city": "Florence"}')
    return (
        FakeAnswer(spell(v, " The user says hi. ", "\nHello! \U0001f44b 你好 ")),
        FakeAnswer(spell(v, " Think\n\nabout it.", "The answer is 42.")),
        FakeAnswer(spell(v, None, "Instant answer."), thinking=False),
        FakeAnswer(spell(v, " I should look.", "", call), tool_names=("get_weather",)),
        FakeAnswer(
            spell(v, " Two calls.", "Let me see. ", call, ("functions.get_weather:1", "{}")), tool_names=("get_weather",) * 2
        ),
        FakeAnswer(spell(v, " No close.", "", call, closed=False), tool_names=("get_weather",)),
    )


def settings(**server: Any) -> Profiles:
    """The built-in profiles without weather and without waiting, `server` keys changed."""
    profiles = load_profiles()
    changed = {"time_scale": 0.0, "generation_delay_s": 0.0, "faults": Faults(), **server}
    return profiles.model_copy(update={"server": profiles.server.model_copy(update=changed)})


MakeStandin = Callable[..., Standin]


@pytest.fixture
def make_standin(tmp_path: Path, vocabulary: Vocabulary, answers: tuple[FakeAnswer, ...]) -> MakeStandin:
    def make(profiles: Profiles | None = None, *, folder: Path | None = None, bank: Any = answers, seed: str = "0") -> Standin:
        profiles = profiles or settings()
        source = Bank(bank, vocabulary, profiles.source)
        return Standin(Generator(profiles, vocabulary, source, seed), Ledger(folder or tmp_path / "standin"), KEY, TRUTH_TOKEN)

    return make


class Client:
    """A plain client of one server."""

    def __init__(self, session: aiohttp.ClientSession, origin: str) -> None:
        self.session, self.origin = session, origin

    async def get(self, path: str, key: str | None = KEY, **query: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.session.get(self.origin + path, params=query, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def post(
        self, body: Any, *, path: str = "/api/v1/chat/completions", key: str | None = KEY
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.origin + path, data=data, headers=headers) as response:
            return response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read()


@contextlib.asynccontextmanager
async def connected(standin: Standin) -> AsyncIterator[Client]:
    """A client of `standin` served as the real process serves it (a left client does not cancel a handler)."""
    runner = web.AppRunner(standin.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Client(session, f"http://127.0.0.1:{port}")
    finally:
        await runner.cleanup()


def chat(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": SLUG, "messages": [{"role": "user", "content": text}], "max_tokens": 4000, **more}


def only(tag: str, **more: Any) -> dict[str, Any]:
    return {"provider": {"only": [tag], "allow_fallbacks": False}, **more}


@pytest.fixture(scope="session")
def recorded() -> dict[str, dict[str, Any]]:
    """The recorded OpenRouter rows of Kimi K2.5, by the name behind `kimi/`."""
    path = shared_data() / "wire" / "recorded.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent: set EAGLE3_SHARED_DATA to the shared data folder")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"].split("/kimi/")[1]: row for row in rows if row["id"].startswith("TestOpenRouterCommon/")}


@pytest.fixture(scope="session")
def foreign() -> dict[str, dict[str, Any]]:
    """The recorded rows of other OpenAI-style servers, by SERVER/TEST."""
    path = shared_data() / "wire" / "recorded.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent: set EAGLE3_SHARED_DATA to the shared data folder")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"].split("/", 1)[1]: row for row in rows if row["id"].startswith("TestOpenAICompatibleCommon/")}


@pytest.fixture(scope="session")
def kimi_files() -> Path:
    folder = shared_data() / "tokenizers" / "kimi-k2.5"
    if not folder.exists():
        pytest.skip(f"{folder} is absent: set EAGLE3_SHARED_DATA to the shared data folder")
    return folder


@pytest.fixture(scope="session")
def kimi(kimi_files: Path) -> Vocabulary:
    """Kimi K2.5's real vocabulary, from its files."""
    facts = json.loads((kimi_files / "special_tokens.json").read_text())
    lines = (kimi_files / "tiktoken.model").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    named = {number: name for name, number in facts["named_tokens"].items()}
    special = {named.get(k, facts["reserved_name"].format(id=k)): k for k in range(facts["n_base"], facts["n_vocab"])}
    return Vocabulary.of(tiktoken.Encoding("kimi", pat_str=facts["pat_str"], mergeable_ranks=ranks, special_tokens=special))


def skeleton(value: Any) -> Any:
    """Keys in order, types, nullness; numbers are numbers, a list is its distinct members."""
    if isinstance(value, dict):
        return [(k, skeleton(v)) for k, v in value.items()]
    if isinstance(value, list):
        return ["list", *dict.fromkeys(json.dumps(skeleton(v)) for v in value)]
    if value is None or isinstance(value, bool):
        return str(value)
    return "number" if isinstance(value, int | float) else "string"


@contextlib.contextmanager
def served(standin: Standin) -> Iterator[str]:
    """The origin of `standin`, served by a loop in a thread: for clients that block."""
    loop = asyncio.new_event_loop()

    async def start() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(standin.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    thread = threading.Thread(target=loop.run_forever, name="stand-in")
    thread.start()
    try:
        runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
