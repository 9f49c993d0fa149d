"""Training Kimi-mini's tokenizer, writing its two files, and the same vocabulary for Hugging Face's `tokenizers` (for comparison).

Does not belong here: reading it (`kimi_mini.tokenizer`), the text it learns from (`world`).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_mini.errors import KimiMiniError
from kimi_mini.tokenizer import (
    CONFIG_FILE,
    DATA,
    KIMI_N_BASE,
    KIMI_NAMED,
    KIMI_NOT_SPECIAL,
    MODEL_FILE,
    N_BASE,
    PAT_STR,
    byte_to_unicode,
    special_tokens,
)
from kimi_mini_workshop import world

if TYPE_CHECKING:
    import tokenizers

SEED = 0
TRAINING_CONVERSATIONS = 6_000


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
    would let BPE build irregular numbers; docs/research/kimi-mini.md#2).
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
        raise KimiMiniError(f"tokenizer training: expected {N_BASE} ranks, found {len(ranks)}; give it more text")
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
