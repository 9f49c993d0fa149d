"""The engine faces of the stand-in: vLLM under /engine, SGLang under /sglang. They return ids and cost nothing.

Belongs here: that there are two. Does not belong here: the engines (`vllm_server`, `sglang_server`), OpenRouter (`server`).
Both answer with the model and the latency of `[engine]`, from the same source and into the same ledger, without a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

from openrouter_standin.engines.sglang_server import Sglang
from openrouter_standin.engines.vllm_server import Vllm
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import Ledger


@dataclass(frozen=True)
class Engines:
    """Both engines over the stand-in's generator and ledger."""

    generator: Generator
    ledger: Ledger

    def routes(self) -> Iterable[web.RouteDef]:
        yield from Vllm(self.generator, self.ledger, "vllm").routes()
        yield from Sglang(self.generator, self.ledger, "sglang").routes()
