"""What a publisher's tokenizer files say: which encoder gives their ids, which tokens are control tokens, what generation stops at.

Belongs here: tokenizer.json or tiktoken ranks, tokenizer_config.json, generation_config.json, config.json → the `[tokenizer]` table.
Does not belong here: templates (`measure_template.py`), writing the profile (`cli/new_profile.py`).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tiktoken

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.measure_template import Measured, Question
from eagle3_assets.targets.facts import RanksFacts
from eagle3_assets.targets.hub_encoder import HubEncoder, is_byte_level, normalizers_of, pieces_of, read_tokenizer_json
from eagle3_assets.targets.profile_facts import profile_facts, profile_names
from eagle3_assets.targets.vocabulary_files import CONFIG_FILE, HUB_FILE, read_ranks

RANKS_FILE = "tiktoken.model"
GENERATION_FILE, MODEL_FILE = "generation_config.json", "config.json"
FUZZED = 5_000
SEED = 20260101
_SHAPED = re.compile(r"<[|｜].*[|｜]>")
_PIECES = (
    *["a", " the", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n", "1", "12345", "é", "e\u0301", "汉字", "かな", "한국어", "😀", "👩‍👩‍👧"],
    *["'s", "I'LL", ".", "!?", "{\"a\": 1}", "def f(x):\n    return x", "Привет", "สวัสดี", "\u200d", "\x00", "▁", "</thin", "<|", "<table>"],
)  # fmt: skip


def fuzzed_texts(n: int, extra: Sequence[str] = (), seed: int = SEED) -> Iterator[str]:
    """`n` seeded texts made of pieces that break tokenizers, of `extra` pieces (names of control tokens), and of any characters."""
    source = random.Random(seed)
    pieces = (*_PIECES, *extra)
    for _ in range(n):
        out = [source.choice(pieces) for _ in range(source.randint(1, 8))]
        if source.random() < 0.3:
            code = source.randrange(0x20, 0x30000)
            out.append(chr(code) if not 0xD800 <= code < 0xE000 else "?")
        yield "".join(out)


def first_difference(ours: Any, theirs: Any, texts: Iterator[str]) -> str | None:
    """The first text of which two encoders give other ids, specials off or on; None where they agree on all."""
    for text in texts:
        if ours.encode_ordinary(text) != theirs.encode_ordinary(text):
            return text
        if ours.encode(text, allowed_special="all") != theirs.encode(text, allowed_special="all"):
            return text
    return None


def measure_tokenizer(folder: Path, template: str, out: Measured) -> dict[str, int]:
    """Fill `[tokenizer]`; returns the control tokens. Raises ExactError for a folder without a tokenizer that can be read."""
    if (folder / HUB_FILE).is_file():
        specials = _measure_hub(folder / HUB_FILE, template, out)
    else:
        ranks = next(iter([folder / RANKS_FILE] if (folder / RANKS_FILE).is_file() else sorted(folder.glob("*.tiktoken"))), None)
        if ranks is None:
            raise ExactError(f"{folder}: has neither {HUB_FILE} nor {RANKS_FILE}; put the publisher's tokenizer files there")
        specials = _measure_ranks(ranks, out)
    eos = _named(folder, "eos_token")
    if eos in specials:
        out.say("tokenizer", "eos", eos, "what tokenizer_config.json calls the end (the end of a turn is measured by itself)")
    else:
        ends = stops_of(folder, specials)
        out.say("tokenizer", "eos", ends[0] if ends else next(iter(specials), ""), f"{CONFIG_FILE} names no eos_token")
    return specials


def stops_of(folder: Path, specials: Mapping[str, int]) -> list[str]:
    """The control tokens at which generation stops: of generation_config.json, else of config.json."""
    names = {token: name for name, token in specials.items()}
    for file in (GENERATION_FILE, MODEL_FILE):
        found = _json(folder / file).get("eos_token_id")
        ids = found if isinstance(found, list) else [found] if isinstance(found, int) else []
        if ids:
            return [names[token] for token in ids if token in names]
    return []


def _measure_hub(path: Path, template: str, out: Measured) -> dict[str, int]:
    data = path.read_bytes()
    raw = read_tokenizer_json(path, data)
    added = raw.get("added_tokens") or []
    specials = {str(t["content"]): int(t["id"]) for t in added if _is_control(t, template)}
    hub = HubEncoder(path, data, specials)
    table: dict[str, Any] = {"ranks_file": path.name, "ranks_sha256": hashlib.sha256(data).hexdigest(), "special": specials}
    ranks, why = _as_ranks(path, data, raw, specials, hub)
    if ranks is not None:
        table |= ranks
    else:
        table |= {"encoder": "tokenizers", "n_vocab": hub.n_vocab}
    for key, value in table.items():
        out.say("tokenizer", key, value)
    kind = "byte-level" if is_byte_level(raw) else "SentencePiece-like"
    out.reasons["tokenizer.ranks_file"] = (
        f"{kind} {raw['model'].get('type', 'BPE')}; normalizer {', '.join(normalizers_of(raw)) or 'none'}; {why}"
    )
    return specials


def _is_control(token: Mapping[str, Any], template: str) -> bool:
    """Whether an added token is a control token: the file says so, the template writes it, or it is shaped like one. Others (runs of
    blanks, tags of HTML) are text that a model may write."""
    name = str(token["content"])
    if not name.strip() or not name.replace("▁", "").strip():
        return False
    return bool(token.get("special")) or bool(_SHAPED.fullmatch(name)) or name in template or name in _USUAL


_USUAL = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}


def _as_ranks(
    path: Path, data: bytes, raw: Mapping[str, Any], specials: Mapping[str, int], hub: HubEncoder
) -> tuple[dict[str, Any] | None, str]:
    """The facts with which tiktoken runs the file, where it is such a file and gives the same ids on `FUZZED` texts; and why, or why not."""
    steps = (raw.get("pre_tokenizer") or {}).get("pretokenizers") or []
    splits = [step for step in steps if step.get("type") == "Split"]
    if len(splits) != 1 or len(steps) != 2 or not is_byte_level(raw) or "Regex" not in splits[0]["pattern"]:
        return None, "its splits are not one regular expression: the tokenizers library runs it"
    normalizers = normalizers_of(raw)
    base = len(pieces_of(raw))
    if normalizers not in ((), ("NFC",)) or sorted(specials.values()) != list(range(base, base + len(specials))):
        return (
            None,
            "its control ids do not stand behind the others, or it has a normalizer of its own: the tokenizers library runs it",
        )
    table = {
        "n_base": base,
        "n_special": len(specials),
        "pattern": splits[0]["pattern"]["Regex"],
        "normalizer": normalizers[0].lower() if normalizers else "none",
    }
    facts = RanksFacts(folders=(".",), ranks_file=path.name, eos="", special=specials, **table)
    try:
        ours = tiktoken.Encoding(
            path.name, pat_str=facts.pattern, mergeable_ranks=read_ranks(path, data, facts), special_tokens=dict(specials)
        )
    except ExactError as error:
        return None, f"{str(error).partition(': ')[2].partition(';')[0]}: the tokenizers library runs it"
    if normalizers:  # the normalizer is ours to apply (`Profile.encode_prompt`); ordinary text is compared
        differs = next(
            (t for t in fuzzed_texts(FUZZED, tuple(specials)[:8]) if ours.encode_ordinary(t) != hub.encode_ordinary(t)), None
        )
    else:
        differs = first_difference(ours, hub, fuzzed_texts(FUZZED, tuple(specials)[:8]))
    if differs is not None:
        return None, f"tiktoken gives other ids of {differs[:30]!r}: the tokenizers library runs it"
    return table, f"merges in the order of their ids; tiktoken and the tokenizers library agree on {FUZZED:,} texts"


def _measure_ranks(path: Path, out: Measured) -> dict[str, int]:
    """Ranks alone: the split pattern stands in the publisher's code, so it is a known vocabulary's, or it is asked for."""
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    named = _config_names(path.with_name(CONFIG_FILE))
    n_base = sum(1 for line in data.splitlines() if line.strip())
    for key, value in {"ranks_file": path.name, "ranks_sha256": sha256, "n_base": n_base}.items():
        out.say("tokenizer", key, value)
    known = next((f.tokenizer for f in map(profile_facts, profile_names()) if f.tokenizer.ranks_sha256 == sha256), None)
    if isinstance(known, RanksFacts):
        for key in ("n_special", "reserved_name", "pattern", "normalizer", "chunk_chars", "chunk_run"):
            if (value := getattr(known, key)) is not None:
                out.say("tokenizer", key, value)
        out.reasons["tokenizer.pattern"] = "the same ranks as a profile of the package, byte by byte"
    else:
        out.say("tokenizer", "n_special", max([*named.values(), n_base]) - n_base + 1)
        out.say("tokenizer", "normalizer", "none", "tiktoken has none")
        line = f"{path.name} holds no split pattern: which regular expression (pat_str) does the publisher's code give tiktoken?"
        out.questions.append(Question("tokenizer.pattern", line))
    specials = {name: token for name, token in named.items() if token >= n_base}
    out.say("tokenizer", "special", specials)
    if not specials:
        raise ExactError(f"{path}: there is no {CONFIG_FILE} that names its control tokens; put the publisher's there")
    return specials


def _config_names(config: Path) -> dict[str, int]:
    """The tokens that a tokenizer_config.json names as added, with their ids."""
    named = _json(config).get("added_tokens_decoder") or {}
    return {
        str(token["content"]): int(i) for i, token in named.items() if not str(token["content"]).startswith("<|reserved_token_")
    }


def _named(folder: Path, key: str) -> str:
    value = _json(folder / CONFIG_FILE).get(key)
    return str(value.get("content") if isinstance(value, Mapping) else value)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        raw = json.loads(path.read_bytes())
    except ValueError as error:
        raise ExactError(f"{path}: is no JSON ({error}); get the model's own file") from None
    return raw if isinstance(raw, dict) else {}
