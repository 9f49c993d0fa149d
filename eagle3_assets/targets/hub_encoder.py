"""Any tokenizer.json that the `tokenizers` library loads, as an encoder with tiktoken's verbs: exact ids by the publisher's own code.

Belongs here: specials off (what a model wrote) and on (what a server rendered) for such a file, and the bytes behind each id. Does not
belong here: the faster encoder for a plain byte-level BPE (`vocabulary_files.py` gives tiktoken its ranks), facts (`facts.py`).

What a model wrote is encoded without the file's Unicode normalizers and without the blank that some tokenizers put in front of a text:
the model emits ids, and their bytes are the text as it is. `decode_bytes(encode_ordinary(text)) == text` then holds for every text of
a byte-level vocabulary; it does not hold for "▁" in a SentencePiece-like one (that character is its blank), nor for characters that a
vocabulary without byte fallback lacks. `altered` says so, text by text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.vocabulary_files import byte_alphabet

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BLANK = "▁"  # how SentencePiece writes a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Normalizers that change which characters stand in a text. The others say how a text is written in pieces of the vocabulary.
_UNICODE = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents", "Strip", "BertNormalizer")
_NEVER_IN_TEXT = "\U0010fffd"


class Encoder(Protocol):
    """What the platform asks of an encoder: the verbs of `tiktoken.Encoding`."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def special_tokens_set(self) -> set[str]: ...
    def encode_ordinary(self, text: str) -> list[int]: ...
    def encode(
        self,
        text: str,
        *,
        allowed_special: Literal["all"] | AbstractSet[str] = ...,
        disallowed_special: Literal["all"] | Collection[str] = ...,
    ) -> list[int]: ...
    def encode_single_token(self, text_or_bytes: str | bytes) -> int: ...
    def decode_bytes(self, tokens: Sequence[int]) -> bytes: ...
    def decode_single_token_bytes(self, token: int) -> bytes: ...


class HubEncoder:
    """An `Encoder` of a tokenizer.json. `special` names its control tokens; every other added token is text that a model may write
    (runs of blanks in Gemma and Phi). Raises ExactError for a file that is none, or whose ids do not spell bytes."""

    def __init__(self, path: Path, data: bytes, special: Mapping[str, int]) -> None:
        raw = read_tokenizer_json(path, data)
        self._special = dict(special)
        self._refuse_other_names(path, raw)
        self._shipped = _tokenizer(path, raw)
        self._ordinary = _tokenizer(path, _without_controls(raw, self._special))
        self._unicode = _unicode_normalizer(raw.get("normalizer"))
        byte_level = is_byte_level(raw)
        self._bytes = {token: spelled(piece, byte_level) for piece, token in pieces_of(raw)}
        added = {str(t["content"]): int(t["id"]) for t in raw.get("added_tokens") or ()}
        # in a SentencePiece-like file added runs of blanks are written as the vocabulary writes them (Gemma)
        self._bytes |= {k: text.encode() if byte_level else spelled(text, False) for text, k in added.items()}
        self._bytes |= {token: name.encode() for name, token in self._special.items()}
        self._ids: dict[bytes, int] = {}
        for token in sorted(self._bytes):  # of two ids with the same bytes the lower one: the other is an added copy
            self._ids.setdefault(self._bytes[token], token)
        names = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._names = re.compile("(" + "|".join(names) + ")") if names else None

    def _refuse_other_names(self, path: Path, raw: Mapping[str, Any]) -> None:
        ids = {str(token["content"]): int(token["id"]) for token in raw.get("added_tokens") or ()} | dict(pieces_of(raw))
        for name, token in self._special.items():
            if ids.get(name) != token:
                raise ExactError(
                    f"{path}: its {name!r} is {ids.get(name)}, the profile says {token}; get the file that belongs to it"
                )

    @property
    def n_vocab(self) -> int:
        return max(self._bytes) + 1

    @property
    def special_tokens_set(self) -> set[str]:
        return set(self._special)

    def ordinary_ids(self) -> Iterable[int]:
        """The ids that spell text."""
        return self._bytes.keys() - set(self._special.values())

    def encode_ordinary(self, text: str) -> list[int]:
        ids: list[int] = self._ordinary.encode(text, add_special_tokens=False).ids
        return ids

    def encode(
        self,
        text: str,
        *,
        allowed_special: Literal["all"] | AbstractSet[str] = frozenset(),
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[int]:
        """ "all": the publisher's own encoding of a rendered prompt, normalizers and all. A set: only these names are control tokens,
        and what stands between them is text that a model wrote. `disallowed_special` is there for tiktoken's sake: nothing is refused."""
        if allowed_special == "all":
            ids: list[int] = self._shipped.encode(text, add_special_tokens=False).ids
            return ids
        if not allowed_special or self._names is None:
            return self.encode_ordinary(text)
        out: list[int] = []
        plain = ""
        for piece in self._names.split(text):
            if piece in allowed_special:
                out += [*(self.encode_ordinary(plain) if plain else ()), self._special[piece]]
                plain = ""
            else:
                plain += piece
        return out + (self.encode_ordinary(plain) if plain else [])

    def encode_single_token(self, text_or_bytes: str | bytes) -> int:
        """Raises KeyError where no id has these bytes."""
        return self._ids[text_or_bytes.encode() if isinstance(text_or_bytes, str) else text_or_bytes]

    def decode_single_token_bytes(self, token: int) -> bytes:
        """Raises KeyError for an id outside the vocabulary."""
        return self._bytes[token]

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self._bytes.__getitem__, tokens))

    def altered(self, text: str) -> str | None:
        """How the tokenizer changes `text`, or None where its ids spell it letter by letter."""
        if self._unicode is not None and self._unicode.normalize_str(text) != text:
            return "its normalizer writes the text otherwise"
        if self.decode_bytes(self.encode_ordinary(text)) != text.encode():
            return "its vocabulary cannot spell the text letter by letter"
        return None


# ---------------------------------------------------------------------------------------------------- the file
def read_tokenizer_json(path: Path, data: bytes) -> dict[str, Any]:
    """The parsed file. Raises ExactError where it is none, or of a kind whose ids do not spell bytes."""
    try:
        raw = json.loads(data)
        kind = raw["model"].get("type") or ("BPE" if "merges" in raw["model"] else "Unigram")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExactError(f"{path}: is not a tokenizer.json ({error!r}); get the model's own file") from None
    if kind not in ("BPE", "Unigram"):
        raise ExactError(
            f"{path}: is a {kind} vocabulary, whose ids do not say which text they spell; no answer can be rebuilt with it"
        )
    return dict(raw)


def pieces_of(raw: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(piece as the file writes it, id) of the vocabulary, added tokens not among them unless it lists them."""
    vocabulary = raw["model"]["vocab"]
    if isinstance(vocabulary, Mapping):
        return [(str(piece), int(token)) for piece, token in vocabulary.items()]
    return [(str(entry[0]), token) for token, entry in enumerate(vocabulary)]


def is_byte_level(raw: Mapping[str, Any]) -> bool:
    """Whether pieces are written in GPT-2's alphabet of bytes; else SentencePiece's blank stands for a space."""
    return any(step.get("type") == "ByteLevel" for step in _steps(raw.get("decoder"), "decoders"))


_ALPHABET = byte_alphabet()


def spelled(piece: str, byte_level: bool) -> bytes:
    """The bytes of a vocabulary's piece. A piece of a byte-level vocabulary with another character in it is its own text."""
    if byte_level:
        try:
            return bytes(map(_ALPHABET.__getitem__, piece))
        except KeyError:
            return piece.encode()
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(BLANK, " ").encode()


def _steps(part: Any, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder: itself, or those of a sequence."""
    if not part:
        return []
    return (
        [step for inner in part.get(key) or () for step in _steps(inner, key)] if part.get("type") == "Sequence" else [dict(part)]
    )


def normalizers_of(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the normalizers that change characters."""
    return tuple(str(step["type"]) for step in _steps(raw.get("normalizer"), "normalizers") if step["type"] in _UNICODE)


def _tokenizer(path: Path, raw: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(raw))
    except Exception as error:  # the library raises bare Exception for everything
        raise ExactError(f"{path}: the tokenizers library cannot load it ({error}); get the model's own file") from None


def _unicode_normalizer(part: Any) -> Any:
    steps = [step for step in _steps(part, "normalizers") if step["type"] in _UNICODE]
    if not steps:
        return None
    from tokenizers import Tokenizer, models

    empty = json.loads(Tokenizer(models.BPE()).to_str())
    return Tokenizer.from_str(json.dumps({**empty, "normalizer": {"type": "Sequence", "normalizers": steps}})).normalizer


def _without_controls(raw: Mapping[str, Any], special: Mapping[str, int]) -> dict[str, Any]:
    """The file as the model's own text is encoded: no control token in it, no normalizer of characters, no blank in front."""
    out = dict(raw)
    model = dict(raw["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, Mapping):
        model["vocab"] = {piece: token for piece, token in vocabulary.items() if piece not in special}
        model["merges"] = [merge for merge in model.get("merges") or () if not special.keys() & _made_of(merge)]
    else:  # places are ids: a control token keeps its place under a name that no text has
        model["vocab"] = [[f"{_NEVER_IN_TEXT}{k}", -1e6] if e[0] in special else e for k, e in enumerate(vocabulary)]
    kept = [step for step in _steps(raw.get("normalizer"), "normalizers") if step["type"] not in (*_UNICODE, "Prepend")]
    out["model"] = model
    out["added_tokens"] = [token for token in raw.get("added_tokens") or () if token["content"] not in special]
    out["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    out["pre_tokenizer"] = _without_blank(raw.get("pre_tokenizer"))
    out["post_processor"] = None
    return out


def _made_of(merge: Any) -> set[str]:
    left, right = merge if isinstance(merge, list | tuple) else str(merge).split(" ")
    return {left, right, left + right}


def _without_blank(part: Any) -> Any:
    """A pre-tokenizer that puts no blank in front of a text."""
    if not part:
        return part
    if part.get("type") == "Sequence":
        return {**part, "pretokenizers": [_without_blank(inner) for inner in part["pretokenizers"]]}
    if part.get("type") == "Metaspace":
        return {key: value for key, value in part.items() if key != "add_prefix_space"} | {"prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if "add_prefix_space" in part else part
