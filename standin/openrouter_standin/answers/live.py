"""The live source: kimi-mini itself answers, sampled in a thread of the stand-in's own process.

Belongs here: a request's settings -> an ask, the model's thread behind a future of the event loop. Does not belong here: the sampler
(`kimi_mini.sampler`), text. torch is imported when a live source is loaded, never else.

An answer is a function of (seed, request, attempt, prompt ids): the sampler draws from a stream of that seed alone. Tool calls are
numbered by the model itself; `tool_choice` and `stop` are not enforced (the model was never taught them).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from openrouter_standin import chance
from openrouter_standin.answers.sampled import Sampled
from openrouter_standin.request import ChatRequest
from openrouter_standin.vocabulary import Ids

if TYPE_CHECKING:
    from concurrent.futures import Future as ConcurrentFuture

    from kimi_mini.sampler import Sample, Sampler

# what the model's generation_config says, where a request says nothing
TEMPERATURE, TOP_P = 1.0, 0.95


class Live:
    """Answers sampled from a model; `sampler` belongs to this source from now on."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @classmethod
    def load(cls, slots: int) -> Live:
        """The committed weights, `slots` answers at once. One torch thread: a spinning second one starves the rest of the machine."""
        import torch

        from kimi_mini.model import load_model
        from kimi_mini.sampler import Sampler

        torch.set_num_threads(1)
        return cls(Sampler(load_model(), slots))

    @property
    def context_length(self) -> int | None:
        return self._sampler.context_length

    def answer(self, request: ChatRequest, prompt_ids: Ids, *, seed: str, attempt: int, limit: int) -> asyncio.Future[Sampled]:
        """Queued at once; the future fails with Eagle3Error when the sampler was closed first."""
        from kimi_mini.sampler import Ask

        ask = Ask(
            prompt_ids=prompt_ids,
            temperature=TEMPERATURE if request.temperature is None else request.temperature,
            top_p=TOP_P if request.top_p is None else request.top_p,
            seed=int(chance.hexadecimal(32, seed, request.hash, attempt, "sample"), 16),
            max_tokens=limit,
            top_logprobs=request.top_logprobs if request.logprobs else 0,
        )
        sampled = self._sampler.submit(ask)
        return asyncio.ensure_future(_truth(sampled))

    def close(self) -> None:
        self._sampler.close()


async def _truth(sampled: ConcurrentFuture[Sample]) -> Sampled:
    sample = await asyncio.wrap_future(sampled)
    return Sampled(sample.ids, sample.logprobs, sample.top)
