"""What the model's verdict sees: Kimi-mini's own answers, true and bent in known ways, judged as hidden_states judges them.

    python -m benchmarks.on_policy [--conversations 250]

For every case: share of rows that one row's figures put out (edge ids or E), and the temperature at which the rows together look sampled,
with its 99.9 % interval (1 = as stated). The last line: of two id sequences with equal text and equal count, how often the model picks
the one it sampled. Sampled at T = 1, top_p = 0.95 as the demo does, unless the case says otherwise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from eagle3_assets.campaign import load_campaign
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.target.target_head import load_head
from eagle3_assets.states.target.token_figures import RowStatistics, edges_of, row_statistics, temperature_of
from eagle3_assets.states.verdict.choice import CHOSEN, IMPOSSIBLE, choose
from kimi_mini.model import load_model
from kimi_mini.sampler import Ask, sample_all
from kimi_mini.tokenizer import load_encoding, special_tokens
from kimi_mini_workshop.evaluate import Question, questions

TOP_P = 0.95
Row = tuple[Question, tuple[int, ...]]
Prompt = Callable[[Question], Sequence[int]]


class Bench:
    def __init__(self, conversations: int) -> None:
        self.campaign = load_campaign("demo")
        self.extractor = open_extractor(self.campaign)
        self.head = load_head(self.campaign, self.extractor.final_norm())
        self.asked = questions(conversations)
        self.encoding, special = load_encoding(), special_tokens()
        self.markers, self.end, self.think_close = set(special.values()), special["<|im_end|>"], special["</think>"]
        self.seconds = self.tokens = 0.0

    def sample(self, temperature: float, model: Any = None) -> list[Row]:
        asks = [Ask(q.prompt, temperature, TOP_P, 1_000 + k, 256) for k, q in enumerate(self.asked)]
        return [(q, s.ids) for q, s in zip(self.asked, sample_all(model or load_model(), asks, slots=32), strict=True)]

    def scores(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[Any, Any]]:
        """(figures, row) of (prompt, completion) pairs."""
        out = []
        for a in range(0, len(rows), 32):
            whole = [(*prompt, *ids) for prompt, ids in rows[a : a + 32]]
            captured = self.extractor.capture(whole, self.campaign.layers)
            for (_, ids), row, states in zip(rows[a : a + 32], whole, captured, strict=True):
                every, mask = np.array(row), np.zeros(len(row), dtype=np.uint8)
                mask[len(row) - len(ids) :] = 1
                begun = time.process_time()
                out.append((self.head.score(states.states[:, -1], every, mask, temperature=1.0, top_p=TOP_P), every))
                self.seconds, self.tokens = self.seconds + time.process_time() - begun, self.tokens + len(ids)
        return out

    def judge(self, rows: Sequence[Row], prompt: Prompt = lambda q: q.prompt) -> list[RowStatistics]:
        scored = self.scores([(prompt(q), ids) for q, ids in rows])
        return [
            row_statistics(s, ids, top_p=TOP_P, edge=edges_of(ids, s.positions, self.markers), end_id=self.end)
            for s, ids in scored
        ]

    def spaced(self, row: Row, behind: int | None = None) -> Row:
        """A space in front of the first text (or the first text behind id `behind`), re-encoded."""
        question, ids = row
        start = ids.index(behind) + 1 if behind in ids else 0
        start = next((k for k in range(start, len(ids)) if ids[k] not in self.markers), len(ids))
        stop = next((k for k in range(start, len(ids)) if ids[k] in self.markers), len(ids))
        text = " " + self.encoding.decode(list(ids[start:stop]))
        return question, (*ids[:start], *self.encoding.encode_ordinary(text), *ids[stop:])

    def other_splits(self, ids: Sequence[int], window: int = 3) -> list[tuple[int, ...]]:
        """Sequences of equal text and count that differ from `ids` in one window."""
        found = []
        for k in range(len(ids) - window + 1):
            mine = tuple(ids[k : k + window])
            if self.markers & set(mine):
                continue
            text = self.encoding.decode_bytes(mine)
            for i in range(1, len(text) - 1):
                for j in range(i + 1, len(text)):
                    try:
                        other = tuple(self.encoding.encode_single_token(text[a:b]) for a, b in pairwise((0, i, j, len(text))))
                    except KeyError:
                        continue
                    if other != mine:
                        found.append((*ids[:k], *other, *ids[k + window :]))
        return found


def line(name: str, judged: Sequence[RowStatistics]) -> None:
    out = sum(bool(r.edges) or r.log10_e >= IMPOSSIBLE for r in judged) / len(judged)
    mid, low, high = temperature_of(sum(r.heat for r in judged), sum(r.spread for r in judged))
    tokens = sum(r.tokens for r in judged)
    outside = sum(r.nucleus_violations for r in judged) / tokens
    print(
        f"{name:32s}{len(judged):6d} rows {tokens:7d} ids  out {out:6.1%}  temperature {mid:5.2f} ({low:.2f} to {high:.2f})  outside the "
        f"nucleus {outside:6.2%}  first ids {np.mean([r.first_nll for r in judged]):.2f} nats",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--conversations", type=int, default=250)
    given = options.parse_args()
    torch.set_num_threads(1)
    bench = Bench(given.conversations)
    true = bench.sample(1.0)
    newline = bench.encoding.encode_ordinary("\n")
    line("true ids", bench.judge(true))
    line("space before the first text", bench.judge([bench.spaced(row) for row in true]))
    line("space behind </think>", bench.judge([bench.spaced(r, bench.think_close) for r in true if bench.think_close in r[1]]))
    line("template without <think>", bench.judge(true, lambda q: q.prompt[:-1]))
    line("template with one newline more", bench.judge(true, lambda q: (*q.prompt, *newline)))
    for temperature in (0.6, 0.8, 1.2):
        line(f"sampled at T = {temperature}", bench.judge(bench.sample(temperature)))
    for noise in (0.1, 0.2, 0.3):
        model, chance = load_model(), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(1 + noise * torch.randn(parameter.shape, generator=chance))
        line(f"checkpoint off by {noise:.0%}", bench.judge(bench.sample(1.0, model)))
    pairs = [(q.prompt, ids, other) for q, ids in true for other in bench.other_splits(ids)[:1]]
    scored = bench.scores([(p, ids) for p, a, b in pairs for ids in (a, b)])
    totals = [float(s.logprob.sum(dtype=np.float64)) for s, _ in scored]
    choices = [choose(totals[2 * k : 2 * k + 2], 0.5) for k in range(len(pairs))]
    right, sure = sum(c.winner == 0 for c in choices), sum(c.posterior >= CHOSEN for c in choices)
    wrong = sum(c.winner == 1 and c.posterior >= CHOSEN for c in choices)
    print(
        f"count-neutral pairs: {right} of {len(pairs)} true ids picked; {sure} with posterior >= {CHOSEN}, {wrong} of these wrong"
    )
    print(
        f"head and figures: {1e6 * bench.seconds / max(1, bench.tokens):.0f} us CPU a generated id ({bench.head.weight.shape[0]:,} ids, fp32)"
    )


if __name__ == "__main__":
    main()
