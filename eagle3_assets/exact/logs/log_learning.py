"""What a log says about the providers in it: their habits, learned from the same records that are rebuilt afterwards.

Belongs here: which records are learned from, one learning a tokenizer profile, an earlier file as the prior, a summary in words. Does not
belong here: the learner (`wire_profiles.py`), reading a record (`log_rows.py`).

A log is read twice. The first time each record only says whose it is; of each provider's answers and streams, and of answers with ids, as
many are kept as the learner keeps itself, drawn evenly over the whole log. The second time these alone are learned from.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.exact.logs.log_rows import LogReader, ReadRecord
from eagle3_assets.exact.providers import reading_space, wire_profiles
from eagle3_assets.targets.tokenizer import load_profile
from eagle3_assets.wire.wire_answer import WireAnswer

Records = Callable[[], Iterator[bytes]]
Kind = tuple[str, str, bool, bool]  # profile, provider, streamed, with ids
MOST = {False: 2 * wire_profiles.MAX_ROWS, True: wire_profiles.MAX_ID_ROWS}  # of a kind: without ids, with them


@dataclass
class Drawn:
    """Numbers of the records to learn from: of each kind those with the smallest marks."""

    marks: dict[Kind, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    seen: Counter[Kind] = field(default_factory=Counter)
    records: int = 0

    def add(self, kind: Kind, number: int) -> None:
        self.seen[kind] += 1
        mark = -int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:8], "big")
        kept = self.marks[kind]
        if len(kept) < MOST[kind[3]]:
            heapq.heappush(kept, (mark, number))
        elif mark > kept[0][0]:
            heapq.heapreplace(kept, (mark, number))

    def numbers(self) -> dict[str, set[int]]:
        """profile → the numbers of its records."""
        out: dict[str, set[int]] = defaultdict(set)
        for kind, kept in self.marks.items():
            out[kind[0]].update(number for _, number in kept)
        return dict(out)


def draw(reader: LogReader, records: Records) -> Drawn:
    """The first reading."""
    out = Drawn()
    for number, line in enumerate(records(), start=1):
        out.records = number
        read = _usable(reader, line)
        if read is not None and read.choice.profile is not None:
            streamed = bool(read.exchange.request.get("stream"))
            out.add((read.choice.profile, read.provider, streamed, read.fields.output_ids is not None), number)
    return out


def learn_log(reader: LogReader, records: Records, drawn: Drawn, prior: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The wire profiles of a log, one a tokenizer profile in it, the largest first. `prior`: of an earlier run or a campaign."""
    sizes = Counter({name: len(numbers) for name, numbers in drawn.numbers().items()})
    out = []
    for name, _ in sizes.most_common():
        profile = load_profile(name, reader.tokenizer)
        earlier = next((known for known in prior if wire_profiles.same_target(known, profile)), None)
        learned = wire_profiles.learn(profile, _answers(reader, records, drawn.numbers()[name]), prior=earlier)
        out.append(with_prior(learned, earlier) if earlier else learned)
    return out + [dict(known) for known in prior if not any(_same_target(known, learned) for learned in out)]


def with_prior(learned: dict[str, Any], prior: Mapping[str, Any]) -> dict[str, Any]:
    """What was learned (with the file's habits of the model), and what the file says of providers beyond it: of those of whom this log has
    too few rows, and of those that it decides and this log leaves open, with no word against what the file says."""
    providers = {**(prior.get("providers") or {})}
    for name, entry in learned["providers"].items():
        if name not in providers or not _says_more(providers[name], entry):
            providers[name] = entry
    return {**learned, "providers": dict(sorted(providers.items()))}


def _says_more(earlier: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether an earlier entry stands: the new one rests on too few rows, or has not decided and still holds what the earlier one decided to
    be possible."""
    if entry["rows"] < reading_space.DECIDING_ROWS:
        return True
    possible = {reading["name"] for reading in entry.get("readings") or ()}
    still_open = not entry.get("decided") and not entry.get("cannot_be_exact")
    return bool(earlier.get("decided")) and still_open and earlier.get("reading") in possible


def _same_target(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in ("version", "profile", "tokenizer_sha256"))


def _answers(reader: LogReader, records: Records, numbers: set[int]) -> Iterator[WireAnswer]:
    for number, line in enumerate(records(), start=1):
        if number in numbers:
            read = _usable(reader, line)
            if read is not None:
                yield as_answer(read, number)


def as_answer(read: ReadRecord, number: int) -> WireAnswer:
    """A record as the learner takes it."""
    exchange = read.exchange
    return WireAnswer(
        request_id=str(number),
        sample_id=str(number),
        turn=0,
        attempt=1,
        dataset="log",
        shard="00",
        source="openrouter",
        request=dict(exchange.request),
        status=exchange.status or 200,
        body=exchange.body,
        outcome="finished",
        headers={"content-type": exchange.content_type},
        provider=read.provider,
        model=read.fields.model,
        finished_at=exchange.at or 0.0,
    )


def _usable(reader: LogReader, line: bytes) -> ReadRecord | None:
    """A record to learn from; None for one that is none, that failed, that another model answered, or in which something was assumed."""
    try:
        read = reader.read(line)
    except Exception:  # the rebuilding says what is wrong with it
        return None
    refused = read.choice.fault is not None or read.exchange.assumed is not None
    return None if refused or (read.exchange.status or 200) >= 400 else read


# ---------------------------------------------------------------------------------------------------- in words
def summary(learned: Sequence[Mapping[str, Any]], drawn: Drawn) -> list[str]:
    """A line for each provider of the log: decided, or why not."""
    rows: Counter[tuple[str, str]] = Counter()
    ids: Counter[tuple[str, str]] = Counter()
    for (profile, provider, _, with_ids), n in drawn.seen.items():
        (ids if with_ids else rows)[profile, provider] += n
    known = {entry["profile"]: entry["providers"] for entry in learned}
    lines = []
    for profile, provider in sorted({*rows, *ids}):
        entry = known.get(profile, {}).get(provider)
        verdict = _verdict(entry) if entry else "nothing to learn from: no answer with a bill"
        if not rows[profile, provider]:
            verdict = "its ids speak for themselves"
        counts = f"{rows[profile, provider]} answers" + (f", {ids[profile, provider]} with ids" if ids[profile, provider] else "")
        lines.append(f"{provider} ({profile}, {counts}): {verdict}")
    return lines


def _verdict(entry: Mapping[str, Any]) -> str:
    windows = entry.get("windows") or ()
    changes = len(windows) - len(
        {window.get("stream") for window in windows}
    )  # whole answers and streams are windows of their own
    changed = f"; changed {changes} time{'s' if changes > 1 else ''}" if changes > 0 else ""
    if entry.get("cannot_be_exact"):
        return f"no row can be exact: {entry['cannot_be_exact']}{changed}"
    return f"{'decided' if entry.get('decided') else 'open'}: {entry.get('why')}{changed}"
