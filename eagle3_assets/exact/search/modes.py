"""Modes: did the model think in this answer, and who was billed for the marker that opens its reasoning?

Belongs here: the few joint hypotheses about prompt and completion together, with their priors. Does not belong here: forms of prompts
(`hypotheses.py`), ways to read a completion (`readings.py`), choosing (`reconstruct.py`).

Thinking is a fact of the answer, not of the request: servers ignore switches that they do not know (privatemode#7, cloudflare#13239), turn
thinking off for `response_format` (Fireworks K2.6, whose own prompt ids end in both markers), and models answer without reasoning where
they may. Each mode moves prompt and completion together, so the two bills tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3_assets.exact.prompt_side.request_facts import thinking_prior
from eagle3_assets.targets.grammar import check
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields

# The opening marker of the prompt billed as output: Moonshot AI and AtlasCloud of some 20 recorded endpoints (all 13 of their K2.5 rows)
BILLS_PREFILL = 0.1
# Reasoning billed beside the completion: one public report of some sixty
BILLS_APART = 0.02
# A thinking model that answers without any reasoning: closes at once, or (where it opens itself) never opens
NO_REASONING = 0.05


@dataclass(frozen=True, slots=True)
class Mode:
    """`prompt`: the prompt asks for reasoning; `turn`: the completion holds it; `prefill`: ids of the prompt that are billed as output.
    `apart`: the completion's bill leaves the reasoning out, which is billed beside it (maple#824)."""

    prompt: bool
    turn: bool
    prefill: int
    prior: float
    apart: bool = False

    @property
    def words(self) -> str:
        thinking = "with thinking" if self.turn else "without thinking"
        billed = ", its opening marker billed as output" if self.prefill else ", its reasoning billed apart" if self.apart else ""
        return thinking + billed


def modes_of(profile: Profile, request: Mapping[str, Any], fields: Fields, default: bool = True) -> list[Mode]:
    """The modes of an answer, the likeliest first; priors sum to one. `default`: what holds where the request says nothing."""
    if profile.opened_by == "never":
        return [Mode(True, False, 0, 1.0)]
    asked = next((share for thinks, share in thinking_prior(request, profile, default) if thinks), 0.0)
    instant = profile.instant
    has_reasoning = shows_reasoning(profile, fields)
    if profile.opened_by == "prompt":
        # without a bill nothing tells the modes apart: then the request is believed
        silent_turn = not has_reasoning and fields.finish_reason != "length" and bool(fields.billed_completion)
        thinks = asked * (NO_REASONING if silent_turn else 1.0)
        modes = [Mode(True, True, 0, thinks * (1 - BILLS_PREFILL)), Mode(True, True, 1, thinks * BILLS_PREFILL)]
        silent = (1 - asked) * (NO_REASONING if has_reasoning else 1.0)
    else:
        bare = 0.0 if has_reasoning else asked * (1 - NO_REASONING)
        modes = [Mode(True, True, 0, asked if has_reasoning else asked * NO_REASONING), Mode(True, False, 0, bare)]
        silent = (1 - asked) * (NO_REASONING if has_reasoning else 1.0)
    if fields.billed_reasoning and has_reasoning:
        modes.append(Mode(True, True, 0, modes[0].prior * BILLS_APART, apart=True))
    if instant:
        modes.append(Mode(False, False, 0, silent))
    total = sum(mode.prior for mode in modes) or 1.0
    ranked = [replace(mode, prior=mode.prior / total) for mode in modes if mode.prior > 0]
    return sorted(ranked, key=lambda mode: -mode.prior)


def shows_reasoning(profile: Profile, fields: Fields) -> bool:
    """Whether there is reasoning on the wire: in its own field, or unsplit in the content."""
    close = profile.facts.reasoning.close or ""
    return bool(fields.reasoning) or bool(close and close in (fields.content or ""))


def likeliest_mode(profile: Profile, request: Mapping[str, Any], fields: Fields, default: bool = True) -> Mode:
    """The mode of an answer before its bill is looked at: what learning counts it as."""
    return modes_of(profile, request, fields, default)[0]


def thinks_in(profile: Profile, request: Mapping[str, Any], ids: Sequence[int], *, truncated: bool, default: bool = True) -> bool:
    """Whether sampled ids are a turn with reasoning: what the request asks for, or else what the grammar accepts."""
    if profile.opened_by == "never":
        return False
    asked = thinking_prior(request, profile, default)[0][0]
    if check(profile, ids, thinking=asked, truncated=truncated) is None:
        return asked
    return not asked if check(profile, ids, thinking=not asked, truncated=truncated) is None else asked
