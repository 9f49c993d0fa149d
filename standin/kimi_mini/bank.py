"""The bank: answers sampled from the model once and committed, so that a server without a model has something true to replay.

Belongs here: the type of an answer, the key of a prompt, the file's columns, reading it. Does not belong here: making it
(`workshop/make_bank.py`), choosing an answer for a request, turning it into text, billing it (`standin`).
Ids are the truth; any text is derived from them. Completions only: what the model emitted after the generation prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_mini import chat
from kimi_mini.errors import KimiMiniError
from kimi_mini.tokenizer import DATA

if TYPE_CHECKING:
    import pyarrow as pa

BANK_FILE = DATA / "bank.parquet"


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


def prompt_key(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, *, thinking: bool) -> str:
    """16 hex digits over the prompt as an honest server renders it: the same question has the same key, whoever asks."""
    return key_of(chat.render_text(messages, tools, thinking=thinking))


def key_of(text: str) -> str:
    """The key of a prompt that is rendered already."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def schema() -> pa.Schema:
    """The file's columns."""
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


def load_bank(path: Path | None = None) -> tuple[BankAnswer, ...]:
    """Read the bank (default: the committed one). Raises KimiMiniError when the file is not a bank."""
    return _load_bank(path or BANK_FILE)


@cache
def _load_bank(path: Path) -> tuple[BankAnswer, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        reason = str(error).splitlines()[0]
        remedy = "make it with `python -m kimi_mini_workshop make-bank`"
        raise KimiMiniError(f"{path}: cannot be read as a bank ({reason}); {remedy}") from None
    if table.schema.names != schema().names:
        raise KimiMiniError(f"{path}: expected columns {schema().names}, found {table.schema.names}")
    return tuple(_answer(row) for row in table.to_pylist())


def _answer(row: dict[str, Any]) -> BankAnswer:
    ids, tool_names = tuple(row.pop("ids")), tuple(row.pop("tool_names"))
    temperature = round(row.pop("temperature"), 3)  # float32 in the file
    return BankAnswer(ids=ids, tool_names=tool_names, temperature=temperature, **row)
