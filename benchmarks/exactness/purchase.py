"""Buying answers: a stand-in in this process on a loopback port, asked by the platform's own attempt, kept in the platform's own journal.

Belongs here: the server's life, requests, journals, truth. Does not belong here: what the answers mean.

A provider's answers are asked for one after the other, so that "after 150 answers" means the order of the journal; providers and
engines run side by side. The truth is read from the server's own file when everything is bought.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from benchmarks.exactness.questions import Question
from eagle3_assets.campaign import Collect
from eagle3_assets.collect.run.attempt import Attempt
from eagle3_assets.collect.servers.openrouter import replay_message
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire import journal
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer
from openrouter_standin.answers.load import load_source
from openrouter_standin.answers.sampled import AnswerSource
from openrouter_standin.profiles import Profiles
from openrouter_standin.schema.provider import Provider
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import TRUTH_FILE, Ledger
from openrouter_standin.vocabulary import Vocabulary

KEY = "sk-standin-exactness"
ENGINES = ("engine", "sglang")  # names in the truth file
LOSSY = "lossy"  # tag of the provider behind a gateway that is not clean
SHARD = "00"


@dataclass(frozen=True)
class Truth:
    """What was sampled. `version`: how often the provider had changed."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    habits: tuple[str, ...]
    edits: tuple[str, ...]
    version: int


@dataclass
class Purchase:
    """All that was bought: `folders` maps a provider's name to its journal, in the order of the profiles file; `truths` by
    generation id. `providers` are the stand-in's settings (None for an engine)."""

    root: Path
    vocabulary: Vocabulary
    providers: dict[str, Provider | None] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    truths: dict[str, Truth] = field(default_factory=dict)

    def answers(self, name: str, first: int | None = None) -> list[WireAnswer]:
        """Finished answers of a provider in the order bought, only the `first` so many if that is given."""
        finished = (answer for answer in journal.read(self.folders[name]) if answer.outcome == "finished")
        return list(itertools.islice(finished, first))


def is_streamed(provider: Provider) -> bool:
    """A provider whose profile says what its streams are like is asked for streams."""
    return "stream" in provider.text.model_fields_set


# ---------------------------------------------------------------------------------------------------- the server
def scaled(profiles: Profiles, answers: int) -> Profiles:
    """Changes in mid-run at half of the answers, whatever the file's number; no waiting, money enough, faults as in the file."""
    providers = []
    for provider in profiles.provider:
        changes = tuple(
            change.model_copy(update={"after_answers": answers // 2}) if change.after_answers is not None else change
            for change in provider.change
        )
        providers.append(provider.model_copy(update={"change": changes}))
    server = profiles.server.model_copy(update={"time_scale": 0.0, "credit_usd": 900_000.0, "generation_delay_s": 0.0})
    return profiles.model_copy(update={"server": server, "provider": tuple(providers)})


@contextlib.asynccontextmanager
async def serving(standin: Standin) -> AsyncIterator[str]:
    """The origin of the server."""
    runner = web.AppRunner(standin.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# ---------------------------------------------------------------------------------------------------- buying
def buy(
    profiles: Profiles,
    root: Path,
    questions: Sequence[Question],
    *,
    beside: Path,
    seed: int,
    per_engine: int = 0,
    per_provider: int | None = None,
    source: tuple[AnswerSource, Vocabulary] | None = None,
    with_truth: bool = True,
) -> Purchase:
    """Ask every provider the first `per_provider` (None: all) of `questions`, each engine the first `per_engine` of them.
    `source`: answers and their vocabulary, else those of the profiles file. `with_truth` False leaves the truth on disk (it is
    large). Raises WireError, StoreError."""
    import uvloop

    answers, vocabulary = source or load_source(profiles.source, beside)
    generator = Generator(profiles, vocabulary, answers, seed=f"exactness:{seed}")
    standin = Standin(generator, Ledger(root / "standin"), KEY, "the truth is read from the file")
    purchase = Purchase(root, vocabulary)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_buy_all(standin, profiles, purchase, questions, per_provider, per_engine))
    standin.ledger.close()
    if with_truth:
        purchase.truths = dict(_truths(root / "standin" / TRUTH_FILE))
    return purchase


async def _buy_all(
    standin: Standin,
    profiles: Profiles,
    purchase: Purchase,
    questions: Sequence[Question],
    per_provider: int | None,
    per_engine: int,
) -> None:
    async with serving(standin) as origin, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        work: list[tuple[str, Provider | None, str, list[tuple[dict[str, Any], Question]]]] = []
        for provider in profiles.provider:
            asked = [(_request(profiles, provider, question), question) for question in questions[:per_provider]]
            work.append((provider.name, provider, f"{origin}/api/v1/chat/completions", asked))
        for name, path in zip(ENGINES if per_engine else (), ("engine/v1", "sglang/v1"), strict=False):
            asked = [(_engine_request(profiles, name, question), question) for question in questions[:per_engine]]
            work.append((f"({name})", None, f"{origin}/{path}/chat/completions", asked))
        for number, (name, bought_from, _, _) in enumerate(work):
            purchase.providers[name] = bought_from
            purchase.folders[name] = purchase.root / "answers" / f"{number:02d}" / SHARD
        await asyncio.gather(
            *(_buy_one(session, url, name, provider, purchase.folders[name], asked) for name, provider, url, asked in work)
        )


async def _buy_one(
    session: aiohttp.ClientSession,
    url: str,
    name: str,
    provider: Provider | None,
    folder: Path,
    asked: Sequence[tuple[dict[str, Any], Question]],
) -> None:
    headers, limits = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}, Collect()
    dataset = name if provider is not None else "engine"
    with Journal.open(folder) as kept:
        for number, (request, question) in enumerate(asked):
            prompt = Prompt(
                sample_id=hashlib.sha256(f"{folder}\0{number}".encode()).hexdigest()[:32],
                dataset=dataset,
                turn=question.turn,
                shard=SHARD,
                rank=number,
                messages=question.messages,
                tools=question.tools or None,
                expected_tokens=500,
            )
            attempt = Attempt(prompt, SHARD, "engine" if provider is None else "openrouter", request, 1)
            exchange = await attempt.send(session, url, headers, limits)
            if provider is not None and provider.tag == LOSSY:
                exchange.body = without_letters(exchange.body)
            answer, _ = attempt.judge(exchange)
            kept.append(answer)


def _request(profiles: Profiles, provider: Provider, question: Question) -> dict[str, Any]:
    """As the collector asks (`openrouter.build_request`), pinned to one endpoint."""
    request: dict[str, Any] = {
        "model": profiles.model.slug,
        "messages": [replay_message(message) for message in question.messages],
        "temperature": question.temperature,
        "top_p": 0.95,
        "max_tokens": question.max_tokens,
        "stream": question.stream or is_streamed(provider),
        "reasoning": {"enabled": question.thinking},
        "usage": {"include": True},
        "provider": {"only": [provider.tag], "allow_fallbacks": False},
    }
    if question.tools:
        request["tools"] = list(question.tools)
    if provider.logprobs:
        request["logprobs"] = True
    return request


def _engine_request(profiles: Profiles, engine: str, question: Question) -> dict[str, Any]:
    """As the collector asks engines (`engines.build_engine_request`)."""
    request: dict[str, Any] = {
        "model": profiles.engine.model,
        "messages": list(question.messages),
        "temperature": question.temperature,
        "top_p": 0.95,
        "max_tokens": question.max_tokens,
        "stream": False,
        "return_token_ids": True,
        "chat_template_kwargs": {"thinking": question.thinking},
        **({"separate_reasoning": True} if engine == "sglang" else {}),
    }
    if question.tools:
        request["tools"] = list(question.tools)
    return request


def without_letters(body: bytes) -> bytes:
    """Every character beyond ASCII as `?`."""
    return body.decode("utf-8", "replace").encode("ascii", "replace")


# ---------------------------------------------------------------------------------------------------- truth
def _truths(path: Path) -> Iterator[tuple[str, Truth]]:
    with path.open("rb") as handle:
        for line in handle:
            told = orjson.loads(line)
            _, _, version = str(told["profile"]).partition("#")
            yield (
                told["generation_id"],
                Truth(
                    tuple(told["prompt_ids"]),
                    tuple(told["completion_ids"]),
                    tuple(told["habits"]),
                    tuple(told["edits"]),
                    int(version or 0),
                ),
            )
