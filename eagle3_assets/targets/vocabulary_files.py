"""A tokenizer's own file → byte strings with their ranks, which is all that an encoder needs.

Belongs here: the two forms that publishers ship (tiktoken's text, tokenizer.json of a byte-level BPE) and every reason to refuse
one. Does not belong here: control tokens' meaning (`profile_facts.py`), encoding (`tokenizer.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.facts import RanksFacts

HUB_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"


def read_ranks(path: Path, data: bytes, tokens: RanksFacts) -> dict[bytes, int]:
    """The ranks of `data` (the bytes of `path`) for a profile's `[tokenizer]`. Raises ExactError, one line."""
    if path.name == HUB_FILE:
        return _hub_ranks(path, data, tokens)
    return _tiktoken_ranks(path, data, tokens.n_base)


def _tiktoken_ranks(path: Path, data: bytes, expected: int) -> dict[bytes, int]:
    """Parse tiktoken's text form (base64 bytes, space, rank, one a line) and check that ranks are 0..expected-1."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise ExactError(f"{path}: line {number} is not 'base64 rank'; get the model's own file") from None
    _require_all_ranks(path, ranks, expected)
    return ranks


def _require_all_ranks(path: Path, ranks: Mapping[bytes, int], expected: int) -> None:
    if sorted(ranks.values()) != list(range(expected)):
        raise ExactError(
            f"{path}: expected the ranks 0..{expected - 1}, found {len(ranks)}; get the file that belongs to the profile"
        )


def _hub_ranks(path: Path, data: bytes, tokens: RanksFacts) -> dict[bytes, int]:
    """The ranks of a byte-level BPE in the form of the hub.

    Its merges must come in the order of their ids: then "merge the pair whose result has the lowest rank" (tiktoken) and "merge
    the pair that stands first in the table" (tokenizers) are the same rule. Splitting, normalizer and control tokens are compared
    with the profile's facts: none of them is guessed.
    """
    try:
        raw = json.loads(data)
        model = raw["model"]
        kind = (model["type"], (raw.get("decoder") or {}).get("type"))
        found = {
            "normalizer": ((raw.get("normalizer") or {}).get("type") or "none").lower(),
            "pattern": next(p["pattern"]["Regex"] for p in raw["pre_tokenizer"]["pretokenizers"] if p["type"] == "Split"),
            "special": {str(token["content"]): int(token["id"]) for token in raw["added_tokens"]},
        }
        ids = {_bytes_of(token): int(rank) for token, rank in model["vocab"].items()}
        merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
        order = [model["vocab"][a + b] for a, b in merges]
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ExactError(f"{path}: is not a tokenizer.json of a byte-level BPE ({error!r}); get the model's own file") from None
    if kind != ("BPE", "ByteLevel"):
        raise ExactError(f"{path}: is {kind[0]} with decoder {kind[1]}; only byte-level BPE can be read")
    for key, value in found.items():
        if value != getattr(tokens, key):
            raise ExactError(f"{path}: its {key} is not the profile's; get the file that belongs to the profile")
    made = set(order) if not model.get("ignore_merges") else {k for piece, k in ids.items() if len(piece) > 1}
    if order != sorted(order) or len(made) + 256 != len(ids):
        raise ExactError(f"{path}: its merges do not come in the order of their ids, so ranks say nothing; it cannot be read")
    _require_all_ranks(path, ids, tokens.n_base)
    return ids


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character (GPT-2's table): character → byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + k): byte for k, byte in enumerate(shifted)}


_ALPHABET = byte_alphabet()


def _bytes_of(token: str) -> bytes:
    return bytes(map(_ALPHABET.__getitem__, token))


def config_difference(path: Path, special: Mapping[str, int]) -> str | None:
    """Where the control tokens of a tokenizer_config.json contradict the profile's, or None. Reserved slots may be unnamed."""
    try:
        named = {int(i): str(token["content"]) for i, token in json.loads(path.read_bytes())["added_tokens_decoder"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{path}: has no readable added_tokens_decoder ({error!r})"
    for name, token_id in special.items():
        if named.get(token_id, name) != name:
            return f"{path}: id {token_id} is {named[token_id]!r}, the profile says {name!r}"
    return None
