"""Sampling from Kimi-mini: many asks at once, each with its own temperature, top_p, seed and length; ids and log-probabilities back.

Belongs here: what an ask and a sample are, chance, continuous admission (a waiting ask takes a slot the moment a row ends), the worker
thread. Does not belong here: the forward pass (`decoder`), text, prompts, HTTP.

A sample is a function of (weights, prompt, settings, seed): chance is a counter-based stream (Philox, keyed by the seed, one number a
position), and the decoder gives a row the same numbers whatever is beside it: to the bit with one torch thread, else up to rounding,
as on another machine. Rounding moves a log-probability by some 1e-5, and an id where a draw falls into that gap (about one answer in a
thousand). Two threads are faster on an idle machine only: beside a busy process they wait for each other.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from kimi_mini.decoder import Decoder
from kimi_mini.errors import KimiMiniError
from kimi_mini.tokenizer import special_tokens

if TYPE_CHECKING:
    import torch
    from transformers import DeepseekV3ForCausalLM

SLOTS = 32
_NUCLEUS_WIDTHS = (32, 512)  # most probable ids looked at for a nucleus before all are sorted


@dataclass(frozen=True, slots=True)
class Ask:
    """What to sample. temperature 0 takes the most probable id; top_p 1 leaves the distribution whole. Any integer is a seed.
    `top_logprobs`: of each position, so many of the most probable ids are told."""

    prompt_ids: Sequence[int]
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 1_024
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """What came out: the end id is kept as the last one; "length" means that max_tokens or the context was reached without it.

    `logprobs[k]` is the natural logarithm of the probability of `ids[k]` under the model itself: softmax of its logits at
    temperature 1, before top_p, whatever the ask's settings were (what inference servers report). `top[k]`: the ask's `top_logprobs` most
    probable (id, logarithm) of that position, falling; empty when none were asked for.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


def check(ask: Ask, *, vocab: int, positions: int) -> None:
    """Raises KimiMiniError, one line, for an ask that cannot be served."""
    if not ask.prompt_ids or not all(0 <= token < vocab for token in ask.prompt_ids):
        raise KimiMiniError(f"kimi-mini sampler: prompt_ids must be one or more ids in [0, {vocab})")
    if len(ask.prompt_ids) >= positions:
        raise KimiMiniError(
            f"kimi-mini sampler: the prompt has {len(ask.prompt_ids)} tokens, expected fewer than {positions} (the context length)"
        )
    if not (math.isfinite(ask.temperature) and ask.temperature >= 0):
        raise KimiMiniError(f"kimi-mini sampler: temperature is {ask.temperature}, expected a number >= 0")
    if not 0 <= ask.top_p <= 1:
        raise KimiMiniError(f"kimi-mini sampler: top_p is {ask.top_p}, expected 0 to 1")
    if not 0 <= ask.top_logprobs <= vocab:
        raise KimiMiniError(f"kimi-mini sampler: top_logprobs is {ask.top_logprobs}, expected 0 to {vocab}")
    if ask.max_tokens < 1:
        raise KimiMiniError(f"kimi-mini sampler: max_tokens is {ask.max_tokens}, expected 1 or more")


def uniforms(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The seed's stream: float64 in [0, 1), number k for generated position k, the same on every machine."""
    key = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=16).digest(), "big")
    raw = np.random.Philox(key=key).random_raw(count)  # the raw stream of a bit generator never changes between numpy versions
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One id for each row of float32 logits [n, vocab], by inverse CDF; float64 settings [n] -> ids [n], log-probabilities [n].

    The nucleus of top_p: the most probable ids until their sum reaches it, the one that crosses included. A row depends on itself.
    """
    import torch

    ids = logits.argmax(-1)
    drawn = temperature > 0
    heat = torch.where(drawn, temperature, 1.0)[:, None]
    # the maximum first, so that a tiny temperature leaves 0 and -inf, never inf - inf
    probability = ((logits - logits.amax(-1, keepdim=True)).double() / heat).float().softmax(-1)
    whole, nucleus = (drawn & (top_p >= 1)).nonzero()[:, 0], (drawn & (top_p < 1)).nonzero()[:, 0]
    if len(whole):
        ids[whole] = _invert(probability[whole].double().cumsum(-1), uniform[whole])
    if len(nucleus):
        ids[nucleus] = _nucleus(probability[nucleus], top_p[nucleus], uniform[nucleus])
    return ids, logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]


def _nucleus(probability: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Ids of rows with top_p < 1. Sorting all is slow and seldom needed: a row asks for more until its nucleus is inside."""
    import torch

    rows, vocab = probability.shape
    ids = torch.empty(rows, dtype=torch.int64)
    left = torch.arange(rows)
    for width in (*(width for width in _NUCLEUS_WIDTHS if width < vocab), vocab):
        share, order = probability[left].topk(width) if width < vocab else probability[left].sort(descending=True, stable=True)
        mass = share.double().cumsum(-1)
        inside = (mass[:, -1] >= top_p[left]) | (width == vocab)
        found = order.gather(1, _invert(mass, uniform[left], top_p[left])[:, None])[:, 0]
        ids[left[inside]] = found[inside]
        left = left[~inside]
        if not len(left):
            break
    return ids


def _invert(mass: torch.Tensor, uniform: torch.Tensor, top_p: torch.Tensor | None = None) -> torch.Tensor:
    """Index of the first cumulative mass [n, width] above uniform x total; with top_p the total is the nucleus's."""
    import torch

    total = mass[:, -1:]
    if top_p is not None:
        crossing = torch.searchsorted(mass, top_p[:, None]).clamp_(max=mass.shape[1] - 1)
        total = mass.gather(1, crossing)
    below = torch.nextafter(total, torch.zeros_like(total))  # the product may round up to the total itself
    return torch.searchsorted(mass, torch.minimum(uniform[:, None] * total, below), right=True)[:, 0]


@dataclass(slots=True)
class _Row:
    """An ask in a slot. `length`: tokens in the cache."""

    ask: Ask
    key: object
    limit: int
    chance: np.ndarray[tuple[int], np.dtype[np.float64]]
    length: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)


def _note_top(logits: torch.Tensor, rows: Sequence[_Row]) -> None:
    """The most probable ids of this position [n, vocab], for the rows that ask for them."""
    width = max((row.ask.top_logprobs for row in rows), default=0)
    if not width:
        return
    values, order = logits.log_softmax(-1).topk(width)
    for row, ids, logprobs in zip(rows, order.tolist(), values.tolist(), strict=True):
        if count := row.ask.top_logprobs:
            row.top.append(tuple(zip(ids[:count], logprobs[:count], strict=True)))


class _Batch:
    """Rows 0 .. n-1 in slots 0 .. n-1, always without a gap: the last row moves into a slot that falls free."""

    def __init__(self, model: DeepseekV3ForCausalLM, slots: int, positions: int | None) -> None:
        if slots < 1:
            raise KimiMiniError(f"kimi-mini sampler: slots is {slots}, expected 1 or more")
        self.decoder = Decoder(model, slots, positions)
        self.end = special_tokens()["<|im_end|>"]
        self.rows: list[_Row] = []

    @property
    def full(self) -> bool:
        return len(self.rows) == self.decoder.slots

    def check(self, ask: Ask) -> None:
        check(ask, vocab=self.decoder.shape.vocab, positions=self.decoder.positions)

    def admit(self, ask: Ask, key: object) -> list[tuple[object, Sample]]:
        """Prefill and draw the first id; a row that ends at once comes back as in `step`."""
        length = len(ask.prompt_ids)
        limit = min(ask.max_tokens, self.decoder.positions - length)
        row = _Row(ask, key, limit, uniforms(ask.seed, limit), length)
        logits = self.decoder.prefill(len(self.rows), ask.prompt_ids)
        self.rows.append(row)
        return self._draw(logits[None], [row])

    def step(self) -> list[tuple[object, Sample]]:
        """One id for every row; (key, sample) of those that ended, whose slots are free now."""
        logits = self.decoder.decode([row.ids[-1] for row in self.rows], [row.length for row in self.rows])
        for row in self.rows:
            row.length += 1
        return self._draw(logits, self.rows)

    def _draw(self, logits: torch.Tensor, rows: Sequence[_Row]) -> list[tuple[object, Sample]]:
        import torch

        with torch.inference_mode():
            settings = [(row.ask.temperature, row.ask.top_p, row.chance[len(row.ids)]) for row in rows]
            ids, logprobs = choose(logits, *torch.tensor(settings, dtype=torch.float64).unbind(1))
            _note_top(logits, rows)
        ended: list[tuple[object, Sample]] = []
        for row, token, logprob in zip(list(rows), ids.tolist(), logprobs.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if token == self.end or len(row.ids) == row.limit:
                reason: Literal["stop", "length"] = "stop" if token == self.end else "length"
                ended.append((row.key, Sample(tuple(row.ids), tuple(row.logprobs), reason, tuple(row.top))))
                self._remove(row)
        return ended

    def _remove(self, row: _Row) -> None:
        last = self.rows.pop()
        if last is not row:
            slot = next(k for k, other in enumerate(self.rows) if other is row)
            self.decoder.move(len(self.rows), slot, last.length)
            self.rows[slot] = last


def sample_all(
    model: DeepseekV3ForCausalLM,
    asks: Sequence[Ask],
    slots: int = SLOTS,
    progress: Callable[[int, int], None] | None = None,
    positions: int | None = None,
) -> list[Sample]:
    """Sample every ask, in this thread, in the order given; `progress(done, total)` after each that ended.

    Raises KimiMiniError for an ask that cannot be served, before anything is sampled.
    """
    batch = _Batch(model, slots, positions)
    for number, ask in enumerate(asks):
        try:
            batch.check(ask)
        except KimiMiniError as error:
            raise KimiMiniError(f"ask {number}: {error}") from None
    samples: dict[object, Sample] = {}
    waiting = deque(enumerate(asks))
    while waiting or batch.rows:
        while waiting and not batch.full:
            number, ask = waiting.popleft()
            samples.update(batch.admit(ask, number))
        if batch.rows:
            samples.update(batch.step())
        if progress is not None:
            progress(len(samples), len(asks))
    return [samples[number] for number in range(len(asks))]


class Sampler:
    """A worker thread over `slots` rows. `submit` from any thread; `close` (or leaving the `with`) ends it.

    The cache takes at most layers x slots x positions x (kv_lora_rank + rope) x 4 bytes (`cache_bytes`), resident as it is used.
    """

    def __init__(self, model: DeepseekV3ForCausalLM, slots: int = SLOTS, positions: int | None = None) -> None:
        self._batch = _Batch(model, slots, positions)
        self._waiting: deque[tuple[Ask, Future[Sample]]] = deque()
        self._changed = threading.Condition()
        self._ended: Exception | None = None  # why no ask is taken any more
        self._thread = threading.Thread(target=self._run, name="kimi-mini-sampler", daemon=True)
        self._thread.start()

    @property
    def context_length(self) -> int:
        """A prompt must be shorter than this; prompt and answer together fill it at most."""
        return self._batch.decoder.positions

    @property
    def cache_bytes(self) -> int:
        return self._batch.decoder.cache_bytes

    def submit(self, ask: Ask) -> Future[Sample]:
        """Queue an ask. Its future gets an KimiMiniError when this ask cannot be served, or when the sampler ended before it."""
        future: Future[Sample] = Future()
        try:
            self._batch.check(ask)
            with self._changed:
                if self._ended is not None:
                    raise self._ended
                self._waiting.append((ask, future))
                self._changed.notify()
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """End after the present step; futures that are not done get an KimiMiniError. Safe to call twice."""
        with self._changed:
            self._ended = self._ended or KimiMiniError("kimi-mini sampler: closed before the answer was whole")
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        futures: set[Future[Sample]] = set()
        try:
            while (taken := self._take()) is not None:
                for ask, future in taken:
                    futures.add(future)
                    self._answer(self._batch.admit(ask, future), futures)
                if self._batch.rows:
                    self._answer(self._batch.step(), futures)
        except Exception as error:  # a fault of the sampler itself: nobody waits for ever
            with self._changed:
                self._ended = error
        assert self._ended is not None
        with self._changed:
            left = [*futures, *(future for _, future in self._waiting if future.set_running_or_notify_cancel())]
            self._waiting.clear()
        for future in left:
            future.set_exception(self._ended)

    def _take(self) -> list[tuple[Ask, Future[Sample]]] | None:
        """Asks for the free slots (none is fine while rows are at work); None when it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None or self._waiting or self._batch.rows)
            if self._ended is not None:
                return None
            taken: list[tuple[Ask, Future[Sample]]] = []
            while self._waiting and len(self._batch.rows) + len(taken) < self._batch.decoder.slots:
                ask, future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    taken.append((ask, future))
            return taken

    @staticmethod
    def _answer(ended: list[tuple[object, Sample]], futures: set[Future[Sample]]) -> None:
        for future, sample in ended:
            assert isinstance(future, Future)
            futures.discard(future)
            future.set_result(sample)
