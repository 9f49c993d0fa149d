"""The law of grades: whatever a server does to an answer of the kinds that users reported of gateways and engines (log-probabilities with holes,
markers in texts, streams in odd pieces, reasoning unsplit or billed apart, prompts of another shape), a row of grade A, B or R has wrong ids
no oftener than it says itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences, truth_ids

SURE = ("A0", "A1", "A2", "B1", "B2", "R")
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": PROPERTIES}}}
Json = dict[str, Any]


@dataclass
class Wire:
    """An answer on its way: what was asked, the true ids, the message as it will be sent, its bill, in how many pieces each text is streamed
    (0: one body)."""

    request: Json
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    message: Json
    finish: str
    usage: Json
    logprobs: list[Json] | None = None
    pieces: int = 0
    split_names: bool = False

    @property
    def truth(self) -> tuple[int, ...]:
        return (*self.prompt, *self.ids)


# ---------------------------------------------------------------------------------------------------- answers
WORDS = st.sampled_from(
    ["river", "Alpha", "of", "12", "don't", "naïve", "京都", "😀", "x_1", '"quoted"', "<b>", "a.b", "```", "{", "}", "—", "end."]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=14).map(" ".join)
LEADS, TRAILS = st.sampled_from([" ", " ", " ", "", "\n", "\n\n"]), st.sampled_from(["", "", "", "\n"])


@st.composite
def arguments(draw: st.DrawFn) -> str:
    city, days = draw(st.sampled_from(["Oslo", "北京", 'a "b"', ""])), draw(st.integers(0, 40))
    value = {"city": city} | ({"days": days} if days else {})
    return json.dumps(value, ensure_ascii=False, separators=(",", ":") if draw(st.booleans()) else None)


@st.composite
def answers(draw: st.DrawFn) -> Truth:
    reasoning, content = (draw(LEADS) + draw(TEXTS) + draw(TRAILS) for _ in range(2))
    calls = tuple(("look_up", text) for text in draw(st.lists(arguments(), max_size=2)))
    return Truth(reasoning, "" if calls and draw(st.booleans()) else content, calls, "tool_calls" if calls else "stop")


def sent(profile: Profile, truth: Truth, messages: list[Json]) -> Wire:
    request: Json = {"messages": messages, "tools": [TOOL]} if truth.calls else {"messages": messages}
    prompt, ids = tuple(render_prompt(profile, messages, request.get("tools"))), truth_ids(profile, truth)
    calls = [
        {"id": f"functions.{name}:{k}", "type": "function", "function": {"name": name, "arguments": text}}
        for k, (name, text) in enumerate(truth.calls)
    ]
    message: Json = {"role": "assistant", "reasoning": truth.reasoning, "content": truth.content or None}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    return Wire(request, prompt, ids, message | ({"tool_calls": calls} if calls else {}), truth.finish, usage)


def body_of(wire: Wire) -> bytes:
    if not wire.pieces:
        choice: Json = {"index": 0, "finish_reason": wire.finish, "message": wire.message}
        choice |= {"logprobs": {"content": wire.logprobs}} if wire.logprobs is not None else {}
        return json.dumps({"choices": [choice], "usage": wire.usage}).encode()
    deltas: list[Json] = []
    for name in ("reasoning", "content"):
        text = (wire.message.get(name) or "").encode("utf-16-le")
        step = 2 * max(1, math.ceil(len(text) / 2 / wire.pieces))  # of UTF-16: through the middle of surrogate pairs, too
        deltas += [{name: text[k : k + step].decode("utf-16-le", "surrogatepass")} for k in range(0, len(text), step)]
    for k, call in enumerate(wire.message.get("tool_calls") or ()):
        name, told = call["function"]["name"], call["function"]["arguments"]
        for part in (name[:3], name[3:]) if wire.split_names else (name,):
            deltas.append({"tool_calls": [{"index": k, "id": call["id"], "function": {"name": part, "arguments": ""}}]})
        for part in (told[: len(told) // 2], told[len(told) // 2 :]):
            deltas.append({"tool_calls": [{"index": k, "function": {"arguments": part}}]})
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": wire.finish}]}, {"choices": [], "usage": wire.usage}]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


# ---------------------------------------------------------------------------------------------------- damage to the shape of an answer
Damage = Callable[[Profile, Wire, st.DataObject], Wire]
HOLES: Mapping[str, Json] = {
    "empty": {"token": "", "bytes": []},
    "null": {"token": "", "bytes": None},
    "lost": {"token": "\ufffd", "bytes": [239, 191, 189]},
    "redacted": {"token": "<redacted>", "bytes": list(b"<redacted>")},
}


def logprobs_with_holes(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    holes, hole = data.draw(st.sets(st.integers(0, len(wire.ids) - 1))), HOLES[data.draw(st.sampled_from(sorted(HOLES)))]
    told = []
    for k, token in enumerate(wire.ids):
        name = profile.token_name(token)
        own = profile.encoding.decode_single_token_bytes(token) if profile.is_ordinary(token) else name.encode()
        entry = hole if k in holes else {"token": own.decode("utf-8", "replace"), "bytes": list(own)}
        told.append({**entry, "logprob": -0.1, "top_logprobs": []})
    return replace(wire, logprobs=told)


def shorter_prompt(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    """The system turn is dropped, and perhaps the tools."""
    messages = [m for m in wire.request["messages"] if m["role"] != "system"]
    prompt = tuple(render_prompt(profile, messages, wire.request.get("tools") if data.draw(st.booleans()) else None))
    return replace(wire, prompt=prompt, usage={**wire.usage, "prompt_tokens": len(prompt)})


def unsplit(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    """Reasoning in the content between its markers, perhaps with spaces that a detokenizer joined, perhaps without the opening one."""
    space = data.draw(st.sampled_from(["", " "]))
    opened = data.draw(st.sampled_from([f"<think>{space}", ""]))
    text = f"{opened}{wire.message['reasoning']}{space}</think>{space}{wire.message['content'] or ''}"
    return replace(wire, message={**wire.message, "reasoning": None, "content": text})


def raw_calls(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    """The tool section stands in the content."""
    section = "".join(
        f"<|tool_call_begin|>{c['id']}<|tool_call_argument_begin|>{c['function']['arguments']}<|tool_call_end|>"
        for c in wire.message.get("tool_calls") or ()
    )
    if not section:
        return wire
    text = f"{wire.message['content'] or ''}<|tool_calls_section_begin|>{section}<|tool_calls_section_end|>"
    kept = {name: value for name, value in wire.message.items() if name != "tool_calls"}
    return replace(wire, message={**kept, "content": text}, finish=data.draw(st.sampled_from(["stop", "tool_calls"])))


def streamed(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    return replace(wire, pieces=data.draw(st.integers(1, 9)), split_names=data.draw(st.booleans()))


def odd_counts(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    usage = {name: float(count) if isinstance(count, int) else count for name, count in wire.usage.items()}
    return replace(wire, usage=usage, finish=data.draw(st.sampled_from([wire.finish, "stop"])))


def instant(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    """Thinking turned off in one of its spellings, or by the server alone."""
    off = ({"reasoning": {"enabled": False}}, {"enable_thinking": False}, {"extra_body": {"thinking": {"type": "disabled"}}}, {})
    ids = wire.ids[wire.ids.index(profile.special("</think>")) + 1 :]
    prompt = tuple(render_prompt(profile, wire.request["messages"], wire.request.get("tools"), thinking=False))
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    request, message = {**wire.request, **data.draw(st.sampled_from(off))}, {**wire.message, "reasoning": None}
    return replace(wire, request=request, prompt=prompt, ids=ids, usage=usage, message=message)


def billed_apart(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    thought = wire.ids.index(profile.special("</think>")) + data.draw(st.sampled_from([0, 1]))
    details = {"completion_tokens_details": {"reasoning_tokens": thought}}
    return replace(wire, usage={**wire.usage, "completion_tokens": len(wire.ids) - thought, **details})


def unbilled(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    return replace(wire, usage={})


SHAPE: tuple[Damage, ...] = (
    logprobs_with_holes, shorter_prompt, unsplit, raw_calls, streamed, odd_counts, instant, billed_apart, unbilled,
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------- damage to its texts
def _texts(wire: Wire, data: st.DataObject, change: Callable[[str], str]) -> Wire:
    names = data.draw(st.sampled_from([("reasoning",), ("content",), ("reasoning", "content")]))
    return replace(wire, message={**wire.message, **{name: change(wire.message[name] or "") or None for name in names}})


def stripped(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    return _texts(wire, data, str.strip)


def injected(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    return _texts(wire, data, lambda text: f" {text}" if text else "")


def lossy(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    at = data.draw(st.integers(0, 40))
    return _texts(wire, data, lambda text: text[:at] + "?" + text[at + 1 :] if at < len(text) else text)


def spelled_anew(profile: Profile, wire: Wire, data: st.DataObject) -> Wire:
    calls = []
    for call in wire.message.get("tool_calls") or ():
        value = json.loads(call["function"]["arguments"])
        text = json.dumps(value, sort_keys=True, ensure_ascii=data.draw(st.booleans()))
        calls.append({**call, "function": {**call["function"], "arguments": text}})
    return replace(wire, message={**wire.message, "tool_calls": calls}) if calls else wire


TEXT: tuple[Damage, ...] = (stripped, injected, lossy, spelled_anew)


# ---------------------------------------------------------------------------------------------------- the law
@dataclass
class Tally:
    """Rows that were claimed, the wrong ones that their own p allow, and those that were wrong."""

    claimed: int = 0
    allowed: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def add(self, profile: Profile, wire: Wire, known: Mapping[str, Any] | None) -> None:
        request, body = {**wire.request, "stream": True} if wire.pieces else wire.request, body_of(wire)
        found = reconstruct(profile, request, parse_fields(body), known, source="openrouter")
        if found.grade in SURE:
            self.claimed += 1
            self.allowed += 1.0 - found.p_exact
            if found.input_ids != wire.truth:
                self.wrong.append(f"{found.grade} {found.p_exact:.3f} {found.evidence} {body!r}")

    @property
    def holds(self) -> bool:
        """Not more wrong ones than their own p allow, but for luck (three sigma)."""
        return len(self.wrong) <= self.allowed + 3 * math.sqrt(self.allowed)


@pytest.fixture(scope="module")
def verbatim(mini: Profile) -> dict[str, Any]:
    """What 160 answers, half of them streamed, say of a provider that changes nothing, beside an engine with ids."""
    texts = sentences(mini, 400, neutral=None)
    provider, engine = Provider(mini), Provider(mini, name="(engine)")
    for k in range(80):
        calls = (("look_up", '{"city": "Oslo"}'),) if k % 3 == 0 else ()
        truth = Truth(" " + texts[2 * k], " " + texts[2 * k + 1], calls, "tool_calls" if calls else "stop")
        for stream in (False, True):
            provider.answer(truth)
            provider.answers[-1] = replace(provider.answers[-1], request={**provider.answers[-1].request, "stream": stream})
        engine.answer(truth, with_ids=True, source="engine", provider=None)
    known = entry_of(learn(mini, [*provider.answers, *engine.answers]), "P")
    assert known is not None and all(window["decided"] for window in known["windows"])
    return known


MESSAGES = st.sampled_from(
    [
        [{"role": "user", "content": "Where to?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where to?"}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Where to?"}],
    ]
)
MANY = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)


def test_no_reported_damage_makes_rows_of_a_learned_provider_wrong_beyond_their_own_p(
    mini: Profile, verbatim: dict[str, Any]
) -> None:
    tally = Tally()

    @settings(MANY, max_examples=1500)
    @given(answers(), MESSAGES, st.sampled_from(SHAPE), st.sampled_from((None, streamed, odd_counts)), st.data())
    def rebuild(truth: Truth, messages: list[Json], first: Damage, second: Damage | None, data: st.DataObject) -> None:
        wire = first(mini, sent(mini, truth, messages), data)
        tally.add(mini, second(mini, wire, data) if second else wire, verbatim)

    rebuild()
    assert tally.claimed >= 100 and tally.holds, (tally.claimed, tally.allowed, "\n".join(tally.wrong[:5]))


def test_sound_answers_of_a_learned_provider_are_claimed_and_right(mini: Profile, verbatim: dict[str, Any]) -> None:
    """Without damage the law is no empty one."""
    tally = Tally()

    @MANY
    @given(answers(), MESSAGES)
    def rebuild(truth: Truth, messages: list[Json]) -> None:
        tally.add(mini, sent(mini, truth, messages), verbatim)

    rebuild()
    assert tally.claimed >= 20 and not tally.wrong, (tally.claimed, tally.wrong[:3])


@pytest.mark.parametrize("damage", (*SHAPE, *TEXT), ids=lambda damage: damage.__name__)
def test_where_nothing_was_learned_no_damage_gives_wrong_ids_a_grade(mini: Profile, damage: Damage) -> None:
    """Log-probabilities alone may prove ids then; what they do not name, they do not prove."""
    tally = Tally()

    @MANY
    @given(answers(), MESSAGES, st.booleans(), st.data())
    def rebuild(truth: Truth, messages: list[Json], proven: bool, data: st.DataObject) -> None:
        wire = sent(mini, truth, messages)
        wire = logprobs_with_holes(mini, wire, data) if proven and damage in TEXT else wire
        tally.add(mini, damage(mini, wire, data), None)

    rebuild()
    assert tally.holds, "\n".join(tally.wrong[:3])
