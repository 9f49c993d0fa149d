"""Tokens a second, end to end, of kimi-mini's sampler beside transformers' own `generate`, on one machine in one run.

    python benchmarks/sampler.py                      # one torch thread, as the stand-in runs it
    python benchmarks/sampler.py --threads 2          # both cores, as an offline evaluation may

End to end: held-out prompts of the world (130 tokens on average) are run and answered (30 tokens on average) at temperature 1 and
top_p 0.95; prefill counts as time, only generated tokens count. In flight = rows at once. `generate` takes one padded batch of 32, so
it waits for its longest row. Figures of a busy machine mean little: the load of the machine is printed beside them.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

from kimi_mini import model as kimi_mini
from kimi_mini.sampler import Ask, sample_all
from kimi_mini_workshop.evaluate import questions

BATCH, MAX_TOKENS = 32, 400
TEMPERATURE, TOP_P = 1.0, 0.95


def make_asks(count: int) -> list[Ask]:
    asked = questions(count, seed=11)[:count]
    return [Ask(question.prompt, TEMPERATURE, TOP_P, k, MAX_TOKENS) for k, question in enumerate(asked)]


def ours(model: torch.nn.Module, in_flight: int, count: int) -> tuple[int, float]:
    """(tokens, seconds)."""
    asks = make_asks(count)
    begun = time.perf_counter()
    samples = sample_all(model, asks, slots=in_flight)
    return sum(len(sample.ids) for sample in samples), time.perf_counter() - begun


def baseline(model: torch.nn.Module) -> tuple[int, float]:
    """The same for `generate` over one left-padded batch."""
    asks = make_asks(BATCH)
    width = max(len(ask.prompt_ids) for ask in asks)
    pad, end = model.generation_config.pad_token_id, model.generation_config.eos_token_id
    ids = torch.tensor([[pad] * (width - len(ask.prompt_ids)) + list(ask.prompt_ids) for ask in asks])
    mask = torch.tensor([[0] * (width - len(ask.prompt_ids)) + [1] * len(ask.prompt_ids) for ask in asks])
    longest = max(ask.max_tokens for ask in asks)
    torch.manual_seed(0)
    begun = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, temperature=TEMPERATURE, top_p=TOP_P, top_k=0
        )
    seconds = time.perf_counter() - begun
    tokens = 0
    for ask, row in zip(asks, out[:, width:].tolist(), strict=True):
        answer = row[: ask.max_tokens]
        tokens += answer.index(end) + 1 if end in answer else len(answer)
    return tokens, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    model = kimi_mini.load_model()
    print(f"torch threads {torch.get_num_threads()}, cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f} before the run")
    sample_all(model, make_asks(8), slots=8)  # warm up
    tokens, seconds = baseline(model)
    base = tokens / seconds
    print(f"transformers generate, batch {BATCH}: {tokens:6d} tokens {seconds:6.1f} s {base:8.0f} tokens/s")
    for in_flight, count in ((1, 16), (8, 64), (32, 256)):
        tokens, seconds = ours(model, in_flight, count)
        rate = tokens / seconds
        print(
            f"sampler, {in_flight:2d} in flight:          {tokens:6d} tokens {seconds:6.1f} s {rate:8.0f} tokens/s  {rate / base:5.1f} x"
        )


if __name__ == "__main__":
    main()
