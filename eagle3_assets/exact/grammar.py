"""What the model may emit, over ids: an automaton that accepts, splits, and puts together again.

Belongs here: the grammar of one assistant turn behind the generation prompt (tokenizers.md section 4, openrouter-contract.md
3.3):

    thinking   reasoning </think> content [section] <|im_end|>      (the section may end the reasoning without </think>)
    K2-Thinking writes <think> itself; instant mode and K2 Instruct emit neither marker
    section    <section_begin> (<call_begin> ID <argument_begin> ARGS <call_end>)+ <section_end>

A truncated turn is any prefix and has no end of turn. Does not belong here: text, bills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.tokenizer import Profile

Ids = tuple[int, ...]


class GrammarError(ExactError):
    """The ids are not a turn that the model may emit; names position and rule."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """One call: ids of its id text, of its arguments (None while the argument marker has not come), and whether it was closed."""

    head: Ids
    arguments: Ids | None = ()
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """A turn taken apart. `opened`: the model wrote the opening marker itself; `closed`: it wrote the closing one.

    `section` is None without a tool section, else whether the section was closed. `ended`: the end of turn is there.
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
    automaton = _Automaton(profile, thinking)
    for position, token in enumerate(ids):
        automaton.step(position, token)
    return automaton.finish(len(ids), truncated)


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
        tool = profile.tool_ids
        ids.append(tool["section_begin"])
        for call in parts.calls:
            ids.extend((tool["call_begin"], *call.head))
            if call.arguments is not None:
                ids.extend((tool["argument_begin"], *call.arguments))
            if call.closed:
                ids.append(tool["call_end"])
        if parts.section:
            ids.append(tool["section_end"])
    if parts.ended:
        ids.append(profile.end_id)
    return tuple(ids)


def _required(token: int | None, profile: Profile, which: str) -> int:
    if token is None:
        raise GrammarError(f"profile {profile.name} has no {which} reasoning marker")
    return token


class _Automaton:
    """States: open (before <think>), reasoning, content, between (calls), head, arguments, after (the section), done."""

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

    def step(self, position: int, token: int) -> None:
        profile, tool = self.profile, self.profile.tool_ids
        if 0 <= token < profile.n_base:
            return self.ordinary(position, token)
        moves = {
            ("open", profile.think_open): self.open,
            ("reasoning", profile.think_close): self.close,
            ("reasoning", tool["section_begin"]): self.begin_section,
            ("content", tool["section_begin"]): self.begin_section,
            ("between", tool["call_begin"]): self.begin_call,
            ("head", tool["argument_begin"]): self.begin_arguments,
            ("arguments", tool["call_end"]): self.end_call,
            ("between", tool["section_end"]): self.end_section,
            ("content", profile.end_id): self.end,
            ("after", profile.end_id): self.end,
        }
        move = moves.get((self.state, token))
        if move is None or (token == tool["section_end"] and not self.calls):
            raise self.refusal(position, token)
        move()

    def ordinary(self, position: int, token: int) -> None:
        target = {"reasoning": self.reasoning, "content": self.content, "head": self.text, "arguments": self.text}.get(self.state)
        if target is None:
            raise self.refusal(position, token)
        target.append(token)

    def refusal(self, position: int, token: int) -> GrammarError:
        rules = {
            "open": "the turn begins with the opening reasoning marker",
            "reasoning": "in reasoning only text, the closing marker or a tool section may come",
            "content": "in content only text, one tool section or the end of turn may come",
            "between": "in a tool section only calls may come, and its end after at least one",
            "head": "in a call's id only text may come, then its arguments",
            "arguments": "in arguments only text may come, then the end of the call",
            "after": "behind the tool section only the end of turn may come",
            "done": "nothing may follow the end of turn",
        }
        name = self.profile.token_name(token)
        return GrammarError(f"position {position}: id {token} ({name!r}) is not allowed: {rules[self.state]}")

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

    def end_call(self) -> None:
        self.calls.append(CallParts(self.head, tuple(self.text)))
        self.state = "between"

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
