"""The edges of a text field: what a server may have done to the whitespace there, and the field's ids whatever stands at them.

Belongs here: the mechanisms, each with the finding that put it there, the model's whitespace behind the wire's, and encoding that
shares the long middle of a field. Does not belong here: which mechanism a provider has (`learning.py`), whole answers
(`hypotheses.py`).

An edge's whitespace is a *run* (`""`, `" "`, `"\\n\\n"` ...): all that `str.strip` would take from that side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.targets.facts import HABIT_PLACES
from eagle3_assets.targets.grammar import Ids
from eagle3_assets.targets.tokenizer import Profile

PLACES = HABIT_PLACES  # where a model has a habit: the edges, and the seam
EDGES = PLACES[:4]
LEADS = ("reasoning_lead", "content_lead")
# Between a text (or the end of reasoning) and a tool section. What a model writes there is a habit of its own: Qwen3 ends no answer with a
# line break and puts two in front of every call, Kimi none; some parsers return them, some cut them off.
SEAM = PLACES[4]
# What a server does at an edge:
#   keep   nothing
#   join   one space joined to the marker there (vllm#33457; docs/research/openrouter-contract.md#4.3-1)
#   strip  all whitespace taken away (SGLang before #24251), a space that was joined before included
#   trim   line breaks taken away (docs/research/exactness.md#2b, "lstrip newlines")
#   seam   at the back of content: whitespace taken away in front of calls alone (parsers that cut the text where a call begins)
MECHANISMS = ("keep", "join", "strip", "trim", "seam")
# The runs that a model may have written where a server has taken them away (docs/research/exactness.md#2b)
RUNS = ("", " ", "\n", "\n\n")
BREAKS = ("", "\n", "\n\n")


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism at one edge. `model`: where whitespace is taken away, the share of each run that the model writes there;
    `seam`: the same in front of a tool section, where that is known to be another habit (at the back of content only)."""

    kind: str
    model: tuple[tuple[str, float], ...] = ()
    seam: tuple[tuple[str, float], ...] = ()

    def runs(self, run: str, *, lead: bool, joins: bool) -> tuple[tuple[str, float], ...]:
        """(the model's run, its share) for each run that can stand behind the wire's; () where the wire contradicts the
        mechanism. `joins`: there is a marker behind this edge that a space could be joined to."""
        if self.kind == "keep" or (self.kind == "join" and not joins):
            return ((run, 1.0),)
        if self.kind == "join":
            if not (run.startswith(" ") if lead else run.endswith(" ")):
                return ()
            return ((run[1:] if lead else run[:-1], 1.0),)
        if self.kind == "seam" and not joins:
            return ((run, 1.0),)
        model = self.seam if joins and self.seam else self.model
        if self.kind in ("strip", "seam"):
            return model if not run else ()
        if run[:1] in ("\n", "\r") if lead else run[-1:] in ("\n", "\r"):
            return ()
        return tuple((cut + run if lead else run + cut, share) for cut, share in model if cut in BREAKS)

    def hides(self, joins: bool) -> bool:
        """Whether it may have taken away what the model wrote, with a marker behind the edge or without."""
        return self.kind in ("strip", "trim") or (self.kind == "seam" and joins)

    @property
    def blanks(self) -> tuple[tuple[str, float], ...]:
        """What the model may have written between its reasoning and a tool section where the wire has no content at all."""
        return self.seam if self.kind in ("strip", "seam") else ()

    def as_json(self) -> dict[str, Any]:
        tables = {"model": dict(self.model), "seam": dict(self.seam)}
        return {"mechanism": self.kind, **{name: table for name, table in tables.items() if table}}


KEEP, JOIN = Mechanism("keep"), Mechanism("join")


def mechanism_of(value: Mapping[str, Any]) -> Mechanism:
    """From the JSON of a wire profile."""
    model, seam = (
        tuple((str(run), float(share)) for run, share in (value.get(name) or {}).items()) for name in ("model", "seam")
    )
    return Mechanism(str(value.get("mechanism", "keep")), model, seam)


def place_of(edge: str, before_calls: bool) -> str:
    """The habit that an edge follows."""
    return SEAM if before_calls and edge == "content_trail" else edge


# ---------------------------------------------------------------------------------------------------- a field and its ids
# Between a letter or digit and a space before a letter, and between a letter and a full-width mark, every split regex that a profile
# has cuts, whatever stands in front: a run of letters ends there. So texts that differ only at their edges share their middle.
_SAFE_CUT = re.compile(r"(?<=[^\W_])(?= [^\W\d_])|(?<=[^\W_])(?=[\uff0c\u3002\u3001\uff1b\uff1a\uff1f\uff01])")
_EDGE_CHARS = 48
_TAILS = (_EDGE_CHARS, 10 * _EDGE_CHARS, 100 * _EDGE_CHARS)  # how far from the end the last cut is looked for


class FieldText:
    """A field as on the wire, taken apart into run, core, run; its ids with any other runs.

    `lead`, `trail`: the wire's runs (of a blank field all is `lead`); `core` may be "".
    """

    def __init__(self, profile: Profile, text: str) -> None:
        self._profile, self.text = profile, text
        self.core = text.strip()
        start = text.find(self.core) if self.core else len(text)
        self.lead, self.trail = text[:start], text[start + len(self.core) :]
        self._middle: Ids = ()
        self._head, self._tail = self.core, ""
        self._split = False
        first = _SAFE_CUT.search(self.core) if len(self.core) > 4 * _EDGE_CHARS else None
        last = self._last_cut(first.end() + 1) if first else None
        if first and last:
            self._split = True
            self._head, self._tail = self.core[: first.start()], self.core[last.start() :]
            self._middle = tuple(profile.encode(self.core[first.start() : last.start()]))
        self._pieces: dict[tuple[str, str], Ids] = {}

    def _last_cut(self, start: int) -> re.Match[str] | None:
        for tail in _TAILS:
            found = _SAFE_CUT.search(self.core, max(start, len(self.core) - tail))
            if found or len(self.core) - tail <= start:
                return found
        return None

    def _encode(self, text: str) -> Ids:
        return tuple(self._profile.encode(text))

    def _front(self, lead: str) -> Ids:
        key = (lead, "front")
        if key not in self._pieces:
            self._pieces[key] = self._encode(lead + self._head)
        return self._pieces[key]

    def _back(self, trail: str) -> Ids:
        key = ("back", trail)
        if key not in self._pieces:
            self._pieces[key] = self._encode(self._tail + trail)
        return self._pieces[key]

    def ids(self, lead: str, trail: str) -> Ids:
        """Ids of the core between these runs. Raises ExactError for text that has none (lone surrogates)."""
        if self._split:
            return (*self._front(lead), *self._middle, *self._back(trail))
        key = (lead, trail)
        if key not in self._pieces:
            self._pieces[key] = self._encode(lead + self.core + trail)
        return self._pieces[key]

    def count(self, lead: str, trail: str) -> int:
        """Their number, without putting them together."""
        if self._split:
            return len(self._front(lead)) + len(self._middle) + len(self._back(trail))
        return len(self.ids(lead, trail))
