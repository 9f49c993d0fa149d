"""The invariants of single rows (docs/research/exactness.md#5) that need neither tokenizer nor model: (rows, wire) → which rows
break them.

Belongs here: one pure function an invariant, bool [rows], under the name that table, `reasons`, UI and report use. Does not belong here:
what a check tolerates (`table.py`), shape and grade (`structure.py`, `grading.py`), the tokenizer's opinions (`token_rows.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from eagle3_assets.collect.servers.routing import is_same_model
from eagle3_assets.exact.search.leaks import unquoted_markers
from eagle3_assets.review.rows import content
from eagle3_assets.review.rows.columns import Bools, Columns
from eagle3_assets.review.rows.tool_schema import fits_schema
from eagle3_assets.review.rows.wires import Wire

Wires = Sequence[Wire | None]

# Fastest service of a trillion-parameter model seen so far is some 500 ids a second; four times that is a cache or a clock.
FASTEST_PER_S, TIMED_FROM = 2_000.0, 256
OFF_BY = 1  # docs/research/exactness.md#5-8: max_tokens +-1
STUB = 8  # ids of a generation stub at most: what a turn's prompt has at its end and the next one need not


@dataclass(frozen=True, slots=True)
class Rules:
    """What the campaign says: None or empty where it says nothing, and then nothing is asked.

    `reserved` are ids that no answer may hold, `temperature` and `top_p` what was to be sent, `max_length` of the corpus,
    `markers` the names of the tokenizer's control tokens.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_length: int | None = None
    reserved: frozenset[int] = frozenset()
    markers: re.Pattern[str] | None = None
    tokenizer_sha256: str | None = None


def allowed_ids(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """1: no reserved or unused id; the tokenizer is the one of the profile."""
    bad = np.zeros(len(columns), dtype=bool)
    if rules.reserved:
        low, high = min(rules.reserved), max(rules.reserved)
        values, of_row = columns.input_ids.values, columns.input_ids.offsets
        places = np.flatnonzero((values >= low) & (values <= high))
        places = places[np.isin(values[places], np.fromiter(rules.reserved, dtype=np.int64))]
        bad[np.searchsorted(of_row, places, side="right") - 1] = True
    if rules.tokenizer_sha256:
        bad |= np.array([sha != rules.tokenizer_sha256 for sha in columns.strings("tokenizer_sha256")], dtype=bool)
    return bad


def tool_calls(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """6: every called tool was offered, its arguments are a JSON object that fits the tool's schema. Model's mistakes are on policy: a
    warning."""
    return _each(
        wires,
        lambda w: w.fields.finish_reason != "length" and any(_odd_call(w, rules, k) for k in range(len(w.fields.tool_calls))),
    )


def _odd_call(wire: Wire, rules: Rules, k: int) -> bool:
    call, offered = wire.fields.tool_calls[k], {}
    for tool in wire.request.get("tools") or ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping):
            offered[function.get("name")] = function.get("parameters")
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return True
    if not isinstance(arguments, dict) or call.name not in offered:
        return True
    return not fits_schema(arguments, offered[call.name])


def finish_reason(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """7: the row's finish reason is the wire's, is one that ends an answer, and `tool_calls` comes with calls."""
    said, sources = columns.strings("finish_reason"), columns.strings("source")
    bad = np.array(
        [r not in ("stop", "tool_calls", "length") and s != "import" for r, s in zip(said, sources, strict=True)], dtype=bool
    )
    for i, wire in enumerate(wires):
        if wire is not None:
            bad[i] |= said[i] != wire.fields.finish_reason and wire.fields.finish_reason is not None
            bad[i] |= said[i] == "tool_calls" and not wire.fields.tool_calls and columns.evidence[i].get("leaked") is None
    return bad


def length_cut(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """8: a row cut by `length` has max_tokens ids (give or take one), and no row has more."""
    response = columns.lengths - columns.integers("prompt_len")
    limit, known = columns.integers("max_tokens"), columns.present("max_tokens") & (response > 0)
    cut = np.array([r == "length" for r in columns.strings("finish_reason")], dtype=bool)
    out: Bools = known & (((response < limit - OFF_BY) & cut) | (response > limit + OFF_BY))
    return out


def reasoning_equals_bill(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """10: the reasoning part is what was billed as reasoning, under the provider's own way to count it."""
    stated = [e.get("residual") for e in columns.evidence]
    return np.array([isinstance(r, dict) and type(r.get("reasoning")) is int and r["reasoning"] != 0 for r in stated], dtype=bool)


def loss_mask(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """11: the spans begin where the response begins and end where it ends; nothing of the prompt is supervised."""
    start, end = columns.spans
    prompt, bad = columns.integers("prompt_len"), np.zeros(len(columns), dtype=bool)
    some = start.lengths > 0
    first, last = start.offsets[:-1][some], start.offsets[1:][some] - 1
    bad[some] = (start.values[first] != prompt[some]) | (end.values[last] != columns.lengths[some])
    bad |= ~some & (columns.lengths > prompt) & columns.admitted
    return bad


def clean_text(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """13: no replacement character, byte order mark, NUL or half surrogate. Where the server's own ids were kept, they are the truth."""
    bad: Bools = _each(wires, lambda w: any(content.is_unclean(text) for text in w.texts))
    bad &= np.array([e.get("basis") != "server_ids" for e in columns.evidence], dtype=bool)
    return bad


def stream_complete(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """14: nothing was wrong with the body, the pieces of a stream make up its fields, and a bill came with it."""
    paid = [s == "openrouter" for s in columns.strings("source")]
    broken = _each(wires, lambda w: bool(w.fields.problems) or not _adds_up(w))
    unbilled = _each(wires, lambda w: w.fields.billed_completion is None)
    bad: Bools = broken | (unbilled & np.array(paid, dtype=bool))
    return bad


def _adds_up(wire: Wire) -> bool:
    if not wire.fields.deltas:
        return True
    whole = {"reasoning": wire.fields.reasoning or "", "content": wire.fields.content or ""}
    return all("".join(t for c, t in wire.fields.deltas if c == channel) == text for channel, text in whole.items())


def not_empty(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """15: the model wrote something besides blanks."""
    return _each(wires, lambda w: not w.fields.tool_calls and not any(text.strip() for text in w.texts))


def no_loops(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """16: no degenerate repetition in text, ids or calls."""
    texts = _each(wires, lambda w: w.packed < content.LOOP_RATIO)
    calls = _each(wires, lambda w: content.repeated_calls([(c.name, c.arguments) for c in w.fields.tool_calls]))
    ids, prompt = columns.input_ids, columns.integers("prompt_len")
    begin = np.minimum(ids.offsets[:-1] + prompt, ids.offsets[1:])  # of the response: a loop in a prompt is the user's
    edges = np.stack([begin, ids.offsets[1:]], axis=1).ravel()
    looped = content.repeated_ids(ids.values, edges)[::2] if len(ids.values) else np.zeros(len(columns), dtype=bool)
    bad: Bools = texts | calls | looped
    return bad


def not_dull(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """16, the softer limit: a window that packs to less than a tenth."""
    return _each(wires, lambda w: w.packed < content.DULL_RATIO)


def scripts(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """17: no burst of many scripts, unless the prompt has one."""
    return _each(wires, lambda w: any(map(content.mixes_scripts, w.texts)) and not content.mixes_scripts(_prompt_text(w)))


def refusals(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """18: not a refusal and nothing else."""
    return _each(wires, lambda w: not w.fields.tool_calls and content.is_refusal(w.fields.content or ""))


def error_text(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """19: no page or notice of a gateway in place of the answer."""
    return _each(
        wires, lambda w: content.is_error_text(w.fields.content or "") or content.is_error_text(w.fields.reasoning or "")
    )


def duplicates(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """20: no two rows hold the same ids (all but the first of equal ones)."""
    ids, seen, bad = columns.input_ids, set(), np.zeros(len(columns), dtype=bool)
    for i in np.flatnonzero(columns.lengths > 0):
        key = xxhash.xxh3_128_digest(np.ascontiguousarray(ids.row(int(i))).data)
        bad[i] = key in seen
        seen.add(key)
    return bad


def row_provider_and_model(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """21: the body's provider and model are the journal's and the row's, and the model is the one that was asked for."""
    providers, models, sources = (columns.strings(name) for name in ("provider", "model", "source"))
    bad = np.zeros(len(columns), dtype=bool)
    for i, source in enumerate(sources):
        wire = wires[i]
        if source == "openrouter":
            bad[i] = not providers[i] or (rules.model is not None and not is_same_model(rules.model, models[i]))
            if wire is not None:
                body = wire.fields
                bad[i] |= body.provider is not None and body.provider != providers[i]
                bad[i] |= body.model is not None and rules.model is not None and not is_same_model(rules.model, body.model)
    return bad


def sampling(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """22: temperature and top_p were sent, and are the dataset's (its own, else the campaign's)."""
    bad = np.zeros(len(columns), dtype=bool)
    bought = np.array([s != "import" for s in columns.strings("source")], dtype=bool)
    for name, wanted in (("temperature", rules.temperature), ("top_p", rules.top_p)):
        if wanted is not None:
            values = np.asarray(columns.table.column(name).fill_null(float("nan")).to_numpy(), dtype=np.float64)
            bad |= ~(np.abs(values - wanted) < 1e-9) & bought
    return bad


def timing(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """23: no faster than a server can be; no answer given twice (one generation id or one body for two samples)."""
    response = columns.lengths - columns.integers("prompt_len")
    seconds = np.array([w.seconds if w is not None else 0.0 for w in wires])
    bad: Bools = (seconds > 0) & (response >= TIMED_FROM) & (response > FASTEST_PER_S * seconds)
    for name in ("generation_id", "wire_sha256"):
        seen: set[str] = set()
        for i, value in enumerate(columns.strings(name)):
            if value and value in seen:
                bad[i] = True
            seen.add(value or "")
    return bad


def turn_prefix(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """25: a turn's prompt, its stub aside, begins the next turn's prompt (what follows may lose the reasoning: templates drop it)."""
    bad, rows = np.zeros(len(columns), dtype=bool), {}
    turns, prompt = columns.integers("turn").tolist(), columns.integers("prompt_len").tolist()
    for i, key in enumerate(zip(columns.sample_ids, turns, strict=True)):
        rows[key] = i
    for (sample, turn), i in rows.items():
        before = rows.get((sample, turn - 1))
        if before is None or not (columns.admitted[i] and columns.admitted[before]):
            continue
        common = max(0, prompt[before] - STUB)
        kept = any("reasoning_kept" in form for form in columns.evidence[i].get("prompt_forms") or ["reasoning_kept"])
        a, b = columns.input_ids.row(before)[:common], columns.input_ids.row(i)[:common]
        bad[i] = prompt[i] <= prompt[before] - STUB or ((turn <= 1 or kept) and not np.array_equal(a, b))
    return bad


def position_budget(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """27: no longer than what training takes."""
    if rules.max_length is None:
        return np.zeros(len(columns), dtype=bool)
    out: Bools = columns.lengths > rules.max_length
    return out


def provenance(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """28: the raw bytes' hash is the journal's, the generation is named, tokenizer and template are named, evidence is there."""
    sha, template, tokenizer = (columns.strings(n) for n in ("wire_sha256", "template_sha256", "tokenizer_sha256"))
    named = [
        bool(g) or s != "openrouter" for g, s in zip(columns.strings("generation_id"), columns.strings("source"), strict=True)
    ]
    bad = [
        not (sha[i] and template[i] and tokenizer[i] and named[i] and (columns.evidence[i] or not columns.admitted[i]))
        for i in range(len(columns))
    ]
    bad = [b or (w is not None and w.sha256 != sha[i]) for i, (b, w) in enumerate(zip(bad, wires, strict=True))]
    return np.array(bad, dtype=bool)


def marker_text(columns: Columns, wires: Wires, rules: Rules) -> Bools:
    """No control token by its name in an answer that neither ids nor a bill tell apart (an import's, mostly): its name between quotation
    marks is the model's own text, and where the turn was split at its markers the evidence says so."""
    bad = np.zeros(len(columns), dtype=bool)
    for i, wire in enumerate(wires):
        evidence = columns.evidence[i]
        if (
            rules.markers is not None
            and wire is not None
            and evidence.get("basis") in (None, "none")
            and not evidence.get("leaked")
        ):
            bad[i] = bool(unquoted_markers(rules.markers, wire.fields))
    return bad


INVARIANTS: dict[str, Callable[[Columns, Wires, Rules], Bools]] = {
    f.__name__: f
    for f in (
        allowed_ids, tool_calls, finish_reason, length_cut, reasoning_equals_bill, loss_mask, clean_text, stream_complete, not_empty,
        no_loops, not_dull, scripts, refusals, error_text, duplicates, row_provider_and_model, sampling, timing, turn_prefix,
        position_budget, provenance, marker_text,
    )
}  # fmt: skip
# Those that a row must not enter a corpus with: `quarantine.py` puts it out when its tokens are made.
FATAL = (
    "allowed_ids", "finish_reason", "loss_mask", "clean_text", "stream_complete", "not_empty", "no_loops", "error_text",
    "row_provider_and_model", "sampling", "provenance", "marker_text",
)  # fmt: skip


def broken_rows(columns: Columns, wires: Wires, rules: Rules, names: Sequence[str] = tuple(INVARIANTS)) -> dict[str, Bools]:
    """Invariant -> bool [rows], True where a row breaks it."""
    return {name: INVARIANTS[name](columns, wires, rules) for name in names}


def _each(wires: Wires, bad: Callable[[Wire], Any]) -> Bools:
    return np.array([wire is not None and bool(bad(wire)) for wire in wires], dtype=bool)


def _prompt_text(wire: Wire) -> str:
    messages = wire.request.get("messages")
    return json.dumps(messages, ensure_ascii=False) if isinstance(messages, list) else ""
