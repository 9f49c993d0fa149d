"""What the model may emit, over ids: an automaton that accepts, splits, and puts together again.

Belongs here: the grammar of one assistant turn behind the generation prompt (docs/research/tokenizers.md#4,
docs/research/openrouter-contract.md#3.3). A profile says which words it has (docs/tokenizers.md):

    thinking   reasoning </think> content [tools] <|im_end|>      (tools may end the reasoning without </think>: Kimi)
    opened_by = "model" (K2-Thinking, Qwen3): <think> comes first; instant mode and K2 Instruct emit neither marker
    tools, form "sections"   <section_begin> (<call_begin> ID <argument_begin> ARGS <call_end>)+ <section_end>
    tools, form "json"       <call_begin> BODY <call_end> (SEPARATOR <call_begin> BODY <call_end>)*

A truncated turn is any prefix and has no end of turn. Does not belong here: text (`turn_text.py`), bills, which turn is meant
(`hypotheses.py` proposes, this judges).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.tokenizer import Profile

Ids = tuple[int, ...]


class GrammarError(ExactError):
    """The ids are not a turn that the model may emit; names position and rule."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """One call: ids of its id text, of its arguments (None while the argument marker has not come), and whether it was closed.

    In the form "json" `head` is empty and `arguments` holds the whole body (`turn_text.py` takes it apart).
    """

    head: Ids
    arguments: Ids | None = ()
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """A turn taken apart. `opened`: the model wrote the opening marker itself; `closed`: it wrote the closing one.

    `section` is None without tools, else whether they are closed (form "json": False while a separator or an open call waits for
    more). `ended`: the end of turn is there.
    """

    reasoning: Ids = ()
    content: Ids = ()
    calls: tuple[CallParts, ...] = ()
    opened: bool = False
    closed: bool = False
    section: bool | None = None
    ended: bool = False


def split(profile: Profile, ids: Sequence[int], *, thinking: bool = True, truncated: bool = False) -> Parts:
    """Take a turn apart. Raises GrammarError where the automaton stops; a turn that is not `truncated` must be complete.

    `assemble(profile, split(profile, ids, …)) == tuple(ids)` for every accepted turn.
    """
    automaton, ids, n_base = _Automaton(profile, thinking), tuple(ids), profile.n_base
    start = 0
    for position in _not_ordinary(ids, n_base):
        if start < position:
            automaton.text_run(start, ids[start:position])
        automaton.control(position, ids[position])
        start = position + 1
    if start < len(ids):
        automaton.text_run(start, ids[start:])
    return automaton.finish(len(ids), truncated)


def _not_ordinary(ids: Ids, n_base: int) -> list[int]:
    """Where a control token stands, or an id outside the vocabulary."""
    try:
        tokens = np.array(ids, dtype=np.int64)
    except OverflowError:
        return [k for k, token in enumerate(ids) if not 0 <= token < n_base]
    found: list[int] = np.flatnonzero((tokens < 0) | (tokens >= n_base)).tolist()
    return found


def check(profile: Profile, ids: Sequence[int], *, thinking: bool = True, truncated: bool = False) -> str | None:
    """None when the turn is accepted, else the line that says where and why not."""
    try:
        split(profile, ids, thinking=thinking, truncated=truncated)
    except GrammarError as error:
        return str(error)
    return None


def assemble(profile: Profile, parts: Parts) -> Ids:
    """The ids of a turn, markers put in by id."""
    ids: list[int] = []
    if parts.opened:
        ids.append(_required(profile.think_open, profile, "opening"))
    ids.extend(parts.reasoning)
    if parts.closed:
        ids.append(_required(profile.think_close, profile, "closing"))
    ids.extend(parts.content)
    if parts.section is not None:
        ids.extend(_section(profile, parts) if profile.writes_call_ids else _bodies(profile, parts))
    if parts.ended:
        ids.append(profile.end_id)
    return tuple(ids)


def _section(profile: Profile, parts: Parts) -> Iterator[int]:
    tool = profile.tool_ids
    yield tool["section_begin"]
    for call in parts.calls:
        yield from (tool["call_begin"], *call.head)
        if call.arguments is not None:
            yield from (tool["argument_begin"], *call.arguments)
        if call.closed:
            yield tool["call_end"]
    if parts.section:
        yield tool["section_end"]


def _bodies(profile: Profile, parts: Parts) -> Iterator[int]:
    for k, call in enumerate(parts.calls):
        if k:
            yield profile.separator
        yield from (profile.tool_ids["call_begin"], *(call.arguments or ()))
        if call.closed:
            yield profile.tool_ids["call_end"]
    if not parts.section and parts.calls and parts.calls[-1].closed:
        yield profile.separator


def _required(token: int | None, profile: Profile, which: str) -> int:
    if token is None:
        raise GrammarError(f"profile {profile.name} has no {which} reasoning marker")
    return token


_RULES = {
    "open": "the turn begins with the opening reasoning marker",
    "reasoning": "in reasoning only text, the closing marker or (where tools may end it) tools may come",
    "content": "in content only text, tools or the end of turn may come",
    "between": "in a tool section only calls may come, and its end after at least one",
    "head": "in a call's id only text may come, then its arguments",
    "arguments": "in arguments only text may come, then the end of the call",
    "after": "behind the tools only the end of turn may come, or what parts two calls",
    "separated": "behind the separator of calls only a call may come",
    "done": "nothing may follow the end of turn",
}


class _Automaton:
    """States: open (before <think>), reasoning, content, between (calls of a section), head, arguments, after (the tools), separated
    (form "json", behind a separator), done. `moves` is the table of control tokens for the profile's form of tools."""

    def __init__(self, profile: Profile, thinking: bool) -> None:
        self.profile = profile
        reasons = thinking and profile.opened_by != "never"
        self.state = ("open" if profile.opened_by == "model" else "reasoning") if reasons else "content"
        self.reasoning: list[int] = []
        self.content: list[int] = []
        self.calls: list[CallParts] = []
        self.text: list[int] = []
        self.head: Ids = ()
        self.opened = self.closed = self.ended = False
        self.section: bool | None = None
        self.moves = self._moves()

    def _moves(self) -> dict[tuple[str, int | None], Callable[[], None]]:
        profile, tool = self.profile, self.profile.tool_ids
        json_form = not profile.writes_call_ids
        first, begin = ("call_begin", self.begin_body) if json_form else ("section_begin", self.begin_section)
        moves: dict[tuple[str, int | None], Callable[[], None]] = {
            ("open", profile.think_open): self.open,
            ("reasoning", profile.think_close): self.close,
            ("content", tool[first]): begin,
            ("arguments", tool["call_end"]): self.end_body if json_form else self.end_call,
            ("content", profile.end_id): self.end,
            ("after", profile.end_id): self.end,
        }
        if profile.facts.tools.ends_reasoning:
            moves["reasoning", tool[first]] = begin
        if json_form:
            return moves | {("separated", tool["call_begin"]): self.begin_body}
        return moves | {
            ("between", tool["call_begin"]): self.begin_call,
            ("head", tool["argument_begin"]): self.begin_arguments,
            ("between", tool["section_end"]): self.end_section,
        }

    def control(self, position: int, token: int) -> None:
        """A control token, or an id outside the vocabulary."""
        move = self.moves.get((self.state, token))
        if move is None or (move == self.end_section and not self.calls):
            raise self.refusal(position, token)
        move()

    def text_run(self, position: int, run: Ids) -> None:
        """Ordinary ids up to the next control token."""
        if self.state == "after" and not self.profile.writes_call_ids and run[0] == self.profile.separator:
            self.section, self.state = False, "separated"
            position, run = position + 1, run[1:]
        target = {"reasoning": self.reasoning, "content": self.content, "head": self.text, "arguments": self.text}.get(self.state)
        if run and target is None:
            raise self.refusal(position, run[0])
        if target is not None:
            target.extend(run)

    def refusal(self, position: int, token: int) -> GrammarError:
        name = self.profile.token_name(token)
        return GrammarError(f"position {position}: id {token} ({name!r}) is not allowed: {_RULES[self.state]}")

    def open(self) -> None:
        self.opened, self.state = True, "reasoning"

    def close(self) -> None:
        self.closed, self.state = True, "content"

    def begin_section(self) -> None:
        self.section, self.state = False, "between"

    def begin_call(self) -> None:
        self.text, self.state = [], "head"

    def begin_arguments(self) -> None:
        self.head, self.text, self.state = tuple(self.text), [], "arguments"

    def begin_body(self) -> None:
        self.section, self.text, self.state = False, [], "arguments"

    def end_call(self) -> None:
        self.calls.append(CallParts(self.head, tuple(self.text)))
        self.state = "between"

    def end_body(self) -> None:
        self.calls.append(CallParts((), tuple(self.text)))
        self.section, self.state = True, "after"

    def end_section(self) -> None:
        self.section, self.state = True, "after"

    def end(self) -> None:
        self.ended, self.state = True, "done"

    def finish(self, length: int, truncated: bool) -> Parts:
        if truncated and self.ended:
            raise GrammarError(f"position {length - 1}: a truncated turn has no end of turn")
        if not truncated and not self.ended:
            raise GrammarError(f"position {length}: the turn stops in state {self.state!r} without the end of turn")
        if self.state == "head":
            self.calls.append(CallParts(tuple(self.text), None, closed=False))
        elif self.state == "arguments":
            self.calls.append(CallParts(self.head, tuple(self.text), closed=False))
        return Parts(
            tuple(self.reasoning),
            tuple(self.content),
            tuple(self.calls),
            opened=self.opened,
            closed=self.closed,
            section=self.section,
            ended=self.ended,
        )
