"""The bank: answers sampled from the model once and committed, so that a server without a model has something true to replay.

Belongs here: the type of an answer, how the bank is made, how its file is written and read. Does not belong here: choosing an
answer for a request, turning it into text, billing it (`standin`).
Ids are the truth; any text is derived from them. Completions only: what the model emitted after the generation prompt.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from eagle3_assets.errors import ExactError
from eagle3_assets.kimi_mini import chat
from eagle3_assets.kimi_mini.tokenizer import DATA, load_encoding
from eagle3_assets.kimi_mini.workshop import demo_data, evaluate, judge, spelling
from eagle3_assets.kimi_mini.workshop.episode import declarations, prompt_messages

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import DeepseekV3ForCausalLM

BANK_FILE = DATA / "bank.parquet"
SEED = 0
TEMPERATURES = (0.6, 1.0, 1.3)
SAMPLES = 2  # of each prompt of the demo, at each temperature
WORLD_CONVERSATIONS = 150  # held-out conversations of the world beside the demo's prompts; every turn once at each temperature
TRUNCATED = 0.03
MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class BankAnswer:
    """One completion.

    `prompt`: key of what was asked (`prompt_key`). `thinking`: sampled after `<think>` (else after `<think></think>`: no `</think>` in
    the ids). `tool_names`: the called tools in order. `truncated`: cut off by length, no end id. `grammar`: a strict client accepts it.
    `canonical`: every field is split as the encoder would split it. `temperature`: sampled at, from the whole distribution.
    """

    ids: tuple[int, ...]
    prompt: str
    thinking: bool
    tool_names: tuple[str, ...]
    truncated: bool
    grammar: bool
    canonical: bool
    temperature: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something to ask for the bank."""

    text: str
    thinking: bool
    declared: tuple[str, ...]
    first_call: int


def prompt_key(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, *, thinking: bool) -> str:
    """16 hex digits over the prompt as an honest server renders it: the same question has the same key, whoever asks."""
    return _key(chat.render_text(messages, tools, thinking=thinking))


def _key(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


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
    from eagle3_assets.kimi_mini.sampler import Ask, sample_all

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
            prompt=_key(prompt.text),
            thinking=prompt.thinking,
            tool_names=tuple(call.name for call in turn.calls) if turn else (),
            truncated=sample.ids[-1] != end,
            grammar=judge.grammar_accepted(sample.ids, **options),  # type: ignore[arg-type]
            canonical=spelling.is_canonical(encoding, sample.ids),
            temperature=temperature,
        )
        made.append(answer)
    return tuple(made)


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("ids", pa.list_(pa.uint16())),
            ("prompt", pa.string()),
            ("thinking", pa.bool_()),
            ("tool_names", pa.list_(pa.string())),
            ("truncated", pa.bool_()),
            ("grammar", pa.bool_()),
            ("canonical", pa.bool_()),
            ("temperature", pa.float32()),
        ]
    )


def write_bank(path: Path = BANK_FILE, seed: int = SEED) -> dict[str, Any]:
    """Sample the bank from the committed model and write it; returns its statistics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eagle3_assets.kimi_mini.model import load_model

    bank = make_bank(load_model(), seed)
    columns = {name: [getattr(answer, name) for answer in bank] for name in _schema().names}
    pq.write_table(pa.table(columns, schema=_schema()), path, compression="zstd", compression_level=19)
    return statistics(bank) | {"file_bytes": path.stat().st_size}


def load_bank(path: Path | None = None) -> tuple[BankAnswer, ...]:
    """Read the bank (default: the committed one). Raises ExactError when the file is not a bank."""
    return _load_bank(path or BANK_FILE)


@cache
def _load_bank(path: Path) -> tuple[BankAnswer, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        reason = str(error).splitlines()[0]
        remedy = "make it with `python -m eagle3_assets.kimi_mini make-bank`"
        raise ExactError(f"{path}: cannot be read as a bank ({reason}); {remedy}") from None
    if table.schema.names != _schema().names:
        raise ExactError(f"{path}: expected columns {_schema().names}, found {table.schema.names}")
    return tuple(_answer(row) for row in table.to_pylist())


def _answer(row: dict[str, Any]) -> BankAnswer:
    ids, tool_names = tuple(row.pop("ids")), tuple(row.pop("tool_names"))
    temperature = round(row.pop("temperature"), 3)  # float32 in the file
    return BankAnswer(ids=ids, tool_names=tool_names, temperature=temperature, **row)


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
