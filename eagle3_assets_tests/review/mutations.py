"""The mutation suite's cases: for every check of token rows, corruptions of a good row and innocent look-alikes.

A case is a list of (row, wire) put among good ones. `table_of()` runs all and gives the table of docs/checks.md
(`python -m eagle3_assets_tests.review.mutations` prints it).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.review.rows.row_invariants import Rules
from eagle3_assets.review.rows.token_rows import JudgedRow, judge_tokens
from eagle3_assets.review.rows.wires import Wire
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.wire.fields import Fields, ToolCall
from eagle3_assets_tests.review.made_rows import END, VOCAB, evidence, make_row, quarantined

Sample = tuple[SampleRow, Wire]
Case = list[Sample]
RULES = Rules(
    "eagle3/kimi-mini", 1.0, 0.95, max_length=6000, reserved=frozenset((505, 506, 507)), markers=re.compile("</?think>|<[|]im_end[|]>"),
    tokenizer_sha256="t" * 64,
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "required": ["q"]}}}
PICK = {"q": {"type": "string"}, "n": {"type": "integer", "maximum": 9}, "to": {"type": "array", "items": {"enum": ["a", "b"]}}}
PICKED = {"type": "object", "properties": PICK, "required": ["q"], "additionalProperties": False}
CALL = ToolCall("functions.look:0", "look", '{"q": "x"}')


def sample(
    name: object = "x", *, fields: Mapping[str, Any] | None = None, wire: Mapping[str, Any] | None = None, **row: Any
) -> Sample:
    """A good row and its answer; anything can be replaced."""
    made = make_row(name, **row)
    said: dict[str, Any] = {
        "reasoning": f"I think about {name}.",
        "content": f"The answer to {name}.",
        "tool_calls": (),
        "finish_reason": made.finish_reason,
        "provider": "Alpha",
        "model": "eagle3/kimi-mini",
        "billed_completion": 8,
        "billed_prompt": 5,
    }
    facts: dict[str, Any] = {
        "fields": Fields(**{**said, **(fields or {})}),
        "request": {"messages": [{"role": "user", "content": "question"}], "tools": [TOOL]},
        "attempt": 1,
        "sha256": made.wire_sha256,
        "provider": "Alpha",
        "model": "eagle3/kimi-mini",
        "seconds": 2.0,
    }
    return made, Wire(**{**facts, **(wire or {})})


def says(text: str, **more: Any) -> Case:
    return [sample(fields={"content": text, **more})]


def calls(*given: ToolCall, **row: Any) -> Case:
    return [sample(fields={"tool_calls": given, "finish_reason": "tool_calls"}, finish_reason="tool_calls", **row)]


def picks(arguments: str, parameters: object = None) -> Case:
    """A call of a tool with a schema of its own."""
    tools = [TOOL, {"type": "function", "function": {"name": "pick", "parameters": PICKED if parameters is None else parameters}}]
    fields = {"tool_calls": (ToolCall("functions.pick:0", "pick", arguments),), "finish_reason": "tool_calls"}
    return [sample(fields=fields, wire={"request": {"messages": [], "tools": tools}}, finish_reason="tool_calls")]


def imported(text: str, reasoning: str | None = None, **facts: Any) -> Case:
    """A row of an import: no ids and no bill."""
    fields = {"content": text, "reasoning": reasoning, "billed_prompt": None, "billed_completion": None, "provider": None}
    row = {"source": "import", "provider": None, "grade": "I", "evidence": evidence("I", **facts)}
    return [sample(fields=fields, billed_prompt=None, billed_completion=None, **row)]


def long(ids: tuple[int, ...], **row: Any) -> Case:
    """A row whose response is `ids`."""
    n = len(ids)
    return [sample(input_ids=(1, 2, *ids), prompt_len=2, loss_spans=((2, 2 + n),), billed_prompt=2, billed_completion=n, **row)]


def turns(one: tuple[int, ...], two: tuple[int, ...], first: int = 0, **row: Any) -> Case:
    """Turns `first` and the next of one sample with these prompts; `row` is of the second."""
    out = []
    for k, prompt in enumerate((one, two)):
        ids = (*prompt, 400 + k, END)
        row_k = dict(
            input_ids=ids,
            prompt_len=len(prompt),
            loss_spans=((len(prompt), len(ids)),),
            billed_prompt=len(prompt),
            billed_completion=2,
            sample_id="ab" * 16,
            turn=first + k,
            **(row if k else {}),
        )
        out.append(sample(f"turn{k}", **row_k))
    return out


def prose(n: int) -> str:
    """Words that do not repeat in order."""
    return " ".join(f"{(k * 7919) % 9973}th word" for k in range(n))


class Looks:
    """A checker of these made-up ids: an end where one is due; text and canonicity as the evidence says."""

    def grammar(self, row: JudgedRow) -> str | None:
        ends = [i for i, t in enumerate(row.response_ids.tolist()) if t == END]
        due = [] if row.finish_reason == "length" else [len(row.response_ids) - 1]
        return None if ends == due else "end of turn is not where it is due"

    def wire_text(self, row: JudgedRow) -> str | None:
        return row.evidence.get("differs")

    def canonical(self, row: JudgedRow) -> bool | None:
        return row.evidence.get("again")


def engine(name: object, **facts: Any) -> Sample:
    return sample(name, source="engine", provider=None, grade="A0", billed_completion=8, evidence=evidence("A0", **facts))


DROPPED = ["typescript/reasoning_dropped/arguments_as_sent"]
WALK = tuple(1 + (k * 7919) % 400 for k in range(3000))
GOOD: list[Sample] = [sample(i) for i in range(60)]
MUTATIONS: dict[str, dict[str, dict[str, Case]]] = {
    "structure": {
        "bad": {
            "id beyond the vocabulary": long((3, VOCAB, END)),
            "negative id": long((3, -1, END)),
            "span behind the row": [sample(loss_spans=((5, 14),))],
            "grade above its evidence": [sample(grade="A0", evidence=evidence("C1"))],
        },
        "innocent": {
            "highest id": long((3, VOCAB - 1, END)),
            "touching spans": [sample(loss_spans=((5, 8), (8, 13)))],
            "empty row in quarantine": [
                (quarantined("q", "wire_text", input_ids=(), prompt_len=0, loss_spans=()), sample("q")[1])
            ],
        },
    },
    "lineage": {
        "bad": {
            "row without an answer": [sample("foreign")],
            "row of another turn": [sample(3, turn=9)],
            "row of another sample": [sample("foreign", sample_id="f" * 32)],
        },
        "innocent": {
            "second turn that was answered": [
                sample(
                    "3b",
                    sample_id=GOOD[3][0].sample_id,
                    turn=1,
                    input_ids=(*GOOD[3][0].input_ids, 7, END),
                    prompt_len=13,
                    loss_spans=((13, 15),),
                    billed_prompt=13,
                    billed_completion=2,
                )
            ],
            "answered at the third attempt": [sample(attempt=3)],
            "answer in quarantine": [(quarantined("q", "grammar"), sample("q")[1])],
        },
    },
    "grammar": {
        "bad": {
            "no end of turn": long((3, 4, 5)),
            "end in the middle": long((3, END, 5, END)),
            "end though cut": long((3, 4, END), finish_reason="length", max_tokens=3),
        },
        "innocent": {
            "cut without an end": long((3, 4, 5), finish_reason="length", max_tokens=3),
            "only the end": long((END,)),
            "end of turn in the prompt": [
                sample(input_ids=(END, 2, 3, END), prompt_len=2, loss_spans=((2, 4),), billed_prompt=2, billed_completion=2)
            ],
        },
    },
    "wire_text": {
        "bad": {
            k: [sample(evidence=evidence(differs=k))] for k in ("content differs", "prompt is no rendering", "leaked marker")
        },
        "innocent": {
            "another provider": [sample(provider="Beta", fields={"provider": "Beta"})],
            "empty reasoning": says("yes", reasoning=None),
            "text with a marker's name": says("the <|im_end|> marker ends a turn"),
        },
    },
    "completion_equals_bill": {
        "bad": {
            "one too many": [sample(billed_completion=7)],
            "one too few": [sample(billed_completion=9)],
            "wrong convention": [sample(evidence=evidence(convention={"completion": 1}))],
        },
        "innocent": {
            "end not billed": [sample(billed_completion=7, evidence=evidence(convention={"completion": -1}))],
            "no bill, unverified": [sample(billed_completion=None, billed_prompt=None, grade="D", p_exact=0.5)],
            "import": [sample(source="import", provider=None, billed_completion=None, billed_prompt=None, grade="I")],
        },
    },
    "prompt_equals_bill": {
        "bad": {
            "one too many": [sample(billed_prompt=4)],
            "one too few": [sample(billed_prompt=6)],
            "its own reason, not out": [sample(reasons=("prompt_equals_bill: 3 more",))],
        },
        "innocent": {
            "a hidden prefix": [sample(billed_prompt=8, evidence=evidence(convention={"prompt": 3}))],
            "prompt of one id": [sample(prompt=1, billed_prompt=1)],
            "long prompt": [sample(prompt=900, billed_prompt=900)],
        },
    },
    "allowed_ids": {
        "bad": {
            "reserved id in the response": long((3, 506, END)),
            "reserved id in the prompt": [
                sample(input_ids=(505, 2, 3, END), prompt_len=2, loss_spans=((2, 4),), billed_prompt=2, billed_completion=2)
            ],
            "another tokenizer": [sample(tokenizer_sha256="u" * 64)],
        },
        "innocent": {
            "id before the reserved": long((3, 504, END)),
            "id behind the reserved": long((3, 508, END)),
            "id 0": long((0, END)),
        },
    },
    "finish_reason": {
        "bad": {
            "none": [sample(finish_reason=None)],
            "content_filter": [sample(finish_reason="content_filter")],
            "calls without calls": [sample(finish_reason="tool_calls")],
            "another than the wire's": [sample(fields={"finish_reason": "length"})],
        },
        "innocent": {
            "calls": calls(CALL),
            "stop with calls": [sample(fields={"tool_calls": (CALL,)})],
            "import without one": [sample(source="import", provider=None, grade="I", evidence=evidence("I"), finish_reason=None)],
        },
    },
    "loss_mask": {
        "bad": {
            "first id unsupervised": [sample(loss_spans=((6, 13),))],
            "end unsupervised": [sample(loss_spans=((5, 12),))],
            "only the middle": [sample(loss_spans=((7, 9),))],
            "nothing at all": [sample(loss_spans=())],
        },
        "innocent": {
            "gap in the middle": [sample(loss_spans=((5, 7), (10, 13)))],
            "one id": long((END,)),
            "three spans": [sample(loss_spans=((5, 6), (6, 9), (9, 13)))],
        },
    },
    "clean_text": {
        "bad": {
            "U+FFFD": says("a\ufffdb"),
            "byte order mark": says("\ufeffab"),
            "NUL": says("a\x00b"),
            "half a pair": says("a\ud83db"),
            "in the reasoning": says("a", reasoning="\ufffd"),
        },
        "innocent": {
            "emoji": says("done 👍🏽"),
            "Chinese": says("你好，世界"),
            "combining accents": says("e\u0301 n\u0303"),
            "escape in words": says("\\ufffd is the replacement character"),
        },
    },
    "stream_complete": {
        "bad": {
            "problem in the body": says("x", problems=("a stream event is not a JSON object",)),
            "no bill": says("x", billed_completion=None),
            "lost piece": says("whole", deltas=(("content", "who"),)),
            "lost reasoning": says("x", deltas=(("content", "x"),)),
        },
        "innocent": {
            "pieces that add up": says("whole", reasoning=None, deltas=(("content", "who"), ("content", "le"))),
            "channels in turns": says("ab", reasoning="r", deltas=(("reasoning", "r"), ("content", "a"), ("content", "b"))),
            "no stream": says("x"),
        },
    },
    "not_empty": {
        "bad": {"nothing": says("", reasoning=""), "blanks": says(" \n", reasoning=" "), "null": says("", reasoning=None)},
        "innocent": {
            "one letter": says("y", reasoning=None),
            "only a call": calls(CALL),
            "only reasoning": says("", reasoning="hm"),
        },
    },
    "no_loops": {
        "bad": {
            "text that repeats": says("again and again " * 600),
            "ids that repeat": long((*tuple(range(3, 15)) * 25, END)),
            "one id without end": long((*[7] * 400, END)),
            "the same call": calls(CALL, CALL, CALL),
        },
        "innocent": {
            "long prose": says(prose(2000)),
            "a long walk of ids": long((*WALK, END)),
            "a dozen repeats": long((*tuple(range(3, 15)) * 12, END)),
            "two equal calls": calls(CALL, CALL),
            "a repeating prompt": [
                sample(
                    input_ids=(*tuple(range(3, 15)) * 25, 3, END),
                    prompt_len=300,
                    loss_spans=((300, 302),),
                    billed_prompt=300,
                    billed_completion=2,
                )
            ],
            "a rule of dashes": says("-" * 500),
        },
    },
    "error_text": {
        "bad": {
            "HTML page": says("<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><center>nginx</center>"),
            "JSON error": says('{"error": {"message": "Provider returned error", "code": 502}}'),
            "notice": says("upstream connect error or disconnect"),
            "cut by a router": says("The list is long [truncated]"),
        },
        "innocent": {
            "HTML asked for": says("<!DOCTYPE html><html><head><title>My shop</title></head></html>"),
            "about 502": says("A 502 Bad Gateway means that"),
            "JSON asked for": says('{"error": null, "items": []}'),
            "the word": says("Use [truncated] where text was cut, as in the guide."),
        },
    },
    "row_provider_and_model": {
        "bad": {
            "another provider": says("x", provider="Beta"),
            "no provider": [sample(provider=None)],
            "another model": [sample(model="x/other")],
            "fallback in the body": says("x", model="moonshotai/kimi-k2"),
        },
        "innocent": {
            "body names nobody": says("x", provider=None, model=None),
            "engine": [engine("e")],
            "import": [sample(source="import", provider=None, model=None, grade="I", evidence=evidence("I"))],
        },
    },
    "sampling": {
        "bad": {
            "temperature not sent": [sample(temperature=None)],
            "another temperature": [sample(temperature=0.6)],
            "another top_p": [sample(top_p=1.0)],
        },
        "innocent": {
            "import": [sample(source="import", provider=None, grade="I", evidence=evidence("I"), temperature=None, top_p=None)],
            "as a whole number": [sample(temperature=float(1))],
            "another max_tokens": [sample(max_tokens=64)],
        },
    },
    "marker_text": {
        "bad": {
            "reasoning inside the content": imported("<think>Hm.</think>Yes."),
            "a raw completion": imported("Hm.</think>Yes."),
            "the end of turn": imported("Yes.<|im_end|>"),
            "in the reasoning": imported("Yes.", reasoning="<think>Hm."),
        },
        "innocent": {
            "its name in quotation marks": imported("Reasoning ends with `</think>`."),
            "another tag": imported("<thinking>Hm.</thinking>Yes."),
            "split at its markers": imported("<think>Hm.</think>Yes.", leaked=True),
            "told apart by the bill": says("Reasoning ends with </think>."),
            "told apart by ids": [(engine("e")[0], sample("e", fields={"content": "</think> ends it."})[1])],
        },
    },
    "provenance": {
        "bad": {
            "other bytes": [sample(wire={"sha256": "0" * 64})],
            "no generation": [sample(generation_id=None)],
            "no template": [sample(template_sha256="")],
            "no tokenizer": [sample(tokenizer_sha256="")],
        },
        "innocent": {
            "import without generation": [
                sample(source="import", provider=None, grade="I", evidence=evidence("I"), generation_id=None)
            ],
            "engine without generation": [(dataclasses.replace(engine("e")[0], generation_id=None), engine("e")[1])],
            "unverified without evidence": [sample(grade="D", p_exact=0.5, evidence="{}")],
        },
    },
    "tool_calls": {
        "bad": {
            "not offered": calls(dataclasses.replace(CALL, name="buy")),
            "no JSON": calls(dataclasses.replace(CALL, arguments='{"q": ')),
            "no object": calls(dataclasses.replace(CALL, arguments="[1]")),
            "key missing": calls(dataclasses.replace(CALL, arguments="{}")),
            "another type": picks('{"q": 7}'),
            "key too many": picks('{"q": "x", "r": 2}'),
            "deep inside": picks('{"q": "x", "to": ["a", "c"]}'),
            "beyond a limit": picks('{"q": "x", "n": 10}'),
        },
        "innocent": {
            "spaces": calls(dataclasses.replace(CALL, arguments='{ "q" : 1 }')),
            "a further key": calls(dataclasses.replace(CALL, arguments='{"q":1,"r":2}')),
            "all that is allowed": picks('{"to": ["b", "a"], "n": 9, "q": ""}'),
            "schema elsewhere": picks('{"q": 7}', {"$ref": "http://127.0.0.1:9/schema.json"}),
            "schema that is none": picks('{"q": 7}', {"type": "words"}),
            "schema in itself": picks('{"q": 7}', {"$ref": "#"}),
            "cut": [
                sample(
                    fields={"tool_calls": (dataclasses.replace(CALL, arguments='{"q'),), "finish_reason": "length"},
                    finish_reason="length",
                    max_tokens=3,
                    input_ids=(1, 2, 3, 4, 5),
                    prompt_len=2,
                    loss_spans=((2, 5),),
                    billed_prompt=2,
                    billed_completion=3,
                )
            ],
        },
    },
    "length_cut": {
        "bad": {
            "cut too early": long((3, 4, 5), finish_reason="length", max_tokens=9),
            "more than allowed": [sample(max_tokens=4)],
            "cut far too late": long((3, 4, 5, 6, 7), finish_reason="length", max_tokens=2),
        },
        "innocent": {
            "cut where told": long((3, 4, 5), finish_reason="length", max_tokens=3),
            "one less": long((3, 4), finish_reason="length", max_tokens=3),
            "stopped just before": [sample(max_tokens=8)],
            "no limit": [sample(max_tokens=None)],
        },
    },
    "reasoning_equals_bill": {
        "bad": {
            f"off by {d}": [sample(evidence=evidence(residual={"completion": 0, "prompt": 0, "reasoning": d}))]
            for d in (-3, 1, 40)
        },
        "innocent": {
            "equal": [sample(evidence=evidence(residual={"completion": 0, "prompt": 0, "reasoning": 0}))],
            "not billed": [sample(evidence=evidence(residual={"completion": 0, "prompt": 0, "reasoning": None}))],
            "not stated": [sample()],
        },
    },
    "not_dull": {
        "bad": {
            "repeating lines": says("".join(f"line {k % 7} of the table\n" for k in range(400))),
            "in the reasoning": says("x", reasoning="hm, let me see. " * 500),
            "in arguments": calls(dataclasses.replace(CALL, arguments='{"q": "' + "ab " * 3000 + '"}')),
        },
        "innocent": {
            "prose": says(prose(1500)),
            "code": says("\n".join(f"def f{k}(x): return x ** {k} + {k * 37 % 91}" for k in range(300))),
            "short": says("ha " * 300),
        },
    },
    "scripts": {
        "bad": {
            "burst": says("the слово λόγος 字 กา ქარ 글자"),
            "in the reasoning": says("x", reasoning="a ж λ 字 ก שלום"),
            "late": says(prose(300) + " ж λ 字 ก ש"),
        },
        "innocent": {
            "Chinese and English": says("用 Python 写 hello"),
            "asked for": [
                sample(
                    fields={"content": "a ж λ 字 ก ש"},
                    wire={"request": {"messages": [{"role": "user", "content": "repeat: a ж λ 字 ก ש"}]}},
                )
            ],
            "mathematics": says("∑ α β → ∞, 10 µm, «né»"),
            "far apart": says("ж" + prose(200) + "λ" + prose(200) + "字" + prose(200) + "ก"),
        },
    },
    "refusals": {
        "bad": {
            "sorry": says("I'm sorry, but I can't help with that."),
            "cannot": says("I cannot assist with this request."),
            "as an AI": says("As an AI language model, I do not."),
        },
        "innocent": {
            "sorry, then an answer": says("I'm sorry to hear that! Here is what you can do."),
            "quoted": says('He said "I cannot assist".'),
            "cannot find": says("I cannot find a root, so the equation has none."),
        },
    },
    "duplicates": {
        "bad": {
            "same ids": [sample(3, sample_id="d" * 32)],
            "same ids, other provider": [sample(4, sample_id="d" * 32, provider="Beta", fields={"provider": "Beta"})],
            "same ids, other grade": [sample(5, sample_id="d" * 32, p_exact=0.97)],
        },
        "innocent": {
            "last id differs": long((9, 8, END)),
            "same prompt": [sample(input_ids=(*GOOD[3][0].input_ids[:5], 9, END), loss_spans=((5, 7),), billed_completion=2)],
            "empty in quarantine": [
                (quarantined(k, "wire_text", input_ids=(), prompt_len=0, loss_spans=()), sample(k)[1]) for k in "qr"
            ],
        },
    },
    "timing": {
        "bad": {
            "too fast": long((*WALK, END), wire={"seconds": 0.5}),
            "generation given twice": [sample(generation_id=GOOD[3][0].generation_id)],
            "body given twice": [sample(wire_sha256=GOOD[3][0].wire_sha256, wire={"sha256": GOOD[3][0].wire_sha256})],
        },
        "innocent": {
            "fast": long((*WALK, END), wire={"seconds": 8.0}),
            "short and quick": [sample(wire={"seconds": 0.002})],
            "no clock": long((*WALK, END), wire={"seconds": 0.0}),
        },
    },
    "turn_prefix": {
        "bad": {
            "another history": turns(tuple(range(1, 40)), tuple(range(2, 80))),
            "shorter than before": turns(tuple(range(1, 40)), tuple(range(1, 20))),
            "one id changed": turns(tuple(range(1, 40)), (*range(1, 9), 300, *range(10, 80))),
            "first history, form without reasoning": turns(
                tuple(range(1, 40)), (*range(1, 9), 300, *range(10, 80)), evidence=evidence(prompt_forms=DROPPED)
            ),
        },
        "innocent": {
            "goes on": turns(tuple(range(1, 40)), tuple(range(1, 80))),
            "stub dropped": turns(tuple(range(1, 40)), (*range(1, 36), *range(200, 240))),
            "first turn": [sample()],
            "reasoning dropped later": turns(
                tuple(range(1, 40)), (*range(1, 9), 300, *range(10, 80)), evidence=evidence(prompt_forms=DROPPED), first=1
            ),
        },
    },
    "position_budget": {
        "bad": {f"{n} ids": long((*[1 + (k * k) % 399 for k in range(n - 3)], END), max_tokens=9000) for n in (6001, 6500, 7000)},
        "innocent": {
            "exactly": long((*[1 + (k * k) % 397 for k in range(5997)], END), max_tokens=9000, wire={"seconds": 9.0}),
            "short": [sample()],
            "one id": long((END,)),
        },
    },
    "quarantined_share": {
        "bad": {r: [(quarantined("q", r), sample("q")[1])] for r in ("grammar", "wire_text", "no_loops")},
        "innocent": {
            "unverified": [sample(grade="D", p_exact=0.5)],
            "improbable": [sample(grade="C1", p_exact=0.5, evidence=evidence("C1"))],
            "import": [sample(source="import", provider=None, grade="I", evidence=evidence("I"))],
        },
    },
    "truncated_share": {
        "bad": {f"cut at {n}": long(tuple(range(3, 3 + n)), finish_reason="length", max_tokens=n) for n in (2, 5, 9)},
        "innocent": {"stopped at the limit": [sample(max_tokens=8)], "calls": calls(CALL), "long": long((*WALK, END))},
    },
    "canonical": {
        "bad": {
            "another spelling": [engine("e", again=False)],
            "of an import": [sample(source="import", provider=None, grade="A0", evidence=evidence("A0", again=False))],
            "its own reason": [(dataclasses.replace(engine("e")[0], reasons=("canonical",)), engine("e")[1])],
        },
        "innocent": {
            "the same": [engine("e", again=True)],
            "cannot be asked": [engine("e")],
            "rented rows are not asked": [sample(evidence=evidence(again=False))],
        },
    },
}


def judged(case: Case, *, foreign: bool = False) -> dict[str, Verdict]:
    """Verdicts over the good rows and the case; `foreign`: the case's answers are not in the journal."""
    rows = [row for row, _ in (*GOOD, *case)]
    finished = {(r.sample_id, r.turn) for r in (rows[: len(GOOD)] if foreign else rows)}
    verdicts = judge_tokens(
        to_table(rows), n_vocab=VOCAB, finished_keys=finished, checker=Looks(), wires=[w for _, w in (*GOOD, *case)], rules=RULES
    )
    return {v.check: v for v in verdicts}


def flagged_by(case: Case, *, foreign: bool = False) -> set[str]:
    """Checks that name a row of the case among their examples."""
    mine = {row.sample_id for row, _ in case}
    return {name for name, v in judged(case, foreign=foreign).items() if mine & set(v.examples)}


def table_of() -> str:
    """The table of docs/checks.md."""
    lines = ["| check | severity | tolerated | corruptions caught | innocents left alone |", "| --- | --- | --- | --- | --- |"]
    for check in CHECKS["tokens"]:
        cases = MUTATIONS[check.name]
        caught = sum(check.name in flagged_by(c, foreign=check.name == "lineage") for c in cases["bad"].values())
        alone = sum(check.name not in flagged_by(c) for c in cases["innocent"].values())
        words = (
            f"{caught} of {len(cases['bad'])}: " + ", ".join(cases["bad"]),
            f"{alone} of {len(cases['innocent'])}: " + ", ".join(cases["innocent"]),
        )
        severity = f"{check.severity}{', blocks' if check.blocking else ''}"
        lines.append(f"| `{check.name}` | {severity} | {check.max_share:.0%} | {words[0]} | {words[1]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from eagle3_assets_tests.review.report_mutations import table_of_reports

    print(table_of(), table_of_reports(), sep="\n")
