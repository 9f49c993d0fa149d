"""Learning which prompt form a provider uses, from billed prompt counts.

Belongs here: one stratum's verdict, and where in time a provider changed its prompts. Does not belong here: the forms
(`prompt_forms.py`, `hypotheses.py`), completions (`learning.py`), single rows (`prompt_selection.py`).

A form is one word a factor. Every combination of words that some row tells apart is held against every bill; each word is judged by the
best combination that holds it: it is ruled out when the winner meets at least DECIDING_ROWS bills that it misses, and almost none the other
way round. What no row tells apart stays open: a form that was learned on rows without history decides nothing about history.

A constant more in every prompt is a *stub* that is counted and not shown up to STUB tokens (ROCm/ATOM#1727: 44 of 44 cases +3); what is
more is text that the provider puts in, whose ids nobody knows: its prompts cannot be exact.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.exact.prompt_side.prompt_forms import FACTORS, USUAL, form_name, form_of, prior_of_tools, prior_of_word
from eagle3_assets.exact.prompt_side.prompt_table import NO_TOOLS, Part, PromptTable, WholeTable
from eagle3_assets.exact.providers import learning
from eagle3_assets.exact.search.observations import Observation
from eagle3_assets.exact.search.wire_facts import REQUEST_FACTS

DECIDING_ROWS, WINS, EXPLAINS, CONSTANT = 8, 0.95, 0.80, 0.95
# Fewer bills than this fit: the prompts are of no form that we know (13 % meet one by chance,
# docs/research/recorded-traffic.md#3-11)
HOPELESS = 0.25
STUB = 3
PRIOR_ROWS = 1.0  # the weight of a prior, in rows
KEPT_FORMS, KEPT_WEIGHT = 12, 1e-4
NEVER = -(10**6)  # a count that no bill has
MOST_FORMS, LIKELIEST_FORMS = 4000, 64
# How likely a row's bill is met by its provider's form, and by another one
MET, MISSED = 0.95, 0.10
Ints = npt.NDArray[np.int64]
Words = tuple[str, ...]


@dataclass(frozen=True)
class _Grid:
    """Counts [rows, forms] of `forms` (a word a factor) in each row, and a number that tells ids of one row apart."""

    forms: list[Words]
    counts: Ints
    codes: Ints
    billed: Ints


def decide_prompt(rows: Sequence[Observation]) -> dict[str, Any]:
    """{form, offset, decided, explained, rows, forms {form: bills met}, ruled_out [word], factors {factor: {word: weight}},
    cannot_be_exact: reason or None, contradiction: what no form explains at all, or None}. `explained` counts bills that a form meets
    which is not ruled out; `factors` holds the words that rows of this stratum can tell apart."""
    counted = _usable(rows)
    if not counted:
        return _verdict(None, 0, [], {}, {}, 0, 0, False, None) | {"contradiction": None}
    grid = _grid(counted)
    apart = grid.billed[:, None] - grid.counts
    prior = np.array([_prior(words) for words in grid.forms])
    offset = _offset(apart, prior)
    hits = apart == offset
    won = hits.sum(axis=0)
    winner = int(np.lexsort((prior, won))[-1])
    mine = (hits[:, [winner]] & ~hits).sum(axis=0)
    theirs = (hits & ~hits[:, [winner]]).sum(axis=0)
    out = (mine >= DECIDING_ROWS) & (mine >= WINS * (mine + theirs))
    told = (grid.codes != grid.codes[:, [winner]]).any(axis=0)
    ruled_out, factors = _by_factor(grid, winner, out, told, mine, theirs)
    explained = int(hits[:, ~out].any(axis=1).sum())
    why = _hopeless(offset, explained, len(counted))
    against = _contradiction(counted, hits[:, ~out].any(axis=1))
    decided = why is None and against is None and explained >= EXPLAINS * len(counted) and not (~out & told).any()
    order = np.lexsort((prior, won))[::-1][:KEPT_FORMS]
    best = {form_name(grid.forms[k][0], grid.forms[k][1:]): int(won[k]) for k in order.tolist() if won[k]}
    name = form_name(grid.forms[winner][0], grid.forms[winner][1:])
    return _verdict(name, offset, ruled_out, best, factors, explained, len(counted), decided, why) | {"contradiction": against}


def change_point(rows: Sequence[Observation]) -> int | None:
    """Where a provider changed its prompts: the number of answers (in order of time) before, or None. By the same two-window score as
    completions (`learning.change_point`), over all forms with every constant up to STUB."""
    at = [k for k, row in enumerate(rows) if row.forms and row.billed_prompt]
    if len(at) < 2 * learning.SHORTEST_WINDOW:
        return None
    grid = _grid([rows[k] for k in at])
    apart = grid.billed[:, None] - grid.counts
    hits = np.concatenate([_distinct(apart == offset) for offset in range(-STUB, STUB + 1)], axis=1)
    table = np.where(hits, np.float32(np.log(MET)), np.float32(np.log(MISSED)))
    found = _change(table)
    return None if found is None else at[found]


def _distinct(hits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The columns, each pattern once."""
    _, first = np.unique(np.packbits(hits, axis=0), axis=1, return_index=True)
    return hits[:, first]


def _change(table: npt.NDArray[np.float32]) -> int | None:
    """Where two forms, one before and one behind, explain CHANGE_NATS more than one. `table` [answers in order of time, forms]."""
    n, sums = len(table), np.cumsum(table, axis=0, dtype=np.float64)
    gains = np.full(n, -np.inf)
    for k in range(learning.SHORTEST_WINDOW, n - learning.SHORTEST_WINDOW + 1):
        gains[k] = sums[k - 1].max() + (sums[-1] - sums[k - 1]).max() - sums[-1].max()
    at = int(gains.argmax())
    return at if gains[at] >= learning.CHANGE_NATS else None


def _verdict(
    form: str | None,
    offset: int,
    ruled_out: list[str],
    forms: dict[str, int],
    factors: dict[str, dict[str, float]],
    explained: int,
    rows: int,
    decided: bool,
    why: str | None,
) -> dict[str, Any]:
    return {
        "form": form,
        "offset": offset,
        "decided": decided,
        "explained": explained,
        "rows": rows,
        "forms": forms,
        "ruled_out": ruled_out,
        "factors": factors,
        "cannot_be_exact": why,
    }


# ---------------------------------------------------------------------------------------------------- the rule
def _offset(apart: Ints, prior: npt.NDArray[np.float64]) -> int:
    """The constant between bills and counts: none, unless one explains clearly more. A large one counts only where nothing small fits and
    nearly all rows have it."""
    met = {offset: int((apart == offset).sum(axis=0).max()) for offset in range(-STUB, STUB + 1)}
    best = max(met, key=lambda offset: (met[offset], -abs(offset)))
    rows = len(apart)
    if rows >= DECIDING_ROWS and met[best] < HOPELESS * rows:
        for form in np.argsort(-prior, kind="stable")[:LIKELIEST_FORMS].tolist():
            constant, count = Counter(apart[:, form].tolist()).most_common(1)[0]
            if count >= CONSTANT * rows:
                return int(constant)
    return best if met[best] >= met[0] + max(DECIDING_ROWS, rows // 10) else 0


def _contradiction(rows: Sequence[Observation], met: npt.NDArray[np.bool_]) -> str | None:
    """Conversations of one shape whose bills no form meets, in words: the server's template is not one of ours, and what it has in common
    with ours where counts agree is not known (other names of the roles have as many tokens as ours)."""
    for fact in REQUEST_FACTS:
        inside = np.array([fact in row.facts for row in rows])
        if inside.sum() >= DECIDING_ROWS and met[inside].sum() < HOPELESS * inside.sum() and (~inside).any():
            shape = fact.removeprefix("request: ")
            fit, others = f"{met[inside].sum()} of {inside.sum()}", f"{met[~inside].sum()} of {(~inside).sum()}"
            return f"prompts with {shape}: {fit} bills fit a form, of the others {others}"
    return None


def _hopeless(offset: int, explained: int, rows: int) -> str | None:
    if abs(offset) > STUB:
        return f"prompt: {offset:+d} tokens in every prompt, whose text is not known"
    if rows >= DECIDING_ROWS and explained < HOPELESS * rows:
        return f"prompt: {explained} of {rows} bills fit a form of the request"
    return None


def _by_factor(
    grid: _Grid, winner: int, out: npt.NDArray[np.bool_], told: npt.NDArray[np.bool_], mine: Ints, theirs: Ints
) -> tuple[list[str], dict[str, dict[str, float]]]:
    """(words that are ruled out; {factor: {word: weight}} of factors that rows could tell something about)."""
    ruled_out: list[str] = []
    factors: dict[str, dict[str, float]] = {}
    lead = mine - theirs
    for k, factor in enumerate(FACTORS):
        nearest: dict[str, int] = {}
        for form, words in enumerate(grid.forms):
            word = words[k]
            if word not in nearest or (out[form], lead[form]) < (out[nearest[word]], lead[nearest[word]]):
                nearest[word] = form
        own = grid.forms[winner][k]
        if len(nearest) < 2:
            continue
        ruled_out += [word for word, form in nearest.items() if out[form]]
        start = {word: prior_of_tools(word, "") if factor == "tools" else prior_of_word(word) for word in nearest}
        total = sum(start.values()) or 1.0
        weights = {}
        for word, form in nearest.items():
            weights[word] = (theirs[form] + PRIOR_ROWS * start[word] / total) / (mine[form] + PRIOR_ROWS * start[own] / total)
        weights[own] = 1.0
        whole = sum(weights.values())
        shown = {word: round(float(weight / whole), 6) for word, weight in weights.items() if weight / whole >= KEPT_WEIGHT}
        factors[factor] = dict(sorted(shown.items(), key=lambda item: -item[1]))
    return ruled_out, factors


def _prior(words: Words) -> float:
    """Only to order forms that meet as many bills."""
    share = prior_of_tools(words[0], "")
    for word in words[1:]:
        share *= prior_of_word(word)
    return share


# ---------------------------------------------------------------------------------------------------- forms over rows
def _usable(rows: Sequence[Observation]) -> list[Observation]:
    """Rows with a prompt bill, but for those that ask for a form themselves: they say nothing about the others."""
    return [row for row in rows if row.billed_prompt and row.forms and not _asks(row)]


def _asks(row: Observation) -> bool:
    return isinstance(row.forms, PromptTable) and any(part.asked for part in (*row.forms.tools, *row.forms.histories))


def _grid(rows: Sequence[Observation]) -> _Grid:
    tables = [_table(row) for row in rows]
    seen = {words for table in tables for words in _all_words(table)}
    tools = sorted({words[0] for words in seen if words[0] != NO_TOOLS}) or [NO_TOOLS]
    values = [sorted({words[k] for words in seen} | {USUAL[k - 1]}) for k in range(1, len(FACTORS))]
    histories = list(itertools.product(*values))
    if len(tools) * len(histories) > MOST_FORMS:  # never seen together in one row: left out
        histories = sorted({words[1:] for words in seen})
    forms = [(t, *h) for t in tools for h in histories]
    counts = np.empty((len(rows), len(forms)), dtype=np.int64)
    codes = np.empty_like(counts)
    cache: dict[int, tuple[Ints, Ints]] = {}
    for r, table in enumerate(tables):
        counts[r], codes[r] = _row(table, tools, histories, cache)
    billed = np.array([row.billed_prompt for row in rows], dtype=np.int64)
    return _Grid(forms, counts, codes, billed)


def _all_words(table: PromptTable) -> list[Words]:
    if isinstance(table, WholeTable):
        return [words for part in table.histories for words in part.words]
    tools = [words[0] for part in table.tools for words in part.words]
    histories = [words for part in table.histories for words in part.words]
    return [(tools[0], *h) for h in histories] + [(t, *histories[0]) for t in tools]


def _row(
    table: PromptTable, tools: Sequence[str], histories: Sequence[Words], cache: dict[int, tuple[Ints, Ints]]
) -> tuple[Ints, Ints]:
    """Counts and codes of all forms in one row. A word that the row does not know changes nothing in it, but for a declaration of
    tools that cannot be: that meets no bill."""
    if isinstance(table, WholeTable):
        known = {words: part for part in table.histories for words in part.words}
        shown = list(map(_projection(known), histories))
        return _counts([known.get((_tool_word(t, known), *history)) for t in tools for history in shown])
    if id(table.tools) not in cache:  # requests that declare the same tools share them
        declared = {words[0]: part for part in table.tools for words in part.words}
        plain = declared.get(NO_TOOLS)
        cache[id(table.tools)] = _counts([declared.get(t, plain) for t in tools])
    tool_counts, tool_codes = cache[id(table.tools)]
    known = {words: part for part in table.histories for words in part.words}
    history_counts, history_codes = _counts([known.get(words) for words in map(_projection(known), histories)])
    counts = (tool_counts[:, None] + history_counts[None, :]).ravel()
    return counts, (tool_codes[:, None] * 100_003 + history_codes[None, :]).ravel()


def _counts(parts: Sequence[Part | None]) -> tuple[Ints, Ints]:
    number: dict[int, int] = {}
    codes = [number.setdefault(part.digest, len(number)) if part is not None else -1 for part in parts]
    counts = [part.count if part is not None else NEVER for part in parts]
    return np.array(counts, dtype=np.int64), np.array(codes, dtype=np.int64)


def _projection(known: Mapping[Words, Part]) -> Callable[[Words], Words]:
    """The words of a history as they are in a row: a factor that does not matter there has the word of the model's own form."""
    own = next(iter(known))[-len(USUAL) :]
    there = [set(column) for column in zip(*(words[-len(USUAL) :] for words in known), strict=True)]
    return lambda history: tuple(w if w in values else o for w, values, o in zip(history, there, own, strict=True))


def _tool_word(word: str, known: Mapping[Words, Part]) -> str:
    return NO_TOOLS if next(iter(known))[0] == NO_TOOLS else word


def _table(row: Observation) -> PromptTable:
    """The table of a row; one is made of plain counts by name."""
    if isinstance(row.forms, PromptTable):
        return row.forms
    parts: dict[tuple[int, int], list[Words]] = {}
    for name, count in row.forms.items():
        form = form_of(name)
        if form is not None:
            parts.setdefault((row.form_ids.get(name, hash(name)), count), []).append((form.tools, *form.history))
    listed = tuple(Part((), tuple(words), 1.0, digest, count) for (digest, count), words in parts.items())
    return WholeTable((Part((), ((),), 1.0, 0, 0),), listed)
