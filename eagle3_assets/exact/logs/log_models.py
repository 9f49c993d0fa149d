"""Which model answered a logged request, and so which tokenizer profile a row may be read with.

Belongs here: comparing names, choosing, the words for a refusal. Does not belong here: names themselves (`model_names.py`), profiles
(`profile_facts.py`), which wire profile fits a tokenizer (`wire_profiles.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.model_names import is_same_model, plain_name
from eagle3_assets.targets.profile_facts import profile_facts, profile_for_model, profile_names

ROUTERS = {"auto"}  # openrouter/auto names no model: whatever answered was asked for


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """`profile`: what to read the answer with, None where no profile knows its model; `fault`: why its ids cannot be trusted, in words;
    `note`: what a reader should know."""

    profile: str | None
    fault: str | None = None
    note: str | None = None


def choose_profile(default: str, asked: Any, answered: Any, aliases: Mapping[str, str]) -> ModelChoice:
    """The profile of the model that answered; `default` where neither request nor answer names one. `aliases`: names of a log's own
    (a proxy's, a deployment's) → models."""
    asked, answered = (_name(value, aliases) for value in (asked, answered))
    served = answered or asked
    if served is None:
        return ModelChoice(default)
    profile = profile_for_model(served)
    differs = None
    if asked and answered and plain_name(asked)[0] not in ROUTERS and not is_same_model(asked, answered):
        differs = f"model: {asked} was asked for and {answered} answered"
    if profile is None:
        unknown = f"no profile knows {served}; there are {known_models()}"
        return ModelChoice(None, f"{differs}; {unknown}" if differs else f"model: {unknown}")
    note = None if profile == default else f"the answer's model {served} belongs to profile {profile}, which was used"
    return ModelChoice(profile, differs, note)


def known_models() -> str:
    """The profiles, each with the models that it answers for."""
    return ", ".join(f"{name} (for {', '.join(map(_shown, profile_facts(name).models))})" for name in profile_names())


def _shown(pattern: str) -> str:
    """A pattern without what only a machine reads: flags, escapes, endings that `plain_name` takes away."""
    return re.sub(r"\(\?i\)|\(\[:-\].*|[\\^$]", "", pattern)


def _name(value: Any, aliases: Mapping[str, str]) -> str | None:
    return aliases.get(value, value) if isinstance(value, str) and value.strip() else None
