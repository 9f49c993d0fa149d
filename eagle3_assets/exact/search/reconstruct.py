"""Fields + request → `Reconstruction`: the ids that the evidence supports, with a grade that means what it says.

Belongs here: putting the evidence together, grades and reasons. Does not belong here: the hypotheses themselves (`frames.py`,
`readings.py`, `hypotheses.py`), the posterior (`selection.py`), what is known of a provider (`wire_profiles.py`), rows of a
dataset (`rows.py`).

Grades given here (docs/exactness.md; docs/research/exactness.md#6):
    A0  ids from a server (`server_ids.py`)
    A1  each id's bytes in the log-probabilities: they spell the text, the grammar accepts them, the bill counts them
    A2  as B1, and the stream's boundaries are those of the ids
    B1  one id sequence survives, its provider is decided by other answers, p_exact >= 0.95
    C1  fits the bill, but the provider is undecided, or several sequences survive, or `p_exact` is low
    R   repaired: leaked markers read back, or arguments that the server wrote anew spelled as the bill says
    I   imported text without ids and without a bill      D  no usable bill, or no template for the prompt
    Q   nothing fits, or something about the answer is wrong (reasons say what)
Repairs, in this order, each only where the one before does not fit: what the bill counts (`Reading.billing`), edge whitespace,
JSON style, tool ids, leaked markers; then quarantine. Local resegmentation is not done on text alone: some 1,700 respellings of a
1,000-token answer meet a bill of one more (docs/research/exactness.md#2e), so none of them would ever have a p_exact worth a
grade. A reason that is the name of a check (review/verdicts/table.py) stands in front of its detail: `completion_equals_bill: …`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.hypotheses import PromptCandidate, likely_prompts
from eagle3_assets.exact.prompt_side.request_facts import request_oddities
from eagle3_assets.exact.search.deviations import CUT_CHANGES, SAME_COUNT
from eagle3_assets.exact.search.edges import EDGES, place_of
from eagle3_assets.exact.search.frames import ENDS_TURN, OFF_PATH, Frame, respelled
from eagle3_assets.exact.search.leaks import is_spaced, unquoted_markers
from eagle3_assets.exact.search.modes import Mode, modes_of
from eagle3_assets.exact.search.prompt_selection import select_prompts
from eagle3_assets.exact.search.proofs import Found, with_witnesses
from eagle3_assets.exact.search.readings import RULED_OUT, Way
from eagle3_assets.exact.search.reconstruction import B1_FLOOR, MAX_SURVIVORS, Reconstruction, prompt_misfit, residual_of, result
from eagle3_assets.exact.search.selection import NOTHING, Case, Chosen, Selection, cut_share, deviations_of, frames_of, select
from eagle3_assets.exact.search.server_ids import from_server_ids, server_prompt
from eagle3_assets.exact.search.wire_text import canonical_fields
from eagle3_assets.exact.search.witnesses import mute_edges
from eagle3_assets.grades import GRADES
from eagle3_assets.intervals import at_least
from eagle3_assets.targets.grammar import Ids, Parts, assemble, check
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.targets.turn_text import doubt_of
from eagle3_assets.wire.declared import with_declared_names
from eagle3_assets.wire.fields import Fields

P_IMPORTED, P_UNVERIFIED, P_IN_DOUBT = 0.95, 0.5, 0.9
# How often a provider of which nothing is known does only what some reading says. Judged: of 40 rewriting worlds of benchmarks/foreign most
# are met by no report, and of some sixty public reports five were of none of the readings
KNOWN_WORLD = 0.95
# Whitespace that the model hardly ever writes, in an answer among those that its provider was learned from: the tail of the model's habit (35 of
# 35 rows of benchmarks/exactness), or something that the server does as seldom
SELDOM_SEEN, TAIL_ALPHA = 0.9, 0.01
UNSEEN_DAMAGE = 0.0125  # share of answers that were changed on the way and meet their bill: no row of B1 where it is more
NEGLIGIBLE_PROMPT = 0.005  # a prompt with a smaller share is no survivor: all that has never been seen stays in p_exact alone
OFTEN_ODD = 0.03  # of answers whose bill shows that they are not canonical: worth a word where a bill is met by nothing
DECISIVE = 0.3  # a mode with a smaller prior is not looked at once a likelier one meets both bills


def reconstruct(
    profile: Profile,
    request: Mapping[str, Any],
    fields: Fields,
    wire_profile: Mapping[str, Any] | None,
    *,
    source: str,
    thinking: bool = True,
    at: float | None = None,
) -> Reconstruction:
    """Rebuild one answer. `wire_profile` is the provider's entry (`wire_profiles.entry_of`) or None; `source` openrouter,
    engine or import; `thinking` what holds where the request says nothing; `at` when the answer came (unix seconds; None: the
    provider's latest window). Never raises for a bad answer: it becomes grade Q with reasons.
    """
    if fields.finish_reason is None and source == "import":  # a given message without a finish reason is a complete one
        fields = replace(fields, finish_reason="tool_calls" if fields.tool_calls else "stop")
    fields = with_declared_names(fields, request)
    modes = modes_of(profile, request, fields, thinking)
    case = Case(profile, request, fields, wire_profile, source, modes[0], at)
    found = from_server_ids(case, *_prompts_of(case)) if fields.output_ids is not None else _from_text(_attempts(case, modes))
    return replace(found, evidence={**found.evidence, "wire_notes": list(fields.notes)}) if fields.notes else found


def _prompts_of(case: Case) -> tuple[list[PromptCandidate], str | None]:
    """The prompts of an answer in its mode, and why it has none."""
    learned = {} if case.fields.output_ids is not None else case.learned_prompt
    try:
        return likely_prompts(
            case.profile, case.request, thinking=case.mode.prompt, billed=case.billed_prompt, learned=learned
        ), None
    except ExactError as error:
        return [], str(error)


# ---------------------------------------------------------------------------------------------------- modes
@dataclass(frozen=True, slots=True)
class Attempt:
    """An answer read in one mode: what equals the two bills. `wire_fault`: why its text has no ids."""

    case: Case
    frames: Sequence[Frame]
    chosen: Selection
    prompts: Sequence[PromptCandidate]
    chosen_prompts: tuple[tuple[PromptCandidate, float], ...]
    odd_prompt: bool
    no_prompt: str | None
    wire_fault: str | None = None

    @property
    def fits(self) -> bool:
        return bool(self.chosen.completions) and bool(self.chosen_prompts or self.no_prompt)

    @property
    def weight(self) -> float:
        """P(this mode and its bills), up to a constant."""
        return self.case.mode.prior * self.chosen.mass


def _attempts(answer: Case, modes: Sequence[Mode]) -> list[Attempt]:
    """The answer in the modes that are worth a look, the best first. The others are asked only where the likeliest one does not meet both
    bills: they differ from it by one token in each."""
    out: list[Attempt] = []
    for mode in modes:
        if out and out[0].fits and mode.prior < DECISIVE:
            break
        if out and out[0].case.decided and mode.prefill:
            continue  # what is billed was learned
        case = replace(answer, mode=mode)
        prompts, no_prompt = _prompts_of(case)
        try:
            frames = frames_of(case)
            for text in (frames[0].reasoning, frames[0].content):
                text.count(text.lead, text.trail)
        except ExactError as error:
            return [Attempt(case, (), NOTHING, prompts, (), False, no_prompt, str(error))]
        if case.wire and mute_edges(case.profile, case.fields, _standing(frames[0])):
            case = replace(
                case, wire=None
            )  # a witness that is silent where the texts begin: what was learned is not believed against it
            frames = frames_of(case)
        chosen = select(case, frames) if case.billed else NOTHING
        chosen_prompts, odd_prompt = _prompts_left(case, prompts)
        out.append(Attempt(case, frames, chosen, prompts, chosen_prompts, odd_prompt, no_prompt))
        if not case.billed or (not case.billed_prompt and prompts):
            break  # no bill tells modes apart
    return sorted(out, key=lambda attempt: (-attempt.fits, -attempt.weight if attempt.fits else 0.0))


def _prompts_left(case: Case, prompts: Sequence[PromptCandidate]) -> tuple[tuple[tuple[PromptCandidate, float], ...], bool]:
    """The prompt that the server's own ids prove, else those that the bill leaves."""
    if case.fields.prompt_ids is not None:
        proven = server_prompt(case, prompts)
        return (((proven, 1.0),) if proven is not None else ()), False
    if not case.billed_prompt:
        return (), False
    weighed, odd = select_prompts(case, prompts)
    return tuple(one for k, one in enumerate(weighed) if k == 0 or one[1] >= NEGLIGIBLE_PROMPT), odd


# ---------------------------------------------------------------------------------------------------- text and a bill
def _from_text(attempts: Sequence[Attempt]) -> Reconstruction:
    best = attempts[0]
    case, fields = best.case, best.case.fields
    reasons = list(fields.problems)
    if best.wire_fault is not None:
        reasons.append(f"wire_text: {best.wire_fault}")
        return result(case, (), (), "Q", 0.0, residual_of(fields, None, None, None), (0, 0, 0), reasons, {"basis": "none"})
    if fields.finish_reason not in (*ENDS_TURN, "length"):
        reasons.append(f"finish reason {fields.finish_reason!r}: not a usable end")
    if not (fields.reasoning or fields.content or fields.tool_calls):
        reasons.append("the answer is empty")
    if "\ufffd" in "".join((fields.reasoning or "", fields.content or "", *(call.arguments for call in fields.tool_calls))):
        cut = ", perhaps where the length limit cut a character" if case.truncated else ""
        reasons.append(f"wire_text: U+FFFD in the text: bytes were lost{cut}, the ids cannot be known")
    if case.hopeless:
        reasons.append(f"provider: no row of it can be exact: {case.hopeless}")
    if not fields.billed_completion or (not fields.billed_prompt and best.prompts):
        return _unbilled(case, best.prompts, best.frames, best.no_prompt, reasons)
    return _from_bill(attempts, reasons)


def _standing(frame: Frame) -> Parts:
    return frame.filled((frame.reasoning.lead, frame.reasoning.trail), (frame.content.lead, frame.content.trail))


def _unbilled(
    case: Case, prompts: Sequence[PromptCandidate], frames: Sequence[Frame], no_prompt: str | None, reasons: list[str]
) -> Reconstruction:
    """No usable bill: the text as it stands, or split at the markers that leaked into it; grade I for imports and D for everything else."""
    frame, leak, doubt = _unbilled_frame(case, frames)
    reasons += [doubt] if doubt else []
    parts, tried = _standing(frame), len(frames)
    ids = assemble(case.profile, parts)
    prompt = prompts[0].ids if prompts else ()
    bills = ((case.fields.billed_prompt, len(prompt)), (case.fields.billed_completion, len(ids)))
    other_bill = any(billed is not None and billed != found for billed, found in bills)
    grade, p = ("I", P_IMPORTED) if case.source == "import" and not other_bill else ("D", P_UNVERIFIED)
    if reasons:
        grade, p = "Q", 0.0
    elif not prompts:
        grade, p = "D", P_UNVERIFIED
        reasons.append(f"prompt: {no_prompt}")
    elif grade == "D":
        found = "half a bill, which does not fit" if other_bill else "nothing was billed"
        reasons.append(f"no usage: {found}, so nothing is verified")
    reasons += [leak] if leak else []
    evidence = {"basis": "none", "spacing": "verbatim", "wire_text": True, **canonical_fields(case.profile, parts)}
    evidence |= {"leaked": True} if frame.leaked else {}
    residual = residual_of(case.fields, len(prompt) or None, len(ids), parts)
    return result(case, prompt, ids, grade, p, residual, (tried, 1, 1), reasons, evidence)


def _unbilled_frame(case: Case, frames: Sequence[Frame]) -> tuple[Frame, str | None, str | None]:
    """The frame to take where no bill chooses, a word on how it was read, and why no frame can be believed (else None)."""
    named = ", ".join(unquoted_markers(case.profile.marker_pattern, case.fields))
    if not named:  # names of markers between quotation marks are the model's own text
        return frames[0], None, None
    leaked = next((frame for frame in frames if frame.leaked), None)
    if leaked is None:
        return frames[0], None, f"marker_text: the text holds {named}, and without a bill nobody can tell a marker from its name"
    if is_spaced(case.profile, case.fields):
        why = "and spaces beside it, which the model or a detokenizer wrote: without a bill nobody can tell"
        return leaked, None, f"marker_text: the text holds {named} {why}"
    return leaked, f"leaked: the text was split at the model's own markers ({named})", None


def _from_bill(attempts: Sequence[Attempt], reasons: list[str]) -> Reconstruction:
    """The hypothesis that the bills and the provider's profile support best; the text as it stands where nothing fits."""
    best = attempts[0]
    case, chosen, prompts, chosen_prompts = best.case, best.chosen, best.prompts, best.chosen_prompts
    profile, fields = case.profile, case.fields
    rivals = [attempt for attempt in attempts[1:] if attempt.fits and best.fits]
    mode_share = best.weight / sum(attempt.weight for attempt in (best, *rivals)) if rivals else 1.0
    found = with_witnesses(case, chosen)
    prompt = chosen_prompts[0][0] if chosen_prompts else prompts[0] if prompts else PromptCandidate((), ())
    if found is None:
        found = Found(_standing(best.frames[0]), 0.0, None)
        reasons.append(_completion_misfit(case, len(assemble(profile, found.parts)), attempts))
    if prompts and not chosen_prompts:
        reasons.append("; ".join([prompt_misfit(prompts, fields.billed_prompt or 0), *request_oddities(case.request)]))
    ids = assemble(profile, found.parts)
    fault = check(
        profile, ids if found.witness else _outline(profile, found.parts), thinking=case.thinking, truncated=case.truncated
    )
    if fault:
        reasons.append(f"grammar: {fault}")
    open_ways = chosen.completions or ((found.way,) if found.way else ())
    sequences = [(p.ids, c) for p, _ in chosen_prompts or ((prompt, 1.0),) for c in open_ways]
    sequences += [(p.ids, c) for rival in rivals for p, _ in rival.chosen_prompts for c in rival.chosen.completions]
    share = mode_share * (chosen_prompts[0][1] if chosen_prompts else 1.0)
    distinct = 1 if found.witness == "logprobs" else len(sequences) + len(found.rivals)
    grade, p = _grade(best, found, share, distinct, reasons)
    way = found.way.way if found.way else None
    offset = int(case.learned_prompt.get("offset") or 0) - case.mode.prefill + case.not_prefilled
    convention = (way.constant if way else 0) - ((case.billed or 0) - (fields.billed_completion or 0))
    evidence = _evidence(case, chosen, found, grade, share, prompt if chosen_prompts else None, convention, offset)
    rho = case.window.get("reasoning_count")
    residual = residual_of(
        fields, len(prompt.ids) + offset if prompts else None, len(ids) + convention, found.parts, int(rho or 0)
    )
    surviving = max(chosen.fitting, 1) * max(len(chosen_prompts), 1) if found.way or found.witness else 0
    survivors = _survivors(case, sequences, (prompt.ids, ids), found.rivals) if grade == "C1" else ()
    counts = (chosen.tried * max(1, len(prompts)), surviving, distinct if surviving else 0)
    return result(case, prompt.ids, ids, grade, p, residual, counts, reasons, evidence, survivors)


def _outline(profile: Profile, parts: Parts) -> Ids:
    """The turn with one id for each text: enough for the grammar where all texts were encoded with control tokens off."""
    calls = tuple(
        replace(c, head=c.head[:1], arguments=c.arguments[:1] if c.arguments is not None else None) for c in parts.calls
    )
    return assemble(profile, replace(parts, reasoning=parts.reasoning[:1], content=parts.content[:1], calls=calls))


def _evidence(
    case: Case,
    chosen: Selection,
    found: Found,
    grade: str,
    share: float,
    prompt: PromptCandidate | None,
    convention: int,
    offset: int,
) -> dict[str, Any]:
    way = found.way.way if found.way else None
    return {
        "basis": GRADES[grade].basis[0] if GRADES[grade].proven else "bill",
        "reading": way.reading.name if way else None,
        "spacing": way.reading.spacing if way else "verbatim",
        "edits": _edits(way.frame, way.reasoning, way.content) if way else {},
        "tool_ids": way.frame.tool_ids if way else "wire",
        "arguments": way.frame.arguments if way else "wire",
        "leaked": bool(way and way.frame.leaked),
        "reasoning_closed": found.parts.closed,
        "counts_end": way.constant >= 0 if way else True,
        "reasoning_apart": bool(case.mode.apart or case.window.get("reasoning_apart")),
        "convention": {"completion": convention, "prompt": offset},
        "prompt_forms": list(prompt.forms) if prompt else [],
        "wire_text": True,
        "witness": found.witness or None,
        "witnessed": round(found.witnessed, 4),
        "posterior": round((found.way.share if found.way else 0.0) * share, 6),
    }


def _edits(frame: Frame, reasoning: tuple[str, str], content: tuple[str, str]) -> dict[str, list[str]]:
    """{edge: [whitespace on the wire, whitespace that the model wrote]} where they differ."""
    wire = (frame.reasoning.lead, frame.reasoning.trail, frame.content.lead, frame.content.trail)
    return {edge: [a, b] for edge, a, b in zip(EDGES, wire, (*reasoning, *content), strict=True) if a != b}


def _survivors(
    case: Case, sequences: Sequence[tuple[Ids, Chosen]], best: tuple[Ids, Ids], rivals: Sequence[Ids]
) -> tuple[Ids, ...]:
    """The other sequences that are left open, at most MAX_SURVIVORS. `rivals`: completions that a witness leaves open."""
    whole = (*best[0], *best[1])
    out = [ids for rival in rivals if (ids := (*best[0], *rival)) != whole]
    for prompt, chosen in sequences:
        ids = (*prompt, *chosen.ids(case.profile))
        if ids != whole and ids not in out:
            out.append(ids)
    return tuple(out[:MAX_SURVIVORS])


def _grade(attempt: Attempt, found: Found, share: float, distinct: int, reasons: list[str]) -> tuple[str, float]:
    """Grade and p_exact of a billed text answer; may add the reason for a low grade."""
    case, chosen, fields = attempt.case, attempt.chosen, attempt.case.fields
    if reasons:
        return "Q", 0.0
    if not attempt.prompts:
        reasons.append(f"prompt: {attempt.no_prompt}")
        return "D", P_UNVERIFIED
    p = share * found.p
    if found.witness == "logprobs" and share > B1_FLOOR:
        return "A1", p
    if case.mode.apart and case.window and not case.window.get("reasoning_apart"):
        reasons.append("it fits if the reasoning is billed apart, which the provider's other answers do not show")
        return "C1", 0.5 * p
    if chosen.contradicted or attempt.odd_prompt:
        reasons.append("the provider's wire profile does not fit this row, another reading does")
        return "C1", 0.5 * p
    doubt = doubt_of(case.profile, fields)
    if doubt is not None:
        reasons.append(f"canonical: {doubt}")
        return "C1", P_IN_DOUBT * p
    if found.reason:
        reasons.append(found.reason)
        return "C1", p
    if not case.window and not found.witness:
        p *= KNOWN_WORLD
    way = found.way.way if found.way else None
    if way and case.decided and _unheard_of(case, way):
        if case.is_of_window and not _often(case, way):
            reasons.append(
                "the model hardly ever writes such whitespace, and few other answers tell whether this provider puts it there"
            )
            return "C1", SELDOM_SEEN * p
        reasons.append("the model hardly ever writes such whitespace: has the provider changed since its profile was learned?")
        return "C1", 0.5 * p
    if way and case.truncated and _cut_may_be_stripped(way):
        reasons.append("cut by length at a provider that takes whitespace away: what stood at the cut is not known")
        return "C1", 0.9 * p
    unseen = max(deviations_of(case, 0).unseen, float((case.window.get("damage") or {}).get("text", 0.0)) * SAME_COUNT["text"])
    if not case.decided or distinct != 1 or p < B1_FLOOR or unseen > UNSEEN_DAMAGE:
        reasons.append(_open_question(case, found.parts, distinct, p, unseen))
        inside = cut_share(case, way) if way and case.truncated else 0.0
        if inside > UNSEEN_DAMAGE:
            reasons.append(
                f"cut by length: {inside:.0%} of the places in this text lie inside a character, whose first ids stand in no text"
            )
        return "C1", p
    if way and (
        way.frame.leaked
        or way.frame.arguments not in ("wire", OFF_PATH)
        or (case.window.get("arguments") == "written anew" and way.frame.parts.calls)
    ):
        return "R", p
    return ("A2" if found.witness == "boundaries" else "B1"), p


def _open_question(case: Case, attempt_parts: Parts, distinct: int, p: float, unseen: float) -> str:
    """Why a row that fits is no better than C1."""
    if case.fields.logprobs and mute_edges(case.profile, case.fields, attempt_parts):
        return "open: the log-probabilities say nothing of the ids with which the texts begin"
    if not case.window:
        return "open: nothing was learned of this provider"
    if not case.decided:
        return f"open: the provider is not decided ({case.window.get('why')})"
    if case.learned_prompt.get("contradiction"):
        return f"open: the prompt's template is not known ({case.learned_prompt['contradiction']})"
    if distinct != 1:
        return f"open: {distinct} id sequences meet the bill"
    if unseen > UNSEEN_DAMAGE:
        return f"open: so many bills of this provider are met by nothing that some {unseen:.1%} of those that are met are changed as well"
    return f"open: p_exact {p:.3f} is below {B1_FLOOR}: answers that are not canonical, or changed on the way, meet such a bill too often"


def _unheard_of(case: Case, way: Way) -> bool:
    """Whether the whitespace that the wire shows would be ruled out for the model: a reading of yesterday's provider says so."""
    texts = (way.frame.reasoning, way.frame.reasoning, way.frame.content, way.frame.content)
    share = 1.0
    for k, (edge, run) in enumerate(zip(EDGES, (*way.reasoning, *way.content), strict=True)):
        calls = way.frame.parts.section is not None
        if texts[k].core and not way.reading.edges[k].hides(calls) and not (case.truncated and k % 2):
            share *= case.habit_share(place_of(edge, calls), run)
    return share < RULED_OUT


def _often(case: Case, way: Way) -> bool:
    """Whether the provider shows one of these runs oftener than the tail of a model's habit would be."""
    rows, calls = int(case.window.get("rows") or 0), way.frame.parts.section is not None
    shown = (
        case.times_unheard_of(place_of(edge, calls), run) for edge, run in zip(EDGES, (*way.reasoning, *way.content), strict=True)
    )
    return any(times and at_least(times, rows, RULED_OUT) < TAIL_ALPHA for times in shown)


def _cut_may_be_stripped(way: Way) -> bool:
    """Whether the server takes whitespace from the back of the text that the length limit cut: what stood there has no habit."""
    return (way.reading.edges[3] if way.frame.content.text else way.reading.edges[1]).kind in ("strip", "trim")


# ---------------------------------------------------------------------------------------------------- a word for the reader
def _completion_misfit(case: Case, stands: int, attempts: Sequence[Attempt]) -> str:
    """What fits, and why that is ruled out; else that nothing does."""
    billed = case.fields.billed_completion
    other = next((attempt for attempt in attempts[1:] if attempt.chosen.completions), None)
    prefix = "completion_equals_bill: "
    if other is not None:
        counts = f"as the text stands {stands}, billed {billed}{_cut_hint(case, stands)}"
        return f"{prefix}it fits {other.case.mode.words}, but then the prompt meets no bill ({counts})"
    if stands == case.billed and case.window:
        learned = f"what was learned of the provider ({case.window.get('reading')}) rules it out"
        return f"{prefix}the text as it stands has the {billed} tokens that were billed, but {learned}"
    return f"{prefix}no hypothesis fits (as the text stands {stands}, billed {billed}{_misfit_hint(case, stands)})"


def _misfit_hint(case: Case, stands: int) -> str:
    """When an answer was cut inside its calls and says that it was not (what is lost cannot be put back); when re-serialised arguments
    (docs/research/openrouter-contract.md#4.3-6) would explain the bill of a provider that is not known for it (they are not put
    in: the model's own text is lost then)."""
    if cut := _cut_hint(case, stands):
        return cut
    asked = case.request.get("max_tokens", case.request.get("max_completion_tokens"))
    if case.fields.tool_calls and case.fields.finish_reason in ENDS_TURN and case.fields.billed_completion == asked:
        return "; the bill is max_tokens: cut inside a call, and the rest of it not returned?"
    encode = case.profile.encode
    texts = [(call.arguments, respelled(call.arguments, "spaced") or call.arguments) for call in case.fields.tool_calls]
    try:
        change = sum(len(encode(spaced)) - len(encode(sent)) for sent, spaced in texts)
    except ExactError:  # an escaped lone surrogate in the arguments is one in what they parse to
        return ""
    if change and stands + change == case.fields.billed_completion:
        return f"; {stands + change} with spaced tool arguments: re-serialised on the way?"
    odd = case.spelling.misses(case.drawn, case.billed or 0)
    return f"; some {odd:.0%} of this model's answers of this length are spelled as no encoder does" if odd >= OFTEN_ODD else ""


def _cut_hint(case: Case, stands: int) -> str:
    """When the length limit may have cut a character, whose first bytes servers leave out of the text."""
    cut = case.truncated and 0 < (case.billed or 0) - stands <= max(CUT_CHANGES)
    return "; cut by length inside a character? The ids of its first bytes stand in no text" if cut else ""
