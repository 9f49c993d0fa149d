"""When a provider changed its form while answers came, and what of it: one plain record a change.

Belongs here: comparing a provider's windows (`wire_profiles.py`), one behind another. Does not belong here: finding the moment
(`learning.change_point`, `prompt_learning.change_point`), asking probes again (`collect/pilot/repeats.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Window = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A provider's form is another one from `at` (unix seconds, the first answer behind it). `what`: (which part, before, behind) of all
    that differs; `rows`: answers before and behind, in the form (streams or whole answers) that shows it."""

    provider: str
    at: float
    stream: bool
    what: tuple[tuple[str, str, str], ...]
    rows: tuple[int, int]

    @property
    def words(self) -> str:
        """One sentence."""
        form = "streams" if self.stream else "whole answers"
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.at))
        parts = "; ".join(f"{part}: {before}, then {behind}" for part, before, behind in self.what)
        return f"{self.provider} changed on {when} ({form}, {self.rows[0]} before, {self.rows[1]} since): {parts or 'its bills'}"


def changes(wire_profiles: Mapping[str, Any]) -> list[Change]:
    """Every change of every provider, in order of time."""
    out = []
    for name, entry in (wire_profiles.get("providers") or {}).items():
        for stream in (False, True):
            windows = sorted(
                (w for w in entry.get("windows") or () if bool(w.get("stream")) == stream), key=lambda w: float(w["from"])
            )
            for before, behind in pairwise(windows):
                rows = int(before["rows"]), int(behind["rows"])
                out.append(Change(name, float(behind["from"]), stream, tuple(_differences(before, behind)), rows))
    return sorted(out, key=lambda change: (change.at, change.provider))


def _differences(before: Window, behind: Window) -> Iterator[tuple[str, str, str]]:
    one, other = dict(_form(before)), dict(_form(behind))
    for part in one:
        if part in other and one[part] != other[part]:
            yield part, one[part], other[part]


def _form(window: Window) -> Iterator[tuple[str, str]]:
    """(part, what it is, in words) of all that makes a provider's form."""
    for turn, told in (window.get("turns") or {}).items():
        named = "texts" if turn == "text" else "turns with calls"
        yield f"whitespace of {named}", str(told["reading"]).partition("|")[0]
        yield f"bill of {named}", _bill(told)
        yield f"arguments in {named}", str(told["arguments"])
    for stratum, told in (window.get("strata") or {}).items():
        named = "prompts with tools" if stratum == "tools" else "prompts without tools"
        prompt = told.get("prompt") or {}
        yield named, f"{prompt.get('form')}{int(prompt.get('offset') or 0):+d}" if prompt.get("form") else "no form"
    yield "ids of calls", str(window.get("tool_ids"))


def _bill(told: Mapping[str, Any]) -> str:
    extra = int(told["extra"])
    return ("end counted" if told["counts_end"] else "end not counted") + (f", {extra:+d}" if extra else "")
