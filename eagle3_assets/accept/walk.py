"""The walk of draft and verify over text that is known: which verifications a server would run, and what each accepts.

Belongs here: going through one answer, for each way of decoding. Does not belong here: drafts (`drafts.py`), sums and intervals (`tau.py`).

Why text that is stored is enough. A verification that starts behind stored ids sees what a server would see, as a draft is fed on only while it
is right; so with the answer given, what is accepted is known, not estimated:
- sampled answer, most probable drafts (vLLM's default, SGLang's trees): lossless sampling accepts a draft exactly where it is the id that came out;
- sampled answer, drawn drafts: accepted with min(1, q / p) of the id that came out (`drafts.chain_hits`), independently; the walk is then a Markov
  chain over starts, and its expectation is computed, not drawn;
- greedy answer: drafts are accepted while they are the answer. Where the stored answer was sampled, greedy decoding would leave it at the first id
  that is not the most probable: what was accepted up to there counts, the rest of that verification is unknown (censored; `tau.py`), and the next one
  starts behind. An estimate, with no censoring and exact where the answer itself is greedy.

An answer's first id comes from prefill, and nothing is accepted behind its last: both as when a server counts up to the end id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle3_assets.accept.drafts import Hits


@dataclass(frozen=True, slots=True)
class Verified:
    """float64 [starts, K] each: verifications of each start that put draft k to the test (`tested`, those before it accepted), and that accepted
    it. A start's own verifications are `tested[:, 0]`: 1 or 0, or an expectation for drawn drafts."""

    tested: npt.NDArray[np.float64]
    accepted: npt.NDArray[np.float64]


def _empty(starts: int, steps: int) -> Verified:
    return Verified(np.zeros((starts, steps)), np.zeros((starts, steps)))


def walk_text(hits: Hits) -> Verified:
    """One answer, `hits` of its starts in order; the draft that ends a verification is the last that was tested."""
    starts, steps = hits.text.shape
    out, at = _empty(starts, steps), 0
    runs = hits.text.sum(1)
    while at < starts:
        accepted = int(runs[at])
        out.accepted[at, :accepted] = 1
        out.tested[at, : min(accepted + 1, steps)] = 1
        at += accepted + 1
    return out


def walk_greedy(hits: Hits, on_text: npt.NDArray[np.bool_]) -> Verified:
    """`on_text` bool [starts]: the stored id behind a start is the target's most probable one."""
    starts, steps = hits.text.shape
    out, at = _empty(starts, steps), 0
    while at < starts:
        k = 0
        while k < steps:
            out.tested[at, k] = 1
            if at + k >= starts or not hits.greedy[at, k]:
                break
            out.accepted[at, k] = 1
            k += 1
            if not on_text[at + k - 1]:
                k -= 1  # the target left the text with this draft: one place further, and no test of the drafts behind it
                break
        at += k + 1
    return out


def walk_drawn(share: npt.NDArray[np.float32]) -> Verified:
    """Expectation over drawn drafts: `share[s, k]` as `drafts.chain_hits` gives it, for the starts of one answer in order."""
    starts, steps = share.shape
    out = _empty(starts, steps)
    reached = np.zeros(starts + steps + 2)
    reached[0] = 1.0
    for at in range(starts):
        here = reached[at]
        for k in range(steps):
            out.tested[at, k] = here
            chance = float(share[at, k]) if at + k < starts else 0.0
            reached[at + k + 1] += here * (1.0 - chance)
            here *= chance
            out.accepted[at, k] = here
        reached[at + steps + 1] += here
    return out
