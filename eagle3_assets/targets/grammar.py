"""What the model may emit: the parts of one assistant turn, and the protocol that each family's grammar fulfils.

Belongs here: `Parts`, `TurnGrammar`, `CallForm`, and the functions by which everybody asks a profile's grammar. A profile says which
words it has (docs/tokenizers.md); `marked_turns.py` reads turns of markers, `calls/` has one file for each way to write calls. A new
family is a file there and a line in `grammar_of`.
Does not belong here: text in fields (`turn_text.py`), bills, which turn is meant (`hypotheses.py` proposes, this judges).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle3_assets.errors import ExactError
from eagle3_assets.wire.fields import ToolCall

if TYPE_CHECKING:
    from eagle3_assets.targets.marked_turns import Automaton
    from eagle3_assets.targets.tokenizer import Profile

Ids = tuple[int, ...]
Encode = Callable[[str], Sequence[int]]


class GrammarError(ExactError):
    """The ids are not a turn that the model may emit; names position and rule."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """One call: ids of its id text, of its arguments (None while the argument marker has not come), and whether it was closed.

    Where the model writes no ids `head` is empty and `arguments` holds the whole body (its `CallForm` takes it apart).
    """

    head: Ids
    arguments: Ids | None = ()
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """A turn taken apart. `opened`: the model wrote the opening marker itself; `closed`: it wrote the closing one.

    `section` is None without tools, else whether they are closed (where calls are bodies: False while a separator or an open call waits
    for more). `ended`: the end of turn is there.
    """

    reasoning: Ids = ()
    content: Ids = ()
    calls: tuple[CallParts, ...] = ()
    opened: bool = False
    closed: bool = False
    section: bool | None = None
    ended: bool = False


class TurnGrammar(Protocol):
    """One family's turns, for one profile."""

    def split(self, ids: Sequence[int], *, thinking: bool = True, truncated: bool = False) -> Parts:
        """Take a turn apart. Raises GrammarError where the turn stops being one; one that is not `truncated` must be complete.

        `assemble(split(ids, …)) == tuple(ids)` for every accepted turn.
        """
        ...

    def assemble(self, parts: Parts) -> Ids:
        """The ids of a turn, markers put in by id."""
        ...

    @property
    def calls(self) -> CallForm:
        """How calls are written."""
        ...


Moves = Mapping[tuple[str, int | None], Callable[[], None]]


class CallForm(Protocol):
    """One way to write tool calls: as ids in a turn, and as text."""

    @property
    def first(self) -> str | None:
        """The name of the control token that opens the tools; None where there is none, or no tools."""
        ...

    def moves(self, turn: Automaton) -> Moves:
        """What control tokens do in the states of `turn`, from "content" on."""
        ...

    def between(self, turn: Automaton, run: Ids) -> Ids:
        """What is left of ordinary ids behind a finished call: a separator is taken, and the state of `turn` moved."""
        ...

    def finished(self, turn: Automaton) -> None:
        """The turn's ids are all read: a form without markers finds its call in the content now."""
        ...

    def ids(self, parts: Parts) -> Iterator[int]:
        """The ids of the tools of `parts`, whose `section` is not None."""
        ...

    def call_parts(self, call: ToolCall, encode: Encode) -> CallParts:
        """One whole call as the model writes it. Raises ExactError for a call that this model cannot write."""
        ...

    def read_call(self, call: CallParts) -> ToolCall:
        """The call that `call` spells. What has not the model's form gives an empty name and the text as it is."""
        ...

    def read_text(self, text: str) -> tuple[ToolCall, ...] | None:
        """The calls of the text from the first marker on, markers and all; None where it is not written as the model writes it."""
        ...

    def doubt(self, call: ToolCall) -> str | None:
        """Why the ids of a call that a server returned are a guess however well they fit the bill, or None."""
        ...


def grammar_of(profile: Profile) -> TurnGrammar:
    """The grammar of a profile's family."""
    from eagle3_assets.targets.calls.bare_json import BareJson
    from eagle3_assets.targets.calls.json_bodies import JsonBodies
    from eagle3_assets.targets.calls.no_tools import NoCalls
    from eagle3_assets.targets.calls.parameters import ParameterBodies
    from eagle3_assets.targets.calls.sections import Sections
    from eagle3_assets.targets.marked_turns import MarkedTurns

    tools = profile.facts.tools
    match tools.form:
        case "none":
            return MarkedTurns(profile, NoCalls(profile))
        case "sections":
            return MarkedTurns(profile, Sections(profile, tools))
        case "json":
            return MarkedTurns(profile, JsonBodies(profile, tools))
        case "parameters":
            return MarkedTurns(profile, ParameterBodies(profile, tools))
        case "bare_json":
            return MarkedTurns(profile, BareJson(profile, tools))


# ---------------------------------------------------------------------------------------------------- how everybody asks
def split(profile: Profile, ids: Sequence[int], *, thinking: bool = True, truncated: bool = False) -> Parts:
    """`TurnGrammar.split` of the profile's family."""
    return profile.grammar.split(ids, thinking=thinking, truncated=truncated)


def check(profile: Profile, ids: Sequence[int], *, thinking: bool = True, truncated: bool = False) -> str | None:
    """None when the turn is accepted, else the line that says where and why not."""
    try:
        profile.grammar.split(ids, thinking=thinking, truncated=truncated)
    except GrammarError as error:
        return str(error)
    return None


def assemble(profile: Profile, parts: Parts) -> Ids:
    """`TurnGrammar.assemble` of the profile's family."""
    return profile.grammar.assemble(parts)
