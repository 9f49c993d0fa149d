"""Claims about learning a provider's prompt form: a factor is decided only by rows that could tell, and real providers by name."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.hypotheses import enumerate_prompts, likely_prompts, prompt_counts
from eagle3_assets.exact.prompt_side.prompt_forms import PromptForm
from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.providers.prompt_learning import STUB, change_point, decide_prompt
from eagle3_assets.exact.search.modes import Mode
from eagle3_assets.exact.search.observations import FieldCounts, Observation
from eagle3_assets.exact.search.prompt_selection import select_prompts
from eagle3_assets.exact.search.selection import Case
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import needs, shared_data

pytestmark = pytest.mark.slow  # its worlds take seconds

TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "Ask.", "parameters": {"type": "object", "properties": {"who": {"type": "string"}}}},
}
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"who":"x"}'}}
LOOP: list[dict[str, Any]] = [
    {"role": "assistant", "reasoning": "long thought", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "done"},
]


def asked(k: int, *, loop: bool = False, tools: bool = False, name: str = "") -> dict[str, Any]:
    first = {"role": "user", "content": f"question {k}", **({"name": name} if name else {})}
    return {"messages": [first, *(LOOP if loop else [])], **({"tools": [TOOL]} if tools else {})}


def observed(profile: Profile, request: dict[str, Any], form: PromptForm, *, more: int = 0, at: float = 0.0) -> Observation:
    """A row whose prompt was rendered in `form` and billed with a constant `more`."""
    billed = len(render_prompt(profile, request["messages"], request.get("tools"), form=form)) + more
    nothing = FieldCounts("", "", "", "", {("", ""): 0})
    return Observation(
        at=at,
        tools=bool(request.get("tools")),
        stream=False,
        truncated=False,
        ended=True,
        section=False,
        closed=True,
        billed=1,
        billed_reasoning=None,
        reasoning=nothing,
        content=nothing,
        sizes=({1: 1.0}, {1: 1.0}),
        lossy=False,
        numbering=None,
        styles=(),
        kind="text",
        ordered=(),
        billed_prompt=billed,
        forms=prompt_counts(profile, request, True),
    )


def left(
    profile: Profile, request: dict[str, Any], form: PromptForm, learned: dict[str, Any]
) -> list[tuple[tuple[int, ...], float]]:
    """What one more row of a provider with `form` leaves, given what was learned."""
    billed = len(render_prompt(profile, request["messages"], request.get("tools"), form=form)) + learned["offset"]
    stratum = {"tools" if request.get("tools") else "no_tools": {"prompt": learned}}
    fields = Fields(None, "x", (), "stop", billed_prompt=billed)
    case = Case(profile, request, fields, {"windows": [{"strata": stratum}]}, "openrouter", Mode(True, True, 0, 1.0))
    prompts = likely_prompts(profile, request, thinking=True, billed=billed, learned=learned)
    found, odd = select_prompts(case, prompts)
    assert not odd
    return [(candidate.ids, share) for candidate, share in found]


def test_a_form_that_rows_can_tell_is_decided_and_its_rivals_ruled_out(mini: Profile) -> None:
    form = PromptForm("compact_json", history_reasoning="dropped", arguments="spaced")
    verdict = decide_prompt([observed(mini, asked(k, loop=k % 2 == 0, tools=True), form) for k in range(40)])
    assert verdict["form"] == "compact_json/reasoning_dropped/arguments_spaced" and verdict["explained"] == verdict["rows"] == 40
    assert {"typescript", "spaced_json", "omitted", "reasoning_kept", "arguments_as_sent"} <= set(verdict["ruled_out"])
    assert verdict["factors"]["arguments"]["arguments_spaced"] > 0.9


def test_what_two_factors_explain_together_is_not_settled_by_one(mini: Profile) -> None:
    """All rows have the same tools and one call: another declaration with other arguments may have the same length in every row."""
    form = PromptForm("compact_json", arguments="spaced")
    rows = [observed(mini, asked(k, loop=True, tools=True), form) for k in range(20)]
    verdict = decide_prompt(rows)
    table = rows[0].forms
    rivals = [name for name, count in table.items() if count == rows[0].billed_prompt and "arguments_as_sent" in name]
    assert ("arguments_as_sent" in verdict["ruled_out"]) is (not rivals)


def test_rows_without_history_decide_nothing_about_history(mini: Profile) -> None:
    form = PromptForm("compact_json", arguments="spaced", history_reasoning="dropped")
    verdict = decide_prompt([observed(mini, asked(k, tools=True), form) for k in range(40)])
    assert "typescript" in verdict["ruled_out"] and not {"arguments", "reasoning"} & set(verdict["factors"])
    found = left(mini, asked(99, loop=True, tools=True), form, verdict)
    assert found[0][0] == tuple(render_prompt(mini, asked(99, loop=True)["messages"], [TOOL], form=form))
    typescript = tuple(render_prompt(mini, asked(99, loop=True)["messages"], [TOOL], form=PromptForm("typescript")))
    assert typescript not in [ids for ids, _ in found]


def test_rows_without_names_leave_a_name_open(mini: Profile) -> None:
    kept, dropped = PromptForm("typescript"), PromptForm("typescript", names="dropped")
    verdict = decide_prompt([observed(mini, asked(k), dropped) for k in range(40)])
    word = next(w for w in ("k", "x", "user", "a") if len(mini.encode(w)) == len(mini.encode("user")) and w != "user")
    found = dict(left(mini, asked(99, name=word), dropped, verdict))
    rivals = {tuple(render_prompt(mini, asked(99, name=word)["messages"], form=form)) for form in (kept, dropped)}
    assert len(rivals) == 2 and rivals <= set(found) and max(found.values()) < 0.95


def test_rows_with_names_settle_them(mini: Profile) -> None:
    dropped = PromptForm("typescript", names="dropped")
    verdict = decide_prompt([observed(mini, asked(k, name="somebody else"), dropped) for k in range(40)])
    assert verdict["decided"] and {"name_kept", "name_prefixed"} <= set(verdict["ruled_out"])
    (only, share), *others = left(mini, asked(99, name="bob"), dropped, verdict)
    assert only == tuple(render_prompt(mini, asked(99, name="bob")["messages"], form=dropped)) and share > 0.95 and not others


def test_a_first_turn_of_a_provider_that_drops_history_is_not_contradicted(mini: Profile) -> None:
    dropped = PromptForm("typescript", history_reasoning="dropped")
    verdict = decide_prompt([observed(mini, asked(k, loop=True), dropped) for k in range(20)])
    assert "reasoning_kept" in verdict["ruled_out"]
    assert len(left(mini, asked(99), dropped, verdict)) == 1


@pytest.mark.parametrize(("more", "offset", "exact"), [(0, 0, True), (STUB, STUB, True), (-1, -1, True), (41, 41, False)])
def test_a_small_constant_is_a_stub_and_a_large_one_is_text_that_nobody_knows(
    mini: Profile, more: int, offset: int, exact: bool
) -> None:
    verdict = decide_prompt([observed(mini, asked(k, loop=k % 2 == 0), PromptForm("typescript"), more=more) for k in range(30)])
    assert verdict["offset"] == offset and (verdict["cannot_be_exact"] is None) is exact
    assert exact or "+41 tokens in every prompt" in verdict["cannot_be_exact"]


def test_two_forms_of_one_provider_are_neither_decided(mini: Profile) -> None:
    forms = (PromptForm("typescript"), PromptForm("spaced_json"))
    verdict = decide_prompt([observed(mini, asked(k, tools=True), forms[k % 2]) for k in range(40)])
    assert not verdict["decided"] and not {"typescript", "spaced_json"} & set(verdict["ruled_out"])
    assert verdict["explained"] == 40
    assert 0.3 < verdict["factors"]["tools"]["typescript"] / verdict["factors"]["tools"]["spaced_json"] < 3


def test_rows_that_ask_for_a_form_say_nothing_about_the_others(mini: Profile) -> None:
    asking = {**asked(0, tools=True), "tool_choice": "none"}
    plain = [observed(mini, asked(k, tools=True), PromptForm("typescript")) for k in range(20)]
    verdict = decide_prompt([*plain, *(observed(mini, asking, PromptForm("omitted")) for _ in range(20))])
    assert verdict["rows"] == 20 and "omitted" in verdict["ruled_out"]
    best, share = left(mini, asking, PromptForm("omitted"), verdict)[0]
    assert best == tuple(render_prompt(mini, asking["messages"])) and share > 0.9


def test_a_change_of_form_is_found_where_it_is(mini: Profile) -> None:
    before, after = PromptForm("compact_json"), PromptForm("typescript")
    rows = [observed(mini, asked(k, tools=True), before if k < 70 else after, at=float(k)) for k in range(150)]
    assert change_point(rows) == 70
    assert change_point(rows[:70]) is None and change_point(rows[:20]) is None


def test_nothing_is_learned_of_nothing() -> None:
    verdict = decide_prompt([])
    assert verdict["form"] is None and not verdict["decided"] and verdict["cannot_be_exact"] is None


# ---------------------------------------------------------------------------------------------------- recorded providers
@pytest.fixture(scope="module")
def by_month() -> dict[tuple[str, str], list[Observation]]:
    """Recorded K2-0905 answers of the shared half, by provider and month."""
    path = needs(shared_data() / "wire" / "recorded-k2-0905.jsonl.gz")
    profile = load_profile("kimi-k2-instruct", needs(shared_data() / "tokenizers"))
    out: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    nothing = FieldCounts("", "", "", "", {("", ""): 0})
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            fields = parse_fields(row["response_body"].encode("utf-8", "surrogatepass"), row["content_type"])
            seconds = re.search(r'"created":\s*(\d+)', row["response_body"])
            month = int(int(seconds[1]) / 2_629_746) - 668 if seconds else 0  # months since 2025-09
            key = (fields.provider or "groq.com", f"{2025 + (month + 8) // 12}-{(month + 8) % 12 + 1:02}")
            request = row["request"]
            out[key].append(
                Observation(0.0, bool(request.get("tools")), False, False, True, False, True, 1, None, nothing, nothing, ({1: 1.0}, {1: 1.0}),
                            False, None, (), "text", (), fields.billed_prompt, prompt_counts(profile, request, False))
            )  # fmt: skip
    return out


def met_by_one_form(rows: list[Observation]) -> int:
    """Bills that one form with one constant meets, of rows with tools and of rows without."""
    strata = ([row for row in rows if row.tools], [row for row in rows if not row.tools])
    return sum(max(decide_prompt(part)["forms"].values(), default=0) for part in strata if part)


def test_one_form_a_provider_and_month_explains_more_than_the_note_reached_by_hand(
    by_month: dict[tuple[str, str], list[Observation]],
) -> None:
    """By hand, with a constant of up to 14 a provider and month: 795 of 1,367 (docs/research/recorded-traffic.md#2)."""
    rows = sum(map(len, by_month.values()))
    assert rows > 600 and sum(map(met_by_one_form, by_month.values())) >= 0.60 * rows


@pytest.mark.parametrize(
    ("provider", "words", "share"),
    [
        ("Moonshot AI", {"compact_json+escaped", "compact_json+sorted+escaped", "typescript_flat", "typescript_loose"}, 0.85),
        ("Novita", {"compact_json+escaped", "compact_json+sorted+escaped", "typescript_flat", "typescript_loose"}, 0.6),
        ("Parasail", {"compact_json+unwrapped+strict+typed", "compact_json+unwrapped+strict+sorted"}, 0.85),
        ("AtlasCloud", {"compact_json+unwrapped+strict+typed", "compact_json+unwrapped+strict+sorted"}, 0.7),
    ],
)
def test_real_providers_are_explained_by_the_forms_that_the_note_found(
    by_month: dict[tuple[str, str], list[Observation]], provider: str, words: set[str], share: float
) -> None:
    months = [rows for (name, _), rows in sorted(by_month.items()) if name == provider]
    months = [[row for row in rows if row.tools] for rows in months if sum(row.tools for row in rows) >= 8]
    assert months
    for rows in months:
        verdict = decide_prompt(rows)
        assert words & set(verdict["factors"]["tools"]), verdict["form"]
    assert sum(map(met_by_one_form, months)) >= share * sum(map(len, months))


def test_no_deciding_is_done_by_a_provider_whose_counts_are_estimates(by_month: dict[tuple[str, str], list[Observation]]) -> None:
    """DeepInfra rewrites calls and schemas: no form explains it, and nothing is called decided."""
    rows = [row for (name, _), rows in by_month.items() if name == "DeepInfra" for row in rows if row.tools]
    verdict = decide_prompt(rows)
    assert not verdict["decided"] and "bills fit a form" in verdict["cannot_be_exact"]


def test_candidates_of_a_long_agent_session_are_joined_only_when_asked_for(mini: Profile) -> None:
    candidates = enumerate_prompts(mini, asked(0, loop=True, tools=True), thinking=True)
    assert len(candidates) > 30 and all(candidate._ids is None for candidate in candidates)
    assert [len(candidate.ids) for candidate in candidates] == [candidate.count for candidate in candidates]
