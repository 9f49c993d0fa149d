"""Where tokenizer profiles are: `profiles/<name>/profile.toml` of this package, and of `<data root>/tokenizers/<name>/`.

Belongs here: finding and reading profiles, variants of a profile, which profile a model's slug names. Does not belong here: what a profile
may hold (`facts.py`), the tokenizer's own files (`vocabulary_files.py`), encoders (`tokenizer.py`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eagle3_assets.errors import ExactError
from eagle3_assets.model_names import plain_name
from eagle3_assets.store import data_root
from eagle3_assets.targets.facts import TargetFacts, fault_of, merged

PROFILES_DIR = Path(__file__).parent / "profiles"
PROFILE_FILE = "profile.toml"


def profile_names() -> tuple[str, ...]:
    """All profiles, sorted: those of the package, and those that somebody laid under the data root."""
    return tuple(sorted(_files()))


def _files() -> dict[str, Path]:
    """name → its profile.toml. A profile of the package cannot be replaced: its ids are pinned and tested."""
    own = {path.parent.name: path for path in PROFILES_DIR.glob(f"*/{PROFILE_FILE}")}
    laid = {path.parent.name: path for path in (data_root() / "tokenizers").glob(f"*/{PROFILE_FILE}")}
    return laid | own


def profile_facts(name: str) -> TargetFacts:
    """The facts of one profile. Raises ExactError for an unknown name (the line lists the known ones) and for facts that are missing,
    unknown or contradict each other (the line names file and key)."""
    files = _files()
    if name not in files:
        raise ExactError(f"no tokenizer profile {name!r}; there are {', '.join(sorted(files))}")
    return _read(files[name], files[name].stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _read(path: Path, mtime_ns: int) -> TargetFacts:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExactError(f"{path}: is not TOML ({error}); see docs/tokenizers.md") from None
    if "base" in raw:
        raw = merged(_base_of(path, raw), raw)
    facts = read_facts(path, raw)
    if facts.name != path.parent.name:
        raise ExactError(f"{path}: name is {facts.name!r}, the folder's is {path.parent.name!r}; {_WHERE}")
    return facts


_WHERE = "docs/tokenizers.md lists what a profile holds"


def read_facts(path: Path, raw: Mapping[str, Any]) -> TargetFacts:
    """The facts that a parsed profile holds; `path` is for the line of the ExactError."""
    try:
        return TargetFacts.model_validate(raw)
    except ValidationError as error:
        raise ExactError(f"{path}: {fault_of(error, raw)}; {_WHERE}") from None


def _base_of(path: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts that a variant starts from. A variant of a variant is refused: a reader would have to follow the chain."""
    files = _files()
    base = facts["base"]
    if base not in files or base == facts.get("name"):
        raise ExactError(f"{path}: base is {base!r}, which is no other profile; {_WHERE}")
    found = tomllib.loads(files[base].read_text(encoding="utf-8"))
    if "base" in found:
        raise ExactError(f"{path}: base is {base!r}, which is a variant itself; name {found['base']!r}")
    return found


def marker_pattern(facts: TargetFacts) -> re.Pattern[str]:
    """Matches the literal name of any control or reserved token. The facts are enough for it: no file of the tokenizer is read."""
    names = [re.escape(name) for name in facts.tokenizer.special]
    if facts.tokenizer.reserved_name is not None:
        names.append(re.escape(facts.tokenizer.reserved_name.partition("{id}")[0]) + r"\d+")
    return re.compile("|".join(names))


def profile_for_model(model: str | None) -> str | None:
    """The profile whose patterns match `model`, as written or without vendor, variant and release (`model_names.plain_name`); None where
    no profile knows it."""
    if not model:
        return None
    spellings = dict.fromkeys((model, plain_name(model)[0]))
    for name in profile_names():
        patterns = profile_facts(name).models
        if any(re.search(pattern, spelling) for spelling in spellings for pattern in patterns):
            return name
    return None
