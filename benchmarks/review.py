"""Review at full size: every check of token rows and the report's figures over 40,000 samples / 138 M tokens, timed part by part.

    python -m benchmarks.review [--samples 40000] [--tokens 3450] [--profile kimi-k2.5] [--tokenizers FOLDER]

Rows are made shard by shard (not timed): text of a seeded word list through the profile's own encoder, a prompt by our renderer, a body as a
provider would send it. Judged as in the platform: invariants with the answers, the second opinion of the checker, figures of the report.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from eagle3_assets.collect.wire_answer import WireAnswer
from eagle3_assets.exact.checker import Checker
from eagle3_assets.exact.render import render_prompt
from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.exact.tokenizer import Profile, load_profile
from eagle3_assets.review.billing import billing_statistics, strata_of
from eagle3_assets.review.columns import Columns
from eagle3_assets.review.figures import billed_rows
from eagle3_assets.review.monitor import monitored
from eagle3_assets.review.row_invariants import INVARIANTS, Rules
from eagle3_assets.review.token_rows import judge_tokens
from eagle3_assets.review.wires import wires_of

SHARDS = 16
SPENT: defaultdict[str, float] = defaultdict(float)


@contextmanager
def timed(part: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    SPENT[part] += time.perf_counter() - start


def text_of(profile: Profile, n: int, chance: random.Random) -> str:
    """About `n` ids of words that the vocabulary holds, with code and lines between."""
    words = [profile.encoding.decode_single_token_bytes(chance.randrange(300, profile.n_base)) for _ in range(n)]
    return "".join(w.decode() if w.isascii() and w.strip() else " the" for w in words).strip()


def shard(profile: Profile, rows: int, tokens: int, number: int) -> tuple[pa.Table, list[WireAnswer]]:
    made: list[SampleRow] = []
    answers: list[WireAnswer] = []
    form = "typescript/reasoning_kept/arguments_as_sent"
    for k in range(rows):
        chance = random.Random(f"{number} {k}")
        name = hashlib.sha256(f"{number} {k}".encode()).hexdigest()[:32]
        request: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"question {number} {k}"}],
            "temperature": 1.0,
            "top_p": 0.95,
        }
        size = int(tokens * chance.uniform(0.5, 1.5))
        reasoning, content = text_of(profile, size * 2 // 3, chance), text_of(profile, size // 3, chance)
        prompt = render_prompt(profile, request["messages"], None)
        ids = (*profile.encode(reasoning), profile.special("</think>"), *profile.encode(content), profile.end_id)
        body = orjson.dumps(
            {
                "id": f"gen-{name}",
                "provider": "P",
                "model": "m/m",
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "reasoning": reasoning, "content": content},
                    }
                ],
            }
        )
        answers.append(
            WireAnswer(
                name,
                name,
                0,
                1,
                "b",
                f"{number:02d}",
                "openrouter",
                request,
                200,
                body,
                "finished",
                provider="P",
                model="m/m",
                generation_id=f"gen-{name}",
                started_at=1.0,
                finished_at=61.0 + k,
                cost_usd=0.01,
            )
        )
        evidence = {
            "basis": "bill",
            "provider_decided": True,
            "hypotheses": {"tried": 1, "surviving": 1, "distinct": 1},
            "prompt_forms": [form],
        }
        made.append(
            SampleRow(
                name,
                0,
                1,
                "b",
                f"{number:02d}",
                "openrouter",
                "P",
                "m/m",
                f"gen-{name}",
                (*prompt, *ids),
                len(prompt),
                ((len(prompt), len(prompt) + len(ids)),),
                "B1",
                (),
                0.99,
                "simulated",
                orjson.dumps(evidence).decode(),
                (),
                len(prompt),
                len(ids),
                None,
                0.01,
                "stop",
                "stop",
                1.0,
                0.95,
                1 << 17,
                profile.tokenizer_sha256,
                profile.template_sha256,
                hashlib.sha256(body).hexdigest(),
            )
        )
    return to_table(made), answers


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--samples", type=int, default=40_000)
    options.add_argument("--tokens", type=int, default=3_450, help="mean ids of an answer")
    options.add_argument("--profile", default="kimi-mini")
    options.add_argument("--tokenizers", type=Path)
    options.add_argument("--shards", type=int, default=SHARDS, help="run only so many of the 16 shards")
    given = options.parse_args()
    profile = load_profile(given.profile, given.tokenizers)
    rules = Rules("m/m", 1.0, 0.95, None, frozenset(set(range(profile.n_base, profile.n_vocab)) - set(profile.specials.values())))
    rows = tokens = 0
    billed, strata, failed = [], [], Counter[str]()
    for number in range(given.shards):
        table, answers = shard(profile, given.samples // SHARDS, given.tokens, number)
        columns = Columns(table)
        rows, tokens = rows + len(columns), tokens + int(columns.lengths.sum())
        with timed("wires: bodies parsed and hashed"):
            wires = wires_of(columns, answers)
        for name, invariant in INVARIANTS.items():
            with timed(f"invariant {name}"):
                failed[name] += int(invariant(columns, wires, rules).sum())
        with timed("judge_tokens, whole, with the checker"):
            keys = {a.key for a in answers}
            verdicts = judge_tokens(
                table, n_vocab=profile.n_vocab, finished_keys=keys, checker=Checker(profile, answers), wires=wires, rules=rules
            )
        failed.update({f"verdict {v.check}": 1 for v in verdicts if not v.passed})
        with timed("billing and monitor: rows gathered"):
            strata += strata_of(columns)
            billed.append(billed_rows(table, {}, {}))
    with timed("billing and monitor: statistics"):
        billing_statistics(strata)
        for shard_rows in billed:
            monitored(shard_rows)
    print(f"{rows:,} samples, {tokens:,} ids, profile {given.profile}")
    for part, seconds in sorted(SPENT.items(), key=lambda item: -item[1]):
        print(f"{seconds:9.2f} s  {part}")
    whole = sum(s for part, s in SPENT.items() if not part.startswith("invariant "))
    print(f"{whole:9.2f} s  together (single invariants are part of judge_tokens)")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB at most; failed: {dict(+failed)}")


if __name__ == "__main__":
    main()
