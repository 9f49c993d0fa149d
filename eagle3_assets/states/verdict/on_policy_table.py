"""`hidden_states/<shard>/on_policy.parquet`: the target model's verdict on every row of one corpus part.

Belongs here: choosing winners before extraction, scoring the stored states after it, the file, reading it back.
Does not belong here: the figures (`on_policy.py`), the grade rule (`choice.py`), checks and summaries (`on_policy_checks.py`).

Order: winners are chosen first (an extra pass over rows that have survivors, nothing else), the partition is extracted over the winners,
then the stored final states are scored: what is judged is what a trainer reads. The file is committed last, by a manifest of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.states.extractors.capture import capture_rows
from eagle3_assets.states.extractors.interface import Extractor
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.partition import spec_of
from eagle3_assets.states.reader import StateRow, States
from eagle3_assets.states.reader import open as open_states
from eagle3_assets.states.target.token_figures import RowStatistics, Scores, edges_of, row_statistics
from eagle3_assets.states.verdict.choice import Choice, candidates, choose, final_grade
from eagle3_assets.states.verdict.verdicts_manifest import VERDICTS_FILE
from eagle3_assets.store import Manifest, Store, atomic_file, commit, digest_json, read_manifest, require
from eagle3_assets.targets.tokenizer import load_profile

if TYPE_CHECKING:
    from eagle3_assets.states.target.target_head import TargetHead


VERSION = 2
ALONE = Choice(0, 1.0, ())

_FLOATS = pa.list_(pa.float32())
SCHEMA = pa.schema(
    [
        *[pa.field(n, pa.string(), nullable=False) for n in ("sample_id", "dataset", "provider", "grade", "final_grade")],
        *[pa.field(n, pa.int32(), nullable=False) for n in ("turn", "candidates", "winner", "tokens")],
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
        pa.field("posterior", pa.float64(), nullable=False),
        pa.field("log_probs", pa.list_(pa.float64()), nullable=False),  # one a candidate; empty where there was no choice
        pa.field("input_ids", pa.list_(pa.int32())),  # the winner's, where it is not the corpus row's own ids
        pa.field("loss_mask", pa.list_(pa.uint8())),
        pa.field("judged", pa.bool_(), nullable=False),  # False: outside verdict_share, or no states
        *[
            pa.field(n, pa.float64())
            for n in ("mean_logprob", "mean_entropy", "heat", "spread", "z", "log10_e", "first_nll", "p_end")
        ],
        pa.field("nucleus_violations", pa.int32()),
        pa.field("edges", pa.list_(pa.int32())),
        *[pa.field(n, _FLOATS) for n in ("logprob", "entropy", "mass_above")],  # one a generated id, in order
    ]
)


@dataclass(frozen=True, slots=True)
class Judge:
    """What judging needs beside the rows: the head, where text and markers meet, how ids were sampled."""

    campaign: Campaign
    head: TargetHead
    markers: frozenset[int]
    end_id: int

    def score(self, final: Any, ids: Any, mask: Any, dataset: str) -> tuple[Scores, RowStatistics]:
        """Figures of one row; `final` [T, H] pre-norm states."""
        sampling = self.campaign.sampling_of(self.campaign.dataset_named(dataset))
        ids = np.asarray(ids, dtype=np.int64)
        try:
            scores = self.head.score(final, ids, mask, temperature=sampling.temperature, top_p=sampling.top_p)
        except (RuntimeError, MemoryError, IndexError) as error:  # memory, a lost device, an id that the head does not have
            reason = (str(error) or type(error).__name__).splitlines()[0][:300]
            raise StateError(
                f"the target's head over a row of {len(ids)} ids failed on {self.head.weight.device} ({reason})"
            ) from error
        edge = edges_of(ids, scores.positions, self.markers)
        greedy = sampling.temperature == 0
        return scores, row_statistics(scores, ids, top_p=sampling.top_p, edge=edge, end_id=self.end_id, greedy=greedy)


def open_judge(campaign: Campaign, norm: FinalNorm) -> Judge:
    """Load the target's head; `norm` stands before it. Raises StateError where the checkpoint has none."""
    from eagle3_assets.states.target.target_head import load_head

    profile = load_profile(campaign.target.profile)
    head = load_head(campaign, norm)
    return Judge(campaign, head, profile.marker_ids, profile.end_id)


def is_judged(campaign: Campaign, store: Store, shard: str) -> bool:
    """Whether the model's verdict on the committed states is there as the campaign wants it; also where it wants none."""
    states = read_manifest(store.states(shard))
    if states is None:
        return False
    found = _committed(store.states(shard) / VERDICTS_FILE)
    if not campaign.extraction.verdict_share:
        # states of winners need the file that says so: a run may have died, or its head failed, between the two
        return not states.numbers.get("other_ids") or (found is not None and found.inputs.get("states") == states.digest)
    datasets = found.inputs.get("sampling") if found is not None else None
    if found is None or not isinstance(datasets, dict) or not set(datasets) <= {d.name for d in campaign.dataset}:
        return False
    return bool(found.inputs == on_policy_inputs(campaign, states.digest, datasets))


def _committed(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except StoreError:  # damage counts as none: it is made again
        return None


def on_policy_inputs(campaign: Campaign, states_digest: str, datasets: Iterable[str]) -> dict[str, Any]:
    """What decides the file. `states_digest`: that of the partition's committed manifest; `datasets`: those of its rows."""
    return {
        "version": VERSION,
        "states": states_digest,
        "sampling": {
            name: digest_json(campaign.sampling_of(campaign.dataset_named(name)).model_dump(mode="json"))
            for name in sorted(set(datasets))
        },
        "share": campaign.extraction.verdict_share,
    }


# ---------------------------------------------------------------------------------------------------- before extraction
def choose_winners(
    extractor: Extractor,
    judge: Judge,
    shard: str,
    packs: Sequence[Pack],
    archive: pa.Table,
    on_row: Callable[[int], None] = lambda done: None,
) -> tuple[list[Pack], list[Choice]]:
    """(rows to extract, choices), one a row of `packs`. `archive` is the part's Parquet table, in the same order.

    Only rows with survivors are run: each candidate once, through `extractor`, held to what every row is held to (`capture_rows`). A row
    with a survivor that cannot be run stays as it is: a choice among some says nothing. Of a C1 row without survivors the text stage's
    belief is all there is. Raises StateError from the engine.
    """
    campaign = judge.campaign
    spec = spec_of(campaign, shard, extractor.describe())
    winners, choices = list(packs), [ALONE] * len(packs)
    survivors, prompts = archive.column("survivors"), archive.column("prompt_len")
    beliefs = archive.column("p_exact")
    for i, pack in enumerate(packs):
        others = survivors[i].as_py()
        if not others:
            if pack.grade == "C1":
                choices[i] = Choice(0, beliefs[i].as_py(), (), lone=True)
            continue
        found = candidates(pack, others, prompts[i].as_py())
        if len(found) <= len(others):
            continue
        log_probs = []
        captured = capture_rows(extractor, spec, found, campaign.extraction.batch_tokens, lambda: None)
        for c, states in zip(found, captured, strict=True):
            if isinstance(states, str):  # not finite, also by itself
                log_probs.append(float("nan"))
                continue
            scores, _ = judge.score(states[:, -1], c.input_ids, c.loss_mask, pack.dataset)
            log_probs.append(float(scores.logprob.sum(dtype=np.float64)))
        choices[i] = choose(log_probs, beliefs[i].as_py())
        winners[i] = found[choices[i].winner]
        on_row(i + 1)
    return winners, choices


# ---------------------------------------------------------------------------------------------------- after extraction
def write_on_policy(
    store: Store, shard: str, judge: Judge, packs: Sequence[Pack], archive: pa.Table, choices: Sequence[Choice]
) -> Manifest:
    """Score the committed states of `hidden_states/<shard>/` and commit the file. `packs` are the corpus rows, not the winners."""
    folder = store.states(shard)
    states = open_states(folder)
    sources = [p or s for p, s in zip(archive.column("provider").to_pylist(), archive.column("source").to_pylist(), strict=True)]
    rows = [
        _row(judge, pack, source, choice, _stored(states, pack))
        for pack, source, choice in zip(packs, sources, choices, strict=True)
    ]
    path = folder / VERDICTS_FILE
    with atomic_file(path) as handle:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), handle, compression="zstd")
    digest = require(folder, made_by="hidden_states").digest
    finals = [row["final_grade"] for row in rows]
    numbers = {
        "rows": len(rows),
        "judged": sum(row["judged"] for row in rows),
        "chosen": sum(row["grade"] == "C1" and row["final_grade"] == "B2" for row in rows),
        "out": finals.count("Q"),
        "other_ids": sum(row["winner"] > 0 for row in rows),
    }
    return commit(
        path, files=[path], inputs=on_policy_inputs(judge.campaign, digest, {p.dataset for p in packs}), numbers=numbers
    )


def _stored(states: States, pack: Pack) -> StateRow | None:
    """One row at a time: rows of lossless parts are decoded memory."""
    try:
        return states[pack.sample_id, pack.turn]
    except KeyError:
        return None


def _row(judge: Judge, pack: Pack, source: str, choice: Choice, stored: StateRow | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "sample_id": pack.sample_id, "turn": pack.turn, "dataset": pack.dataset, "provider": source, "grade": pack.grade,
        "candidates": max(1, len(choice.log_probs)), "winner": choice.winner, "posterior": choice.posterior,
        "log_probs": list(choice.log_probs), "tokens": int(np.asarray(pack.loss_mask).sum()), "judged": False,
        "final_grade": pack.grade, "reasons": [],
    }  # fmt: skip
    if stored is None:
        return row
    if choice.winner:
        row["input_ids"], row["loss_mask"] = stored.input_ids.tolist(), stored.loss_mask.tolist()
    # where there was a choice its winner must be judged: C1 goes up or out; a lone one goes out or gets its reason
    if not choice.log_probs and not choice.lone and not in_share(pack.sample_id, judge.campaign.extraction.verdict_share):
        return row
    scores, statistics = judge.score(stored.hidden_states[:, -1], stored.input_ids, stored.loss_mask, pack.dataset)
    grade, reasons = final_grade(pack.grade, choice, statistics)
    return {
        **row,
        "judged": True,
        "final_grade": grade,
        "reasons": list(reasons),
        **{
            n: getattr(statistics, n)
            for n in ("tokens", "mean_logprob", "mean_entropy", "heat", "spread", "log10_e", "first_nll")
        },
        "z": None if np.isnan(statistics.z) else statistics.z,
        "p_end": statistics.p_end,
        "nucleus_violations": statistics.nucleus_violations,
        "edges": list(statistics.edges),
        **{n: getattr(scores, n) for n in ("logprob", "entropy", "mass_above")},
    }


def in_share(sample_id: str, share: float) -> bool:
    """Whether a row belongs to the judged share: the same rows on every machine and in every run."""
    return xxhash.xxh3_64_intdigest(sample_id.encode()) < share * 2**64


# ---------------------------------------------------------------------------------------------------- reading
def read_on_policy(folder: Path) -> pa.Table | None:
    """The committed file of a partition folder, or None where the model was not asked about the states that are there (a file about
    earlier ones may lie beside them). Raises StateError for a damaged one."""
    path = folder / VERDICTS_FILE
    if not path.exists():
        return None
    try:
        manifest = require(path, made_by="hidden_states", verify=True)
        if not _is_about(folder, manifest):
            return None
        table = pq.read_table(path)
    except (StoreError, OSError, pa.ArrowException) as error:
        raise StateError(
            f"{path}: cannot be read ({str(error).splitlines()[0]}); remove it with its manifest and materialize hidden_states again"
        ) from None
    if table.schema != SCHEMA:
        raise StateError(f"{path}: has other columns than this version writes; materialize hidden_states again")
    return table


def _is_about(folder: Path, verdicts: Manifest) -> bool:
    try:
        states = read_manifest(folder)
    except StoreError:  # a damaged part is found and named as such; its neighbours are still the winners' states
        return True
    return states is not None and verdicts.inputs.get("states") == states.digest


def winning_packs(packs: Sequence[Pack], table: pa.Table | None) -> list[Pack]:
    """`packs` with the ids and masks of the winners: what the states of a partition are states of."""
    if table is None:
        return list(packs)
    changed: Mapping[tuple[str, int], tuple[Any, Any]] = {
        (r["sample_id"], r["turn"]): (r["input_ids"], r["loss_mask"])
        for r in table.select(["sample_id", "turn", "input_ids", "loss_mask", "winner"]).to_pylist()
        if r["winner"] and r["input_ids"] is not None
    }
    return [_changed(pack, changed.get((pack.sample_id, pack.turn))) for pack in packs]


def _changed(pack: Pack, other: tuple[Any, Any] | None) -> Pack:
    if other is None:
        return pack
    return replace(pack, input_ids=np.array(other[0], dtype=np.uint32), loss_mask=np.array(other[1], dtype=np.uint8))
