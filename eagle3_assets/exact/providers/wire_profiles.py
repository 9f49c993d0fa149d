"""Wire profiles: what was learned about each provider, from its bills and from what the model itself is known to do.

Belongs here: the order of learning, the JSON it is kept in, and reading it. Does not belong here: the rule that decides
(`learning.py`, `prompt_learning.py`), the model's habits (`habits.py`), single rows (`selection.py`), stand-in profiles (another
format).

Order. Rows with ids say what the model does (habits at edges, how often it is not canonical). Then every provider is decided by
its bills and these habits; what decided providers show is added to the habits, and the undecided are tried again. A provider's
whole answers and its streams go through different parsers and are learned apart; in each, change points cut windows.

Schema (version 6):
    version, profile, tokenizer_sha256, rule {…}, model {place: {fields, with, known, share, runs}, sampling {canonicality {strata
    [{temperature, top_p (buckets), kind, ids, regions}] …}, lambda_per_token, count_neutral (both for readers), changes {tokens more:
    share}, basis, rows_with_ids, tokens, not_canonical, same_count, odd_tool_ids, unclosed, counts (the same unsmoothed, for the
    next learning), sorted_keys {keys|listed: share of such calls (`key_order.py`) whose keys the model sorts by itself, by_call
    {tool with its keys: share}}}},
    providers {name: the summary of its largest latest window + windows [window …]}
    window: {from, to (unix seconds of the first and last answer), stream, rows, explained (by the reading that the other half of
    the answers chose), decided, why, cannot_be_exact (reason or null), spacing, counts_end, extra, reading,
      readings [{name, weight, counts_end, extra, edges {edge: {mechanism, model {run: share}}}}], margins {rival: nats},
      ruled_out [rival], reasoning_count (billed minus R + 1, null: says nothing), reasoning_apart (billed beside the completion),
      prefill_billed (the <think> of the prompt is billed as output, so not in answers without thinking),
      arguments (as returned, written anew, not sure), one_style, sorts_keys, damage {text|calls|keys|listed: share of such rows
      that is changed on the way}, damage_parts [{fact, weight, share, absent: answers
      without the fact are meant}] (`damage.py`, `unlike_others.py`, `unlike_words.py`), unheard_of {place: {run that it shows and
      nobody else: how often}}, tool_ids, aligned (share of streams whose deltas are whole ids, absent where none shows it),
      strata {tools|no_tools: {rows, explained, lossy, prompt {…}}}}
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.providers import damage, key_sorting, learning, prompt_learning, reading_space
from eagle3_assets.exact.providers.learning import Decision, Verdict, turn_of
from eagle3_assets.exact.providers.unlike_others import unlike_parts
from eagle3_assets.exact.providers.unlike_words import WordCounts, unlike_words
from eagle3_assets.exact.search.edges import EDGES, PLACES
from eagle3_assets.exact.search.frames import count_calls
from eagle3_assets.exact.search.habits import (
    Habit,
    Habits,
    Sampling,
    Spelling,
    known_or,
    learn_from_ids,
    prior_habits,
    together,
)
from eagle3_assets.exact.search.modes import likeliest_mode, thinks_in
from eagle3_assets.exact.search.observations import ARGUMENTS, Observation, observe
from eagle3_assets.exact.search.proofs import share_of_streams
from eagle3_assets.exact.search.readings import RULED_OUT, reading_of
from eagle3_assets.exact.search.wire_facts import word_marks, words_of
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import storable
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer

VERSION = 6
MAX_ROWS = 800  # of a provider, its streams apart; between this and twice as many are kept, evenly over the run
MAX_ID_ROWS = 4000
NAMED_ROWS = 400  # answers of a provider whose words are kept by name: a frequent word stands in one of them
RHO_SHARE, SURE_OF_ARGUMENTS = 0.9, 0.999
SHOWN = 3  # texts of a provider that must show a run before it counts as seen on a wire
ONE_STYLE_CALLS = 15
ESTIMATES = 0.5  # fewer bills than this fit any reading: counts are estimates or another tokenizer's
COUNTED = ("rows", "tokens", "heads", "running", "open_ends", "unclosed")  # of `Sampling`
Key = tuple[str, bool]  # provider, streamed


@dataclass
class Thinned:
    """Answers of one provider, thinned by a hash of the sample when there are too many, so that the run is covered evenly."""

    rows: list[tuple[int, Observation]] = field(default_factory=list)
    ceiling: int = 2**32

    def wants(self, mark: int) -> bool:
        return mark < self.ceiling

    def add(self, mark: int, row: Observation) -> None:
        self.rows.append((mark, row))
        if len(self.rows) > 2 * MAX_ROWS:
            self.ceiling //= 2
            self.rows = [item for item in self.rows if item[0] < self.ceiling]


@dataclass
class Window:
    """Answers between two changes, with what was learned of them."""

    key: Key
    rows: list[Observation]
    decision: Decision | None = None
    apart: bool = False
    prefill: bool = False
    rho: int | None = None


def provider_of(answer_provider: str | None, fields_provider: str | None, source: str) -> str:
    """The key of a provider in the JSON."""
    return storable(answer_provider or fields_provider) or f"({source})"


def entry_of(wire_profiles: Mapping[str, Any] | None, provider: str) -> dict[str, Any] | None:
    """One provider's entry with the model's habits and, in each window, the readings also as such (`parsed`); None when nothing was
    learned about it."""
    entry = ((wire_profiles or {}).get("providers") or {}).get(provider)
    if not isinstance(entry, Mapping):
        return None
    whole = wire_profiles or {}
    windows = [
        {**w, "turns": {turn: _parsed(told) for turn, told in (w.get("turns") or {}).items()}} for w in entry.get("windows") or ()
    ]
    model = whole.get("model") or {}
    spelling = Spelling.of(model.get("sampling") or {})
    return {**entry, "windows": windows, "version": whole.get("version"), "model": model, "spelling": spelling}


def same_target(wire_profile: Mapping[str, Any], profile: Profile) -> bool:
    """Whether habits were learned by this version of the learner for this target."""
    return wire_profile.get("version") == VERSION and wire_profile_fault(wire_profile, profile) is None


def wire_profile_fault(wire_profile: Mapping[str, Any], profile: Profile) -> str | None:
    """Why habits that were learned with one tokenizer say nothing about rows of another one; None where they were learned with this."""
    name, sha256 = wire_profile.get("profile"), wire_profile.get("tokenizer_sha256")
    if name != profile.name:
        return f"the wire profile was learned for {name or 'a model that it does not name'}, not for {profile.name}"
    if sha256 != profile.tokenizer_sha256:
        return f"the wire profile was learned with other tokenizer files ({str(sha256)[:12]}…, these are {profile.tokenizer_sha256[:12]}…)"
    return None


def _parsed(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {**turn, "parsed": tuple(map(reading_of, turn.get("readings") or ()))}


# ---------------------------------------------------------------------------------------------------- learning
def learn(
    profile: Profile, answers: Iterable[WireAnswer], *, thinking: bool = True, prior: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Learn every provider's wire profile (schema above). `thinking` is the campaign's, where a request says nothing. `prior`: what was
    learned before: the model is the same, so its habits count as if these answers had shown them. Raises ExactError for a prior of another
    target.

    Answers with server ids speak about the model only; failed ones and those without a bill are passed over.
    """
    if prior is not None and (fault := wire_profile_fault(prior, profile)) is not None:
        raise ExactError(f"{fault}; learn without it, or with the files that it was learned with")
    of_ids, sampling = _known_before(prior or {})
    thinned: dict[Key, Thinned] = defaultdict(Thinned)
    names: dict[int, str] = {}  # words behind their marks
    for answer in answers:
        if answer.outcome != "finished":
            continue
        fields = parse_fields(answer.body, answer.content_type)
        if fields.output_ids is not None:
            if sampling.rows < MAX_ID_ROWS:
                cut = fields.finish_reason == "length"
                thinks = thinks_in(profile, answer.request, fields.output_ids, truncated=cut, default=thinking)
                prior_calls = count_calls(answer.request.get("messages") or [])
                learn_from_ids(profile, answer.request, fields, thinks, of_ids, sampling, prior_calls)
            continue
        key = (provider_of(answer.provider, fields.provider, answer.source), bool(answer.request.get("stream")))
        mark = int.from_bytes(hashlib.sha256(f"{answer.sample_id}:{answer.turn}".encode("utf-8", "replace")).digest()[:4], "big")
        if not thinned[key].wants(mark):
            continue
        observation = observe(
            profile, answer.request, fields, at=answer.finished_at, mode=likeliest_mode(profile, answer.request, fields, thinking)
        )
        if observation is not None:
            thinned[key].add(mark, observation)
            if len(thinned[key].rows) <= NAMED_ROWS:
                names.update((int(word_marks([word])[0]), word) for word in words_of(fields))
    observed = {key: sorted((row for _, row in kept.rows), key=lambda row: row.at) for key, kept in thinned.items() if kept.rows}
    windows, habits, shown = _decide_all(observed, of_ids, sampling, prior_habits(profile))
    rates = {**sampling.rates(_misfits(windows)), "sorted_keys": key_sorting.natural_order([window.rows for window in windows])}
    words = WordCounts.of([row for window in windows for row in window.rows])
    return {
        "version": VERSION,
        "profile": profile.name,
        "tokenizer_sha256": profile.tokenizer_sha256,
        "rule": {
            "deciding_rows": reading_space.DECIDING_ROWS,
            "margin_nats": learning.MARGIN_NATS,
            "change_nats": learning.CHANGE_NATS,
            "misses_bill": learning.MISSES_BILL,
            "odd_text": learning.ODD_TEXT,
            "explains": learning.EXPLAINS,
        },
        "model": {
            **{place: habits[place].as_json(place) for place in PLACES},
            "sampling": {**rates, "counts": _counts(sampling)},
        },
        "providers": {
            name: _provider_json(found, rates, _elsewhere(name, windows, of_ids, shown, words, names))
            for name, found in sorted(_by_name(windows).items())
        },
    }


def _known_before(prior: Mapping[str, Any]) -> tuple[Habits, Sampling]:
    """The model's habits and its sampling as an earlier learning left them."""
    model = prior.get("model") or {}
    habits = {place: Habit(Counter((model.get(place) or {}).get("runs") or {})) for place in PLACES}
    told = model.get("sampling") or {}
    if not told:
        return habits, Sampling()
    counts = told.get("counts") or {}
    changes = Counter({int(change): int(n) for change, n in (counts.get("changes") or {}).items()})
    numbers = {name: int(counts.get(name) or 0) for name in COUNTED}
    return habits, Sampling(changes=changes, canonicality=Spelling.of(told).canonicality, **numbers)


def _counts(sampling: Sampling) -> dict[str, Any]:
    """What `_known_before` reads."""
    return {
        **{name: getattr(sampling, name) for name in COUNTED},
        "changes": {str(k): n for k, n in sorted(sampling.changes.items())},
    }


def _decide_all(
    observed: Mapping[Key, list[Observation]], of_ids: Habits, sampling: Sampling, prior: Habits
) -> tuple[list[Window], Habits, dict[Key, Habits]]:
    """Windows of all providers, the habits with what decided ones show, and what each of these shows. Two rounds: the second knows what
    the first showed."""
    spelling, _ = sampling.spelling()
    windows: list[Window] = []
    shown: dict[Key, Habits] = {}
    runs = {key: _runs_seen(rows) for key, rows in observed.items()}
    for _ in range(2):
        windows, before = [], dict(shown)
        for key, rows in sorted(observed.items()):
            habits = known_or(together(of_ids, *(habit for other, habit in before.items() if other != key)), prior)
            seen = {edge: {run for other, told in runs.items() if other[0] != key[0] for run in told[edge]} for edge in EDGES}
            found = [_decide(Window(key, part), habits, spelling, seen) for part in _cut(rows, habits, spelling)]
            windows += found
            clear = [learning.model_runs(*told) for window in found for told in _decided_turns(window)]
            if clear:
                shown[key] = together(*clear)
            else:
                shown.pop(key, None)
    return windows, together(of_ids, *shown.values()), shown


def _runs_seen(rows: Sequence[Observation]) -> dict[str, set[str]]:
    """{edge: runs that at least SHOWN of the texts show there}"""
    out: dict[str, set[str]] = {}
    for edge in EDGES:
        told = Counter(run for row in rows if (run := reading_space.run_of(row, edge)))
        out[edge] = {run for run, count in told.items() if count >= SHOWN}
    return out


def _decided_turns(window: Window) -> Iterator[tuple[list[Observation], Verdict]]:
    """The answers of each kind of turn that is decided, with its verdict."""
    for turn, verdict in (window.decision.verdicts if window.decision else {}).items():
        if verdict.decided:
            yield [row for row in window.rows if turn_of(row) == turn], verdict


def _cut(rows: list[Observation], habits: Habits, spelling: Spelling) -> list[list[Observation]]:
    """The answers between changes; one part where times are not known."""
    if len({row.at for row in rows}) < 2 * learning.SHORTEST_WINDOW:
        return [rows]
    space = reading_space.space_of(rows, habits, one_provider=False)
    at = learning.change_point(rows, space, learning.scores(rows, space, habits, spelling, None))
    at = prompt_learning.change_point(rows) if at is None else at
    if at is None:
        return [rows]
    return [part for piece in (rows[:at], rows[at:]) for part in _cut(piece, habits, spelling)]


def _decide(window: Window, habits: Habits, spelling: Spelling, seen: Mapping[str, set[str]]) -> Window:
    """Decide a window; where its reasoning counts follow a convention, once more with them. A provider whose bills nothing explains may
    bill reasoning apart (maple#824: completion_tokens without reasoning_tokens)."""
    space = reading_space.space_of(window.rows, habits)

    def decided(rows: list[Observation]) -> tuple[Decision, int | None]:
        found = learning.decide(rows, space, habits, learning.scores(rows, space, habits, spelling, None), spelling, seen=seen)
        rho = _reasoning_convention(rows, found)
        if rho is not None:
            table = learning.scores(rows, space, habits, spelling, rho)
            found = learning.decide(rows, space, habits, table, spelling, seen=seen)
        return found, rho

    window.decision, window.rho = decided(window.rows)
    told = [row for row in window.rows if row.billed_reasoning]
    if sum(window.decision.missed) > len(window.rows) / 2 and len(told) >= reading_space.DECIDING_ROWS:
        rows = [replace(row, billed=row.billed + (row.billed_reasoning or 0)) for row in window.rows]
        apart, rho = decided(rows)
        if sum(apart.missed) < sum(window.decision.missed) / 2:
            window.rows, window.decision, window.rho, window.apart = rows, apart, rho, True
    if not window.decision.decided and 0 < sum(map(_thinks, window.rows)) < len(window.rows):
        rows = [row if _thinks(row) else _as_prefilled(row) for row in window.rows]
        billed, rho = decided(rows)
        constants = {verdict.best.billing.rule(turn == "calls").extra for turn, verdict in billed.verdicts.items()}
        if 1 in constants and sum(billed.missed) <= sum(window.decision.missed):
            window.rows, window.decision, window.rho, window.prefill = rows, billed, rho, True
    return window


def _thinks(row: Observation) -> bool:
    return row.closed or bool(row.reasoning.text)


def _as_prefilled(row: Observation) -> Observation:
    """An answer without thinking, billed as the others are where their prefilled <think> counts as output: nothing was prefilled in it."""
    return replace(row, billed=row.billed + 1, billed_prompt=row.billed_prompt - 1 if row.billed_prompt else row.billed_prompt)


def _reasoning_convention(rows: Sequence[Observation], decision: Decision) -> int | None:
    """Billed reasoning tokens minus (R + the closing marker) under the best reading; None where the provider tells none that can
    be relied on (absent, 0, estimated)."""
    told: Counter[int] = Counter()
    told_rows = [row for row in rows if row.billed_reasoning is not None and row.reasoning.text]
    for row in told_rows:
        found = learning.explanations(row, decision.verdicts[turn_of(row)].best)
        if found:
            runs, _ = max(found, key=lambda item: item[1])
            told[(row.billed_reasoning or 0) - row.reasoning.count(runs[0], runs[1]) - int(row.closed)] += 1
    if len(told_rows) < reading_space.DECIDING_ROWS or not told:
        return None
    convention, count = told.most_common(1)[0]
    return convention if count >= RHO_SHARE * sum(told.values()) and -1 <= convention <= 2 else None


def _misfits(windows: Sequence[Window]) -> list[tuple[int, bool]]:
    return [
        (row.billed, missed)
        for window in windows
        if window.decision
        for row, missed in zip(window.rows, window.decision.missed, strict=True)
        if window.decision.verdicts[turn_of(row)].decided
    ]


def _by_name(windows: Iterable[Window]) -> dict[str, list[Window]]:
    out: dict[str, list[Window]] = defaultdict(list)
    for window in windows:
        out[window.key[0]].append(window)
    return out


# ---------------------------------------------------------------------------------------------------- as JSON
@dataclass(frozen=True)
class Elsewhere:
    """What is known without one provider: the answers of the others, and the model's habits as they and rows with ids show them."""

    rows: list[Observation]
    providers: int  # that these are of
    habits: Habits
    words: WordCounts  # of everybody
    names: Mapping[int, str]


def _elsewhere(
    name: str, windows: Sequence[Window], of_ids: Habits, shown: Mapping[Key, Habits], words: WordCounts, names: Mapping[int, str]
) -> Elsewhere:
    rows = [row for window in windows if window.key[0] != name for row in window.rows]
    providers = len({window.key[0] for window in windows} - {name})
    return Elsewhere(
        rows, providers, together(of_ids, *(habits for key, habits in shown.items() if key[0] != name)), words, names
    )


def _unheard_of(window: Window, elsewhere: Elsewhere) -> dict[str, dict[str, int]]:
    """{place: runs that this window shows and that hundreds of texts elsewhere do not, with how often}: a provider is no witness of its
    own."""
    told = together(*(learning.model_runs(*part) for part in _decided_turns(window)))
    out = {}
    for place, habit in elsewhere.habits.items():
        runs = told[place].runs if habit.fields >= 1 / RULED_OUT else {}
        strange = {run: round(times) for run, times in sorted(runs.items()) if habit.share(run) < RULED_OUT}
        if strange:
            out[place] = strange
    return out


def _provider_json(windows: Sequence[Window], rates: Mapping[str, Any], elsewhere: Elsewhere) -> dict[str, Any]:
    """The summary of a provider is that of its latest window in the form (whole answers or streams) that most answers have."""
    by_form = Counter({stream: sum(len(w.rows) for w in windows if w.key[1] == stream) for stream in (False, True)})
    form = by_form.most_common(1)[0][0]
    shown = [_window_json(window, rates, elsewhere) for window in sorted(windows, key=lambda w: (w.key[1] != form, w.rows[0].at))]
    latest = [window for window in shown if window["stream"] == form][-1]
    return {**{key: value for key, value in latest.items() if key not in ("from", "to", "stream")}, "windows": shown}


def _window_json(window: Window, rates: Mapping[str, Any], elsewhere: Elsewhere) -> dict[str, Any]:
    """A window; at its top what holds for the kind of turns that most answers have."""
    decision, rows = window.decision, window.rows
    assert decision is not None
    sorts = key_sorting.sorts_keys(rows, rates["sorted_keys"])
    strata: dict[str, dict[str, Any]] = {}
    for name, tools in (("no_tools", False), ("tools", True)):
        part = [(row, missed) for row, missed in zip(rows, decision.missed, strict=True) if row.tools == tools]
        if part:
            strata[name] = {
                "rows": len(part),
                "explained": sum(not missed for _, missed in part),
                "lossy": sum(row.lossy for row, _ in part),
                "prompt": prompt_learning.decide_prompt([row for row, _ in part]),
            }
    turns = {
        turn: _turn_json(verdict, [row for row in rows if turn_of(row) == turn]) for turn, verdict in decision.verdicts.items()
    }
    main = max(turns.values(), key=lambda turn: int(turn["rows"]))
    hopeless = [turn["cannot_be_exact"] for turn in turns.values()]
    prompts = [stratum["prompt"]["cannot_be_exact"] for stratum in strata.values()]
    return {
        **main,
        "from": rows[0].at,
        "to": rows[-1].at,
        "stream": window.key[1],
        "rows": len(rows),
        "explained": sum(int(turn["explained"]) for turn in turns.values()),
        "decided": decision.decided,
        "why": "; ".join(f"{turn}: {found['why']}" for turn, found in turns.items()) if len(turns) > 1 else main["why"],
        "cannot_be_exact": next((why for told in (hopeless, prompts) if all(told) for why in told), None),
        "reasoning_count": window.rho,
        "reasoning_apart": window.apart,
        "prefill_billed": window.prefill,
        "one_style": learning.one_style(rows) >= ONE_STYLE_CALLS,
        "sorts_keys": sorts,
        **_damage(window, rates, elsewhere, sorts=sorts),
        "unheard_of": _unheard_of(window, elsewhere),
        "tool_ids": _tool_ids(rows),
        **_alignment(rows, rates),
        "turns": turns,
        "strata": strata,
    }


def _damage(window: Window, rates: Mapping[str, Any], elsewhere: Elsewhere, *, sorts: bool) -> dict[str, Any]:
    assert window.decision is not None
    told = damage.damage_json(window.rows, window.decision.differences, rates, sorts=sorts)
    anew = any(verdict.arguments == "written anew" for verdict in window.decision.verdicts.values())
    # of two providers that differ nobody can say which one rewrites
    unlike = unlike_parts(window.rows, elsewhere.rows, rewrites_calls=anew) if elsewhere.providers > 1 else None
    unlike = [] if unlike is None else [*unlike, *unlike_words(window.rows, elsewhere.words, elsewhere.names)]
    return {**told, "damage_parts": [*damage.strange_parts(window.rows, elsewhere.rows), *unlike, *told["damage_parts"]]}


def _alignment(rows: Sequence[Observation], rates: Mapping[str, Any]) -> dict[str, float]:
    """`aligned`: the share of streams whose deltas are whole ids; nothing where no stream shows it."""
    share = share_of_streams([row.streams for row in rows], float(rates["lambda_per_token"]))
    return {} if share is None else {"aligned": round(share, 5)}


def _turn_json(verdict: Verdict, rows: Sequence[Observation]) -> dict[str, Any]:
    best = verdict.best
    rule = best.billing.rule(turn_of(rows[0]) == "calls")
    return {
        "rows": verdict.rows,
        "explained": verdict.fits,
        "decided": verdict.decided,
        "why": verdict.why,
        "cannot_be_exact": _hopeless(verdict, rows),
        "spacing": best.spacing,
        "counts_end": rule.counts_end,
        "extra": rule.extra,
        "reading": best.name,
        "readings": [reading.as_json() for reading in verdict.readings],
        "edges": {edge: mechanism.as_json() for edge, mechanism in zip(EDGES, best.edges, strict=True)},
        "margins": {name: round(min(margin, 1e6), 2) for name, margin in list(verdict.margins.items())[:8]},
        "ruled_out": list(verdict.ruled_out)[:24],
        "arguments": verdict.arguments if max(verdict.arguments_p) >= SURE_OF_ARGUMENTS else "not sure",
        "arguments_p": dict(zip(ARGUMENTS, verdict.arguments_p, strict=True)),
    }


def _hopeless(verdict: Verdict, rows: Sequence[Observation]) -> str | None:
    """Why no answer of this kind can be exact, in words; None where some can."""
    if len(rows) < reading_space.DECIDING_ROWS or verdict.fits >= ESTIMATES * len(rows):
        return None
    apart = sorted(abs(row.billed - row.stands) / max(row.billed, 1) for row in rows)
    kind = "another tokenizer" if _leans(rows) else "estimated counts"
    if sum(row.lossy for row in rows) >= 0.2 * len(rows):
        kind = "a gateway that loses characters"
    return f"{verdict.fits} of {len(rows)} bills fit the best reading of its text ({kind}; half are off by {apart[len(apart) // 2]:.1%})"


def _leans(rows: Sequence[Observation]) -> bool:
    """Whether nearly all bills are off in one direction."""
    more = sum(row.billed > row.stands for row in rows)
    return max(more, len(rows) - more) >= 0.9 * len(rows)


def _tool_ids(rows: Sequence[Observation]) -> str:
    """What is known of the ids of calls (`frames.TOOL_IDS`): numbered over the conversation, anew in each answer, or the model's
    own."""
    told = Counter(row.numbering for row in rows if row.numbering)
    if told["local"] >= 3 and not told["running"]:
        return "local"
    if told["running"] >= 3:
        return "verbatim" if told["odd"] + told["local"] else "running"
    return "unknown"
