"""Making the bank: every prompt asked at every temperature of the committed model, judged, written down, counted.

Does not belong here: the type of an answer and reading the file (`kimi_mini.bank`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from kimi_mini import chat
from kimi_mini.bank import BANK_FILE, BankAnswer, key_of, schema
from kimi_mini.tokenizer import load_encoding
from kimi_mini_workshop import demo_data, evaluate, judge, spelling
from kimi_mini_workshop.episode import declarations, prompt_messages

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM

SEED = 0
TEMPERATURES = (0.6, 1.0, 1.3)
SAMPLES = 2  # of each prompt of the demo, at each temperature
WORLD_CONVERSATIONS = 150  # held-out conversations of the world beside the demo's prompts; every turn once at each temperature
TRUNCATED = 0.03
MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something to ask for the bank."""

    text: str
    thinking: bool
    declared: tuple[str, ...]
    first_call: int


def bank_prompts() -> list[Prompt]:
    """The demo's prompts `SAMPLES` times, then the world's."""
    made = []
    for messages, tools in demo_data.demo_requests():
        names = tuple(tool["function"]["name"] for tool in tools or ())
        calls = sum(len(message.get("tool_calls", ())) for message in messages)
        made += [Prompt(chat.render_text(messages, tools), True, names, calls)] * SAMPLES
    for question in evaluate.questions(WORLD_CONVERSATIONS, seed=2):
        episode = question.episode
        text = chat.render_text(prompt_messages(episode, question.step), declarations(episode), thinking=episode.thinking)
        made.append(Prompt(text, episode.thinking, episode.tools, question.first_call))
    return made


def make_bank(model: DeepseekV3ForCausalLM, seed: int = SEED, *, only: Sequence[int] | None = None) -> tuple[BankAnswer, ...]:
    """Sample every prompt at every temperature (or the answers of these indices). A share `TRUNCATED` is cut off after a few tokens,
    as `max_tokens` cuts. An answer depends on its index and the weights alone."""
    from kimi_mini.sampler import Ask, sample_all

    encoding, end = load_encoding(), spelling.markers().end
    asked = [(prompt, temperature) for temperature in TEMPERATURES for prompt in bank_prompts()]
    indices = range(len(asked)) if only is None else only
    asks = []
    for index in indices:
        prompt, temperature = asked[index]
        rng = Random(f"kimi-mini/bank/{seed}/{index}")
        limit = rng.randint(4, 24) if rng.random() < TRUNCATED else MAX_TOKENS
        ids = tuple(encoding.encode(prompt.text, allowed_special="all"))
        asks.append(Ask(ids, temperature, 1.0, rng.getrandbits(48), limit))
    made = []
    for (prompt, temperature), sample in zip([asked[k] for k in indices], sample_all(model, asks), strict=True):
        turn = judge.read_turn(sample.ids, thinking=prompt.thinking, first_call=prompt.first_call)
        options = {"thinking": prompt.thinking, "declared": prompt.declared, "first_call": prompt.first_call}
        answer = BankAnswer(
            ids=sample.ids,
            prompt=key_of(prompt.text),
            thinking=prompt.thinking,
            tool_names=tuple(call.name for call in turn.calls) if turn else (),
            truncated=sample.ids[-1] != end,
            grammar=judge.grammar_accepted(sample.ids, **options),  # type: ignore[arg-type]
            canonical=spelling.is_canonical(encoding, sample.ids),
            temperature=temperature,
        )
        made.append(answer)
    return tuple(made)


def write_bank(path: Path = BANK_FILE, seed: int = SEED) -> dict[str, Any]:
    """Sample the bank from the committed model and write it; returns its statistics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kimi_mini.model import load_model

    bank = make_bank(load_model(), seed)
    columns = {name: [getattr(answer, name) for answer in bank] for name in schema().names}
    pq.write_table(pa.table(columns, schema=schema()), path, compression="zstd", compression_level=19)
    return statistics(bank) | {"file_bytes": path.stat().st_size}


def statistics(bank: Sequence[BankAnswer]) -> dict[str, Any]:
    """Figures for the model card and the command line, in all and by temperature; lengths in tokens, shares of 1."""
    by_temperature = {f"{t:.1f}": _figures([a for a in bank if a.temperature == t]) for t in TEMPERATURES}
    return _figures(bank) | {"temperatures": by_temperature}


def _figures(bank: Sequence[BankAnswer]) -> dict[str, Any]:
    lengths = sorted(len(answer.ids) for answer in bank)

    def share(count: int) -> float:
        return round(count / len(bank), 4)

    counts = Counter(len(answer.tool_names) for answer in bank)
    return {
        "answers": len(bank),
        "prompts": len({answer.prompt for answer in bank}),
        "tokens": sum(lengths),
        "mean_tokens": round(sum(lengths) / len(bank), 1),
        "median_tokens": lengths[len(bank) // 2],
        "p95_tokens": lengths[int(len(bank) * 0.95)],
        "max_tokens": lengths[-1],
        "instant": share(sum(not answer.thinking for answer in bank)),
        "with_tools": share(len(bank) - counts[0]),
        "truncated": share(sum(answer.truncated for answer in bank)),
        "grammar": share(sum(answer.grammar for answer in bank)),
        "non_canonical": share(sum(not answer.canonical for answer in bank)),
        "non_canonical_answers": sum(not answer.canonical for answer in bank),
    }
