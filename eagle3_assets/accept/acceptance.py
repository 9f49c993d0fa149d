"""Acceptance of one drafter over stored rows: every way of decoding, every group, with intervals.

Belongs here: ways of decoding, groups, the figures as one JSON document. Does not belong here: estimators (`tau.py`), walks (`walk.py`), the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from eagle3_assets.accept.batch import cut_batches, make_batch
from eagle3_assets.accept.drafts import Tree, chain_hits, starts_of, target_of, tree_hits
from eagle3_assets.accept.layer import Drafter
from eagle3_assets.accept.stored_rows import StoredRow
from eagle3_assets.accept.tau import summarise
from eagle3_assets.accept.walk import Verified, walk_drawn, walk_greedy, walk_text
from eagle3_assets.states.target.target_head import TargetHead

WAYS: Final = {
    "sampled_chain": "sampled, chain",
    "sampled_chain_drawn": "sampled, drawn chain",
    "sampled_tree": "sampled, tree",
    "greedy_chain": "greedy, chain",
    "greedy_tree": "greedy, tree",
}
MEANINGS: Final = {
    "sampled_chain": "sampled answers, a chain of the most probable drafts: vLLM's default",
    "sampled_chain_drawn": "sampled answers, a chain of drafts drawn from the drafter: speculative sampling of the paper",
    "sampled_tree": "sampled answers, a tree of the most probable drafts: SGLang, EAGLE",
    "greedy_chain": "greedy answers, a chain of the most probable drafts; an estimate where the stored answers were sampled",
    "greedy_tree": "greedy answers, a tree of the most probable drafts; an estimate where the stored answers were sampled",
}
FACETS: Final = ("dataset", "grade", "position in the answer", "context length")
POSITIONS: Final = (0, 32, 128, 512, 2048, 8192, 32768)
CONTEXTS: Final = (0, 128, 512, 2048, 8192, 32768, 131072)
SLICE_ROWS: Final = 256  # rows that are sorted into batches together

Pair = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
Key = tuple[str, str, str]  # way, facet ("" for all), value


@dataclass(frozen=True, slots=True)
class Decoding:
    """`chain`: drafts of a chain; `tree`: None to leave trees out."""

    chain: int
    tree: Tree | None = None
    batch_tokens: int = 4096
    device: str = "cpu"


@dataclass(slots=True)
class Tally:
    """Counts by way and group, of each conversation (`sample_id`) alone: [K] tested, [K] accepted."""

    counts: dict[Key, dict[str, Pair]] = field(default_factory=lambda: defaultdict(dict))
    rows: int = 0
    outside_nucleus: int = 0
    compared: int = 0
    likely: int = 0  # stored ids that are the target's most probable ones

    def add(self, key: Key, conversation: str, verified: Verified, at: npt.NDArray[Any] | slice = slice(None)) -> None:
        tested, accepted = verified.tested[at].sum(0), verified.accepted[at].sum(0)
        if not tested[0]:
            return
        before = self.counts[key].get(conversation)
        self.counts[key][conversation] = (tested, accepted) if before is None else (before[0] + tested, before[1] + accepted)


def measure(
    drafter: Drafter,
    rows: Iterable[StoredRow],
    head: TargetHead,
    how: Decoding,
    *,
    ways: Sequence[str] = tuple(WAYS),
    on_rows: Callable[[int], None] = lambda n: None,
) -> Tally:
    """Walk every row in every way that its sampling allows. Rows are read in slices, so a split of any size fits."""
    tally = Tally()
    for piece in _slices(rows, SLICE_ROWS):
        piece.sort(key=lambda stored: len(stored.row.ids))
        for chosen in cut_batches([len(stored.row.ids) for stored in piece], how.batch_tokens):
            _measure_batch(drafter, [piece[i] for i in chosen if len(piece[i].row.ids) > 2], head, how, ways, tally)
        tally.rows += len(piece)
        on_rows(tally.rows)
    return tally


def _slices(rows: Iterable[StoredRow], size: int) -> Iterator[list[StoredRow]]:
    piece: list[StoredRow] = []
    for row in rows:
        piece.append(row)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def ways_of(stored: StoredRow, ways: Sequence[str]) -> list[str]:
    """The ways that a row can tell of: a greedy answer says nothing of sampling; drawn drafts need the row's temperature."""
    greedy = stored.sampling is not None and stored.sampling[0] == 0
    return [
        way
        for way in ways
        if way.startswith("greedy") or (not greedy and (way != "sampled_chain_drawn" or stored.sampling is not None))
    ]


def _measure_batch(
    drafter: Drafter, rows: list[StoredRow], head: TargetHead, how: Decoding, ways: Sequence[str], tally: Tally
) -> None:
    if not rows:
        return
    batch = make_batch([stored.row for stored in rows], how.device)
    starts = starts_of(batch)
    if not len(starts):
        return
    sampling = [stored.sampling for stored in rows]
    target = target_of(head, batch, sampling)
    chain, share = chain_hits(drafter, batch, target, how.chain, sampling)
    hits = {"chain": chain}
    if how.tree is not None and any(way.endswith("tree") for way in ways):
        hits["tree"] = tree_hits(drafter, batch, target, how.tree)
    on_text = (target.choice[starts] == batch.ids[starts + 1]).cpu().numpy()
    zero = (target.chance[starts] == 0).cpu().numpy()
    tally.outside_nucleus += int(zero.sum())
    tally.compared += len(zero)
    tally.likely += int(on_text.sum())
    places, documents = starts.cpu().numpy(), batch.documents[starts].cpu().numpy()
    contexts = batch.positions[starts].cpu().numpy() + 1
    for answer in np.split(np.arange(len(places)), np.flatnonzero(np.diff(places) != 1) + 1):
        stored = rows[int(documents[answer[0]])]
        for way in ways_of(stored, ways):
            kind = way.split("_")[1]
            if kind not in hits:
                continue
            own = type(chain)(hits[kind].text[answer], hits[kind].greedy[answer])
            if way.startswith("greedy"):
                verified = walk_greedy(own, on_text[answer])
            elif way == "sampled_chain_drawn":
                verified = walk_drawn(share[answer])
            else:
                verified = walk_text(own)
            _file(tally, way, stored, verified, contexts[answer])


def _file(tally: Tally, way: str, stored: StoredRow, verified: Verified, contexts: npt.NDArray[Any]) -> None:
    who = stored.sample_id
    tally.add((way, "", ""), who, verified)
    tally.add((way, "dataset", stored.dataset), who, verified)
    tally.add((way, "grade", stored.grade), who, verified)
    for facet, edges, values in (
        ("position in the answer", POSITIONS, np.arange(1, len(contexts) + 1)),
        ("context length", CONTEXTS, contexts),
    ):
        bins = np.searchsorted(edges, values, side="right") - 1
        for k in np.unique(bins):
            tally.add((way, facet, _bin_name(edges, int(k))), who, verified, bins == k)


def _bin_name(edges: Sequence[int], k: int) -> str:
    return f"{edges[k]:,} to {edges[k + 1] - 1:,}" if k + 1 < len(edges) else f"from {edges[k]:,}"


def figures(tally: Tally, *, seed: int = 0) -> dict[str, Any]:
    """{way: {"all": summary, "groups": {facet: {value: summary}}}} for the ways that any row told of; see `tau.summarise`."""
    found: dict[str, Any] = {}
    for way in WAYS:
        whole = _summary(tally.counts.get((way, "", ""), {}), seed)
        if whole is None:
            continue
        groups: dict[str, dict[str, Any]] = {}
        for facet in FACETS:
            values = [value for (w, f, value) in tally.counts if (w, f) == (way, facet)]
            groups[facet] = {value: _summary(tally.counts[way, facet, value], seed) for value in sorted(values, key=_bin_order)}
        found[way] = {"all": whole, "groups": groups}
    return found


def _bin_order(value: str) -> tuple[int, str]:
    first = value.removeprefix("from ").split(" ")[0].replace(",", "")
    return (int(first) if first.isdigit() else -1, value)


def _summary(counts: Mapping[str, Pair], seed: int) -> dict[str, Any] | None:
    if not counts:
        return None
    ordered = [counts[who] for who in sorted(counts)]
    return summarise(np.stack([t for t, _ in ordered]), np.stack([a for _, a in ordered]), seed=seed)


def headline(found: Mapping[str, Any]) -> str:
    """The way whose τ is the campaign's figure: sampled where any answer was sampled, else greedy."""
    return "sampled_chain" if "sampled_chain" in found else "greedy_chain"
