"""What a provider should return and bill, by whole strings and plain rules: slow, obvious, and without any code of the bending.

Belongs here: the oracle of the property tests over profiles, and answers to feed it. Does not belong here: assertions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from kimi_mini.tokenizer import load_encoding
from openrouter_standin.schema.provider import Provider
from openrouter_standin.vocabulary import Vocabulary

V = Vocabulary.of(load_encoding())
MARKERS = (V.close_think, V.section_begin, V.section_end, V.call_begin, V.argument_begin, V.call_end)

# ------------------------------------------------------------------------------------------------ answers
ordinary = st.integers(0, V.im_end - 3)  # below every special id
edges = st.sampled_from(["", "", " ", "  ", "\n", "\n\n", " \n", "\n ", "\r\n", "\u3000", "\t"])
words = st.sampled_from(["a", "No.", "你好", "👩‍👩‍👧", "é", "x\n\ny", "The answer", "</think>", "<|im_end|>"])
spelt = st.tuples(edges, st.one_of(words, st.just("")), edges).map(lambda t: V.encode_text("".join(t)))
# text as encoded, and ids that no encoder would choose (parts of characters among them)
texts = st.one_of(spelt, spelt, st.lists(ordinary, max_size=8).map(tuple))
json_texts = st.sampled_from(
    [
        '{"city": "Florence"}', '{"city":"Florence","n":1}', '{"b": 2, "a": [1, 2.50, true, null]}', '{"é": "你\\n", "a": "\\u00e9"}',
        "{}", "", " ", "[]", "{", "3", '{"a": NaN}', '{\n  "a": 1\n}', ' {"a": 1}\n', "null", '{"a": 1, "a": 2}', "not {json}",
    ]
)  # fmt: skip
arguments = st.one_of(json_texts.map(V.encode_text), json_texts.map(V.encode_text), texts)
headers = st.sampled_from(
    [
        "functions.f:0",
        "functions.a.b:12",
        "functions.get-it:3",
        " functions.f:1 ",
        "call00003",
        "3",
        "functionsexec5",
        "functions.f:x",
    ]
).map(V.encode_text)
calls_of = st.lists(st.tuples(headers, arguments), max_size=3)


@st.composite
def completions(draw: Any) -> tuple[tuple[int, ...], bool]:
    """(ids, thinking), in the grammar, with stray text in the section at times, perhaps cut anywhere."""
    thinking = draw(st.booleans()) or draw(st.booleans())
    calls = draw(calls_of)
    ids: list[int] = []
    closed = not thinking
    if thinking:
        ids += draw(texts)
        if not calls or draw(st.integers(0, 3)):
            ids.append(V.close_think)
            closed = True
    ids += draw(texts) if closed else ()
    if calls:
        ids.append(V.section_begin)
        for header, args in calls:
            ids += [V.call_begin, *header, V.argument_begin, *args, V.call_end]
        ids += [*(draw(texts) if not draw(st.integers(0, 7)) else ()), V.section_end]
        ids += draw(texts) if not draw(st.integers(0, 7)) else ()
    ids.append(V.im_end)
    if not draw(st.integers(0, 2)):
        ids = ids[: draw(st.integers(1, len(ids)))]
    return tuple(ids), thinking


# ------------------------------------------------------------------------------------------------ truth
def decode(ids: Sequence[int]) -> str:
    """Text by another way than the stand-in's incremental one."""
    shown = [i for i in ids if i not in V.hidden]
    return V.encoding.decode_bytes(shown).decode("utf-8", errors="replace")


@dataclass
class Truth:
    """An answer by its markers. `units` of the section: (is it a marker, text), in order."""

    reasoning: str
    reasoning_ids: int
    closed: bool
    content: str
    section: bool
    calls: list[tuple[str, str]]
    cut: tuple[str, str] | None
    stray: bool
    units: list[tuple[bool, str]]
    ended: bool


def read(ids: Sequence[int], thinking: bool) -> Truth:
    ended = ids[-1] == V.im_end
    body = list(ids[:-1] if ended else ids)
    reasoning: list[int] = []
    closed = False
    if thinking:
        while body and body[0] not in (V.close_think, V.section_begin):
            reasoning.append(body.pop(0))
        closed = bool(body) and body[0] == V.close_think
        body = body[1:] if closed else body
    content: list[int] = []
    while body and body[0] != V.section_begin:
        content.append(body.pop(0))
    units: list[tuple[bool, str]] = []
    run: list[int] = []
    for i in [*body, V.section_begin]:
        if i not in MARKERS:
            run.append(i)
            continue
        units += [(False, decode(run))] if decode(run) else []
        units.append((True, V.encoding.decode([i])))
        run = []
    letters = "".join({m: "BEbae"[k] for k, m in enumerate(MARKERS[1:])}.get(i, "." if i != V.close_think else "x") for i in body)
    places = [(m.start(), m.end(), m.start() + m.group().index("a")) for m in re.finditer(r"b[^ea]*a[^e]*e", letters)]
    calls = [(decode(body[s + 1 : a]), decode(body[a + 1 : e - 1])) for s, e, a in places]
    rest = letters[places[-1][1] :] if places else letters[1:]
    inside = list(letters)
    for s, e, _ in places:
        inside[s:e] = [" "] * (e - s)
    stray = bool(set(inside[1:]) - {" ", "E"})
    cut = None
    if not ended and (m := re.search(r"b([^ab]*)a([^b]*)$", rest)):
        at = len(letters) - len(rest)
        cut = decode(body[at + m.start(1) : at + m.end(1)]), decode(body[at + m.start(2) :])
        stray = len("".join(inside[1:]).strip(" ").lstrip("E")) > len(m.group())
    return Truth(decode(reasoning), len(reasoning), closed, decode(content), bool(body), calls, cut, stray, units[:-1], ended)


# ------------------------------------------------------------------------------------------------ what is returned
@dataclass
class Expected:
    """`calls`: (pattern of the id, name, arguments). `verbatim`: nothing is changed."""

    reasoning: str | None
    content: str | None
    calls: list[tuple[str, str, str]]
    finish_reason: str


def _strip(text: str, side: str, what: str | None) -> str:
    return {"none": text, "left": text.lstrip(what), "right": text.rstrip(what), "both": text.strip(what)}[side]


def _dump(text: str, style: str) -> str:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        value = json.loads(text, parse_constant=refuse)
    except ValueError:
        return text
    if style == "compact":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(value, ensure_ascii=style == "ascii", sort_keys=style == "sorted")


def expected(
    ids: Sequence[int], thinking: bool, provider: Provider, *, streamed: bool, leaked: bool, calls_so_far: int
) -> Expected:
    text = provider.text.rules(streamed=streamed)
    true = read(ids, thinking)
    joint = " " if text.inject_between_markers else ""
    section = joint.join(unit for _, unit in true.units) if leaked else ""
    reasoning, content = true.reasoning, true.content
    if reasoning:
        reasoning = " " * text.inject_reasoning_leading + reasoning
        reasoning += " " * (text.inject_reasoning_trailing and (true.closed or true.section))
    if content:
        content = " " * text.inject_content_leading + content + " " * (text.inject_content_trailing and true.section)
    open_reasoning = thinking and not true.closed
    if section and open_reasoning:
        section = section if reasoning else " " * text.inject_reasoning_leading + section
    elif section and not content:
        section = " " * text.inject_content_leading + section
    if thinking and not text.reasoning_parser and (true.closed or true.reasoning_ids):
        content = reasoning + "</think>" * true.closed + content + section
        reasoning = ""
    elif open_reasoning:
        reasoning += section
    else:
        content += section
    what = {"whitespace": None, "newlines": "\r\n"}[text.strip_what]
    reasoning, content = _strip(reasoning, text.strip_reasoning, what), _strip(content, text.strip_content, what)
    parsed = true.section and not leaked
    if parsed and text.drop_blank_content and not content.strip():
        content = ""
    told: str | None = content or None
    if parsed and not content and text.empty_content != "null":
        told = text.empty_content
    calls = _calls(true, text, calls_so_far) if parsed else []
    return Expected(reasoning or None, told, calls, _finish(true, text, leaked))


def _finish(true: Truth, text: Any, leaked: bool) -> str:
    if not true.ended:
        begun = not leaked and (true.calls or true.cut)
        return str(text.finish_of_cut_calls) if begun else "length"
    return "tool_calls" if true.calls and not leaked else "stop"


def _calls(true: Truth, text: Any, calls_so_far: int) -> list[tuple[str, str, str]]:
    out = []
    found = list(true.calls)
    if text.narrow_call_pattern:
        found = [
            (h, a)
            for h, a in found
            if re.fullmatch(r"[A-Za-z0-9_.]+:[0-9]+", h.strip())
            and a.strip()[:1] == "{"
            and a.strip()[-1:] == "}"
            and "\n" not in a.strip()
        ]
    for k, (header, raw) in enumerate([*found, *([true.cut] if true.cut and text.cut_calls == "partial" else [])]):
        whole = k < len(found)
        header_name = header.strip()
        full = header_name[10:].rpartition(":")[0] if re.fullmatch(r"(?s)functions\..+:\d+", header_name) else header_name
        name = header_name.split(":")[0].split(".")[-1] if text.tool_name == "last_segment" else full
        pattern = {
            "native": re.escape(header.strip() if text.strip_arguments else header),
            "renumbered": re.escape(f"functions.{full}:{calls_so_far + k}"),
            "local": re.escape(f"functions.{full}:{k}"),
            "call_hex": "call_[0-9a-f]{24}",
            "chatcmpl": "chatcmpl-tool-[0-9a-f]{32}",
        }[text.tool_ids]
        args = raw
        if text.strip_arguments:
            args = raw.strip() if whole else raw.lstrip()
        if whole:
            args = args or text.empty_arguments
            args = args if text.arguments == "verbatim" else _dump(args, text.arguments)
        out.append((pattern, name, args))
    return out


# ------------------------------------------------------------------------------------------------ what is billed
def counts(
    ids: Sequence[int], thinking: bool, prompt: Sequence[int], provider: Provider, returned: Any
) -> tuple[range, int, int | None]:
    """(completion tokens that are right, prompt tokens, reasoning tokens)."""
    billing = provider.billing
    true = read(ids, thinking)

    def foreign(text: str) -> int:
        if billing.counts_by == "kimi-mini":
            return len(load_encoding().encode(text, disallowed_special=()))
        return -(-len(text.encode("utf-8", "replace")) // 4)

    if billing.counts_by == "ids":
        asked, count = len(prompt), len(ids)
    else:
        asked = foreign(V.encoding.decode(list(prompt)))
        shown = [returned.reasoning_text or "", returned.content_text or ""]
        shown += [part for call in returned.calls for part in (call.name, "".join(call.arguments))]
        count = sum(foreign(text) for text in shown) + true.ended
    if true.ended and not billing.counts_end:
        count -= 1
    slack = math.ceil(count * billing.count_noise) if billing.count_noise else 0
    low, high = (max(count + d + billing.completion_offset, 0) for d in (-slack, slack))
    thought = true.reasoning_ids
    told = {
        "with_close": thought + true.closed,
        "text": thought,
        "plus_one": thought + true.closed + 1,
        "estimate": -(-len(returned.reasoning_text or "") // 4),
        "zero": 0,
        "null": None,
    }[billing.reasoning_tokens]
    return range(low, high + 1), asked + billing.prompt_offset, told
