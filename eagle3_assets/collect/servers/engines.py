"""Engines: vLLM and SGLang servers of one's own, which return token ids and cost nothing.

Belongs here: their request, their URLs, choosing the least loaded one. Does not belong here: starting such servers, reading ids
(`exact`).

Facts: docs/research/openrouter-contract.md#3.4. vLLM >= 0.10.2: `return_token_ids` gives `choices[i].token_ids` and top-level
`prompt_token_ids`. SGLang (release 0.5.23): the same parameter, non-streaming only, gives `choices[i].response_token_ids` and
`choices[i].prompt_token_ids`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset, Engine
from eagle3_assets.errors import WireError
from eagle3_assets.prompts.prompt import Prompt

# What one kind of server needs besides what all take.
_EXTRA: dict[str, dict[str, Any]] = {
    "vllm": {},
    "sglang": {"separate_reasoning": True},  # otherwise the reasoning stays in `content`
}


def build_engine_request(campaign: Campaign, dataset: Dataset, prompt: Prompt, engine: Engine) -> dict[str, Any]:
    """The JSON that is sent to `engine`. History keeps `reasoning_content`, which these servers hand to the chat template."""
    sampling = campaign.sampling_of(dataset)
    request: dict[str, Any] = {
        "model": engine.model or campaign.target.model,
        "messages": list(prompt.messages),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stream": False,  # SGLang returns ids only then
        "return_token_ids": True,
        "chat_template_kwargs": {"thinking": campaign.target.thinking},
        **_EXTRA[engine.kind],
    }
    if prompt.tools:
        request["tools"] = list(prompt.tools)
    return request


def completions_url(base_url: str) -> str:
    """`http://host:8000` and `http://host:8000/v1` both mean the OpenAI-style route under /v1."""
    base = base_url.rstrip("/")
    return f"{base if base.endswith('/v1') else base + '/v1'}/chat/completions"


class EnginePool:
    """Which server takes the next request: the one with the fewest in flight (the first of equals)."""

    def __init__(self, engines: tuple[Engine, ...], base_urls: tuple[str, ...]) -> None:
        if not engines or len(engines) != len(base_urls):
            raise WireError(
                f"{len(engines)} [[engine]] tables need as many addresses, found {len(base_urls)}; "
                'base_url = "embedded" works in a campaign with server.kind = "embedded" only'
            )
        self._servers = list(zip(engines, (completions_url(url) for url in base_urls), strict=True))
        self._load = [0] * len(self._servers)

    @contextmanager
    def borrow(self) -> Iterator[tuple[Engine, str]]:
        """(engine, completions URL) for the length of one request."""
        index = min(range(len(self._load)), key=self._load.__getitem__)
        self._load[index] += 1
        try:
            yield self._servers[index]
        finally:
            self._load[index] -= 1
