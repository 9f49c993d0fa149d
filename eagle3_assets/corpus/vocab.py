"""The draft vocabulary: which ids the drafter can propose, as `d2t` offsets and `t2d` mask, with coverage.

Belongs here: counting supervised ids, choosing, the three files, their checks. Does not belong here: trainers' file names
(`handoff`).

`d2t` holds OFFSETS: target id = i + d2t[i] (speculators and SpecForge alike; EAGLE#222, verl-SpeCo#67: the identity is zeros,
not arange). It depends on the corpus alone, never on states (SpecForge PR#765).

A map is never found by its file names (stale ones were picked up silently: SpecForge PR#602, speculators PR#1081): `map.json` beside the
arrays says for which corpus, tokenizer and sizes it was made, and `read_vocab_map` refuses any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.reader import Corpus, open_corpus
from eagle3_assets.corpus.swap import replaced_folder, whole_folder
from eagle3_assets.errors import CorpusError, StoreError
from eagle3_assets.review.verdicts.table import check_named, verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import Manifest, Store, commit, digest_json, read_json, write_json
from eagle3_assets.targets.tokenizer import load_profile, profile_facts

FILES = ("d2t.npy", "t2d.npy", "token_freq.parquet", "map.json")
VERSION = 1
_BLOCK = 1 << 24  # ids counted at once: 64 MiB

Counts = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class VocabMap:
    """A draft vocabulary. `d2t` int64 [N] offsets (zeros when N = V), `t2d` bool [V], `counts` int64 [V] supervised ids of the corpus;
    `key` names the map: a digest of N, V, tokenizer, corpus and forced ids."""

    d2t: Counts
    t2d: Bools
    counts: Counts
    forced: tuple[int, ...]
    tokenizer_sha256: str
    corpus_digest: str
    key: str

    @property
    def target_ids(self) -> Counts:
        """int64 [N]: the target id of each draft id, ascending."""
        ids: Counts = np.arange(len(self.d2t)) + self.d2t
        return ids

    def counts_by_id(self) -> dict[int, int]:
        """Id -> how often it is supervised, ascending by id, without the zeros: what speculators' `build_vocab_mappings_from_distribution`
        and SpecForge's `process_token_dict_to_mappings` take. (SpecForge breaks ties by the order of this dict: lower ids first.)"""
        used = np.flatnonzero(self.counts)
        return dict(zip(used.tolist(), self.counts[used].tolist(), strict=True))


def build_vocab_map(
    campaign: Campaign, store: Store, forced_ids: Sequence[int], *, commit_inputs: Mapping[str, Any] | None = None
) -> Manifest:
    """Write and commit `vocab_map/`: `token_freq.parquet` (token_id, count; supervised ids only), `d2t.npy` int64 [N], `t2d.npy`
    bool [V], `map.json` (what it was made for). `forced_ids` (end of turn, tool markers) are in, however rare. `numbers` hold
    coverage over all and per dataset.

    Raises CorpusError for a forced id outside the vocabulary, more forced ids than places, or ids that the target does not have.
    """
    size, places = campaign.target.vocab_size, campaign.vocab.draft_vocab_size
    corpus = open_corpus(store.corpus)
    counts = count_supervised(corpus, size)
    chosen = choose_ids(counts, places, forced_ids)
    d2t, t2d = to_offsets(chosen), np.isin(np.arange(size), chosen)
    with replaced_folder(store.vocab_map) as folder:
        used = np.flatnonzero(counts)
        table = pa.table({"token_id": pa.array(used, pa.int32()), "count": pa.array(counts[used], pa.int64())})
        pq.write_table(table, folder / "token_freq.parquet", compression="zstd")
        np.save(folder / "d2t.npy", d2t)
        np.save(folder / "t2d.npy", t2d)
        facts = _facts(campaign, corpus.digest, forced_ids)
        write_json(folder / "map.json", {"version": VERSION, **facts, "key": digest_json(facts)})
    covered = coverage(counts, t2d)
    numbers = {
        "draft_vocab_size": places,
        "target_vocab_size": size,
        "forced": len(set(forced_ids)),
        "forced_unseen": int(sum(counts[i] == 0 for i in set(forced_ids))),
        "distinct_supervised_ids": len(used),
        "key": digest_json(facts),
        "supervised_tokens": int(counts.sum()),
        "coverage": covered,
        "coverage_by_dataset": coverage_by_dataset(corpus, t2d),
    }
    files = [store.vocab_map / name for name in FILES]
    inputs = (
        commit_inputs
        if commit_inputs is not None
        else {"corpus": corpus.digest, "sizes": [places, size], "forced": list(forced_ids)}
    )
    return commit(store.vocab_map, files=files, inputs=inputs, numbers=numbers)


def _facts(campaign: Campaign, corpus_digest: str, forced_ids: Sequence[int]) -> dict[str, Any]:
    """What a map is made for."""
    return {
        "draft_vocab_size": campaign.vocab.draft_vocab_size,
        "target_vocab_size": campaign.target.vocab_size,
        "tokenizer_sha256": tokenizer_sha256(campaign),
        "corpus": corpus_digest,
        "forced": sorted({int(i) for i in forced_ids}),
    }


def tokenizer_sha256(campaign: Campaign) -> str:
    """Of the target's ranks file: the profile's pin, which any file must equal to be loaded, else of the file itself."""
    pin = profile_facts(campaign.target.profile).tokenizer.ranks_sha256
    return str(pin or load_profile(campaign.target.profile).tokenizer_sha256)


def read_vocab_map(campaign: Campaign, store: Store) -> VocabMap:
    """The map in `store`, when it was made for this campaign's sizes and tokenizer and for today's corpus.

    Raises CorpusError, one line, when it is missing, damaged or made for anything else.
    """
    folder = whole_folder(store.vocab_map)
    path = folder / "map.json"
    if not path.exists():
        raise CorpusError(f"{path}: is missing; materialize vocab_map")
    try:
        raw = read_json(path)
        stated = {name: raw[name] for name in ("draft_vocab_size", "target_vocab_size", "tokenizer_sha256", "corpus", "forced")}
        d2t, t2d, counts = _read_map(folder, campaign.target.vocab_size)
    except (StoreError, OSError, EOFError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise CorpusError(f"{folder}: cannot be read ({str(error).splitlines()[0]}); materialize vocab_map again") from None
    wanted = _facts(campaign, open_corpus(store.corpus).digest, stated["forced"])
    for name, value in wanted.items():
        if stated[name] != value:
            raise CorpusError(f"{path}: made for {name} = {stated[name]}, expected {value}; materialize vocab_map again")
    faults = mapping_faults(d2t, t2d, n_draft=wanted["draft_vocab_size"], n_target=wanted["target_vocab_size"])
    if faults:
        raise CorpusError(f"{folder}: {'; '.join(faults)}; materialize vocab_map again")
    return VocabMap(d2t, t2d, counts, tuple(stated["forced"]), stated["tokenizer_sha256"], stated["corpus"], digest_json(stated))


def count_supervised(corpus: Corpus, size: int) -> Counts:
    """int64 [size]: how often each id is supervised (loss_mask = 1). Raises CorpusError for an id outside [0, size)."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(corpus.tokens), _BLOCK):
        ids, mask = corpus.tokens[start : start + _BLOCK], corpus.loss_mask[start : start + _BLOCK]
        block = np.bincount(ids[mask == 1], minlength=size)
        if len(block) > size:
            raise CorpusError(
                f"{corpus.path}: holds id {len(block) - 1}, but target.vocab_size is {size}; is this the right campaign?"
            )
        counts += block
    return counts


def choose_ids(counts: Counts, places: int, forced_ids: Sequence[int]) -> Counts:
    """The `places` ids of the draft vocabulary, ascending: the forced ones, then by (count descending, id ascending).

    Neither the order of rows nor that of `forced_ids` matters.
    """
    forced = np.unique(np.asarray(forced_ids, dtype=np.int64))
    outside = forced[(forced < 0) | (forced >= len(counts))]
    if len(outside):
        raise CorpusError(f"vocab map: forced id {outside[0]} is outside [0, {len(counts)}); is target.vocab_size right?")
    if len(forced) > places:
        raise CorpusError(f"vocab map: {len(forced)} ids are forced in, but vocab.draft_vocab_size is {places}; raise it")
    by_count = np.lexsort((np.arange(len(counts)), -counts))
    free = by_count[~np.isin(by_count, forced)][: places - len(forced)]
    return np.sort(np.concatenate([forced, free]))


def to_offsets(chosen: Counts) -> Counts:
    """d2t int64 [N]: offsets such that target id = i + d2t[i]. All zeros when the draft vocabulary is the full one."""
    return chosen - np.arange(len(chosen), dtype=np.int64)


def coverage(counts: Counts, t2d: Bools) -> float:
    """Share of supervised tokens whose id the drafter can propose; 1.0 when there are none."""
    total = int(counts.sum())
    return float(counts[t2d].sum() / total) if total else 1.0


def coverage_by_dataset(corpus: Corpus, t2d: Bools) -> dict[str, float]:
    """The same for each dataset."""
    seen: dict[str, list[int]] = {}
    for pack in corpus:
        supervised = pack.input_ids[pack.loss_mask == 1]
        both = seen.setdefault(pack.dataset, [0, 0])
        both[0] += int(np.count_nonzero(t2d[supervised]))
        both[1] += len(supervised)
    return {name: inside / total if total else 1.0 for name, (inside, total) in sorted(seen.items())}


# ---------------------------------------------------------------------------------------------------- checks
def judge_vocab_map(campaign: Campaign, store: Store) -> list[Verdict]:
    """`mapping` (the files describe one strictly increasing set of the campaign's sizes, counted on today's corpus) and
    `coverage`."""
    folder = whole_folder(store.vocab_map)
    try:
        d2t, t2d, counts = _read_map(folder, campaign.target.vocab_size)
    except (OSError, EOFError, ValueError, KeyError, pa.ArrowException, CorpusError) as error:
        message = f"cannot be read: {str(error).splitlines()[0]}; materialize vocab_map again"
        return [verdict("vocab_map", "mapping", False, message), verdict("vocab_map", "coverage", False, message)]
    corpus = open_corpus(store.corpus)
    faults = mapping_faults(d2t, t2d, n_draft=campaign.vocab.draft_vocab_size, n_target=campaign.target.vocab_size)
    supervised = int(corpus.manifest["supervised_tokens"])
    if int(counts.sum()) != supervised:
        faults.append(f"counted on another corpus ({int(counts.sum()):,} supervised tokens, now {supervised:,})")
    if not faults:
        try:
            read_vocab_map(campaign, store)
        except CorpusError as error:
            faults.append(str(error))
    message = "; ".join(faults) or f"{len(d2t)} of {len(t2d)} ids, strictly increasing, d2t and t2d agree"
    usable = t2d.astype(bool) if t2d.shape == counts.shape else np.zeros(len(counts), dtype=bool)
    outside, limit = 1.0 - coverage(counts, usable), check_named("vocab_map", "coverage").max_share
    by_dataset = coverage_by_dataset(corpus, usable)
    return [
        verdict("vocab_map", "mapping", not faults, message, numbers={"draft": len(d2t), "target": len(t2d), "faults": faults}),
        verdict("vocab_map", "coverage", outside <= limit,
                f"{1.0 - outside:.2%} of supervised tokens are covered (at least {1.0 - limit:.0%} expected)",
                numbers={"covered": 1.0 - outside, **{f"covered_{name}": share for name, share in by_dataset.items()}}),
    ]  # fmt: skip


def _read_map(folder: Path, size: int) -> tuple[Counts, Bools, Counts]:
    d2t, t2d = (np.load(folder / name, allow_pickle=False) for name in ("d2t.npy", "t2d.npy"))
    table = pq.read_table(folder / "token_freq.parquet")
    counts = np.zeros(size, dtype=np.int64)
    ids = table.column("token_id").to_numpy()
    if len(ids) and (ids.min() < 0 or ids.max() >= size):
        raise CorpusError(f"{folder / 'token_freq.parquet'}: holds an id outside [0, {size})")
    counts[ids] = table.column("count").to_numpy()
    return d2t, t2d, counts


def mapping_faults(d2t: npt.NDArray[Any], t2d: npt.NDArray[Any], *, n_draft: int, n_target: int) -> list[str]:
    """What is wrong with a map (docs/research/eagle3-anchors.md#4-25); empty for a right one."""
    if d2t.dtype != np.int64 or d2t.shape != (n_draft,):
        return [f"d2t: expected int64 [{n_draft}], found {d2t.dtype} {list(d2t.shape)}"]
    if t2d.dtype != np.bool_ or t2d.shape != (n_target,):
        return [f"t2d: expected bool [{n_target}], found {t2d.dtype} {list(t2d.shape)}"]
    target = np.arange(n_draft) + d2t
    if target.min() < 0 or target.max() >= n_target:
        return [f"d2t reaches ids from {target.min()} to {target.max()}, expected [0, {n_target}): offsets, not ids?"]
    faults = []
    if (np.diff(target) <= 0).any():
        faults.append("the target ids are not strictly increasing")
    if int(t2d.sum()) != n_draft:
        faults.append(f"t2d marks {int(t2d.sum())} ids, expected {n_draft}")
    if not t2d[target].all():
        faults.append("t2d does not mark every id of d2t")
    return faults
