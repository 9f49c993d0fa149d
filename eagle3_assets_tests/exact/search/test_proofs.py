"""Claims about proofs: A1 only where every id is named or pinned, and a hole never speaks for a candidate."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.modes import Mode
from eagle3_assets.exact.search.proofs import Found, with_witnesses
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.selection import Case, frames_of, select
from eagle3_assets.targets.grammar import assemble
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import TOKENIZERS, needs, shared_data
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences, truth_ids

HOLES_FILE = shared_data() / "wire" / "faults" / "01_logprob_holes.jsonl"
Entry = dict[str, Any]


def vocabulary() -> Profile:
    return load_profile("kimi-k2.5", TOKENIZERS) if TOKENIZERS.exists() else load_profile("kimi-mini")


def entries_of(profile: Profile, ids: tuple[int, ...]) -> list[Entry]:
    pieces = [profile.encoding.decode_single_token_bytes(token) for token in ids]
    return [{"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": -0.1} for piece in pieces]


def answered(
    profile: Profile, truth: Truth, entries: list[Entry], bends: str = "verbatim"
) -> tuple[dict[str, Any], Fields, tuple[int, ...]]:
    provider = Provider(profile, bends=bends)
    made = provider.answer(truth)
    return made.request, dataclasses.replace(parse_fields(made.body), logprobs=tuple(entries)), provider.truths[0]


def found_of(profile: Profile, request: dict[str, Any], fields: Fields, candidates: int | None = None) -> Found | None:
    """What the witnesses say to the first `candidates` of the selection."""
    case = Case(profile, request, fields, None, "openrouter", Mode(True, True, 0, 1.0))
    chosen = select(case, frames_of(case))
    return with_witnesses(case, dataclasses.replace(chosen, completions=chosen.completions[:candidates]))


# ---------------------------------------------------------------------------------------------------- damage
def byte_level(entry: Entry) -> Entry:
    """As the vocabulary file spells it: printable characters for bytes (` Great` is `ĠGreat`)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    table = {**{b: chr(b) for b in plain}, **{b: chr(256 + k) for k, b in enumerate(rest)}}
    return {"token": "".join(table[b] for b in entry["bytes"]), "bytes": None}


DAMAGE: dict[str, Callable[[Entry], Entry]] = {
    "empty": lambda _: {"token": "", "bytes": None},
    "empty bytes": lambda _: {"token": "", "bytes": []},
    "no bytes": lambda e: {**e, "bytes": []},
    "nothing": lambda _: {},
    "null": lambda _: {"token": None, "bytes": None},
    "replaced": lambda _: {"token": "\ufffd", "bytes": [239, 191, 189]},
    "replaced text": lambda _: {"token": "\ufffd", "bytes": None},
    "byte level": byte_level,
    "redacted": lambda _: {"token": "<redacted>", "bytes": list(b"<redacted>")},
    "out of range": lambda _: {"token": "token_id:9999999", "bytes": None},
    "other text": lambda e: {**e, "token": e["token"] + "~"},
    "text alone": lambda e: {"token": e["token"], "bytes": None},
    "stripped": lambda e: {"token": e["token"].strip(), "bytes": None},
}

words = st.sampled_from(
    ["ok", "the user", "Great.", "🌟", "你好", "é", "naïve", "{", "\n\n", " ", "  ", "You did it", "a b", "，", "7"]
)
texts = st.builds(
    lambda lead, body: lead + "".join(body), st.sampled_from(["", " ", "\n", "\n\n"]), st.lists(words, min_size=1, max_size=5)
)
arguments = st.sampled_from(['{"a": 1}', '{"path":"."}', '{"who": "blue 🌟 river"}', "{}"])


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    reasoning=texts,
    content=texts,
    call=st.none() | arguments,
    bends=st.sampled_from(["verbatim", "strips", "injects"]),
    damage=st.lists(st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=3),
    share=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    without_end=st.booleans(),
    data=st.data(),
)
def test_damaged_entries_never_make_wrong_ids_a1(
    reasoning: str,
    content: str,
    call: str | None,
    bends: str,
    damage: list[str],
    share: float,
    without_end: bool,
    data: st.DataObject,
) -> None:
    profile = vocabulary()
    truth = Truth(reasoning, content, calls=(("f", call),) if call else (), finish="tool_calls" if call else "stop")
    ids = truth_ids(profile, truth)
    entries = entries_of(profile, ids[:-1] if without_end else ids)
    for k in range(len(entries)):
        if share == 1.0 or (share and data.draw(st.floats(0, 1)) < share):
            entries[k] = DAMAGE[data.draw(st.sampled_from(damage))](entries[k])
    request, fields, whole = answered(profile, truth, entries, bends)
    found = reconstruct(profile, request, fields, None, source="openrouter")
    assert found.grade != "A1" or found.input_ids == whole
    if not share and bends == "verbatim":
        assert found.grade == "A1"
    for candidates in (None, 1):  # a decided provider leaves one, and may have changed
        proof = found_of(profile, request, fields, candidates)
        if proof is not None and proof.witness == "logprobs":
            assert assemble(profile, proof.parts) == ids and proof.p > 0.99
            assert proof.witnessed == 1.0 or share or without_end


@settings(max_examples=100, deadline=None)
@given(reasoning=texts, content=texts, bends=st.sampled_from(["verbatim", "strips", "injects"]))
def test_entries_that_are_all_holes_change_nothing(reasoning: str, content: str, bends: str) -> None:
    profile = vocabulary()
    truth = Truth(reasoning, content)
    request, fields, _ = answered(profile, truth, [{"token": "", "bytes": None}] * len(truth_ids(profile, truth)), bends)
    with_holes, without = (
        found_of(profile, request, fields),
        found_of(profile, request, dataclasses.replace(fields, logprobs=None)),
    )
    assert (with_holes is None) == (without is None)
    if with_holes and without:
        assert dataclasses.replace(with_holes, way=None) == dataclasses.replace(without, way=None)


def test_every_line_of_the_file_of_holes_is_right_or_does_not_claim_to_be(tokenizers: Path) -> None:
    profile = load_profile("kimi-k2.5", tokenizers)
    for line in needs(HOLES_FILE).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found = reconstruct(profile, row["request"], parse_fields(row["response_body"].encode()), None, source="openrouter")
        open_ids = {found.input_ids, *found.survivors}
        assert found.grade == "C1" and tuple(row["truth"]) in open_ids, row["id"]


# ---------------------------------------------------------------------------------------------------- single rows
def test_a_hole_at_an_edge_does_not_decide_the_question_that_it_cannot_see(k25: Profile) -> None:
    """` 🌟` and `🌟` have equal counts and differ in the part of a character whose entry is U+FFFD (vllm#9463)."""
    truth = Truth(" ok", " 🌟 You did it")
    entries = entries_of(k25, truth_ids(k25, truth))
    for e in entries:
        if "\ufffd" in e["token"]:
            e["bytes"] = list("\ufffd".encode())
    request, fields, whole = answered(k25, truth, entries)
    stripped = dataclasses.replace(fields, content=(fields.content or "").lstrip())
    found = reconstruct(k25, request, stripped, None, source="openrouter")
    assert found.grade == "C1" and whole in {found.input_ids, *found.survivors}


def test_a_character_in_parts_inside_a_text_costs_no_proof(k25: Profile) -> None:
    truth = Truth(" ok then", "You did 🌟 it well")
    ids = truth_ids(k25, truth)
    entries = entries_of(k25, ids)
    holes = [k for k, e in enumerate(entries) if "\ufffd" in e["token"]]
    assert holes
    for k in holes:
        entries[k] = {"token": "\ufffd", "bytes": list("\ufffd".encode())}
    request, fields, whole = answered(k25, truth, entries)
    found, proof = reconstruct(k25, request, fields, None, source="openrouter"), found_of(k25, request, fields)
    assert found.grade == "A1" and found.input_ids == whole
    assert proof and proof.witnessed == pytest.approx(1 - len(holes) / len(ids)) and 0.99 < proof.p < 0.999


def test_ids_off_the_canonical_path_are_proven_by_whole_entries(mini: Profile) -> None:
    truth = Truth(" the market", "Answer.")
    ids = truth_ids(mini, truth)
    k = next(k for k, t in enumerate(ids) if mini.decode([t]) == " market")
    odd = (*ids[:k], *mini.encode(" "), *mini.encode("market"), *ids[k + 1 :])
    request, fields, whole = answered(mini, truth, entries_of(mini, odd))
    fields = dataclasses.replace(fields, billed_completion=len(odd))
    found = reconstruct(mini, request, fields, None, source="openrouter")
    assert found.grade == "A1" and found.input_ids == (*whole[: -len(ids)], *odd)


def test_entries_for_the_content_alone_weigh_and_do_not_prove(k25: Profile) -> None:
    truth = Truth(" ok", " Great. You did it")
    request, fields, _ = answered(k25, truth, entries_of(k25, tuple(k25.encode(truth.content))), "strips")
    plain = found_of(k25, request, dataclasses.replace(fields, logprobs=None))
    told = found_of(k25, request, fields)
    assert plain and told and told.witness == ""
    assert told.parts.content == tuple(k25.encode(truth.content)) != plain.parts.content
    assert reconstruct(k25, request, fields, None, source="openrouter").grade == "C1"


def test_entries_that_name_other_ids_than_any_candidate_cost_the_answer_its_certainty(k25: Profile) -> None:
    truth = Truth(" ok then", "You did it well")
    ids = truth_ids(k25, truth)
    other = (*ids[:1], *k25.encode(" now"), *ids[2:])
    request, fields, _ = answered(k25, truth, entries_of(k25, other))
    plain, told = found_of(k25, request, dataclasses.replace(fields, logprobs=None)), found_of(k25, request, fields)
    assert plain and told and told.parts == plain.parts
    assert told.p == pytest.approx(plain.p / 2) and "name other ids" in told.reason


# ---------------------------------------------------------------------------------------------------- deltas
ARGUMENTS = '{"path":"src","pattern":"the market of the river, and seven stones for the user of a blue time"}'


def called(profile: Profile, deltas: list[str], shift: int = 0) -> tuple[dict[str, Any], Fields, tuple[int, ...]]:
    """A call whose arguments came in `deltas`, billed as the encoder's ids and `shift` more."""
    truth = Truth(" so", " yes", calls=(("f", "".join(deltas)),), finish="tool_calls")
    made = Provider(profile).answer(truth, bill_shift=shift)
    pieces = [("reasoning", truth.reasoning), ("content", truth.content), *(("tool:0", delta) for delta in deltas)]
    return made.request, dataclasses.replace(parse_fields(made.body), deltas=tuple(pieces)), truth_ids(profile, truth)


def off_path(profile: Profile, *closed: str) -> list[str]:
    """One delta an id, each of `closed` sampled in two."""
    out: list[str] = []
    for token in profile.encode(ARGUMENTS):
        piece = profile.decode([token])
        out += [piece[:-1], piece[-1]] if piece in closed else [piece]
    return out


def test_deltas_off_the_path_that_meet_the_bill_are_the_ids(k25: Profile) -> None:
    deltas = off_path(k25, '","')
    for streamed, witness in ((deltas, "boundaries"), (["".join(deltas[:2]), *deltas[2:]], "deltas")):
        request, fields, encoder = called(k25, streamed, shift=1)
        proof = found_of(k25, request, fields)
        assert proof is not None and proof.witness == witness and proof.reason == ""
        assert [k25.decode([token]) for token in proof.parts.calls[0].arguments or ()] == deltas
        assert len(assemble(k25, proof.parts)) == len(encoder) + 1


def test_deltas_off_the_path_that_miss_the_bill_leave_no_one_sure(k25: Profile) -> None:
    request, fields, encoder = called(k25, off_path(k25, '":"', '","'))
    plain, proof = found_of(k25, request, dataclasses.replace(fields, deltas=())), found_of(k25, request, fields)
    assert plain and proof and proof.p < 0.7 * plain.p
    open_ids = {assemble(k25, proof.parts), *proof.rivals}
    assert encoder in open_ids and any(len(ids) == len(encoder) + 3 for ids in open_ids)
    assert proof.reason


def test_a_gateway_that_cuts_by_characters_changes_nothing(k25: Profile) -> None:
    for size in (3, 4, 7):
        request, fields, encoder = called(k25, [ARGUMENTS[k : k + size] for k in range(0, len(ARGUMENTS), size)])
        plain, proof = found_of(k25, request, dataclasses.replace(fields, deltas=())), found_of(k25, request, fields)
        assert plain and proof and proof.parts == plain.parts and proof.witness == ""
        assert assemble(k25, proof.parts) == encoder


def test_a_delta_of_two_ids_that_spells_one_id_is_no_doubt_where_the_bill_counts_two(k25: Profile) -> None:
    """`<` `'` `a`: the encoder's split pattern keeps the quote from the letter here, and the vocabulary has `'a` as well."""
    text = " let parts: Vec<&'a str>"
    tokens = k25.encode(text)
    pieces = [k25.decode([token]) for token in tokens]
    at = pieces.index("'")
    assert len(k25.encode(pieces[at] + pieces[at + 1])) == 1
    deltas = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]
    provider, engine = Provider(k25), Provider(k25, name="(engine)")
    texts = sentences(k25, 120, neutral=None)
    for one, other in pairwise(texts):
        provider.answer(Truth(f" {one}", f" {other}"))
        engine.answer(Truth(f" {other}", f" {one}"), with_ids=True, source="engine", provider=None)
    made = provider.answer(Truth(" so", text))
    entry = entry_of(learn(k25, [*provider.answers, *engine.answers]), provider.name)
    plain = parse_fields(made.body)
    streamed = dataclasses.replace(plain, deltas=(("reasoning", " so"), *(("content", delta) for delta in deltas)))
    rows = [reconstruct(k25, made.request, fields, entry, source="openrouter") for fields in (plain, streamed)]
    assert rows[0].input_ids == rows[1].input_ids
    assert [row.reasons for row in rows if "deltas" in "".join(row.reasons)] == []
    assert rows[1].p_exact >= rows[0].p_exact > 0.5
