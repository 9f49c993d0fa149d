"""Where tokenizer profiles are: `profiles/<name>/profile.toml` of this package, and of `<data root>/tokenizers/<name>/`.

Belongs here: finding, reading and checking the facts of a profile (docs/tokenizers.md lists the keys). Does not belong here: the
tokenizer's own files (`vocabulary_files.py`), encoders (`tokenizer.py`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.model_names import plain_name
from eagle3_assets.store import data_root

PROFILES_DIR = Path(__file__).parent / "profiles"
PROFILE_FILE = "profile.toml"
NORMALIZERS = ("none", "nfc")

# Every key that code reads without asking whether it is there. A section of another form needs other keys.
_KEYS: dict[str, tuple[str, ...]] = {
    "": ("name", "models"),
    "tokenizer": ("folders", "ranks_file", "n_base", "n_special", "pattern", "normalizer", "eos", "special"),
    "turn": ("end",),
    "reasoning": ("opened_by",),
    "tools": ("form", "ends_reasoning", "call_begin", "call_end", "id_format", "id_pattern"),
    "template": ("kind",),
}
_TOOL_KEYS: dict[str, tuple[str, ...]] = {
    "sections": ("section_begin", "section_end", "argument_begin"),
    "json": ("separator", "body_format", "body_pattern"),
}
_TEMPLATE_KEYS: dict[str, tuple[str, ...]] = {"kimi": ("default_system",), "jinja": ("switch",), "none": ()}
# Where a model has habits of whitespace: the edges of its two texts, and between a text (or the end of reasoning) and a tool section
HABIT_PLACES = ("reasoning_lead", "reasoning_trail", "content_lead", "content_trail", "content_seam")
_FORMS: dict[str, dict[str, tuple[str, ...]]] = {"tools": _TOOL_KEYS, "template": _TEMPLATE_KEYS}


def profile_names() -> tuple[str, ...]:
    """All profiles, sorted: those of the package, and those that somebody laid under the data root."""
    return tuple(sorted(_files()))


def _files() -> dict[str, Path]:
    """name → its profile.toml. A profile of the package cannot be replaced: its ids are pinned and tested."""
    own = {path.parent.name: path for path in PROFILES_DIR.glob(f"*/{PROFILE_FILE}")}
    laid = {path.parent.name: path for path in (data_root() / "tokenizers").glob(f"*/{PROFILE_FILE}")}
    return laid | own


def profile_facts(name: str) -> Mapping[str, Any]:
    """The TOML of one profile. Raises ExactError for an unknown name (the line lists the known ones) and for facts that are missing."""
    files = _files()
    if name not in files:
        raise ExactError(f"no tokenizer profile {name!r}; there are {', '.join(sorted(files))}")
    return _read(files[name], files[name].stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _read(path: Path, mtime_ns: int) -> Mapping[str, Any]:
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExactError(f"{path}: is not TOML ({error}); see docs/tokenizers.md") from None
    if "base" in facts:
        facts = _merged(_base_of(path, facts), facts)
    fault = _fault(path, facts)
    if fault:
        raise ExactError(f"{path}: {fault}; docs/tokenizers.md lists what a profile holds")
    return facts


def _base_of(path: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts that a variant starts from. A variant of a variant is refused: a reader would have to follow the chain."""
    files = _files()
    base = facts["base"]
    if base not in files or base == facts.get("name"):
        raise ExactError(f"{path}: base is {base!r}, which is no other profile; docs/tokenizers.md lists what a profile holds")
    found = tomllib.loads(files[base].read_text(encoding="utf-8"))
    if "base" in found:
        raise ExactError(f"{path}: base is {base!r}, which is a variant itself; name {found['base']!r}")
    return found


def _merged(base: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` over `base`, table by table."""
    out = dict(base)
    for key, value in facts.items():
        out[key] = {**base[key], **value} if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
    return out


def _fault(path: Path, facts: Mapping[str, Any]) -> str | None:
    for section, keys in _KEYS.items():
        table = facts.get(section, {}) if section else facts
        if not isinstance(table, Mapping):
            return f"[{section}] is not a table"
        form = table.get("form" if section == "tools" else "kind")
        more = _FORMS.get(section, {})
        if more and form not in more:
            return f"{section}.{'form' if section == 'tools' else 'kind'} is {form!r}, expected one of {', '.join(more)}"
        lacking = [key for key in (*keys, *more.get(str(form), ())) if key not in table]
        if lacking:
            return f"{section or 'the top'} lacks {', '.join(lacking)}"
    if not _are_habits(facts.get("habits", {})):
        return f"[habits] expects tables of shares of whitespace, {{'\\n' = 0.9, '' = 0.1}}, at {', '.join(HABIT_PLACES)}"
    if facts["name"] != path.parent.name:
        return f"name is {facts['name']!r}, the folder's is {path.parent.name!r}"
    if facts["tokenizer"]["normalizer"] not in NORMALIZERS:
        return f"tokenizer.normalizer is {facts['tokenizer']['normalizer']!r}, expected one of {', '.join(NORMALIZERS)}"
    return _marker_fault(facts)


def _marker_fault(facts: Mapping[str, Any]) -> str | None:
    """Every marker that the grammar names is a control token of the tokenizer."""
    tools, reasoning = facts["tools"], facts["reasoning"]
    named = {f"tools.{key}": tools[key] for key in tools if key.endswith(("_begin", "_end")) and key != "ends_reasoning"}
    named |= {"turn.end": facts["turn"]["end"], "tokenizer.eos": facts["tokenizer"]["eos"]}
    if reasoning["opened_by"] not in ("prompt", "model", "never"):
        return f"reasoning.opened_by is {reasoning['opened_by']!r}, expected prompt, model or never"
    if reasoning["opened_by"] != "never":
        named |= {f"reasoning.{key}": reasoning.get(key) for key in ("open", "close")}
    unknown = [f"{where} = {name!r}" for where, name in named.items() if name not in facts["tokenizer"]["special"]]
    return f"{', '.join(unknown)} is no name of [tokenizer.special]" if unknown else None


def marker_pattern(facts: Mapping[str, Any]) -> re.Pattern[str]:
    """Matches the literal name of any control or reserved token. The facts are enough for it: no file of the tokenizer is read."""
    names = [re.escape(name) for name in facts["tokenizer"]["special"]]
    if "reserved_name" in facts["tokenizer"]:
        names.append(re.escape(str(facts["tokenizer"]["reserved_name"]).partition("{id}")[0]) + r"\d+")
    return re.compile("|".join(names))


def profile_for_model(model: str | None) -> str | None:
    """The profile whose patterns match `model`, as written or without vendor, variant and release (`model_names.plain_name`); None where
    no profile knows it."""
    if not model:
        return None
    spellings = dict.fromkeys((model, plain_name(model)[0]))
    for name in profile_names():
        patterns = profile_facts(name)["models"]
        if any(re.search(pattern, spelling) for spelling in spellings for pattern in patterns):
            return name
    return None


def _are_habits(value: Any) -> bool:
    """Whether `[habits]` is {place: {run of whitespace: share}}."""
    tables = value.items() if isinstance(value, Mapping) else [("", None)]
    return all(
        place in HABIT_PLACES
        and isinstance(table, Mapping)
        and all(not run.strip() and type(share) in (int, float) and 0 <= share <= 1 for run, share in table.items())
        for place, table in tables
    )
