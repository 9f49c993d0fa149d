"""Kimi-mini's tokenizer: byte-level BPE in tiktoken format, Kimi's split regex, Kimi's special tokens in Kimi's order.

Belongs here: reading it, its special tokens. Does not belong here: training it (`workshop/train_tokenizer.py`), chat rendering (`chat`).
Files: `data/tiktoken.model` (one line a rank: base64 of the bytes, space, rank) and `data/tokenizer_config.json`.
"""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_mini.errors import KimiMiniError

if TYPE_CHECKING:
    import tiktoken

DATA = Path(__file__).parent / "data"
MODEL_FILE = DATA / "tiktoken.model"
CONFIG_FILE = DATA / "tokenizer_config.json"

N_BASE = 2_048
N_SPECIAL = 256
N_VOCAB = N_BASE + N_SPECIAL
KIMI_N_BASE = 163_584

# Kimi's split regex, from the `pat_str` of tokenization_kimi.py (K2, K2.5, K2.6 alike; docs/research/tokenizers.md#2).
PAT_STR = "|".join(
    (
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)

# Kimi K2.5's named special tokens (tokenizer_config.json of the model): name -> id there.
KIMI_NAMED = {
    "[BOS]": 163584,
    "[EOS]": 163585,
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "<|start_header_id|>": 163590,
    "<|end_header_id|>": 163591,
    "[EOT]": 163593,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "<|media_begin|>": 163602,
    "<|media_content|>": 163603,
    "<|media_end|>": 163604,
    "<|media_pad|>": 163605,
    "<think>": 163606,
    "</think>": 163607,
    "[UNK]": 163838,
    "[PAD]": 163839,
}
# Kimi's config marks these `"special": false`: `skip_special_tokens` leaves them visible (docs/research/exactness.md#1.3).
KIMI_NOT_SPECIAL = (163595, 163596, 163597, 163598, 163599, 163606, 163607)


@cache
def special_tokens() -> dict[str, int]:
    """All 256 special tokens, name -> id: Kimi's names in Kimi's order, the rest `<|reserved_token_N|>` with N the id here."""
    names = {N_BASE + kimi_id - KIMI_N_BASE: name for name, kimi_id in KIMI_NAMED.items()}
    return {names.get(token, f"<|reserved_token_{token}|>"): token for token in range(N_BASE, N_VOCAB)}


@cache
def byte_to_unicode() -> dict[int, str]:
    """GPT-2's byte-to-character map, which Hugging Face's ByteLevel uses: printable bytes as they are, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + k) for k, byte in enumerate(others)}


def load_ranks(path: Path = MODEL_FILE) -> dict[bytes, int]:
    """Read a tiktoken file; raises KimiMiniError where a line or the set of ranks is not what it must be."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise KimiMiniError(f"{path}: cannot be read ({error.strerror}); make it with `python -m kimi_mini_workshop`") from None
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise KimiMiniError(f"{path}: line {number}: expected base64 and a rank, found {line[:40]!r}") from None
    if sorted(ranks.values()) != list(range(N_BASE)) or not all(bytes([byte]) in ranks for byte in range(256)):
        raise KimiMiniError(f"{path}: expected ranks 0..{N_BASE - 1} with all 256 bytes, found {len(ranks)} ranks")
    return ranks


@cache
def load_encoding(path: Path = MODEL_FILE) -> tiktoken.Encoding:
    """The encoder, special tokens registered. Encode text fields with `encode_ordinary` (docs/design.md#rule-3)."""
    import tiktoken

    return tiktoken.Encoding(
        name="kimi-mini",
        pat_str=PAT_STR,
        mergeable_ranks=load_ranks(path),
        special_tokens=special_tokens(),
        explicit_n_vocab=N_VOCAB,
    )
