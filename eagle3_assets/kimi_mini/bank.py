"""The bank: answers as ids, made once and committed, so that a server without a model has something true to replay.

Belongs here: the type of an answer, how the bank is made, how its file is written and read. Does not belong here: choosing an
answer for a request, turning it into text, billing it (`standin`).
Ids are the truth; any text is derived from them. Completions only: what the model emits after the generation prompt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from eagle3_assets.errors import ExactError
from eagle3_assets.kimi_mini import spelling, world
from eagle3_assets.kimi_mini.tokenizer import DATA, load_encoding

if TYPE_CHECKING:
    import pyarrow as pa

BANK_FILE = DATA / "bank.parquet"
SEED = 0
N_ANSWERS = 1_500
NON_CANONICAL = 0.03
TRUNCATED = 0.02


@dataclass(frozen=True, slots=True)
class BankAnswer:
    """One completion.

    `thinking`: sampled after `<think>` (else after `<think></think>`: no `</think>` in the ids). `tool_names` are the called
    tools in order. `truncated`: cut off by length, no end id. `canonical`: every field is split as the encoder would split it.
    """

    ids: tuple[int, ...]
    thinking: bool
    tool_names: tuple[str, ...]
    truncated: bool
    language: str
    canonical: bool


def cut(rng: Random, ids: list[int]) -> list[int]:
    """A prefix without the end id, cut in reasoning or content (never in the tool section), at a whole character."""
    encoding, mark = load_encoding(), spelling.markers()
    stop = ids.index(mark.section_begin) if mark.section_begin in ids else len(ids) - 1
    for length in (rng.randint(max(1, stop // 3), max(1, stop - 1)) for _ in range(100)):
        try:
            encoding.decode_bytes(ids[:length]).decode("utf-8")
        except UnicodeDecodeError:
            continue
        return ids[:length]
    return ids[:stop]


def sample_ids(rng: Random, turn: world.Turn, *, first_call: int = 0, non_canonical: float = NON_CANONICAL) -> list[int]:
    """Ids of a whole turn; in a share `non_canonical` of calls one to three places are spelled as the encoder would not."""
    encoding = load_encoding()
    ids = spelling.spell_turn(encoding, turn, first_call=first_call)
    if rng.random() < non_canonical:
        ids = spelling.respell(rng, encoding, ids, rng.choice((1, 1, 2, 3)))
    return ids


def make_answer(seed: int, index: int) -> BankAnswer:
    """Answer `index` of the bank of `seed`; depends on nothing else."""
    rng = Random(f"kimi-mini/bank/{seed}/{index}")
    task = world.make_task(rng)
    turn = world.write_answer(rng, task)
    ids = sample_ids(rng, turn)
    truncated = len(ids) > 12 and rng.random() < TRUNCATED
    if truncated:
        ids = cut(rng, ids)
    return BankAnswer(
        ids=tuple(ids),
        thinking=task.thinking,
        tool_names=() if truncated else tuple(call.name for call in turn.calls),
        truncated=truncated,
        language=task.language,
        canonical=spelling.is_canonical(load_encoding(), ids),
    )


def make_bank(seed: int = SEED, count: int = N_ANSWERS) -> tuple[BankAnswer, ...]:
    return tuple(make_answer(seed, index) for index in range(count))


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("ids", pa.list_(pa.uint16())),
            ("thinking", pa.bool_()),
            ("tool_names", pa.list_(pa.string())),
            ("truncated", pa.bool_()),
            ("language", pa.string()),
            ("canonical", pa.bool_()),
        ]
    )


def write_bank(path: Path = BANK_FILE, seed: int = SEED, count: int = N_ANSWERS) -> dict[str, Any]:
    """Make the bank and write it; returns its statistics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    bank = make_bank(seed, count)
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
    return tuple(
        BankAnswer(
            ids=tuple(row["ids"]),
            thinking=row["thinking"],
            tool_names=tuple(row["tool_names"]),
            truncated=row["truncated"],
            language=row["language"],
            canonical=row["canonical"],
        )
        for row in table.to_pylist()
    )


def statistics(bank: tuple[BankAnswer, ...]) -> dict[str, Any]:
    """Figures for the README and the command line; lengths in tokens, shares of 1."""
    lengths = sorted(len(answer.ids) for answer in bank)

    def share(count: int) -> float:
        return round(count / len(bank), 4)

    return {
        "answers": len(bank),
        "tokens": sum(lengths),
        "mean_tokens": round(sum(lengths) / len(bank), 1),
        "median_tokens": lengths[len(bank) // 2],
        "p95_tokens": lengths[int(len(bank) * 0.95)],
        "max_tokens": lengths[-1],
        "instant": share(sum(not answer.thinking for answer in bank)),
        "with_tools": share(sum(bool(answer.tool_names) for answer in bank)),
        "several_calls": share(sum(len(answer.tool_names) > 1 for answer in bank)),
        "truncated": share(sum(answer.truncated for answer in bank)),
        "non_canonical": share(sum(not answer.canonical for answer in bank)),
        "languages": dict(Counter(answer.language for answer in bank).most_common()),
    }
