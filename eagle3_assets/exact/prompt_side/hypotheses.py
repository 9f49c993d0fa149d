"""Prompt hypotheses: every prompt that a server could have made of a request.

Belongs here: asking for them, all or those that a provider's profile leaves open. Does not belong here: the space of prompts
(`prompt_space.py`), completions (`frames.py`, `readings.py`), learning (`prompt_learning.py`), choosing by the bill
(`prompt_selection.py`), rendering itself (`render.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from eagle3_assets.exact.prompt_side.prompt_forms import PromptForm, form_of
from eagle3_assets.exact.prompt_side.prompt_space import Messages, Space, prompt_table, render_form
from eagle3_assets.exact.prompt_side.prompt_table import NO_TOOLS, PromptCandidate, PromptTable
from eagle3_assets.exact.prompt_side.render import default_form
from eagle3_assets.exact.prompt_side.request_facts import declared_tools
from eagle3_assets.exact.prompt_side.segments import encode_whole, joins
from eagle3_assets.targets.tokenizer import Profile

__all__ = [
    "PromptCandidate",
    "PromptTable",
    "enumerate_prompts",
    "is_open",
    "is_rendering",
    "likely_prompts",
    "prompt_counts",
    "prompt_table",
]


def enumerate_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, only: Sequence[str] | None = None
) -> list[PromptCandidate]:
    """All distinct prompts that a server may have made of `request`; the first is the model's own form. Forms that lead to the
    same ids are one candidate. `only`: these forms alone. Raises ExactError where no template is known or a message cannot be
    rendered.
    """
    found = prompt_table(profile, request, thinking=thinking).candidates()
    return found if only is None else [candidate for candidate in found if set(only) & set(candidate.forms)]


def prompt_counts(profile: Profile, request: Mapping[str, Any], thinking: bool) -> PromptTable:
    """{form name: number of ids}, with `digests` that tell whether two forms give equal ids, and without the ids: what a learner keeps
    of an answer. Raises ExactError as `enumerate_prompts` does."""
    return prompt_table(profile, request, thinking=thinking).without_ids()


def is_rendering(
    profile: Profile, request: Mapping[str, Any], ids: tuple[int, ...], *, thinking: bool, forms: Sequence[str] | None = None
) -> bool:
    """Whether `ids` are `request` in the forms named in `forms` (the first that is known is enough: evidence names equal ones together);
    None asks for any form. Raises ExactError as `enumerate_prompts` does."""
    messages, tools = request.get("messages") or [], declared_tools(request)
    if forms is None:  # the model's own form first; of a trajectory's 200 prompts those of another length are never put together
        with suppress(AttributeError, LookupError, TypeError, ValueError):  # no chat: the table says so
            own = Space(profile, request, thinking, {}).own
            if profile.renders and _join(profile, messages, tools, thinking, own) == ids:
                return True
        candidates = prompt_table(profile, request, thinking=thinking).counted(len(ids))
        return any(candidate.ids == ids for candidate in candidates)
    form = next((form for name in forms if (form := form_of(_tools_named(name, profile))) is not None), None)
    if form is None:
        return False
    return _join(profile, messages, tools, thinking, form) == ids


def likely_prompts(
    profile: Profile, request: Mapping[str, Any], *, thinking: bool, billed: int | None, learned: Mapping[str, Any]
) -> list[PromptCandidate]:
    """The candidates to choose from: where a provider's forms are learned and one that is still open meets the bill, those that
    are open, else all. Raises ExactError as `enumerate_prompts` does."""
    every = enumerate_prompts(profile, request, thinking=thinking)
    ruled_out = frozenset(learned.get("ruled_out") or ())
    if not ruled_out or not billed:
        return every
    left = [candidate for candidate in every if is_open(candidate, ruled_out)]
    offset = int(learned.get("offset") or 0)
    return left if any(candidate.count + offset == billed for candidate in left) else every


def is_open(candidate: PromptCandidate, ruled_out: frozenset[str]) -> bool:
    """Whether a form leads to the candidate that holds no word which was ruled out."""
    ruled_out -= candidate.exempt
    return any(ruled_out.isdisjoint(words) for words in candidate.words)


def _tools_named(name: str, profile: Profile) -> str:
    """A name in which no tools are declared, as that of a form."""
    return name.replace(NO_TOOLS, default_form(profile).tool_style, 1) if name.startswith(NO_TOOLS) else name


def _join(
    profile: Profile, messages: Messages, tools: Sequence[Mapping[str, Any]] | None, thinking: bool, form: PromptForm
) -> tuple[int, ...]:
    request = {"messages": messages, "tools": tools}
    if profile.facts.template.kind == "jinja":
        return tuple(encode_whole(profile, render_form(profile, messages, tools, thinking, form)).ids)
    space = Space(profile, request, thinking, {})
    segments = (*space.declared(form), *space.turns(form))
    if not joins(profile, segments):
        return tuple(encode_whole(profile, render_form(profile, messages, tools, thinking, form)).ids)
    return tuple(itertools.chain.from_iterable(segment.ids for segment in segments))
