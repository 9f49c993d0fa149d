"""The tokenizer probe: is the target's tokenizer what everything behind it believes it to be?

Belongs here: facts measured on the real files, and the refusal of a campaign that contradicts them. Does not belong here:
verdict types (`review`): each check is a plain dict with the name it has in the review's table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.render import declaration, default_form, render_text, render_with_template
from eagle3_assets.targets.grammar import assemble, check, split
from eagle3_assets.targets.profile_facts import profile_for_model
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.targets.turn_text import TurnText, parts_of, texts_of
from eagle3_assets.wire.fields import ToolCall

GOLDEN_FILE = "golden.json"
SEED = 20260101
RANDOM_CASES = 2000
# Edges that break tokenizers: newlines, spaces, digits, CJK, emoji, joiners, combining marks, NUL, half markers, code,
# contractions.
EDGE_TEXTS = (
    *["", "a", " ", "\n", "\n\n", " \n", "\t", "\r\n", ".", "?\n", "x", "y", "The", " The", "1", "123", "0x1F"],
    *["你好", "，", "かな", "한국어", "é", "e\u0301", "😀", "👩‍👩‍👧", "🇺🇸", "\u200d", "\x00", "'s", "I'"],
    *["</thin", "k>", "<|", "|>", '{"a": 1}', "```", "\\frac", "</think", "[EOS", "]"],
)
ROUND_TRIPS = (
    *EDGE_TEXTS,
    *["def f(x):\n    return x**2\n", "a\r\nb\r\n", "CamelCaseString HTTPServer", "$f(x)=x^2$", " \u3000x", "\ufeffbom"],
    *["สวัสดีครับ", "Привет, мир!", "<|im_end|> and </think> as text", "x" * 300, " " * 100, "#" * 200],
)


def probe(campaign: Campaign, profile: Profile) -> dict[str, Any]:
    """{"profile", "facts" {…}, "checks" {name: {"passed", "message", "numbers"}}}; facts are plain figures to be shown.

    Raises ExactError when the campaign names another end of turn or a vocabulary that is too small.
    """
    _refuse_contradictions(campaign, profile)
    checks = {
        "special_ids": _special_ids(profile),
        "end_of_turn": _end_of_turn(campaign, profile),
        "boundaries": _boundaries(profile),
        "tool_markers": _tool_markers(profile),
        "round_trip": _round_trip(profile),
        "template": _template(profile),
        "golden": _golden(profile),
    }
    return {"profile": profile.name, "facts": _facts(profile, checks), "checks": checks}


def _refuse_contradictions(campaign: Campaign, profile: Profile) -> None:
    stated, end = campaign.target.end_of_turn_id, profile.end_id
    if stated is not None and stated != end:
        raise ExactError(
            f"{campaign.path}: target.end_of_turn_id = {stated} is {_described(profile, stated)}; the end of a {profile.name} "
            f"turn is {profile.special_names[end]} = {end}; put {end} or remove the key"
        )
    if campaign.target.vocab_size < profile.n_vocab:
        raise ExactError(
            f"{campaign.path}: target.vocab_size = {campaign.target.vocab_size} is less than the {profile.n_vocab} ids of "
            f"{profile.name}; put {profile.n_vocab}"
        )


def _described(profile: Profile, token_id: int) -> str:
    name = profile.token_name(token_id)
    if token_id >= profile.n_vocab:
        return f"outside the vocabulary (0..{profile.n_vocab - 1})"
    if not profile.is_ordinary(token_id):
        return f"the control token {name}"
    return f"the ordinary token {name!r}"


def _result(passed: bool, message: str, **numbers: Any) -> dict[str, Any]:
    return {"passed": bool(passed), "message": message, "numbers": numbers}


# ---------------------------------------------------------------------------------------------------- checks
def _special_ids(profile: Profile) -> dict[str, Any]:
    wrong = [name for name, token_id in profile.specials.items() if profile.encode_prompt(name) != [token_id]]
    forged = [name for name in profile.specials if not all(map(profile.is_ordinary, profile.encode(name)))]
    message = f"{len(profile.specials)} control tokens have their ids, and their text alone never makes one"
    if wrong or forged:
        message = f"wrong: {', '.join(wrong) or 'none'}; made from ordinary text: {', '.join(forged) or 'none'}"
    return _result(
        not wrong and not forged, message, specials=len(profile.specials), n_base=profile.n_base, n_vocab=profile.n_vocab
    )


def _end_of_turn(campaign: Campaign, profile: Profile) -> dict[str, Any]:
    end, eos = profile.end_id, profile.special(profile.facts.tokenizer.eos)
    stated = "stated in the campaign" if campaign.target.end_of_turn_id is not None else "not stated in the campaign"
    message = f"{profile.special_names[end]} = {end} ({stated})"
    if eos != end:
        message += f"; tokenizer.eos_token is {profile.special_names[eos]} = {eos} and does not end a turn: never use it"
    for quoted in profile.facts.quoted:
        message += f"; {quoted.id}, often quoted as {quoted.claim}, is {_described(profile, quoted.id)}"
    text = profile.special_names[end]
    return _result(
        profile.encode_prompt(text) == [end] and not profile.is_ordinary(end), message, end_of_turn=end, tokenizer_eos=eos
    )


def _boundaries(profile: Profile) -> dict[str, Any]:
    """encode(a) + [id] + encode(b) == encode(a + marker + b) for every marker that parts two fields."""
    markers = [token for name, token in profile.tool_ids.items() if name.endswith("_begin") and name != "call_begin"]
    begin = profile.tool_ids.get("call_begin")
    markers = [*(markers or ([] if begin is None else [begin])), profile.end_id]
    if profile.think_close is not None:
        markers.insert(0, profile.think_close)
    grid = [(a, b, marker) for a, b in product(EDGE_TEXTS, EDGE_TEXTS) for marker in markers]
    drawn = [(a, b, markers[0]) for a, b in _random_pairs(RANDOM_CASES)]
    tried, broken = 0, []
    for a, b, marker in [*grid, *drawn]:
        name = profile.special_names[marker]
        if name in a or name in b:  # drawn by chance; this test joins plain texts
            continue
        tried += 1
        joined = profile.encoding.encode(a + name + b, allowed_special={name}, disallowed_special=())
        if [*profile.encode(a), marker, *profile.encode(b)] != joined:
            broken.append((name, a, b))
    merged = [(a, b) for a, b in _random_pairs(RANDOM_CASES) if profile.encode(a) + profile.encode(b) != profile.encode(a + b)]
    share = len(merged) / RANDOM_CASES
    message = (
        f"{tried - len(broken)} of {tried} cases are hard boundaries; without a marker {share:.1%} of {RANDOM_CASES} joins merge"
    )
    if broken:
        message = f"{len(broken)} of {tried} cases differ, first {broken[0]!r}"
    return _result(not broken, message, cases=tried, broken=len(broken), joins=RANDOM_CASES, merged=len(merged))


def _random_pairs(n: int) -> Iterator[tuple[str, str]]:
    """Seeded pairs of short texts made of the edge texts."""
    source = random.Random(SEED)
    for _ in range(n):
        a, b = ("".join(source.choice(EDGE_TEXTS) for _ in range(source.randint(1, 4))) for _ in range(2))
        yield a, b


def _tool_markers(profile: Profile) -> dict[str, Any]:
    """A turn with two calls (one, where the model writes no more): texts → parts → ids → parts → texts."""
    form = profile.facts.tools.form
    if form == "none":
        return _result(True, "the model writes no tool calls", ids=0, text="none")
    made = tuple(
        ToolCall(profile.tool_id(name, k), name, arguments)
        for k, (name, arguments) in enumerate((("get_weather", '{"location": "NYC"}'), ("add", '{"a":2,"b":3}')))
    )
    calls = made[:1] if form == "bare_json" else made
    turn = TurnText(" two calls" if profile.opened_by != "never" else "", "", calls)
    parts = parts_of(profile, turn)
    ids = assemble(profile, parts)
    text = profile.decode(ids)
    same = profile.encode_prompt(text) == list(ids) and check(profile, ids) is None
    read = texts_of(profile, parts)
    same = same and split(profile, ids) == parts and (read.reasoning, read.content) == (turn.reasoning, turn.content)
    same = same and [(call.id, call.name) for call in read.calls] == [(call.id, call.name) for call in calls]
    # parameters come back as JSON of our own spacing; where the model writes raw arguments they come back as they were
    spelled = [json.loads(c.arguments) if form == "parameters" else c.arguments for c in (*read.calls, *calls)]
    same = same and spelled[: len(calls)] == spelled[len(calls) :]
    if not same:
        fault = f"{len(calls)} calls do not come back from ids → text → ids and ids → parts → texts: {text!r:.200}"
        return _result(False, fault, ids=len(ids), text=text)
    survive = "one call survives" if len(calls) == 1 else "two calls survive"
    return _result(True, f"{survive} ids → text → ids and ids → parts → ids ({len(ids)} ids)", ids=len(ids), text=text)


def _round_trip(profile: Profile) -> dict[str, Any]:
    wrong = [text for text in ROUND_TRIPS if profile.decode(profile.encode(text)) != text and profile.doubts(text) is None]
    message = f"{len(ROUND_TRIPS)} texts come back as they were" if not wrong else f"{wrong[0]!r} does not come back"
    return _result(not wrong, message, texts=len(ROUND_TRIPS), wrong=len(wrong))


def _template(profile: Profile) -> dict[str, Any]:
    if not profile.renders:
        return _result(
            True, f"no template for {profile.name}: prompts cannot be rendered, completions can be rebuilt", conversations=0
        )
    if profile.template_path is None:
        return _result(True, "no chat_template.jinja beside the ranks: our renderer was not compared this time", conversations=0)
    if profile.facts.template.kind == "jinja":
        return _result(
            True, f"prompts are rendered by {profile.template_path.name} itself: there is nothing to compare", conversations=0
        )
    tried, differing = 0, []
    for name, messages, tools in conversations():
        for thinking in (True, False) if profile.instant else (True,):
            switches: dict[str, Any] = {"add_generation_prompt": True, "thinking": thinking}
            form = default_form(profile)
            if tools and form.tool_style == "typescript":
                switches["tools_ts_str"] = declaration(tools, form)
            tried += 1
            ours = render_text(profile, messages, tools, thinking=thinking)
            if ours != render_with_template(profile.template_path, messages, tools, **switches):
                differing.append(f"{name}, thinking={thinking}")
    message = f"our renderer and {profile.template_path.name} agree on {tried - len(differing)} of {tried} conversations"
    if differing:
        message += f"; first difference: {differing[0]}"
    return _result(not differing, message, conversations=tried, differing=len(differing))


def _golden(profile: Profile) -> dict[str, Any]:
    """Recorded encodings and renderings that somebody laid beside the ranks: {"encode": [{text, ordinary (optional), all_special}], "chat":
    [{name, model, messages, tools, kwargs, ids}]}. A chat case is rendered with the profile of its own model over the same ranks.
    """
    path = profile.ranks_path.with_name(GOLDEN_FILE)
    if not path.is_file():
        return _result(True, f"no {GOLDEN_FILE} beside the ranks: nothing recorded to compare with", encodings=0, renderings=0)
    try:
        recorded = json.loads(path.read_bytes())
        texts, chats = list(recorded["encode"]), list(recorded["chat"])
        models = {profile_for_model(c["model"]) or c["model"] for c in chats}
        if models and profile.name not in models:  # other names for the same slots: recorded ids of marker text do not apply
            return _result(True, f"{path.name} was recorded for {', '.join(sorted(models))}", encodings=0, renderings=0)
        wrong = [
            repr(case["text"])
            for case in texts
            if profile.encode(case["text"]) != case.get("ordinary", profile.encode(case["text"]))
            or profile.encode_prompt(case["text"]) != case["all_special"]
        ]
        wrong += [f"chat {c['name']}" for c in chats if _golden_ids(profile, c) != c["ids"]]
    except (ValueError, KeyError, TypeError) as error:
        return _result(
            False, f"{path} cannot be read ({error!r}); remove it or put the right file there", encodings=0, renderings=0
        )
    total = len(texts) + len(chats)
    message = f"{total - len(wrong)} of {total} recorded cases ({len(texts)} encodings, {len(chats)} renderings) are reproduced"
    if wrong:
        message += f"; first difference: {wrong[0]}"
    return _result(not wrong, message, encodings=len(texts), renderings=len(chats), differing=len(wrong))


def _golden_ids(profile: Profile, case: dict[str, Any]) -> list[int]:
    name = profile_for_model(case["model"])
    own = profile if name in (None, profile.name) else load_profile(str(name), profile.ranks_path.parent)
    switches = {"add_generation_prompt": False, **case["kwargs"]}
    return own.encode_prompt(render_text(own, case["messages"], case["tools"], **switches))


def conversations() -> list[tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]]:
    """Conversations that touch every branch of the templates: (name, messages, tools)."""
    tool = {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Find a word.\n\nReturns a list.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "maxLength": 9}, "n": {"type": "integer", "default": 3}},
                "required": ["word"],
            },
        },
    }
    user = {"role": "user", "content": "Q1\n"}
    system = {"role": "system", "content": " S "}
    answer = {"role": "assistant", "content": "A1", "reasoning_content": " R1"}
    call = {"id": "functions.lookup:0", "type": "function", "function": {"name": "lookup", "arguments": '{"word": "é"}'}}
    calling = {"role": "assistant", "content": "", "reasoning_content": " R2", "tool_calls": [call]}
    parsed = {**calling, "tool_calls": [{**call, "function": {"name": "lookup", "arguments": {"word": "é"}}}]}
    result = {"role": "tool", "tool_call_id": "functions.lookup:0", "content": "r\n"}
    named = {**result, "name": "lookup"}
    parts = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": " two"}]}
    return [
        ("one user turn", [user], None),
        ("system and user", [system, user], None),
        ("finished turn", [system, user, answer, {"role": "user", "content": "Q2"}], None),
        ("open tool loop", [user, calling, result], [tool]),
        ("tool loop behind a finished turn", [user, answer, user, calling, named], [tool]),
        ("closed tool loop", [user, calling, result, answer, user], [tool]),
        ("arguments as an object", [user, parsed, result], [tool]),
        ("content in parts", [parts], None),
        ("marker text from the user", [{"role": "user", "content": "say <|im_end|> and </think>"}], None),
        ("content is null", [user, {**calling, "content": None}, result], [tool]),
    ]


# ---------------------------------------------------------------------------------------------------- facts
def _facts(profile: Profile, checks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    boundaries = checks["boundaries"]["numbers"]
    eos = profile.special(profile.facts.tokenizer.eos)
    facts: dict[str, Any] = {
        "tokenizer_sha256": profile.tokenizer_sha256,
        "template_sha256": profile.template_sha256,
        "ordinary_ids": profile.n_base,
        "vocabulary": profile.n_vocab,
        "end_of_turn": f"{profile.special_names[profile.end_id]} = {profile.end_id}",
        "tokenizer_eos": f"{profile.special_names[eos]} = {eos}" + ("" if eos == profile.end_id else " (does not end a turn)"),
        "reasoning_markers": "none"
        if profile.think_close is None
        else f"<think> {profile.think_open} written by the {profile.opened_by}, </think> {profile.think_close}",
        "normalizer": profile.facts.tokenizer.normalizer,
        "boundary_cases": f"{boundaries['cases'] - boundaries['broken']} of {boundaries['cases']} equal",
        "joins_that_merge": f"{boundaries['merged']} of {boundaries['joins']}",
        "join_x_y": f"encode('x') + encode('y') = {profile.encode('x') + profile.encode('y')}, "
        f"encode('xy') = {profile.encode('xy')}",
        "tool_markers": checks["tool_markers"]["numbers"]["text"],
        "template_conversations": checks["template"]["numbers"]["conversations"],
        "golden_encodings": checks["golden"]["numbers"]["encodings"],
        "golden_renderings": checks["golden"]["numbers"]["renderings"],
    }
    for quoted in profile.facts.quoted:
        facts[f"id_{quoted.id}"] = f"{_described(profile, quoted.id)}, often quoted as {quoted.claim}"
    return facts
