"""What billed answers say about their provider: one light record an answer, and the tables that readings are compared with.

Belongs here: counting the ways to read an answer without keeping its ids. Does not belong here: deciding (`learning.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.hypotheses import prompt_counts
from eagle3_assets.exact.search.canonicality import Drawn, drawn_of
from eagle3_assets.exact.search.deviations import Kind
from eagle3_assets.exact.search.edges import BREAKS, RUNS, FieldText, Mechanism
from eagle3_assets.exact.search.frames import ENDS_TURN, OFF_PATH, Frame, count_calls, enumerate_frames, styles_of
from eagle3_assets.exact.search.key_order import KeyOrder, kind_of, orders_of, schemas_of
from eagle3_assets.exact.search.leaks import bare_fields
from eagle3_assets.exact.search.modes import Mode
from eagle3_assets.exact.search.readings import Runs, field_runs
from eagle3_assets.exact.search.wire_facts import NO_WORDS, Facts, Marks, facts_of, word_marks, words_of
from eagle3_assets.exact.search.witnesses import Edges, stream_channels
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields

Floats = npt.NDArray[np.float32]
# What happens to arguments at a provider: nothing, the server writes them anew, the model spells compact ones otherwise than the encoder
Arguments = Literal["as returned", "written anew", "off the path"]
ARGUMENTS: tuple[Arguments, ...] = ("as returned", "written anew", "off the path")
# Ids more than the text as it stands that any way to read it may have
LOW, HIGH = -5, 9
SPAN = HIGH - LOW + 1
OFTEN = 0.85  # of the compact fields of an endpoint that leaves the path (Chutes: 28 of 33)


@dataclass(frozen=True, slots=True)
class FieldCounts:
    """A field's edges and its ids' number with other runs at them; stands in for `FieldText`. `core` is "x" for any text."""

    text: str
    lead: str
    trail: str
    core: str
    counts: Mapping[Runs, int]

    def count(self, lead: str, trail: str) -> int:
        return self.counts[lead, trail]

    @property
    def shown(self) -> int:
        return self.counts[self.lead, self.trail]


def count_field(field_text: FieldText) -> FieldCounts:
    """With every run that a mechanism may put there."""
    leads = _runs(field_text.lead, lead=True)
    if not field_text.core:
        leads = list(dict.fromkeys([*leads, *(run[:-1] for run in leads if run.endswith(" "))]))
    trails = _runs(field_text.trail, lead=False) if field_text.core else [""]
    if not field_text.text:  # what stood between two markers may have been taken away whole
        leads, trails = list(RUNS), [""]
    counts = {(a, b): field_text.count(a, b) for a in leads for b in trails}
    return FieldCounts(field_text.text[:1], field_text.lead, field_text.trail, field_text.core[:1], counts)


def _runs(run: str, *, lead: bool) -> list[str]:
    more = list(RUNS) if not run else [cut + run if lead else run + cut for cut in BREAKS]
    joined = [run[1:] if lead else run[:-1]] if (run.startswith(" ") if lead else run.endswith(" ")) else []
    return list(dict.fromkeys([run, *joined, *more]))


@dataclass(frozen=True, slots=True)
class Observation:
    """One billed text answer. `sizes`: ids of its frames beside the texts, by what happens to
    arguments (`ARGUMENTS`): {ids: share}; `closed`: of the reasoning, in the first frame. `ordered`: the order
    of keys in each call that has one (`key_order.py`). `forms` maps a prompt form to its ids' number. `drawn`: settings and kinds
    of text, for its canonicality; `streams`: the edges of its deltas; `facts`, `words`: what it shows on its
    face (`wire_facts.py`)."""

    at: float
    tools: bool
    stream: bool
    truncated: bool
    ended: bool
    section: bool
    closed: bool
    billed: int
    billed_reasoning: int | None
    reasoning: FieldCounts
    content: FieldCounts
    sizes: tuple[Mapping[int, float], Mapping[int, float], Mapping[int, float]]
    lossy: bool
    numbering: str | None
    styles: tuple[frozenset[str], ...]
    kind: Kind
    ordered: tuple[KeyOrder, ...]
    billed_prompt: int | None
    forms: Mapping[str, int] = field(default_factory=dict)
    form_ids: Mapping[str, int] = field(default_factory=dict)
    drawn: Drawn = field(default_factory=Drawn)
    streams: tuple[Edges, ...] = ()
    facts: Facts = frozenset()
    words: Marks = field(default_factory=lambda: NO_WORDS)

    @property
    def stands(self) -> int:
        """Ids of the text as it stands."""
        return self.reasoning.shown + self.content.shown + next(iter(self.sizes[0]))


def observe(profile: Profile, request: Mapping[str, Any], fields: Fields, *, mode: Mode, at: float = 0.0) -> Observation | None:
    """What one answer says, or None when it says nothing (no bill, problems, an unusual end, markers in the text that no single reading
    explains). Of one with marker text its bill says whether that is the model's text or markers that no parser found: a name has several
    ids more than a marker."""
    billed = fields.billed_completion
    if fields.problems or not billed or fields.finish_reason not in (*ENDS_TURN, "length"):
        return None
    prior = count_calls(request.get("messages") or [])
    try:
        frames = enumerate_frames(
            profile, fields, thinking=mode.turn, prior_calls=prior, anew=0.5 if fields.tool_calls else 0.0, off=0.5
        )
        frames = _told_by_bill(frames, billed)
        reasoning, content = count_field(frames[0].reasoning), count_field(frames[0].content)
    except ExactError:
        return None
    forms, form_ids = _prompt_counts(profile, request, fields, mode.prompt)
    first, schemas = frames[0].parts, schemas_of(request)
    if frames[0].leaked:
        fields = bare_fields(profile, fields, mode.turn)
    return Observation(
        at=at,
        tools=bool(request.get("tools")),
        stream=bool(request.get("stream")),
        truncated=fields.finish_reason == "length",
        ended=first.ended,
        section=first.section is not None,
        closed=first.closed,
        billed=billed,
        billed_reasoning=fields.billed_reasoning or None,
        reasoning=reasoning,
        content=content,
        sizes=(_sizes(frames), _sizes_anew(frames), _sizes_off(frames)),
        lossy=_looks_lossy(fields),
        numbering=_numbering(profile, fields, prior),
        styles=tuple(styles_of(call.arguments) for call in fields.tool_calls),
        kind=kind_of(fields.tool_calls, schemas),
        ordered=orders_of(fields.tool_calls, schemas),
        billed_prompt=fields.billed_prompt,
        drawn=drawn_of(request, (fields.reasoning, fields.content), sum(len(call.arguments or ()) for call in first.calls)),
        forms=forms,
        form_ids=form_ids,
        streams=_stream_edges(profile, frames[0], fields),
        facts=facts_of(request, fields),
        words=word_marks(words_of(fields)),
    )


def _told_by_bill(frames: Sequence[Frame], billed: int) -> list[Frame]:
    """The frames as the text stands, or those with markers read out of it: whichever is nearer to the bill."""
    stands, leaked = ([frame for frame in frames if frame.leaked == is_leaked] for is_leaked in (False, True))
    if not leaked or not stands:
        return stands or leaked
    off = [
        abs(part[0].size + sum(t.count(t.lead, t.trail) for t in (part[0].reasoning, part[0].content)) - billed)
        for part in (stands, leaked)
    ]
    return leaked if off[1] < off[0] else stands


def _stream_edges(profile: Profile, frame: Frame, fields: Fields) -> tuple[Edges, ...]:
    """What the deltas of an answer say of their alignment, against the encoder's ids of its text."""
    if not fields.deltas:
        return ()
    texts = frame.reasoning, frame.content
    channels = stream_channels(profile, frame.filled(*((text.lead, text.trail) for text in texts)), fields)
    return tuple(channel.counts for channel in channels or ())


def _sizes(frames: Sequence[Frame]) -> dict[int, float]:
    """{ids: share} of the frames whose arguments stand as returned."""
    return _shares((frame.size, frame.share) for frame in frames if frame.arguments == "wire" and not frame.off_path) or {
        frames[0].size: 1.0
    }


def _sizes_anew(frames: Sequence[Frame]) -> dict[int, float]:
    """The same where the server wrote them anew. Half of all was taken to be as returned (`observe`): that half is not of these."""
    on_path = [(frame, frame.share * 2**frame.compact) for frame in frames if not frame.off_path]
    total, stands = sum(share for _, share in on_path), sum(share for frame, share in on_path if frame.arguments == "wire")
    left = max(stands - total / 2, 0.0) / stands if stands else 0.0
    return _shares((f.size, share * (left if f.arguments == "wire" else 1.0)) for f, share in on_path) or _sizes(frames)


def _sizes_off(frames: Sequence[Frame]) -> dict[int, float]:
    """The same where the model leaves the encoder's path in compact arguments, in OFTEN of them."""
    return _shares(
        (f.size, f.share * (2 * OFTEN) ** f.off_path * (2 * (1 - OFTEN)) ** (f.compact - f.off_path))
        for f in frames
        if f.arguments in ("wire", OFF_PATH)
    ) or _sizes(frames)


def _shares(weighed: Iterable[tuple[int, float]]) -> dict[int, float]:
    out: dict[int, float] = {}
    for size, share in weighed:
        if share:
            out[size] = out.get(size, 0.0) + share
    total = sum(out.values())
    return {size: share / total for size, share in out.items()} if total else {}


def _prompt_counts(
    profile: Profile, request: Mapping[str, Any], fields: Fields, thinking: bool
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The table of all prompts (a mapping of form names to counts); its own digests tell ids apart."""
    if not profile.renders or not fields.billed_prompt:
        return {}, {}
    try:
        return prompt_counts(profile, request, thinking), {}
    except ExactError:
        return {}, {}


def _numbering(profile: Profile, fields: Fields, prior: int) -> str | None:
    """How the calls of an answer in the middle of a conversation are numbered: running, local, odd; None where nothing shows
    it."""
    if not prior or not fields.tool_calls or not profile.numbers_calls:
        return None
    matches = [profile.tool_id_pattern.match(call.id) for call in fields.tool_calls]
    if not all(matches):
        return "foreign"
    numbers = [int(match["index"]) for match in matches if match]
    if numbers == [prior + k for k in range(len(numbers))]:
        return "running"
    return "local" if numbers == list(range(len(numbers))) else "odd"


def _looks_lossy(fields: Fields) -> bool:
    """`?` or U+FFFD between letters, as a gateway leaves that could not encode a character."""
    text = (fields.reasoning or "") + (fields.content or "")
    return "\ufffd" in text or ("??" in text and text.isascii())


# ---------------------------------------------------------------------------------------------------- tables
def field_table(rows: Sequence[Observation], name: str, pairs: Sequence[tuple[Mechanism, Mechanism]]) -> Floats:
    """[rows, pairs, SPAN]: the probability that the field `name` has LOW + k ids more than as it stands. All zero where the wire
    contradicts the pair."""
    out = np.zeros((len(rows), len(pairs), SPAN), dtype=np.float32)
    seen: dict[Any, Any] = {}
    for i, row in enumerate(rows):
        counted = row.reasoning if name == "reasoning" else row.content
        joins = (row.closed or row.section) if name == "reasoning" else row.section
        last = name == "content" if row.content.text else name == "reasoning"
        cut = row.truncated and last and not row.section
        key = (
            counted.lead,
            counted.trail,
            counted.core,
            counted.text,
            joins,
            cut,
            row.closed,
            tuple(count - counted.shown for count in counted.counts.values()),
        )
        if key not in seen:
            table = np.zeros((len(pairs), SPAN), dtype=np.float32)
            for j, (lead, trail) in enumerate(pairs):
                behind = name == "content" and row.closed
                for runs, share in field_runs(counted, lead, trail, joins_trail=joins, cut=cut, behind_marker=behind):
                    more = counted.count(*runs) - counted.shown - LOW
                    if 0 <= more < SPAN:
                        table[j, more] += share
            seen[key] = table
        out[i] = seen[key]
    return out


def size_table(rows: Sequence[Observation]) -> Floats:
    """[rows, ARGUMENTS, SPAN]: the same of everything but the texts, for what may have happened to arguments."""
    out = np.zeros((len(rows), len(ARGUMENTS), SPAN), dtype=np.float32)
    for i, row in enumerate(rows):
        first = next(iter(row.sizes[0]))
        for s, sizes in enumerate(row.sizes):
            for size, share in sizes.items():
                if LOW <= size - first <= HIGH:
                    out[i, s, size - first - LOW] += share
    return out
