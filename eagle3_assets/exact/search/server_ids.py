"""Ids that a server returned, held against the text, the bill and the request: grade A0, C1 where the prompt is not proven, or quarantine.

Belongs here: what makes returned ids evidence (docs/research/exactness.md#2d), those of a prompt for answers without ids too.
Does not belong here: answers without any ids (`reconstruct.py`).

Output ids prove a completion, never its prompt. The prompt is proven by the server's own prompt ids that equal a rendering of the request, or
by a bill that one distinct rendering alone meets. Else all that the wire leaves open stay as survivors. An import of output ids alone has
the model's own rendering for its prompt, as an import of text has: grade I, for whoever trusts its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.hypotheses import PromptCandidate, enumerate_prompts
from eagle3_assets.exact.search.frames import ENDS_TURN
from eagle3_assets.exact.search.prompt_selection import Weighed, weigh_prompts
from eagle3_assets.exact.search.reconstruction import MAX_SURVIVORS, Reconstruction, prompt_misfit, residual_of, result
from eagle3_assets.exact.search.selection import Case
from eagle3_assets.exact.search.wire_text import Texts, canonical_fields, matching_spacing
from eagle3_assets.targets.grammar import GrammarError, Ids, Parts, split

P_SERVER_IDS, P_IMPORTED = 0.9995, 0.95
NAMED_FORMS = 6
OWN_SERVERS = ("engine", "import")  # a server of the user's own, or rows that somebody made with one


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The prompt of an answer with ids: those that are left (with weights, best first), how they are known, and what is wrong."""

    left: Weighed
    basis: str
    fault: str | None = None

    @property
    def best(self) -> PromptCandidate:
        return self.left[0][0] if self.left else PromptCandidate()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One mode tried on the ids: thinking or not is a fact of the answer, which the request only suggests."""

    case: Case
    parts: Parts | None
    evidence: Mapping[str, Any]
    reasons: tuple[str, ...]


def from_server_ids(case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None) -> Reconstruction:
    """`prompts` are those of the mode that the request suggests."""
    fields, output = case.fields, tuple(case.fields.output_ids or ())
    first = _try_mode(case, output)
    others = (_try_mode(mode, output) for mode in _other_modes(case) if first.reasons)
    attempt = first if not first.reasons else next((a for a in others if not a.reasons), first)
    case, reasons = attempt.case, [*fields.problems]
    if fields.finish_reason not in (*ENDS_TURN, "length"):
        reasons.append(f"finish reason {fields.finish_reason!r}: not a usable end")
    prompts = _prompts_of_answer(attempt.case, prompts, attempt is first)
    prompt = _find_prompt(case, prompts, no_prompt)
    reasons += [f"prompt: {prompt.fault}"] if prompt.fault and not prompt.fault.startswith("prompt_") else []
    reasons += [prompt.fault] if prompt.fault and prompt.fault.startswith("prompt_") else []
    foreign = max((*output, *prompt.best.ids), default=0) >= case.profile.n_vocab
    reasons += (
        [f"grammar: an id is outside the vocabulary of {case.profile.name}; wrong tokenizer?"] if foreign else attempt.reasons
    )
    if fields.billed_completion is not None and fields.billed_completion != len(output):
        reasons.append(f"completion_equals_bill: {len(output)} ids, billed {fields.billed_completion}")
    evidence = {"basis": "server_ids", "prompt_basis": prompt.basis, **({} if foreign else attempt.evidence)}
    if prompts:
        evidence["prompt_equals_template"] = any(_equal(candidate, prompt.best.ids) for candidate in prompts)
    residual = residual_of(fields, prompt.best.count if prompt.left else None, len(output), attempt.parts)
    if foreign:  # a row holds ids of its tokenizer only (the wire's bytes keep the rest): one bad answer must not stop its shard
        prompt, output = _Prompt((), prompt.basis), ()
    tried = max(1, len(prompts))
    if reasons:
        return result(case, prompt.best.ids, output, "Q", 0.0, residual, (tried, 0, 0), reasons, evidence)
    if prompt.basis == "server_ids" or _proven(case, prompt):
        counts = (tried, 1, 1)
        return result(case, prompt.best.ids, output, "A0", P_SERVER_IDS, residual, counts, (), evidence)
    if case.source == "import" and prompt.basis == "template":
        counts = (tried, 1, 1)
        return result(case, prompts[0].ids, output, "I", P_IMPORTED, residual, counts, (), evidence)
    return _unproven(case, prompt, output, residual, tried, evidence)


def server_prompt(case: Case, prompts: Sequence[PromptCandidate]) -> PromptCandidate | None:
    """The one prompt that the server's own prompt ids prove, for answers in text as well; None where it told none, or none that is a
    rendering of the request in this mode (`prompts`)."""
    ids = case.fields.prompt_ids
    if ids is None or not prompts:
        return None
    same = next((candidate for candidate in prompts if _equal(candidate, ids)), None)
    if same is not None:
        return same
    if case.source not in OWN_SERVERS:
        return None
    spelled = _spelled(case, prompts, ids)
    return PromptCandidate(ids, spelled.forms) if spelled is not None else None


# ---------------------------------------------------------------------------------------------------- the completion
def _other_modes(case: Case) -> Iterator[Case]:
    """The mode that the request does not suggest, where the model has two (114 of 120 Qwen3 rows with their sampled ids had no
    reasoning: docs/research/recorded-traffic.md#4)."""
    if case.profile.opened_by != "never" and case.profile.instant:
        yield replace(case, mode=replace(case.mode, prompt=not case.thinking, turn=not case.thinking, prefill=0))


def _try_mode(case: Case, output: Ids) -> _Attempt:
    try:
        parts = split(case.profile, output, thinking=case.thinking, truncated=case.truncated)
    except GrammarError as fault:
        return _Attempt(case, None, {}, (f"grammar: {fault}",))
    texts = Texts(case.profile, parts, case.fields)
    spacing, difference = matching_spacing(case.profile, parts, case.fields, texts)
    evidence = {"spacing": spacing, "wire_text": spacing is not None, **canonical_fields(case.profile, parts, texts)}
    return _Attempt(case, parts, evidence, (f"wire_text: {difference}",) if difference else ())


# ---------------------------------------------------------------------------------------------------- the prompt
def _prompts_of_answer(case: Case, prompts: Sequence[PromptCandidate], suggested: bool) -> list[PromptCandidate]:
    """The candidates in the mode of the answer. A model that opens its reasoning itself may leave it out behind any prompt."""
    if suggested or not prompts:
        return list(prompts)
    try:
        other = enumerate_prompts(case.profile, case.request, thinking=case.thinking)
    except ExactError:
        return list(prompts)
    return [*prompts, *other] if case.profile.opened_by == "model" else other


def _find_prompt(case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None) -> _Prompt:
    """The server's ids, else the candidates that meet the bill, else all of them."""
    fields = case.fields
    if fields.prompt_ids is not None:
        fault = _prompt_fault(case, prompts, no_prompt, fields.prompt_ids)
        if not fault and fields.billed_prompt not in (None, len(fields.prompt_ids)):
            fault = f"prompt_equals_bill: {len(fields.prompt_ids)} ids, billed {fields.billed_prompt}"
        return _Prompt(((PromptCandidate(fields.prompt_ids), 1.0),), "server_ids", fault)
    if not prompts:
        return _Prompt((), "none", no_prompt)
    learned = case.learned_prompt
    if fields.billed_prompt is None:
        return _Prompt(weigh_prompts(learned, prompts, prompts, billed=False), "template")
    fitting = [candidate for candidate in prompts if candidate.count == fields.billed_prompt]
    if not fitting:
        return _Prompt(((prompts[0], 1.0),), "bill", prompt_misfit(prompts, fields.billed_prompt))
    return _Prompt(weigh_prompts(learned, prompts, fitting), "bill")


def _proven(case: Case, prompt: _Prompt) -> bool:
    """Whether there is one distinct prompt, and a bill that it meets; a server of one's own needs no bill for the only prompt there is."""
    return len({candidate.ids for candidate, _ in prompt.left}) == 1 and (prompt.basis == "bill" or case.source in OWN_SERVERS)


def _unproven(
    case: Case, prompt: _Prompt, output: Ids, residual: dict[str, int | None], tried: int, evidence: dict[str, Any]
) -> Reconstruction:
    best, share = prompt.left[0]
    n = len(prompt.left)
    how = "of the billed length" if prompt.basis == "bill" else "that the request can be rendered to; nothing was billed"
    reason = f"prompt: the completion's ids are the server's; the prompt is one of {n} {how}"
    survivors = tuple((*candidate.ids, *output) for candidate, _ in prompt.left[1 : 1 + MAX_SURVIVORS])
    evidence = {**evidence, "prompt_forms": list(best.forms[:NAMED_FORMS]), "posterior": round(share, 6)}
    counts = (tried, n, n)
    return result(case, best.ids, output, "C1", P_SERVER_IDS * share, residual, counts, [reason], evidence, survivors)


def _equal(candidate: PromptCandidate, ids: Sequence[int]) -> bool:
    return candidate.count == len(ids) and candidate.ids == tuple(ids)


def _spelled(case: Case, prompts: Sequence[PromptCandidate], ids: Ids) -> PromptCandidate | None:
    """The rendering whose text `ids` spell in another encoding. Raises ExactError for ids outside the vocabulary."""
    text = case.profile.decode(ids)
    return next((candidate for candidate in prompts if case.profile.decode(candidate.ids) == text), None)


def _prompt_fault(case: Case, prompts: Sequence[PromptCandidate], no_prompt: str | None, ids: Ids) -> str | None:
    """Why the prompt ids that a server returned prove nothing, or None. A count of them does not: any ids have one.

    They are evidence when they equal a rendering of the request. Those of an engine or an import (a server of one's own) may also
    be another encoding of a rendering's text; where no template is known, they must spell every message of the request in order.
    """
    if any(_equal(candidate, ids) for candidate in prompts):
        return None
    own = case.source in OWN_SERVERS
    try:
        if own and prompts and _spelled(case, prompts, ids) is not None:
            return None
        text = case.profile.decode(ids)
    except ExactError as error:
        return str(error)
    if not prompts:
        if not own:
            return f"{no_prompt}, so the server's {len(ids)} prompt ids cannot be compared"
        return None if _spells(text, case.request) else f"{no_prompt}, and the server's prompt ids do not spell the request"
    nearest = min(prompts, key=lambda candidate: abs(candidate.count - len(ids)))
    at = next((k for k, (a, b) in enumerate(zip(ids, nearest.ids, strict=False)) if a != b), min(len(ids), nearest.count))
    return (
        f"the server's {len(ids)} prompt ids are no rendering of the request (they leave {nearest.forms[0]} of {nearest.count} "
        f"at position {at})"
    )


def _spells(text: str, request: Mapping[str, Any]) -> bool:
    """Whether the text of every message of `request` stands in `text`, in order."""
    at = 0
    for message in request.get("messages") or ():
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        for part in parts:
            piece = part.get("text") if isinstance(part, Mapping) else None
            if not isinstance(piece, str) or not piece:
                continue
            found = text.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
    return at > 0
