"""Kimi-mini's tokenizer: byte-level BPE in tiktoken format, Kimi's split regex, Kimi's special tokens in Kimi's order.

Belongs here: training it, reading it, the same vocabulary as a Hugging Face `tokenizers.Tokenizer` (for comparison).
Does not belong here: chat rendering (`exact`), text (`world`).
Files: `data/tiktoken.model` (one line a rank: base64 of the bytes, space, rank) and `data/tokenizer_config.json`.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_assets.errors import ExactError
from eagle3_assets.kimi_mini.workshop import world

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

DATA = Path(__file__).parent / "data"
MODEL_FILE = DATA / "tiktoken.model"
CONFIG_FILE = DATA / "tokenizer_config.json"

N_BASE = 2_048
N_SPECIAL = 256
N_VOCAB = N_BASE + N_SPECIAL
SEED = 0
TRAINING_CONVERSATIONS = 6_000
KIMI_N_BASE = 163_584

# Kimi's split regex, from the `pat_str` of tokenization_kimi.py (K2, K2.5, K2.6 alike; research note tokenizers 2).
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
# Kimi's config marks these `"special": false`: `skip_special_tokens` leaves them visible (research note exactness 1.3).
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


def _splitting_tokenizer(model: Any, *, single_digits: bool = False) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, pre_tokenizers

    tokenizer = tokenizers.Tokenizer(model)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if single_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PAT_STR), behavior="isolated"),
            *digits,
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(seed: int = SEED, conversations: int = TRAINING_CONVERSATIONS) -> dict[bytes, int]:
    """Train the ranks on the world's text: bytes -> rank, 0 .. N_BASE-1, all 256 single bytes among them.

    Digits are kept apart in this training only: no rank joins two of them, while the split regex stays Kimi's (whose `\\p{N}{1,3}`
    would let BPE build irregular numbers; research note kimi-mini 2).
    """
    from tokenizers import models, trainers

    tokenizer = _splitting_tokenizer(models.BPE(), single_digits=True)
    trainer = trainers.BpeTrainer(
        vocab_size=N_BASE, initial_alphabet=list(byte_to_unicode().values()), show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(list(world.training_fields(seed, conversations)), trainer)
    undo = {char: byte for byte, char in byte_to_unicode().items()}
    ranks = {bytes(undo[char] for char in token): rank for token, rank in tokenizer.get_vocab().items()}
    if sorted(ranks.values()) != list(range(N_BASE)):
        raise ExactError(f"tokenizer training: expected {N_BASE} ranks, found {len(ranks)}; give it more text")
    return ranks


def model_bytes(ranks: dict[bytes, int]) -> bytes:
    """The content of a `tiktoken.model` file, in rank order."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" " + str(rank).encode() + b"\n" for token, rank in ordered)


def config_bytes() -> bytes:
    """The content of `tokenizer_config.json`. `eos_token` is "[EOS]", as in Kimi's own: NOT the end of a turn (design 6.1)."""
    hidden = {N_BASE + token - KIMI_N_BASE for token in KIMI_NOT_SPECIAL}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    named = {str(token): name for name, token in special_tokens().items() if name in KIMI_NAMED}
    config = {
        "added_tokens_decoder": {
            token: {"content": name, **flags, "special": int(token) not in hidden} for token, name in named.items()
        },
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "model_max_length": 8_192,
    }
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def write_tokenizer(folder: Path = DATA, seed: int = SEED) -> dict[str, Any]:
    """Train and write both files; returns figures for the command line."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = train(seed)
    (folder / MODEL_FILE.name).write_bytes(model_bytes(ranks))
    (folder / CONFIG_FILE.name).write_bytes(config_bytes())
    return {"ranks": len(ranks), "longest_token_bytes": max(map(len, ranks)), "folder": str(folder)}


def load_ranks(path: Path = MODEL_FILE) -> dict[bytes, int]:
    """Read a tiktoken file; raises ExactError where a line or the set of ranks is not what it must be."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ExactError(f"{path}: cannot be read ({error.strerror}); make it with `python -m eagle3_assets.kimi_mini`") from None
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise ExactError(f"{path}: line {number}: expected base64 and a rank, found {line[:40]!r}") from None
    if sorted(ranks.values()) != list(range(N_BASE)) or not all(bytes([byte]) in ranks for byte in range(256)):
        raise ExactError(f"{path}: expected ranks 0..{N_BASE - 1} with all 256 bytes, found {len(ranks)} ranks")
    return ranks


@cache
def load_encoding(path: Path = MODEL_FILE) -> tiktoken.Encoding:
    """The encoder, special tokens registered. Encode text fields with `encode_ordinary` (design rule 3)."""
    import tiktoken

    return tiktoken.Encoding(
        name="kimi-mini",
        pat_str=PAT_STR,
        mergeable_ranks=load_ranks(path),
        special_tokens=special_tokens(),
        explicit_n_vocab=N_VOCAB,
    )


def hf_tokenizer(ranks: dict[bytes, int]) -> tokenizers.Tokenizer:
    """The same ordinary vocabulary as a Hugging Face tokenizer.

    tiktoken merges any two neighbours whose join is a rank, so every such pair is a merge here (not only the pairs the trainer
    chose), in order of the join's rank.
    """
    from tokenizers import models

    chars = byte_to_unicode()

    def spell(token: bytes) -> str:
        return "".join(chars[byte] for byte in token)

    merges: list[tuple[str, str]] = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
        merges += [(spell(a), spell(b)) for a, b in sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))]
    return _splitting_tokenizer(models.BPE(vocab={spell(token): rank for token, rank in ranks.items()}, merges=merges))
