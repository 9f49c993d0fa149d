"""Tool calls as a server returns them: which ones its parser finds, their ids and names, their arguments.

Belongs here: `[provider.text]` as far as it concerns complete (or cut) calls. Does not belong here: a section that no parser finds
(`bend_text`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from openrouter_standin import chance
from openrouter_standin.bending.bend_pieces import Pieces, section_at, strip
from openrouter_standin.schema.bending import TextRules
from openrouter_standin.vocabulary import CallIds, Ids, Parts, Vocabulary

_NATIVE_ID = re.compile(r"functions\.(.+):(\d+)")
# SGLang 0.5.8, kimik2_detector.py: no DOTALL, ids of word characters and dots (docs/research/openrouter-contract.md#4.2)
_NARROW_ID = re.compile(r"\s*[\w.]+:\d+\s*")
_NARROW_ARGUMENTS = re.compile(r"\s*\{.*?\}\s*")


@dataclass(frozen=True)
class BentCall:
    """A tool call as returned. `arguments_at`: where the first id of its arguments stands in the completion; pieces are one per id,
    except where a server writes arguments anew (the text stands in the last piece) or out of nothing (one piece, no id)."""

    id: str
    name: str
    arguments: Pieces
    arguments_at: int = 0


def cut_call(ids: Ids, parts: Parts, vocabulary: Vocabulary) -> CallIds | None:
    """The call that the length limit cut after its arguments had begun; None without one."""
    if parts.ended or not parts.stray:
        return None
    last = parts.calls[-1] if parts.calls else None
    behind = last.arguments_at + len(last.arguments) + 1 if last else section_at(parts) + 1
    rest = ids[behind:]
    begin = max((k for k, i in enumerate(rest) if i == vocabulary.call_begin), default=len(rest))
    if vocabulary.argument_begin not in rest[begin:]:
        return None
    middle = rest.index(vocabulary.argument_begin, begin)
    return CallIds(rest[begin + 1 : middle], rest[middle + 1 :], behind + begin)


def bend_calls(
    parts: Parts, cut: CallIds | None, rules: TextRules, vocabulary: Vocabulary, *, salt: str, calls_so_far: int
) -> tuple[tuple[BentCall, ...], list[str]]:
    """The calls and the edits. `cut`: a last call to show as far as it came."""
    found = [call for call in parts.calls if not rules.narrow_call_pattern or _fits_narrow_pattern(call, vocabulary)]
    edits = ["lost:call"] * (len(found) < len(parts.calls))
    out = []
    for k, call in enumerate([*found, *([cut] if cut else [])]):
        bent, changed = _bend_call(call, rules, vocabulary, f"{salt}:{k}", (k, calls_so_far + k), whole=call is not cut)
        out.append(bent)
        edits += [edit for edit in changed if edit not in edits]
    return tuple(out), edits


def _fits_narrow_pattern(call: CallIds, vocabulary: Vocabulary) -> bool:
    header, arguments = vocabulary.text(call.header), vocabulary.text(call.arguments)
    return bool(_NARROW_ID.fullmatch(header) and _NARROW_ARGUMENTS.fullmatch(arguments))


def _bend_call(
    call: CallIds, rules: TextRules, vocabulary: Vocabulary, salt: str, numbers: tuple[int, int], *, whole: bool
) -> tuple[BentCall, list[str]]:
    """`numbers`: of the call in this answer and in the conversation."""
    header = vocabulary.text(call.header)
    full = name_of(header)
    # vLLM's kimi_k2 tool parser cuts at the last dot (docs/research/openrouter-contract.md#4.2)
    name = header.strip().split(":")[0].split(".")[-1] if rules.tool_name == "last_segment" else full
    call_id = {
        "native": lambda: header.strip() if rules.strip_arguments else header,
        "renumbered": lambda: f"functions.{full}:{numbers[1]}",
        "local": lambda: f"functions.{full}:{numbers[0]}",
        "call_hex": lambda: f"call_{chance.hexadecimal(24, 'tool id', salt)}",
        "chatcmpl": lambda: f"chatcmpl-tool-{chance.hexadecimal(32, 'tool id', salt)}",
    }[rules.tool_ids]()
    arguments, changed = _bend_arguments(vocabulary.pieces(call.arguments), rules, whole=whole)
    edits = [f"tool_ids:{rules.tool_ids}"] * (call_id != header) + [f"tool_name:{rules.tool_name}"] * (name != full)
    return BentCall(call_id, name, arguments, call.arguments_at), edits + changed


def name_of(header: str) -> str:
    """NAME of `functions.NAME:N`; another header is the name itself."""
    native = _NATIVE_ID.fullmatch(header.strip())
    return native.group(1) if native else header.strip()


def _bend_arguments(raw: Pieces, rules: TextRules, *, whole: bool) -> tuple[Pieces, list[str]]:
    """`whole`: the call is complete; a cut one is neither parsed nor filled in."""
    edits: list[str] = []
    pieces = raw
    if rules.strip_arguments:
        work = list(raw)
        if any(strip(work, "both" if whole else "left")):
            pieces = tuple(work)
            edits.append("strip:arguments")
    if not whole:
        return pieces, edits
    if rules.empty_arguments and not any(pieces):
        return (rules.empty_arguments,), [*edits, "empty_arguments"]
    if rules.arguments != "verbatim":
        text = "".join(pieces)
        if (anew := rewrite(text, rules.arguments)) != text:
            return _in_last(anew, len(pieces)), [*edits, f"arguments:{rules.arguments}"]
    return pieces, edits


def _in_last(text: str, places: int) -> Pieces:
    """Who writes arguments anew has read all of them first."""
    return (*[""] * (places - 1), text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_WRITERS: dict[str, Callable[[Any], str]] = {
    "compact": partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    "spaced": partial(json.dumps, ensure_ascii=False),
    "ascii": json.dumps,
    "sorted": partial(json.dumps, ensure_ascii=False, sort_keys=True),
}


def rewrite(text: str, style: str) -> str:
    """A JSON text parsed and written anew, in a style of `Text.arguments`; what is no JSON stays as it is."""
    try:
        return _WRITERS[style](json.loads(text, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return text
