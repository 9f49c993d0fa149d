"""Turns whose parts are set off by single control tokens: an automaton over ids that accepts, splits, and puts together again.

Belongs here: reasoning, content and the end of a turn (docs/research/tokenizers.md#4, docs/research/openrouter-contract.md#3.3):

    thinking   reasoning </think> content [tools] <|im_end|>      (tools may end the reasoning without </think>: Kimi)
    opened_by = "model" (K2-Thinking, Qwen3): <think> comes first; instant mode and K2 Instruct emit neither marker

What `tools` is, a `CallForm` says. A truncated turn is any prefix and has no end of turn. Does not belong here: how calls are written
(`calls/`), text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from eagle3_assets.targets.grammar import CallForm, CallParts, GrammarError, Ids, Parts
from eagle3_assets.targets.tokenizer import Profile


class MarkedTurns:
    """The `TurnGrammar` of every family whose reasoning and calls stand between control tokens."""

    def __init__(self, profile: Profile, calls: CallForm) -> None:
        self._profile = profile
        self._calls = calls

    @property
    def calls(self) -> CallForm:
        return self._calls

    def split(self, ids: Sequence[int], *, thinking: bool = True, truncated: bool = False) -> Parts:
        turn, ids = Automaton(self._profile, self._calls, thinking), tuple(ids)
        start = 0
        for position in _not_ordinary(self._profile, ids):
            if start < position:
                turn.text_run(start, ids[start:position])
            turn.control(position, ids[position])
            start = position + 1
        if start < len(ids):
            turn.text_run(start, ids[start:])
        return turn.finish(len(ids), truncated)

    def assemble(self, parts: Parts) -> Ids:
        profile = self._profile
        ids: list[int] = []
        if parts.opened:
            ids.append(_required(profile.think_open, profile, "opening"))
        ids.extend(parts.reasoning)
        if parts.closed:
            ids.append(_required(profile.think_close, profile, "closing"))
        ids.extend(parts.content)
        if parts.section is not None:
            ids.extend(self._calls.ids(parts))
        if parts.ended:
            ids.append(profile.end_id if parts.section is None else profile.calls_end_id)
        return tuple(ids)


def _not_ordinary(profile: Profile, ids: Ids) -> list[int]:
    """Where a control token stands, or an id outside the vocabulary."""
    ordinary = profile.ordinary
    try:
        tokens = np.fromiter(ids, dtype=np.int64, count=len(ids))
    except OverflowError:
        return [k for k, token in enumerate(ids) if not profile.is_ordinary(token)]
    outside = (tokens < 0) | (tokens >= len(ordinary))
    positions: list[int] = np.flatnonzero(outside | ~ordinary[np.where(outside, 0, tokens)]).tolist()
    return positions


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


class Automaton:
    """States: open (before <think>), reasoning, content, between (calls of a section), head, arguments, after (the tools), separated
    (behind a separator of bodies), done. `moves` is the table of control tokens for the profile's form of tools."""

    def __init__(self, profile: Profile, calls: CallForm, thinking: bool) -> None:
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
        self._form = calls
        self.moves = self._moves()

    def _moves(self) -> dict[tuple[str, int | None], Callable[[], None]]:
        profile = self.profile
        moves: dict[tuple[str, int | None], Callable[[], None]] = {
            ("open", profile.think_open): self.open,
            ("reasoning", profile.think_close): self.close,
            ("content", profile.end_id): self.end,
            ("after", profile.calls_end_id): self.end,
            **self._form.moves(self),
        }
        if profile.facts.tools.ends_reasoning and self._form.first is not None:
            first = profile.special(self._form.first)
            moves["reasoning", first] = moves["content", first]
        return moves

    def control(self, position: int, token: int) -> None:
        """A control token, or an id outside the vocabulary."""
        move = self.moves.get((self.state, token))
        if move is None or (move == self.end_section and not self.calls):
            raise self.refusal(position, token)
        if self.state == "arguments" and move == self.keep:
            self.text.append(token)
        move()

    def text_run(self, position: int, run: Ids) -> None:
        """Ordinary ids up to the next control token."""
        if self.state in ("after", "between"):
            left = self._form.between(self, run)
            position, run = position + len(run) - len(left), left
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

    def keep(self) -> None:
        """A marker inside a body is part of it."""

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
        self._form.finished(self)
        return Parts(
            tuple(self.reasoning),
            tuple(self.content),
            tuple(self.calls),
            opened=self.opened,
            closed=self.closed,
            section=self.section,
            ended=self.ended,
        )
