"""The prompts of one request as a table: two lists of halves, whose counts add up, and candidates that are joined when asked for.

Belongs here: `PromptTable` and what it holds. Does not belong here: making one (`prompt_space.py`), asking for prompts
(`hypotheses.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from eagle3_assets.exact.prompt_side.prompt_forms import form_name, form_of
from eagle3_assets.exact.prompt_side.segments import Segment

NO_TOOLS = "no_tools"  # the word of a request that declares none


@dataclass(frozen=True, slots=True)
class Part:
    """One half of a prompt: its segments, the words of all forms that lead to them (each a tuple of words, the likeliest first), and
    their prior. `asked`: words that the request itself asks for (what a provider does unasked says nothing about those); `silent`: the
    usual words of factors that change nothing in this request."""

    segments: tuple[Segment, ...]
    words: tuple[tuple[str, ...], ...]
    prior: float
    digest: int
    count: int
    asked: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


class PromptCandidate:
    """One candidate for the prompt: `ids` (joined when asked for), their `count`, and the names of all `forms` that lead to them."""

    __slots__ = ("_forms", "_ids", "_parts", "count", "prior")

    def __init__(self, ids: Sequence[int] = (), forms: Sequence[str] = (), prior: float = 1.0) -> None:
        self._ids: tuple[int, ...] | None = tuple(ids)
        self._forms: tuple[str, ...] | None = tuple(forms)
        self._parts: tuple[Part, ...] = ()
        self.count, self.prior = len(self._ids), prior

    @classmethod
    def of(cls, tools: Part, history: Part) -> PromptCandidate:
        """The prompt of two parts; nothing is joined yet."""
        found = cls.__new__(cls)
        found._ids, found._forms, found._parts = None, None, (tools, history)
        found.count, found.prior = tools.count + history.count, tools.prior * history.prior
        return found

    @property
    def ids(self) -> tuple[int, ...]:
        if self._ids is None:
            segments = (segment.ids for part in self._parts for segment in part.segments)
            self._ids = tuple(itertools.chain.from_iterable(segments))
        return self._ids

    @property
    def forms(self) -> tuple[str, ...]:
        if self._forms is None:
            self._forms = tuple(form_name(words[0], words[1:]) for words in self.words)
        return self._forms

    @property
    def parts(self) -> tuple[Part, ...]:
        """The two halves, where there are two."""
        return self._parts

    @property
    def exempt(self) -> frozenset[str]:
        """The words that what was learned of a provider says nothing about."""
        return frozenset().union(*(part.asked | part.silent for part in self._parts))

    @property
    def words(self) -> Iterator[tuple[str, ...]]:
        """The words of each form, one a factor (`FACTORS`)."""
        if self._parts:
            tools, history = self._parts
            return ((*t, *h) for h in history.words for t in tools.words)
        known = (form for name in self._forms or () if (form := form_of(name)) is not None)
        return ((form.tools, *form.history) for form in known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptCandidate) and self.ids == other.ids and self.forms == other.forms

    def __hash__(self) -> int:
        return hash(self.ids)

    def __repr__(self) -> str:
        return f"PromptCandidate({self.count} ids, {self.forms[:1]}{' …' * (len(self.forms) > 1)})"


@dataclass(frozen=True, eq=False)
class PromptTable(Mapping[str, int]):
    """All prompts of one request. `tools` and `histories`: the distinct halves, the model's own form first. As a mapping: the name of a
    form → the number of its ids."""

    tools: tuple[Part, ...]
    histories: tuple[Part, ...]

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return sum(len(p.words) for p in self.tools) * sum(len(p.words) for p in self.histories)

    def candidates(self) -> list[PromptCandidate]:
        return [PromptCandidate.of(tools, history) for history in self.histories for tools in self.tools]

    def counted(self, count: int) -> list[PromptCandidate]:
        """The candidates of one count."""
        return [
            PromptCandidate.of(tools, history)
            for history in self.histories
            for tools in self.tools
            if tools.count + history.count == count
        ]

    @cached_property
    def counts(self) -> dict[str, int]:
        return {form: c.count for c in self.candidates() for form in c.forms}

    @cached_property
    def digests(self) -> dict[str, int]:
        """{form name: a number that tells its ids apart from those of other forms of this request}."""
        return {
            form_name(t[0], h): hash((tools.digest, history.digest))
            for history in self.histories
            for tools in self.tools
            for t in tools.words
            for h in history.words
        }

    def without_ids(self) -> PromptTable:
        """The same without ids: what a learner keeps of thousands of answers."""
        return PromptTable(*(tuple(replace(p, segments=()) for p in parts) for parts in (self.tools, self.histories)))


class WholeTable(PromptTable):
    """A table whose prompts are whole: the words of a history name the tools too."""

    def candidates(self) -> list[PromptCandidate]:
        return [_whole(part) for part in self.histories]

    def counted(self, count: int) -> list[PromptCandidate]:
        return [_whole(part) for part in self.histories if part.count == count]

    @cached_property
    def digests(self) -> dict[str, int]:
        return {form_name(words[0], words[1:]): part.digest for part in self.histories for words in part.words}

    def without_ids(self) -> PromptTable:
        return WholeTable(self.tools, tuple(replace(p, segments=()) for p in self.histories))


NOTHING = Part((), ((),), 1.0, 0, 0)


def _whole(part: Part) -> PromptCandidate:
    return PromptCandidate.of(NOTHING, part)
