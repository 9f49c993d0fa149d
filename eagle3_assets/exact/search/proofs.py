"""What log-probabilities and the deltas of a stream prove of a completion: the candidate that they agree with, or the ids that they
spell.

Belongs here: holding the witnesses (`witnesses.py`) against the candidates that the bill leaves, and what each proof is worth. Does not
belong here: the posterior (`selection.py`), grades (`reconstruct.py`).

A witness may contradict the posterior, a hole may not: what no entry says and no neighbour pins is left to the bill and the provider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eagle3_assets.exact.search.canonicality import TextKind
from eagle3_assets.exact.search.deviations import FAR
from eagle3_assets.exact.search.frames import ENDS_TURN
from eagle3_assets.exact.search.reconstruction import MAX_SURVIVORS
from eagle3_assets.exact.search.selection import Case, Chosen, Selection, deviations_of, frames_of, select
from eagle3_assets.exact.search.witnesses import (
    Channel,
    Edges,
    Told,
    agree,
    alignment_nats,
    channels_of,
    entry_ids,
    open_holes,
    own_channels,
    spelled_ids,
    stream_channels,
    whole_completions,
    witnessed_share,
)
from eagle3_assets.targets.grammar import Ids, Parts, assemble, split

# ---------------------------------------------------------------------------------------------------- what a proof is worth
# Entries that name or pin every id, and the bill counts them. Judged: 1 in 1,000 is left for entries that a
# server made from a text that it had bent, which nothing on the wire shows.
P_LOGPROBS = 0.999
# One delta an id, and they are the encoder's: 31,752 ids in 1,360 token-level fields, 2 fields cut inside an id (SiliconFlow)
P_BOUNDARIES = 0.995
# Deltas that leave the encoder's path and meet the bill so: 50 of 50 recorded fields whose bill could tell; ids inside a delta of several
# are still the encoder's
P_DELTAS = 0.98
# Streams whose edges are edges of ids, before the row's own edges speak: all 308 recorded text channels; of 330 argument channels all but 7
# that a gateway cut at its JSON (Together `{"a":2,` `"b":3}`, SiliconFlow `{` `}`)
P_ALIGNED = 0.9
ALIGNED_STREAMS = 3.0
SURELY_ALIGNED = 0.99
# How much likelier a bill meets the right ids than wrong ones of another count (1,302 of 1,367 K2-0905 rows fit by hand)
BILL_ODDS = 20.0
# Edges that a gateway cuts inside an id of a stream that is aligned otherwise: 1 of 7,233 (SiliconFlow's `{` + `}`); none of them is at a
# joint of JSON, so an edge there was sampled
GATEWAY_CUTS = 1.4e-4
# Judged, not counted (an audit may move them):
# What is left of the encoder's ids where deltas cut inside them and the bill speaks for the encoder: something is not as it seems
P_CUT_INSIDE = 0.7
# How much of what is not decided by edges (not canonical, damaged) deltas take away that agree with the encoder wherever they cut
SHOWN_BY_DELTAS = 0.5
# A candidate that entries of the content contradict: gateways fill `logprobs.content` from their own text, so it is evidence, not proof
AGAINST_CONTENT_ENTRIES = 0.02
# A candidate whose ids the deltas do not spell, where they spell another one's: what a gateway writes anew it streams in pieces of its own
NOT_SPELLED, FEWEST_EDGES = 0.05, 3
# A posterior whose every candidate is contradicted by entries for the whole completion
CONTRADICTED = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """What the evidence says of a completion.

    `witness`: "", "logprobs" (every id named or pinned), "boundaries" (one delta an id), "deltas" (whole ids in deltas that leave the
    encoder's path; some deltas hold several). `way`: the reading of its text, if one was needed. `witnessed`: the share of its ids that an
    entry names. `rivals`: completions that the evidence leaves open beside those of the selection. `reason`: why `p` is low, in words.
    """

    parts: Parts
    p: float
    way: Chosen | None
    witness: str = ""
    witnessed: float = 0.0
    rivals: tuple[Ids, ...] = ()
    reason: str = ""


def with_witnesses(case: Case, chosen: Selection) -> Found | None:
    """The best candidate with what log-probabilities and deltas say of its segmentation; None where nothing fits."""
    whole = _whole_entries(case)
    proven = _proven(case, chosen, whole)
    if proven is not None:
        return proven
    weighed = _weighed_by_deltas(case, _weighed_by_content(case, chosen))
    found = _with_deltas(case, weighed)
    if found is None or not whole:
        return found
    ids = assemble(case.profile, found.parts)
    found = replace(found, witnessed=max(witnessed_share(ids, told) for told in whole))
    if _is_contradicted(case, chosen, whole):
        reason = "the log-probabilities name other ids than any completion that fits the bill"
        return replace(found, p=CONTRADICTED * found.p, reason="; ".join(filter(None, (found.reason, reason))))
    return found


# ---------------------------------------------------------------------------------------------------- log-probabilities
def _whole_entries(case: Case) -> list[tuple[int | None, ...]]:
    if not case.fields.logprobs:
        return []
    told = entry_ids(case.profile, case.fields.logprobs)
    return whole_completions(case.profile, told, ended=case.fields.finish_reason in ENDS_TURN)


def _proven(case: Case, chosen: Selection, whole: Sequence[Told]) -> Found | None:
    """The completion whose every id the entries name or pin, where the bill counts it."""
    for told in whole:
        found = _spelled(case, chosen, told) or _pinned(case, chosen, told)
        if found is not None:
            return found
    return None


def _spelled(case: Case, chosen: Selection, told: Told) -> Found | None:
    """Entries without a hole are the ids, canonical or not."""
    ids = spelled_ids(case.profile, case.fields, told, thinking=case.thinking, truncated=case.truncated)
    if ids is None:
        return None
    same = next((c for c in chosen.completions if c.ids(case.profile) == ids), None)
    parts = same.parts if same else split(case.profile, ids, thinking=case.thinking, truncated=case.truncated)
    if same is None and case.billed not in _bills(chosen, parts, len(ids)):
        return None
    way = same or (chosen.completions[0] if chosen.completions else None)
    return Found(parts, P_LOGPROBS, way, "logprobs", witnessed=1.0)


def _bills(chosen: Selection, parts: Parts, length: int) -> set[int]:
    """What a server may bill for so many ids: them, them without the end of turn, or what the likeliest reading counts."""
    out = {length, length - int(parts.ended)}
    if chosen.usual is not None:
        rule = chosen.usual.reading.billing.rule(parts.section is not None)
        out.add(length + rule.constant(parts.ended))
    return out


def _pinned(case: Case, chosen: Selection, told: Told) -> Found | None:
    """The one candidate that agrees with entries whose holes are all pinned. Where another candidate differs from it at a hole, the
    entries do not choose between them."""
    ids = {c.ids(case.profile): c for c in reversed(chosen.completions)}
    agreeing = [one for one in ids if agree(one, told)]
    if len(agreeing) != 1 or open_holes(case.profile, agreeing[0], told):
        return None
    best = agreeing[0]
    holes = [k for k, token in enumerate(told) if token is None]
    if any(one[k] != best[k] for one in ids if len(one) == len(best) for k in holes):
        return None
    unseen = deviations_of(case, len(holes))
    p = P_LOGPROBS * (1 - unseen.odd * unseen.changes.get(0, FAR))
    return Found(ids[best].parts, p, ids[best], "logprobs", witnessed=witnessed_share(best, told))


def _is_contradicted(case: Case, chosen: Selection, whole: Sequence[Told]) -> bool:
    """Whether entries for a whole completion, most of them no holes, agree with no candidate."""
    candidates = [c.ids(case.profile) for c in chosen.completions[:MAX_SURVIVORS]]
    speaking = [t for t in whole if sum(token is not None for token in t) > len(t) / 2 and len(t) in set(map(len, candidates))]
    return bool(speaking) and not any(agree(ids, told) for told in speaking for ids in candidates)


def _weighed_by_content(case: Case, chosen: Selection) -> Selection:
    """Candidates whose content the entries contradict weigh less, where the entries are for the content alone and agree with another
    candidate's."""
    if not case.fields.logprobs or len(chosen.completions) < 2:
        return chosen
    told = entry_ids(case.profile, case.fields.logprobs)
    agreeing = [_agrees_with_content(case, c, told) for c in chosen.completions]
    if all(agreeing) or not any(agreeing):
        return chosen
    return _weighed(chosen, [1.0 if good else AGAINST_CONTENT_ENTRIES for good in agreeing])


def _weighed(chosen: Selection, factors: Sequence[float]) -> Selection:
    """The selection with each candidate's share times its factor, best first."""
    weighed = [(c, c.share * factor) for c, factor in zip(chosen.completions, factors, strict=True)]
    total = sum(share for _, share in weighed)
    ranked = sorted(((share / total, c) for c, share in weighed), key=lambda pair: -pair[0])
    completions = tuple(replace(c, share=share) for share, c in ranked)
    others = chosen.p / chosen.completions[0].share if chosen.completions[0].share else 0.0
    return replace(chosen, completions=completions, p=min(others, 1.0) * completions[0].share)


def _agrees_with_content(case: Case, candidate: Chosen, told: Told) -> bool:
    """Whether the entries are the content's (with or without what ends the turn), and name its ids at both ends."""
    content = candidate.parts.content
    bare = told[:-1] if told and told[-1] in case.profile.end_ids else told
    return bool(content) and agree(content, bare) and bare[0] is not None and bare[-1] is not None


# ---------------------------------------------------------------------------------------------------- deltas
def _weighed_by_deltas(case: Case, chosen: Selection) -> Selection:
    """Candidates that the deltas cut inside an id, or whose text they do not spell, weigh less where they spell another candidate id by id."""
    if len(chosen.completions) < 2 or not case.fields.deltas:
        return chosen
    told = [None if c.way.frame.leaked else stream_channels(case.profile, c.parts, case.fields) for c in chosen.completions]
    agreeing = [channels is not None and not any(channel.refutes for channel in channels) for channels in told]
    edges = max((sum(c.edges for c in channels or ()) for channels, good in zip(told, agreeing, strict=True) if good), default=0)
    if all(agreeing) or edges < FEWEST_EDGES:
        return chosen
    factors = []
    for channels, good in zip(told, agreeing, strict=True):
        factors.append(1.0 if good else NOT_SPELLED if channels is None else max(1 - _aligned(case, channels), NOT_SPELLED))
    return _weighed(chosen, factors)


def _with_deltas(case: Case, chosen: Selection) -> Found | None:
    # a stream may show that the bill is met by other ids of the same text, where no encoding of it meets it
    best = chosen.completions[0] if chosen.completions else Chosen(chosen.usual, 1.0) if chosen.usual else None
    if best is None:
        return None
    channels = stream_channels(case.profile, best.parts, case.fields) if not best.way.frame.leaked else None
    if channels is None:
        return Found(best.parts, chosen.p, best) if chosen.completions else None
    if any(channel.refutes for channel in channels):
        return _off_the_path(case, chosen, best, channels)
    if not chosen.completions:
        return None
    return _on_the_path(case, chosen, best, channels)


def _on_the_path(case: Case, chosen: Selection, best: Chosen, channels: Sequence[Channel]) -> Found:
    """Deltas that cut nowhere but where the encoder does: other ids would have shown."""
    edges, most = sum(c.edges for c in channels), sum(len(c.canonical) - 1 for c in channels)
    aligned = _aligned(case, channels)
    if channels and all(c.single for c in channels) and aligned >= SURELY_ALIGNED:
        return Found(best.parts, max(chosen.p, best.share * P_BOUNDARIES), best, "boundaries")
    shown = SHOWN_BY_DELTAS * aligned * edges / most if most else 0.0
    return Found(best.parts, chosen.p + shown * max(0.0, best.share * P_BOUNDARIES - chosen.p), best)


def _off_the_path(case: Case, chosen: Selection, best: Chosen, channels: Sequence[Channel]) -> Found | None:
    """Deltas that cut where the encoder does not: either they are whole ids, and these were sampled, or a gateway cut the text anew.
    The edges themselves and the bill say which."""
    more = sum(len(c.ids) - len(c.canonical) for c in channels)
    moved = _billed_less(case, more) if more else chosen
    in_arguments = all(c.in_arguments for c in channels if c.refutes)
    sampled = _sampled(case, [c for c in channels if c.in_arguments == in_arguments], _mass(moved), _mass(chosen))
    canonical = tuple(c.ids(case.profile) for c in chosen.completions[:MAX_SURVIVORS])
    cuts = [(c, cut) for c in moved.completions[:MAX_SURVIVORS] if (cut := _cut(case, c)) is not None]
    if cuts and (sampled >= 0.5 or not canonical):
        way, parts = cuts[0]
        single = all(c.single for c in channels) and sampled >= SURELY_ALIGNED
        rivals = (*(assemble(case.profile, cut) for _, cut in cuts[1:]), *canonical)
        p = moved.p * (P_BOUNDARIES if single else P_DELTAS) * sampled
        doubt = (
            "" if sampled >= SURELY_ALIGNED else f"the stream's deltas cut inside ids, perhaps by a gateway ({1 - sampled:.0%})"
        )
        return Found(parts, p, way, "boundaries" if single else "deltas", rivals=rivals, reason=doubt)
    if not canonical:
        return None
    if not cuts and not any(c.off for c in channels):
        # No edge lies inside an id of the encoder's: a delta of two ids happens to spell one id of the vocabulary, and the bill counts two
        return _on_the_path(case, chosen, best, channels)
    where = "arguments" if in_arguments else "text"
    reason = f"the stream's deltas cut inside an id of the {where}, so other ids may have been sampled"
    own = _cut(case, best)
    rivals = (assemble(case.profile, own),) if own is not None else ()
    return Found(best.parts, chosen.p * min(1 - sampled, P_CUT_INSIDE), best, rivals=rivals, reason=reason)


def _sampled(case: Case, channels: Sequence[Channel], moved: float, canonical: float) -> float:
    """P(the deltas' ids were sampled, not the encoder's): the stream is aligned, no gateway cut it here, and how much likelier the bill
    is with these ids (`moved` and `canonical`: the weights of what meets it so or so)."""
    aligned = _aligned(case, channels)
    elsewhere = sum(c.off - c.joints for c in channels)
    kind: TextKind = "arguments" if all(c.in_arguments for c in channels) else "prose"
    rate = case.spelling.canonicality.rate(case.drawn.temperature, case.drawn.top_p, kind) / GATEWAY_CUTS
    sampled = aligned * (rate / (1 + rate)) ** elsewhere
    least = max(moved, canonical) / BILL_ODDS
    bill = max(moved, least) / max(canonical, least) if least else 1.0
    return sampled * bill / (sampled * bill + 1 - sampled)


def _mass(selection: Selection) -> float:
    """The weight of all ways that meet the bill."""
    best = selection.completions[0] if selection.completions else None
    return best.way.weight / best.share if best and best.share else 0.0


def aligned_share(channels: Iterable[Edges | Channel], prior: float = P_ALIGNED, off_in_text: float = 0.0) -> float:
    """P(the deltas are whole ids) by their own edges: of one answer, or of all answers of a provider. `off_in_text`: how often the model
    leaves the encoder's path in texts, an id."""
    prior = min(max(prior, 1e-6), 1 - 1e-6)
    nats = alignment_nats(channels, off_in_text) + math.log(prior / (1 - prior))
    return 1 / (1 + math.exp(-min(max(nats, -500.0), 30.0)))


def share_of_streams(streams: Sequence[Sequence[Edges]], off_in_text: float = 0.0) -> float | None:
    """The share of a provider's streams whose deltas are whole ids, that makes their edges likeliest; None where no stream says anything.
    What is believed before weighs as ALIGNED_STREAMS of them."""
    told = [channels for channels in streams if any(channel.edges for channel in channels)]
    share = P_ALIGNED
    for _ in range(12):
        aligned = sum(aligned_share(channels, share, off_in_text) for channels in told)
        share = (aligned + P_ALIGNED * ALIGNED_STREAMS) / (len(told) + ALIGNED_STREAMS)
    return share if told else None


def _aligned(case: Case, channels: Sequence[Channel]) -> float:
    """`aligned` of the provider's window is what its other answers say, where it was learned."""
    rate = case.spelling.canonicality.rate(case.drawn.temperature, case.drawn.top_p, "prose")
    return aligned_share(channels, float(case.window.get("aligned", P_ALIGNED)), rate)


def _billed_less(case: Case, more: int) -> Selection:
    """What would fit if the bill were less by the ids that the deltas add: the edges are chosen as for any other answer."""
    billed = (case.fields.billed_completion or 0) - more
    moved = replace(case, fields=replace(case.fields, billed_completion=billed))
    return select(moved, frames_of(moved))


def _cut(case: Case, candidate: Chosen) -> Parts | None:
    """The candidate's texts with the ids that the deltas spell; None where they spell none of it."""
    parts = candidate.parts
    channels = stream_channels(case.profile, parts, case.fields) if not candidate.way.frame.leaked else None
    if channels is None:
        return None
    told = {channel.name: channel.ids for channel in channels}
    names = list(own_channels(parts, channels_of(case.fields)))
    calls = tuple(
        replace(call, arguments=told[name]) if name in told else call for name, call in zip(names[2:], parts.calls, strict=True)
    )
    return replace(
        parts, reasoning=told.get("reasoning", parts.reasoning), content=told.get("content", parts.content), calls=calls
    )
