"""What a drafter proposes at every place where a verification could start, held against the stored text and the target's own choice.

Belongs here: chains, trees (EAGLE-2's, as SGLang builds them), probabilities of drawn drafts. Does not belong here: which starts a server
would come to, and counting (`walk.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from eagle3_assets.accept.batch import Batch
from eagle3_assets.accept.layer import Drafter, Own
from eagle3_assets.states.target.target_head import TargetHead

CHUNK_VALUES = 1 << 25  # numbers of the largest tensor (logits, attention scores) of one chunk of starts: 128 MiB in float32


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of drafts: each of `steps` levels expands the `topk` most probable nodes into `topk` children; of all, the `nodes` most probable
    paths are verified. SGLang: --speculative-eagle-topk, -num-steps, -num-draft-tokens (minus the root)."""

    topk: int
    steps: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Hits:
    """bool [starts, K] each. `text[s, k]`: drafts 0 .. k hold the stored ids (a chain: are them; a tree: hold their path). `greedy[s, k]`:
    drafts 0 .. k-1 hold the stored ids and draft k the target's most probable id behind these."""

    text: npt.NDArray[np.bool_]
    greedy: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Target:
    """The target at each supervised position of a batch: `choice` int64 [positions], its most probable id behind (-1 where not supervised);
    `chance` float32 [positions], its probability of the stored id under the row's sampling (nan: not known, or not supervised)."""

    choice: torch.Tensor
    chance: torch.Tensor


def target_of(head: TargetHead, batch: Batch, sampling: list[tuple[float, float] | None]) -> Target:
    """`sampling`: (temperature, top_p) of each row of the batch, None where it is not known. A temperature of 0 needs no `chance`."""
    choice = torch.full_like(batch.ids, -1)
    chance = torch.full(batch.ids.shape, torch.nan, device=batch.ids.device)
    at = batch.supervised.nonzero()[:, 0]
    for piece in at.split(max(1, CHUNK_VALUES // head.weight.shape[0])):  # type: ignore[no-untyped-call]
        logits = head.logits(batch.final[piece]).to(batch.ids.device)
        choice[piece] = logits.argmax(-1)
        chance[piece] = chances(logits, batch.ids[piece + 1], batch.documents[piece], sampling)
    return Target(choice, chance)


def chances(
    logits: torch.Tensor, ids: torch.Tensor, documents: torch.Tensor, sampling: list[tuple[float, float] | None]
) -> torch.Tensor:
    """float32 [n]: probability of `ids` [n] under each row's temperature and top_p (nan where it is not known, or is 0)."""
    found = torch.full(ids.shape, torch.nan, device=logits.device)
    for number, how in enumerate(sampling):
        mine = (documents == number).nonzero()[:, 0]
        if len(mine) and how is not None and how[0] > 0:
            found[mine] = sampled(logits[mine], *how).gather(1, ids[mine, None])[:, 0]
    return found


def sampled(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """The distribution [n, V] that is sampled from: the most probable ids until their sum reaches top_p, the one that crosses included."""
    probability = (logits.double() / temperature).softmax(-1)
    if top_p < 1:
        falling, order = probability.sort(dim=-1, descending=True, stable=True)
        outside = falling.cumsum(-1) - falling >= top_p
        outside[:, 0] = False
        probability = probability.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), 0.0)
        probability = probability / probability.sum(-1, keepdim=True)
    return probability.float()


def starts_of(batch: Batch) -> torch.Tensor:
    """int64 [starts]: the supervised positions, where a verification may start."""
    return batch.supervised.nonzero()[:, 0]


@torch.no_grad()
def chain_hits(
    drafter: Drafter, batch: Batch, target: Target, steps: int, sampling: list[tuple[float, float] | None]
) -> tuple[Hits, npt.NDArray[np.float32]]:
    """A chain of the most probable ids; and of a chain of drawn ones float32 [starts, steps]: with which probability the stored id was the
    draft that was accepted there.

    Lossless sampling (Leviathan et al. 2022, arXiv 2211.17192): draft d drawn from q is accepted with min(1, p(d) / q(d)), so with the output x
    given, it was an accepted draft with probability min(p(x), q(x)) / p(x). The text alone decides no more than that, and no less.
    """
    text, greedy, drawn = [], [], []
    for starts in _chunks(drafter, batch, 1):
        wanted, choice = _ahead(batch, target, starts, steps)
        right, like, share = [], [], []
        for k, logits in enumerate(drafter.chain(batch, steps, starts)):
            draft = drafter.target_ids(logits.argmax(-1))
            right.append(draft == wanted[:, k])
            like.append(draft == choice[:, k])
            share.append(_accepted_share(drafter, batch, target, starts, k, logits, sampling))
        # nested: a chain that is wrong once is wrong from there on
        held = torch.stack(right, 1).cumprod(1).bool()
        before = torch.cat([torch.ones_like(held[:, :1]), held[:, :-1]], 1)
        text.append(held)
        greedy.append(before & torch.stack(like, 1))
        drawn.append(torch.stack(share, 1))
    shares: npt.NDArray[np.float32] = _joined(drawn, steps).astype(np.float32)
    return Hits(_joined(text, steps).astype(bool), _joined(greedy, steps).astype(bool)), shares


@torch.no_grad()
def tree_hits(drafter: Drafter, batch: Batch, target: Target, tree: Tree) -> Hits:
    """A tree of the most probable paths. Sampling verifies it against the target alone, as SGLang and EAGLE do: the id that the target draws
    is accepted where it is a child."""
    text, greedy = [], []
    for starts in _chunks(drafter, batch, tree.topk):
        wanted, choice = _ahead(batch, target, starts, tree.steps)
        levels = list(_grow(drafter, batch, starts, tree))
        kept = _best([scores for scores, _, _ in levels], tree.nodes)
        node = torch.full_like(starts, -1)  # the root; nodes are numbered within their level
        alive = torch.ones_like(starts, dtype=torch.bool)
        held, like = [], []
        for k, (_, ids, parents) in enumerate(levels):
            children = kept[k] & (parents == node[:, None]) & alive[:, None]
            like.append((children & (ids == choice[:, k, None])).any(1))
            match = children & (ids == wanted[:, k, None])
            alive, node = match.any(1), match.long().argmax(1)
            held.append(alive)
        text.append(torch.stack(held, 1))
        greedy.append(torch.stack(like, 1))
    return Hits(_joined(text, tree.steps).astype(bool), _joined(greedy, tree.steps).astype(bool))


def _grow(
    drafter: Drafter, batch: Batch, starts: torch.Tensor, tree: Tree
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Level by level [starts, nodes of the level]: log-probability of the path, target id, parent (its number in the level before; -1)."""
    prefix = drafter.open(batch)
    state, own = drafter.first(prefix, starts), None
    scores = torch.zeros(len(starts), 1, device=starts.device)
    parents = torch.full((len(starts), 1), -1, device=starts.device)  # of the nodes to expand: their number in the level before
    k = tree.topk
    for depth in range(1, tree.steps + 1):
        share, draft = functional.log_softmax(drafter.logits(state), dim=-1).topk(min(k, drafter.shape.draft_vocab), dim=-1)
        ids, reached = drafter.target_ids(draft).flatten(1), (scores[..., None] + share).flatten(1)
        yield reached, ids, parents[..., None].expand(share.shape).flatten(1)
        if depth == tree.steps:
            return
        order = reached.sort(dim=1, descending=True, stable=True).indices[:, :k]
        source = order // share.shape[-1]  # which of the expanded nodes a chosen one continues
        at = torch.arange(len(starts), device=starts.device)[:, None]
        grown: Own | None = None if own is None else own.of(source)
        scores, parents = reached.gather(1, order), order
        state, own = drafter.follow(prefix, starts, depth, ids.gather(1, order), state[at, source], grown)


def _best(levels: list[torch.Tensor], nodes: int) -> list[torch.Tensor]:
    """bool, as `levels`: the `nodes` best of all. A parent is never worse than its child and comes first, so no node is left without one."""
    pool = torch.cat(levels, 1)
    order = pool.sort(dim=1, descending=True, stable=True).indices[:, :nodes]
    kept = torch.zeros_like(pool, dtype=torch.bool).scatter(1, order, torch.ones_like(order, dtype=torch.bool))
    return list(kept.split([level.shape[1] for level in levels], 1))  # type: ignore[no-untyped-call]


def _ahead(batch: Batch, target: Target, starts: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [starts, steps] each: the stored ids and the target's choices that drafts 0 .. of each start have to be; -1 where the answer is
    at its end."""
    at = starts[:, None] + torch.arange(steps, device=starts.device)
    # one answer has its supervised positions in a row: the first that is not ends it
    inside = (at < len(batch.ids)) & batch.supervised[at.clamp(max=len(batch.ids) - 1)]
    inside = inside.long().cumprod(1).bool()
    place = at.clamp(max=len(batch.ids) - 2)
    return batch.ids[place + 1].masked_fill(~inside, -1), target.choice[place].masked_fill(~inside, -1)


def _accepted_share(
    drafter: Drafter,
    batch: Batch,
    target: Target,
    starts: torch.Tensor,
    k: int,
    logits: torch.Tensor,
    sampling: list[tuple[float, float] | None],
) -> torch.Tensor:
    """[starts] min(1, q / p) of the stored id; nan where p is not known. An id outside the target's own nucleus (p = 0: a rounding at its
    edge) counts as accepted where the drafter could draw it."""
    at = (starts + k).clamp(max=len(batch.ids) - 2)
    wanted = drafter.inverse[batch.ids[at + 1]]
    inside = wanted < drafter.shape.draft_vocab
    proposed = chances(logits, wanted.clamp(max=drafter.shape.draft_vocab - 1), batch.documents[starts], sampling)
    share = (proposed.masked_fill(~inside, 0.0) / target.chance[at]).clamp(max=1.0)
    known = ~torch.isnan(target.chance[at])
    return torch.where(known, share.nan_to_num(0.0), torch.nan)


def _chunks(drafter: Drafter, batch: Batch, width: int) -> Iterator[torch.Tensor]:
    """Starts, as many at once as the largest tensor may hold; every chunk reads the whole batch as its context."""
    largest = width * max(drafter.shape.draft_vocab, drafter.shape.heads * len(batch.ids))
    yield from starts_of(batch).split(max(1, CHUNK_VALUES // largest))  # type: ignore[no-untyped-call]


def _joined(pieces: list[torch.Tensor], steps: int) -> npt.NDArray[np.float64]:
    empty = np.zeros((0, steps))
    return np.concatenate([empty, *(piece.double().cpu().numpy() for piece in pieces)])
