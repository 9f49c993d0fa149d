"""A folder of tokenizer files -> the vocabulary that the stand-in samples from.

Belongs here: which files make a tokenizer, and Kimi's markers for one that lacks them. Does not belong here: what ids mean
(`vocabulary`). Shares nothing with room `exact`, which reads such folders in its own way: two readings that agree are worth more
than one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import tiktoken

from kimi_mini.tokenizer import KIMI_NAMED, PAT_STR, byte_to_unicode, load_encoding
from openrouter_standin.errors import StandinError
from openrouter_standin.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

KIMI_MINI = "kimi-mini"
RANKS, FACTS, CONFIG, HUB = "tiktoken.model", "special_tokens.json", "tokenizer_config.json", "tokenizer.json"
_RESERVED = "<|reserved_token_{id}|>"
_N_SPECIAL = 256  # of every Kimi tokenizer: ids behind the ranks (docs/research/tokenizers.md#1)
# what Kimi's chat format and grammar need; the order in which they get ids behind a vocabulary that lacks them is Kimi's
_NEEDED = tuple(
    name for name in KIMI_NAMED if name.startswith(("<|im_", "<|tool_call")) or name in ("<think>", "</think>")
)  # fmt: skip


def load_tokenizer(name: str, beside: Path) -> Vocabulary:
    """The vocabulary of `kimi-mini`, or of a folder (relative to `beside`). Raises StandinError with one line."""
    if name == KIMI_MINI:
        return Vocabulary.of(load_encoding())
    folder = beside / Path(name).expanduser()
    where = f"source.replay.tokenizer = {name!r}"
    if not folder.is_dir():
        raise StandinError(f"{where}: {folder} is not a folder; give {KIMI_MINI!r} or a folder with a tokenizer's files")
    if (folder / RANKS).is_file():
        return Vocabulary.of(_kimi(folder, where))
    if (folder / HUB).is_file():
        return Vocabulary.of(cast(tiktoken.Encoding, _hub(folder / HUB, where)))
    raise StandinError(f"{where}: {folder} lacks {RANKS} (Kimi) and {HUB} (byte-level BPE); put one of them there")


def _kimi(folder: Path, where: str) -> tiktoken.Encoding:
    path = folder / RANKS
    try:
        lines = path.read_bytes().splitlines()
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in (line.split() for line in lines if line)}
    except (OSError, ValueError) as error:
        raise StandinError(f"{where}: {path} is not a tiktoken file ({error})") from None
    if set(ranks.values()) != set(range(len(ranks))) or not all(bytes([b]) in ranks for b in range(256)):
        raise StandinError(
            f"{where}: {path} holds {len(ranks)} ranks that are not 0, 1, 2, … with all 256 bytes; take the whole file"
        )
    pattern, named, size = _specials(folder, where, len(ranks))
    special = {named.get(i, _RESERVED.format(id=i)): i for i in range(len(ranks), size)}
    lacking = [name for name in _NEEDED if name not in special]
    if lacking:
        raise StandinError(f"{where}: {folder} names no token {', '.join(lacking)}; take K2.5's files (plain K2 has no </think>)")
    return tiktoken.Encoding(folder.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def _specials(folder: Path, where: str, n_base: int) -> tuple[str, dict[int, str], int]:
    """(split regex, id -> name, size of the vocabulary) from the facts, or from the model's own configuration and Kimi's known
    regex."""
    if (folder / FACTS).is_file():
        facts = _json(folder / FACTS, where)
        try:
            return facts["pat_str"], {int(i): name for name, i in facts["named_tokens"].items()}, int(facts["n_vocab"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StandinError(f"{where}: {folder / FACTS}: expected pat_str, named_tokens and n_vocab ({error!r})") from None
    if (folder / CONFIG).is_file():
        try:
            added = {int(i): str(t["content"]) for i, t in _json(folder / CONFIG, where)["added_tokens_decoder"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StandinError(f"{where}: {folder / CONFIG}: expected added_tokens_decoder ({error!r})") from None
        return PAT_STR, added, n_base + _N_SPECIAL
    raise StandinError(
        f"{where}: {folder} has {RANKS} but lacks {FACTS} and {CONFIG}: one of them has to name the control tokens"
    )


def _json(path: Path, where: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StandinError(f"{where}: {path} is not JSON ({error})") from None


class HubEncoding:
    """A byte-level BPE's `tokenizer.json` with the methods of `tiktoken.Encoding` that this room calls.

    Control tokens are its added tokens, and Kimi's markers that it lacks, with the first ids behind its vocabulary. Its own
    encoder runs without any of them, so marker text in a text stays text. A normalizer (Qwen's NFC) is part of that encoder: ids
    of a text decode to the normalized text.
    """

    def __init__(self, plain: tokenizers.Tokenizer, specials: dict[str, int]) -> None:
        self._plain, self._specials = plain, dict(specials)
        undo = {char: byte for byte, char in byte_to_unicode().items()}
        vocabulary = plain.get_vocab(with_added_tokens=False)
        self._bytes = {i: bytes(map(undo.__getitem__, t)) for t, i in vocabulary.items() if undo.keys() >= set(t)}
        self.n_vocab = max(*vocabulary.values(), *self._specials.values()) + 1
        for name in _NEEDED:
            if name not in self._specials:
                self._specials[name] = self.n_vocab
                self.n_vocab += 1
        self._bytes |= {i: name.encode() for name, i in self._specials.items()}

    @property
    def special_tokens_set(self) -> set[str]:
        return set(self._specials)

    def encode_single_token(self, name: str) -> int:
        return self._specials[name]

    def decode_single_token_bytes(self, i: int) -> bytes:
        """Raises KeyError for an id that stands for nothing, as tiktoken does."""
        return self._bytes[i]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self._bytes.__getitem__, ids)).decode("utf-8", "replace")

    def encode_ordinary(self, text: str) -> list[int]:
        try:
            return list(self._plain.encode(text, add_special_tokens=False).ids)
        except (TypeError, UnicodeError):  # a lone surrogate is a U+FFFD, as for tiktoken
            return self.encode_ordinary(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def encode_ordinary_batch(self, texts: Sequence[str], *, num_threads: int = 1) -> list[list[int]]:
        return [list(one.ids) for one in self._plain.encode_batch(list(texts), add_special_tokens=False)]

    def encode(self, text: str, *, allowed_special: Literal["all"] | Set[str], disallowed_special: object = ()) -> list[int]:
        """With control tokens on; they cut the text before anything else. Those that are not allowed are ordinary text."""
        names = self._specials if allowed_special == "all" else allowed_special
        if not names:
            return self.encode_ordinary(text)
        cut = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
        out: list[int] = []
        for k, part in enumerate(cut.split(text)):
            out += [self._specials[part]] if k % 2 else self.encode_ordinary(part) if part else []
        return out


def _hub(path: Path, where: str) -> HubEncoding:
    try:
        import tokenizers
    except ImportError:
        raise StandinError(f"{where}: {path} needs the package tokenizers; install it") from None
    raw = _json(path, where)
    try:
        kind, decoder = raw["model"]["type"], (raw.get("decoder") or {}).get("type")
        specials = {str(t["content"]): int(t["id"]) for t in raw["added_tokens"]}
        plain = tokenizers.Tokenizer.from_str(json.dumps({**raw, "added_tokens": [], "post_processor": None}))
    except Exception as error:  # the Rust library raises bare Exception for a file that it does not understand
        raise StandinError(f"{where}: {path} is not a tokenizer.json that can be read ({error})") from None
    if kind != "BPE" or decoder != "ByteLevel":
        raise StandinError(f"{where}: {path} is {kind} with decoder {decoder}; this stand-in reads byte-level BPE only")
    return HubEncoding(plain, specials)
