"""Tokenizer profiles: facts (`profile_facts.py`) + ranks from a tokenizer folder = an encoder that can be trusted.

Belongs here: finding and pinning files, special ids by name, encoding with specials off (what a model wrote) and on (what a
server rendered). Does not belong here: the forms of tokenizer files (`vocabulary_files.py`), templates (`render.py`), the grammar of
answers (`grammar.py`), remote code of any kind.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tiktoken

from eagle3_assets.errors import ExactError
from eagle3_assets.installed import installed_folder
from eagle3_assets.store import data_root
from eagle3_assets.targets.facts import OpenedBy, TargetFacts
from eagle3_assets.targets.hub_encoder import Encoder, HubEncoder
from eagle3_assets.targets.profile_facts import PROFILES_DIR, marker_pattern, profile_facts, profile_for_model, profile_names
from eagle3_assets.targets.vocabulary_files import CONFIG_FILE, read_ranks

if TYPE_CHECKING:
    from eagle3_assets.targets.grammar import TurnGrammar

__all__ = [
    "PROFILES_DIR",
    "TEMPLATE_FILE",
    "Profile",
    "cut_in_chunks",
    "load_profile",
    "profile_facts",
    "profile_for_model",
    "profile_names",
]

TEMPLATE_FILE = "chat_template.jinja"
# tiktoken's regex engine stops with a panic on a run of a million blanks
# (measured with 0.14: its bound on backtracking); no model writes one.
MOST_BLANKS = 900_000
_ENDLESS_BLANKS = re.compile(rf"[^\S\r\n]{{{MOST_BLANKS + 1}}}")
RENDERER_VERSION = (
    "kimi-1"  # part of template_sha256 where no upstream template is pinned; raise it when render.py changes its output
)


@dataclass(frozen=True)
class Profile:
    """One tokenizer with its turn grammar. Build with `load_profile`.

    `facts` is the checked TOML, `encoding` a plain `tiktoken.Encoding` or one of the `tokenizers` library;
    `tokenizer_sha256` is of the ranks file as found.
    """

    name: str
    facts: TargetFacts = field(repr=False)
    encoding: Encoder = field(repr=False)
    tokenizer_sha256: str
    ranks_path: Path
    template_path: Path | None

    # ------------------------------------------------------------------------------------------ names
    @cached_property
    def specials(self) -> dict[str, int]:
        """The named control tokens (reserved slots are not among them)."""
        return dict(self.facts.tokenizer.special)

    @cached_property
    def special_names(self) -> dict[int, str]:
        return {token_id: name for name, token_id in self.specials.items()}

    def special(self, name: str) -> int:
        """Id of the control token `name`; raises ExactError when this tokenizer has none of that name."""
        try:
            return self.specials[name]
        except KeyError:
            raise ExactError(f"profile {self.name}: no control token {name!r}; it has {', '.join(self.specials)}") from None

    def token_name(self, token_id: int) -> str:
        """How to speak of one id: a control token by its name, an ordinary one by its text."""
        if token_id in self.special_names:
            return self.special_names[token_id]
        if not 0 <= token_id < self.n_vocab:
            return "outside the vocabulary"
        if not self.is_ordinary(token_id):
            return (self.facts.tokenizer.reserved_name or "<|unnamed_{id}|>").format(id=token_id)
        return self.encoding.decode_single_token_bytes(token_id).decode("utf-8", "replace")

    @cached_property
    def grammar(self) -> TurnGrammar:
        """How the model's family writes a turn."""
        from eagle3_assets.targets.grammar import grammar_of

        return grammar_of(self)

    @cached_property
    def ordinary(self) -> npt.NDArray[np.bool_]:
        """bool [n_vocab]: which ids spell text."""
        tokens = self.facts.tokenizer
        if tokens.encoder == "tiktoken":
            return np.arange(self.n_vocab) < tokens.n_base
        mask = np.zeros(self.n_vocab, dtype=bool)
        mask[[token for token in self._hub.ordinary_ids() if token < self.n_vocab]] = True
        return mask

    @property
    def _hub(self) -> HubEncoder:
        assert isinstance(self.encoding, HubEncoder)
        return self.encoding

    def is_ordinary(self, token_id: int) -> bool:
        """Whether the id spells text. Control and reserved ids do not, nor does a number outside the vocabulary."""
        return 0 <= token_id < self.n_vocab and bool(self.ordinary[token_id])

    def count_controls(self, ids: Sequence[int]) -> int:
        """How many of `ids` (all of the vocabulary) are control or reserved."""
        tokens = np.asarray(ids, dtype=np.int64)
        return len(tokens) - int(self.ordinary[tokens].sum())

    @property
    def reserved_ids(self) -> frozenset[int]:
        """The ids that are neither ordinary nor a named control token: no model writes them."""
        return frozenset(np.flatnonzero(~self.ordinary).tolist()) - set(self.specials.values())

    @cached_property
    def n_base(self) -> int:
        """How many ids spell text; with the encoder tiktoken also the first id that does not."""
        return int(self.ordinary.sum())

    @property
    def n_vocab(self) -> int:
        return self.facts.tokenizer.n_vocab

    @cached_property
    def end_id(self) -> int:
        """What ends a turn (never tokenizer.eos_token: docs/design.md#rule-1)."""
        return self.special(self.facts.turn.end)

    @cached_property
    def calls_end_id(self) -> int:
        """What ends a turn with tool calls: GLM writes another token there, nearly everybody the same."""
        return self.special(self.facts.turn.end_after_calls or self.facts.turn.end)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        return frozenset((self.end_id, self.calls_end_id))

    @property
    def opened_by(self) -> OpenedBy:
        """Who writes the opening reasoning marker: "prompt", "model" or "never"."""
        return self.facts.reasoning.opened_by

    @cached_property
    def think_open(self) -> int | None:
        return self._reasoning_marker(self.facts.reasoning.open)

    @cached_property
    def think_close(self) -> int | None:
        return self._reasoning_marker(self.facts.reasoning.close)

    def _reasoning_marker(self, name: str | None) -> int | None:
        return None if self.opened_by == "never" or name is None else self.special(name)

    @property
    def instant(self) -> bool:
        """Whether thinking can be turned off."""
        return self.facts.reasoning.instant

    @cached_property
    def tool_ids(self) -> dict[str, int]:
        """call_begin, call_end, and where calls stand in sections section_begin, section_end, argument_begin → id."""
        return {key: self.special(name) for key, name in self.facts.tools.markers.items()}

    @cached_property
    def marker_ids(self) -> frozenset[int]:
        """Every control id that the model writes in a turn."""
        found = {*self.end_ids, self.think_open, self.think_close, *self.tool_ids.values()}
        return frozenset(token for token in found if token is not None)

    @property
    def writes_call_ids(self) -> bool:
        """Whether the model writes an id in front of a call's raw arguments (form "sections"); in the other forms a call is one body."""
        return self.facts.tools.form == "sections"

    @property
    def numbers_calls(self) -> bool:
        """Whether the ids that the model writes count the conversation's calls (Kimi); DeepSeek writes the function's bare name there."""
        return "index" in self.tool_id_pattern.groupindex

    @cached_property
    def tool_id_pattern(self) -> re.Pattern[str]:
        return re.compile(getattr(self.facts.tools, "id_pattern", "(?!)"), re.DOTALL)

    def tool_id(self, name: str, index: int) -> str:
        """The id that the model writes for the conversation's call number `index` (0-based); "" where it writes none."""
        return str(getattr(self.facts.tools, "id_format", "")).format(name=name, index=index)

    @property
    def renders(self) -> bool:
        """False where no template is known: prompts of this profile cannot be rebuilt."""
        return self.facts.template.kind != "none"

    @cached_property
    def template_sha256(self) -> str:
        """Provenance of prompts: the pinned template, the one that renders, or our renderer's facts."""
        template, turn = self.facts.template, self.facts.turn
        if template.sha256:
            return template.sha256
        if template.kind == "jinja" and self.template_path is not None:
            return hashlib.sha256(self.template_path.read_bytes()).hexdigest()
        identity = json.dumps(
            [RENDERER_VERSION, template.model_dump(exclude_unset=True), turn.model_dump(exclude_unset=True)], sort_keys=True
        )
        return hashlib.sha256(identity.encode()).hexdigest()

    # ------------------------------------------------------------------------------------------ text and ids
    def encode(self, text: str) -> list[int]:
        """Ids of a text that a model wrote: control-token text is ordinary text, and nothing is normalized, so that
        decode(encode(text)) is `text`. Raises ExactError for lone surrogates and for endless
        whitespace.

        tiktoken itself would turn a lone surrogate into U+FFFD without a word (docs/research/tokenizers.md#2).
        """
        refuse_surrogates(text)
        if self.facts.tokenizer.encoder == "tiktoken":
            refuse_endless_blanks(text)
        return self.encoding.encode_ordinary(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt as the model's own tokenizer makes them: control-token text becomes control tokens; a normalizer
        is applied to what stands between them; and where the profile has a chunk rule, the text is cut by it *before* control tokens
        are looked for (so a marker that lies across a cut is lost, as on the server).
        """
        refuse_surrogates(text)
        facts = self.facts.tokenizer
        if facts.encoder == "tokenizers":
            return self.encoding.encode(text, allowed_special="all")
        if facts.normalizer == "nfc":
            text = self._normalized(text)
        if facts.chunk_chars is None or facts.chunk_run is None:
            refuse_endless_blanks(text)
            return self._encode_with_controls(text)
        ids: list[int] = []
        for piece in cut_in_chunks(text, facts.chunk_chars, facts.chunk_run):
            ids.extend(self._encode_with_controls(piece))
        return ids

    def _encode_with_controls(self, text: str) -> list[int]:
        """Looking for hundreds of names costs tiktoken more than the text itself, and most texts hold none."""
        if any(begin in text for begin in self._control_beginnings):
            return self.encoding.encode(text, allowed_special="all")
        return self.encoding.encode_ordinary(text)

    @cached_property
    def _control_beginnings(self) -> tuple[str, ...]:
        return tuple(sorted({name[:4] for name in self.control_ids}))

    def _normalized(self, text: str) -> str:
        """NFC piece by piece: a control token ends a piece, so a combining mark behind one stays as it is."""
        pieces = self._special_split.split(text)
        return "".join(piece if k % 2 else unicodedata.normalize("NFC", piece) for k, piece in enumerate(pieces))

    @cached_property
    def cuts_at_controls(self) -> bool:
        """Whether the texts before and behind a control token may be encoded alone: no name of one goes on, or begins, within another's."""
        names = self.control_ids
        first = {name[0] for name in names}
        apart = not any(first.intersection(name[1:]) for name in names)
        return (
            self.facts.tokenizer.encoder == "tiktoken"
            and apart
            and not any(name != other and other.startswith(name) for name in names for other in names)
        )

    @cached_property
    def control_ids(self) -> dict[str, int]:
        """Every control token's name → id."""
        return {name: self.encoding.encode_single_token(name) for name in self.encoding.special_tokens_set}

    @cached_property
    def _special_split(self) -> re.Pattern[str]:
        names = sorted(self.control_ids, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, names)) + ")")

    def doubts(self, text: str) -> str | None:
        """Why the ids behind `text` that a model wrote are a guess however well they fit the bill, or None.

        A tokenizer with a normalizer never showed its model any other form of the text, so there is no canonical encoding of it.
        """
        if isinstance(self.encoding, HubEncoder):
            altered = self.encoding.altered(text)
            return f"{self.name}: {altered}, so no encoding of it is the canonical one" if altered else None
        if self.facts.tokenizer.normalizer == "nfc" and not unicodedata.is_normalized("NFC", text):
            return f"the text is not NFC, and {self.name} encodes NFC only: no encoding of it is the canonical one"
        return None

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes that `ids` spell. Raises ExactError for an id outside the vocabulary."""
        try:
            return self.encoding.decode_bytes(ids)
        except (KeyError, OverflowError, TypeError) as error:
            raise ExactError(
                f"profile {self.name}: {error} is not an id of its vocabulary (0..{self.n_vocab - 1}); wrong tokenizer?"
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `ids` spell; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    @cached_property
    def marker_pattern(self) -> re.Pattern[str]:
        """Matches the literal name of any control or reserved token."""
        return marker_pattern(self.facts)


def refuse_surrogates(text: str) -> None:
    """Raise ExactError when `text` cannot be UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ExactError(
            f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}: such text has no ids; set the row aside"
        ) from None


def refuse_endless_blanks(text: str) -> None:
    """Raise ExactError for a run of blanks on which the encoder itself would give up."""
    if len(text) > MOST_BLANKS and (run := _ENDLESS_BLANKS.search(text)):
        raise ExactError(f"more than {MOST_BLANKS:,} blanks in a row from character {run.start()} on: no encoder splits them")


def cut_in_chunks(text: str, chunk_chars: int, chunk_run: int) -> Iterator[str]:
    """Cut as tokenization_kimi.py does: every `chunk_chars` characters, then wherever a run of whitespace or of non-whitespace
    exceeds `chunk_run` characters. Yields nothing for "".
    """
    for start in range(0, len(text), chunk_chars):
        piece = text[start : start + chunk_chars]
        cut = 0
        if len(piece) > chunk_run:  # a shorter text has no run that long
            for run in re.finditer(r"\s+|\S+", piece):
                for at in range(run.start() + chunk_run, run.end(), chunk_run):
                    yield piece[cut:at]
                    cut = at
        yield piece[cut:]


# ---------------------------------------------------------------------------------------------------- loading
def load_profile(name: str, tokenizer_dir: Path | None = None) -> Profile:
    """Load `name` with the files of `tokenizer_dir` (or of a folder in it), else of `<data root>/tokenizers/<profile>/`, else
    those that ship with the package. Cached. Raises ExactError (one line) for an unknown profile, a missing file, a file that
    is not the pinned one.
    """
    facts = profile_facts(name)
    ranks = _find_ranks(name, facts, tokenizer_dir)
    template = _find_template(facts, tokenizer_dir, ranks)
    return _load(name, ranks.resolve(), ranks.stat().st_mtime_ns, template)


def _roots(facts: TargetFacts, tokenizer_dir: Path | None) -> list[Path]:
    folders = facts.tokenizer.folders
    if tokenizer_dir is not None:
        return [tokenizer_dir, *(tokenizer_dir / folder for folder in folders)]
    roots = [data_root() / "tokenizers" / folder for folder in folders]
    shipped = facts.tokenizer.package_folder and installed_folder(facts.tokenizer.package_folder)
    return [*roots, shipped] if shipped else roots


def _find_ranks(name: str, facts: TargetFacts, tokenizer_dir: Path | None) -> Path:
    file = facts.tokenizer.ranks_file
    roots = _roots(facts, tokenizer_dir)
    for root in roots:
        if (root / file).is_file():
            return root / file
    where = tokenizer_dir or data_root() / "tokenizers" / facts.tokenizer.folders[0]
    fetch = f"run `eagle3 fetch-tokenizer {name}`, or " if facts.files else ""
    raise ExactError(
        f"profile {name}: {where / file} is missing; {fetch}put the model's own {file} there; `reconstruct` and `show` also take "
        "--tokenizer DIR"
    )


def _find_template(facts: TargetFacts, tokenizer_dir: Path | None, ranks: Path) -> Path | None:
    """The model's own chat template: only of its own folder (another profile may share the ranks, never the template). A profile whose
    prompts are rendered by it also takes the one inside tokenizer_config.json.
    """
    own = facts.tokenizer.folders[0]
    roots = [root for root in _roots(facts, tokenizer_dir) if root.name == own]
    if tokenizer_dir is not None and ranks.parent == tokenizer_dir:
        roots.append(tokenizer_dir)
    names = (TEMPLATE_FILE, CONFIG_FILE) if facts.template.kind == "jinja" else (TEMPLATE_FILE,)
    return next((root / name for root in roots for name in names if (root / name).is_file()), None)


@lru_cache(maxsize=8)
def _load(name: str, ranks_path: Path, mtime_ns: int, template_path: Path | None) -> Profile:
    facts = profile_facts(name)
    data = ranks_path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    tokens = facts.tokenizer
    pin = tokens.ranks_sha256
    if pin and sha256 != pin:
        raise ExactError(f"{ranks_path}: sha256 is {sha256[:16]}…, expected {pin[:16]}… for {name}; get the model's own file")
    special = dict(tokens.special)
    if tokens.reserved_name is not None:
        unnamed = set(range(tokens.n_base, tokens.n_vocab)) - set(special.values())
        special |= {tokens.reserved_name.format(id=k): k for k in sorted(unnamed)}
    if tokens.encoder == "tokenizers":
        return Profile(name, facts, HubEncoder(ranks_path, data, tokens.special), sha256, ranks_path, template_path)
    encoding = tiktoken.Encoding(
        name=name, pat_str=tokens.pattern, mergeable_ranks=read_ranks(ranks_path, data, tokens), special_tokens=special
    )
    return Profile(name, facts, encoding, sha256, ranks_path, template_path)
