"""Everything about one row, as plain JSON for a page: tokens, wire text beside ids, prompt beside request, survivors, bill, raw bytes.

Belongs here: putting the evidence of one row side by side. Does not belong here: finding rows (`search.py`), judging them, layout.

Every text that came from outside is escaped here (`shown`): control characters and direction marks are seen, never obeyed. Spans are
[kind, text]: text, marker, same, gone (on the wire only), new (written by the model only), left_out (its text says how much).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from eagle3_assets.errors import Eagle3Error, ExactError, StoreError, UsageError
from eagle3_assets.exact.sample_row import SampleRow, read_table, rows_of
from eagle3_assets.exact.search.edges import EDGES
from eagle3_assets.exact.show import evidence_lines, pieces_of, token_text, visible
from eagle3_assets.targets.grammar import Parts, split
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.targets.turn_text import read_call, texts_of
from eagle3_assets.view.calls import answer_of
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.view.edits import edits
from eagle3_assets.view.texts import profile_named
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer

BLOCK = 1000  # tokens of one page of chips
MOST_SHOWN = 20_000  # characters of one text
MOST_ALIKE = 600  # characters of a stretch that both sides have: its ends are shown
MOST_PROMPT_IDS = 6000
MOST_CHIPS = 80  # of one side of one difference of a survivor
MOST_POINTS = 1500  # of the curve of log-probabilities
MOST_SURPRISES = 12
RAW_WINDOW = 64 << 10  # bytes
Spans = list[list[str]]


# ---------------------------------------------------------------------------------------------------- texts
def shown(text: str) -> str:
    """Escaped like `visible`, line breaks and tabs kept."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else visible(c) for c in text)


def cut(text: str, most: int = MOST_SHOWN, kind: str = "text") -> Spans:
    """The text as spans; of a longer one its beginning and its end."""
    if len(text) <= most:
        return [[kind, shown(text)]] if text else []
    half = most // 2
    return [
        [kind, shown(text[:half])],
        ["left_out", f"{len(text) - 2 * half:,} characters left out"],
        [kind, shown(text[-half:])],
    ]


def compared(wire: str, model: str) -> Spans:
    """The wire's text and the model's as one, with what only one of them has."""
    out: Spans = []
    for edit in edits(wire, model):
        if edit.op == "same":
            out += cut(wire[edit.a_start : edit.a_end], MOST_ALIKE * 2, "same")
        elif edit.op == "gone":
            out += cut(wire[edit.a_start : edit.a_end], MOST_SHOWN, "gone")
        else:
            out += cut(model[edit.b_start : edit.b_end], MOST_SHOWN, "new")
    return out


# ---------------------------------------------------------------------------------------------------- finding it
def find_row(catalogue: Catalogue, key: str) -> SampleRow:
    """The row of `dataset/sample_id/turn`. Raises StoreError where there is none."""
    found = catalogue.ask("SELECT file, sample_id, turn FROM rows WHERE key = ? LIMIT 1", [key])
    if not found:
        raise StoreError(
            f"{catalogue.root.store.root}: there is no row {visible(key)}; it may have been made anew since the page was loaded"
        )
    file, sample_id, turn = found[0]
    table = read_table(Path(file))
    wanted = pc.and_(pc.equal(table.column("sample_id"), sample_id), pc.equal(table.column("turn"), turn))
    return next(rows_of(table.filter(wanted)))


def evidence_of(row: SampleRow) -> dict[str, Any]:
    """The parsed evidence; {} where it is no JSON object."""
    try:
        found = json.loads(row.evidence or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def profile_of(catalogue: Catalogue, row: SampleRow) -> Profile:
    """The tokenizer profile that the row's evidence names, else the campaign's. Raises ExactError where its files are not here."""
    name = str(evidence_of(row).get("profile") or catalogue.root.profile or "")
    profile = profile_named(name)
    if profile is None:
        raise ExactError(
            f"the tokenizer files of {name or 'this row'} are not here, so its ids cannot be shown as text; `eagle3 doctor` says more"
        )
    return profile


def the_answer(catalogue: Catalogue, row: SampleRow) -> WireAnswer | None:
    """The journal's record behind the row; None where it is gone."""
    try:
        return answer_of(catalogue, row.dataset, row.shard, row.sample_id, row.turn, row.attempt)
    except StoreError:
        return None


# ---------------------------------------------------------------------------------------------------- the page
def row_page(catalogue: Catalogue, key: str) -> dict[str, Any]:
    """The row's page without its tokens (`token_block`) and raw bytes (`raw_window`). Raises StoreError, ExactError."""
    row = find_row(catalogue, key)
    profile, evidence, answer = profile_of(catalogue, row), evidence_of(row), the_answer(catalogue, row)
    fields = parse_fields(answer.body, answer.content_type) if answer else None
    verdict = verdict_of(catalogue, row)
    return {
        "key": key,
        "sample_id": visible(row.sample_id),
        "facts": facts_of(row, answer),
        "grade": row.grade,
        "p_exact": row.p_exact,
        "reasons": [visible(reason) for reason in row.reasons],
        "length": len(row.input_ids),
        "prompt_len": row.prompt_len,
        "block": BLOCK,
        "bill": bill_of(row, evidence),
        "wire": wire_of(profile, row, evidence, fields),
        "prompt": prompt_of(profile, row, evidence, answer),
        "survivors": survivors_of(profile, row, verdict),
        "posterior": evidence.get("posterior"),
        "surprise": surprise_of(profile, row, verdict),
        "verdict": verdict_words(verdict),
        "attempts": attempts_of(catalogue, row),
        "raw": raw_facts(answer),
        "evidence": [list(line) for line in evidence_lines(row)],
        "tokenizer": profile.name,
    }


def facts_of(row: SampleRow, answer: WireAnswer | None) -> list[list[str]]:
    """Name and value, escaped, in reading order."""
    seconds = answer.finished_at - answer.started_at if answer and answer.finished_at else None
    facts = {
        "dataset": f"{row.dataset}, shard {row.shard}, turn {row.turn}, attempt {row.attempt}",
        "answered by": f"{row.provider or row.source}, {row.model or 'model not named'}",
        "finish": f"{row.finish_reason or 'none'}" + (f" ({row.native_finish_reason})" if row.native_finish_reason else ""),
        "sampling": f"temperature {row.temperature}, top_p {row.top_p}, max_tokens {row.max_tokens}",
        "cost": "not billed" if row.cost_usd is None else f"{row.cost_usd:.6f} USD",
        "took": "not known" if seconds is None else f"{seconds:.1f} s",
        "generation": row.generation_id or "not named",
    }
    return [[name, visible(text)] for name, text in facts.items()]


def bill_of(row: SampleRow, evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    """{part, rebuilt, convention, billed, d}: rebuilt + convention - billed = d; None where it is not known."""
    conventions, residual = _object(evidence.get("convention")), _object(evidence.get("residual"))
    lines = []
    for part, rebuilt, billed in (
        ("prompt", row.prompt_len, row.billed_prompt),
        ("completion", len(row.input_ids) - row.prompt_len, row.billed_completion),
    ):
        convention = _whole(conventions.get(part)) or 0
        d = None if billed is None or not rebuilt else rebuilt + convention - billed
        lines.append({"part": part, "rebuilt": rebuilt, "convention": convention, "billed": billed, "d": d})
    d = _whole(residual.get("reasoning"))
    rebuilt_reasoning = None if d is None or row.billed_reasoning is None else row.billed_reasoning + d
    lines.append({"part": "reasoning", "rebuilt": rebuilt_reasoning, "convention": 0, "billed": row.billed_reasoning, "d": d})
    return lines


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def wire_of(profile: Profile, row: SampleRow, evidence: Mapping[str, Any], fields: Fields | None) -> dict[str, Any]:
    """{reading, edges [{edge, mechanism, wire, model}], fields [{name, spans, edited}], fault, problems}."""
    out: dict[str, Any] = {
        "reading": visible(str(evidence.get("reading") or "")),
        "edges": _edges(evidence),
        "fields": [],
        "fault": None,
    }
    if fields is None:
        return {**out, "fault": "the journal has no record of this answer any more", "problems": []}
    out["problems"] = [visible(problem) for problem in (*fields.problems, *fields.notes)]
    try:
        parts = split(
            profile,
            row.input_ids[row.prompt_len :],
            thinking=evidence.get("thinking") is not False,
            truncated=row.finish_reason == "length",
        )
    except Eagle3Error as error:
        out["fault"] = visible(f"the ids cannot be taken apart: {error}")
        out["fields"] = [{"name": name, "spans": cut(text), "edited": False} for name, text in _wire_texts(fields) if text]
        return out
    for name, wire, model in _paired(profile, parts, fields):
        if wire or model:
            out["fields"].append({"name": visible(name), "spans": compared(wire, model), "edited": wire != model})
    return out


def _edges(evidence: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each edge with what the provider does there and what was read: whitespace on the wire, whitespace of the model."""
    mechanisms = str(evidence.get("reading") or "").split("|")[0].split()
    told = _object(evidence.get("edits"))
    out = []
    for k, edge in enumerate(EDGES):
        pair = told.get(edge)
        wire, model = (str(pair[0]), str(pair[1])) if isinstance(pair, list) and len(pair) == 2 else ("", "")
        mechanism = mechanisms[k] if len(mechanisms) == len(EDGES) else ""
        if pair is not None or mechanism not in ("", "keep"):
            out.append(
                {
                    "edge": edge,
                    "mechanism": mechanism,
                    "wire": visible(wire),
                    "model": visible(model),
                    "edited": str(pair is not None),
                }
            )
    return out


def _wire_texts(fields: Fields) -> list[tuple[str, str]]:
    out = [("reasoning", fields.reasoning or ""), ("content", fields.content or "")]
    for k, call in enumerate(fields.tool_calls):
        out += [(f"call {k} id", call.id), (f"call {k} name", call.name), (f"call {k} arguments", call.arguments)]
    return out


def _paired(profile: Profile, parts: Parts, fields: Fields) -> list[tuple[str, str, str]]:
    """(field, text on the wire, text of the ids)."""
    turn = texts_of(profile, parts)
    calls = [read_call(profile, call) for call in parts.calls]
    out = [("reasoning", fields.reasoning or "", turn.reasoning), ("content", fields.content or "", turn.content)]
    for k in range(max(len(calls), len(fields.tool_calls))):
        wire = fields.tool_calls[k] if k < len(fields.tool_calls) else None
        model = calls[k] if k < len(calls) else None
        for what in ("id", "name", "arguments"):
            out.append((f"call {k} {what}", getattr(wire, what, "") or "", getattr(model, what, "") or ""))
    return out


# ---------------------------------------------------------------------------------------------------- prompt and request
def prompt_of(profile: Profile, row: SampleRow, evidence: Mapping[str, Any], answer: WireAnswer | None) -> dict[str, Any]:
    """{forms, rendered spans, messages [{role, spans, calls}], tools, settings spans}."""
    request = answer.request if answer else {}
    forms = evidence.get("prompt_forms")
    messages = request.get("messages")
    settings = {name: value for name, value in request.items() if name not in ("messages", "tools")}
    return {
        "forms": [visible(str(form)) for form in forms] if isinstance(forms, list) else [],
        "rendered": rendered(profile, row.input_ids[: row.prompt_len]),
        "messages": [_message(message) for message in messages] if isinstance(messages, list) else [],
        "tools": cut(_pretty(request["tools"])) if request.get("tools") else [],
        "settings": cut(_pretty(settings)) if settings else [],
    }


def rendered(profile: Profile, ids: Sequence[int]) -> Spans:
    """Ids as text with the markers by name; of a long run its beginning and its end."""
    if len(ids) > MOST_PROMPT_IDS:
        half = MOST_PROMPT_IDS // 2
        between = [["left_out", f"{len(ids) - 2 * half:,} ids left out"]]
        return [*rendered(profile, ids[:half]), *between, *rendered(profile, ids[-half:])]
    out: Spans = []
    start = 0
    for position in [*(k for k, token in enumerate(ids) if not profile.is_ordinary(token)), len(ids)]:
        if position > start:
            out.append(["text", shown(profile.decode(ids[start:position]))])
        if position < len(ids):
            out.append(["marker", visible(profile.token_name(ids[position]))])
        start = position + 1
    return out


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        return {"role": "?", "spans": cut(_pretty(message)), "rest": []}
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else _pretty(content)
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    return {"role": visible(str(message.get("role"))), "spans": cut(text), "rest": cut(_pretty(rest)) if rest else []}


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


# ---------------------------------------------------------------------------------------------------- survivors, the model's word
def verdict_of(catalogue: Catalogue, row: SampleRow) -> dict[str, Any] | None:
    """The row of on_policy.parquet about this row, or None."""
    found = catalogue.ask("SELECT file FROM verdicts WHERE sample_id = ? AND turn = ?", [row.sample_id, row.turn])
    if not found:
        return None
    told = catalogue.records(
        "SELECT * FROM read_parquet(?) WHERE sample_id = ? AND turn = ?", [found[0][0], row.sample_id, row.turn]
    )
    return told[0] if told else None


def verdict_words(verdict: Mapping[str, Any] | None) -> list[list[str]]:
    """Name and value of the model's verdict; nothing where it was not asked."""
    if verdict is None:
        return []
    names = (
        "final_grade",
        "judged",
        "candidates",
        "winner",
        "posterior",
        "mean_logprob",
        "mean_entropy",
        "heat",
        "z",
        "p_end",
        "nucleus_violations",
    )
    lines = [[name.replace("_", " "), _figure(verdict.get(name))] for name in names]
    return [*lines, ["reasons", visible("; ".join(verdict.get("reasons") or ()) or "none")]]


def _figure(value: Any) -> str:
    return "not known" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def survivors_of(profile: Profile, row: SampleRow, verdict: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """{number, length, log_prob, won, differences [{at, before, chosen, survivor, behind, more}]}: chips are [id, text]."""
    log_probs = list((verdict or {}).get("log_probs") or ())
    out = []
    for number, other in enumerate(row.survivors, start=1):
        out.append(
            {
                "number": number,
                "length": len(other),
                "log_prob": log_probs[number] if number < len(log_probs) else None,
                "chosen_log_prob": log_probs[0] if log_probs else None,
                "won": bool(verdict) and (verdict or {}).get("winner") == number,
                "differences": _differences(profile, row.input_ids, other),
            }
        )
    return out


def _differences(profile: Profile, chosen: Sequence[int], other: Sequence[int], context: int = 4) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for edit in edits(chosen, other):
        if edit.op == "same":
            continue
        if not (found and edit.op == "new" and found[-1]["_end"] == edit.a_start):
            start = edit.a_start
            found.append(
                {
                    "at": start,
                    "before": _chips(profile, chosen[max(0, start - context) : start]),
                    "chosen": [],
                    "survivor": [],
                    "more": 0,
                }
            )
        last = found[-1]
        side, ids = (
            ("chosen", chosen[edit.a_start : edit.a_end]) if edit.op == "gone" else ("survivor", other[edit.b_start : edit.b_end])
        )
        last[side] = _chips(profile, ids[:MOST_CHIPS])
        last["more"] += max(0, len(ids) - MOST_CHIPS)
        last["_end"] = edit.a_end
        last["behind"] = _chips(profile, chosen[edit.a_end : edit.a_end + context])
    return [{name: value for name, value in one.items() if name != "_end"} for one in found]


def _chips(profile: Profile, ids: Sequence[int]) -> list[list[Any]]:
    return [[token, _chip(profile, token)] for token in ids]


def _chip(profile: Profile, token: int) -> str:
    return token_text(profile, token) if profile.is_ordinary(token) else profile.token_name(token)


def surprise_of(profile: Profile, row: SampleRow, verdict: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """{positions, logprob, entropy (of the least likely id of each stretch), least [[position, id, text, logprob]], other_ids}; None where
    the model was not asked. Positions are of the row's ids; nats."""
    logprob = (verdict or {}).get("logprob")
    if not verdict or not logprob:
        return None
    ids = verdict.get("input_ids") or row.input_ids
    mask = verdict.get("loss_mask")
    positions = np.flatnonzero(mask) if mask else np.concatenate([np.arange(a, b) for a, b in row.loss_spans] or [np.arange(0)])
    values = np.asarray(logprob, dtype=np.float64)
    positions = positions[-len(values) :]
    entropy = np.asarray(verdict.get("entropy") or [np.nan] * len(values), dtype=np.float64)
    starts = np.unique(np.linspace(0, len(values), min(MOST_POINTS, len(values)) + 1).astype(int)[:-1])
    least = [int(start + np.argmin(values[start:end])) for start, end in zip(starts, [*starts[1:], len(values)], strict=True)]
    order = np.argsort(values)[:MOST_SURPRISES]
    return {
        "positions": [int(positions[k]) for k in least],
        "logprob": [round(float(values[k]), 4) for k in least],
        "entropy": [round(float(entropy[k]), 4) if np.isfinite(entropy[k]) else None for k in least],
        "least": [
            [int(positions[k]), int(ids[positions[k]]), _chip(profile, int(ids[positions[k]])), round(float(values[k]), 3)]
            for k in order
        ],
        "ids": len(values),
        "other_ids": bool(verdict.get("winner")),
    }


def attempts_of(catalogue: Catalogue, row: SampleRow) -> list[dict[str, Any]]:
    """Every call that was made for this row's prompt, in order; empty while the journals are still being read."""
    found = catalogue.records(
        "SELECT attempt, provider, outcome, status, reason, tokens, cost_usd, finished - started AS seconds, finished FROM calls "
        "WHERE sample_id = ? AND turn = ? AND dataset = ? AND NOT pilot ORDER BY attempt, started",
        [row.sample_id, row.turn, row.dataset],
    )
    return [{**line, "provider": visible(line["provider"] or ""), "reason": visible(line["reason"])} for line in found]


# ---------------------------------------------------------------------------------------------------- tokens
def token_block(catalogue: Catalogue, key: str, start: int) -> dict[str, Any]:
    """{start, stop, tokens [[id, text, kind, supervised, logprob]]}: one page of chips. kind: 0 prompt, 1 model, 2 marker."""
    row = find_row(catalogue, key)
    return tokens_from(profile_of(catalogue, row), row, verdict_of(catalogue, row), start)


def tokens_from(profile: Profile, row: SampleRow, verdict: Mapping[str, Any] | None, start: int) -> dict[str, Any]:
    start = min(max(0, start), max(0, len(row.input_ids) - 1))
    pieces = pieces_of(profile, row, start, start + BLOCK)
    told = _logprobs(row, verdict)
    tokens = [[p.token_id, p.text, _KINDS[p.kind], int(p.supervised), told.get(p.position)] for p in pieces]
    return {"start": start, "stop": start + len(tokens), "tokens": tokens}


_KINDS = {"prompt": 0, "model": 1, "marker": 2}


def _logprobs(row: SampleRow, verdict: Mapping[str, Any] | None) -> dict[int, float]:
    """Position -> log-probability of its id, where the model judged exactly these ids."""
    logprob = (verdict or {}).get("logprob")
    if not verdict or not logprob or verdict.get("winner"):
        return {}
    positions = [p for start, end in row.loss_spans for p in range(start, end)][-len(logprob) :]
    return {position: round(float(value), 3) for position, value in zip(positions, logprob, strict=False)}


# ---------------------------------------------------------------------------------------------------- raw bytes
def raw_facts(answer: WireAnswer | None) -> dict[str, Any] | None:
    """Sizes and headers; None where the journal has no record."""
    if answer is None:
        return None
    headers = [[visible(name), visible(value)] for name, value in answer.headers.items()]
    return {"request": len(request_bytes(answer)), "response": len(answer.body), "status": answer.status, "headers": headers,
            "request_id": visible(answer.request_id)}  # fmt: skip


def request_bytes(answer: WireAnswer) -> bytes:
    """The request as the journal keeps it: JSON, indented for reading."""
    try:
        return _pretty(answer.request).encode()
    except UnicodeEncodeError:
        return json.dumps(answer.request, indent=2).encode()


def raw_bytes(catalogue: Catalogue, key: str, which: str) -> bytes:
    """The request or the response of a row. Raises StoreError where the journal has no record, UsageError for another word."""
    answer = the_answer(catalogue, find_row(catalogue, key))
    if answer is None:
        raise StoreError(f"{catalogue.root.store.root}: the journal has no record of {visible(key)} any more")
    if which not in ("request", "response"):
        raise UsageError(f"which: expected request or response, found {which!r}")
    return answer.body if which == "response" else request_bytes(answer)


def raw_window(data: bytes, start: int, *, as_hex: bool = False) -> dict[str, Any]:
    """{start, stop, total, text}: at most RAW_WINDOW bytes as escaped text (bytes that are no UTF-8 as `\\\\xff`), or as a hex dump."""
    start = min(max(0, start), len(data))
    stop = min(len(data), start + RAW_WINDOW // (4 if as_hex else 1))
    while not as_hex and stop < len(data) and stop > start + 1 and data[stop] & 0xC0 == 0x80:
        stop -= 1  # not inside a character
    piece = data[start:stop]
    text = hex_dump(piece, start) if as_hex else shown(piece.decode("utf-8", "backslashreplace"))
    return {"start": start, "stop": stop, "total": len(data), "text": text}


def hex_dump(data: bytes, start: int = 0) -> str:
    """Sixteen bytes a line: offset, hex, printable ASCII."""
    lines = []
    for k in range(0, len(data), 16):
        piece = data[k : k + 16]
        ascii_ = "".join(chr(b) if 32 <= b < 127 else "." for b in piece)
        lines.append(f"{start + k:08x}  {piece.hex(' '):<47}  {ascii_}")
    return "\n".join(lines)
