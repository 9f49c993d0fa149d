"""Journals → wire profiles → rows, through the platform's own entry points, with the time that it took and what encoding had of it.

Belongs here: the only calls of room `exact` that rebuild something. Does not belong here: truth.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from benchmarks.exactness.purchase import Purchase
from eagle3_assets.campaign import Campaign
from eagle3_assets.exact.providers import wire_profiles as learning
from eagle3_assets.exact.providers.wire_profiles import entry_of, provider_of
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire import journal
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer


class TimedEncoding:
    """A tiktoken encoding that counts the CPU seconds spent in it."""

    def __init__(self, encoding: Any) -> None:
        self._encoding, self.seconds = encoding, 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._encoding, name)
        if not name.startswith(("encode_ordinary", "encode_to_numpy", "encode_batch")) and name != "encode":
            setattr(self, name, value)  # found without this method the next time
            return value

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time()
            try:
                return value(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - begun

        setattr(self, name, timed)
        return timed


@dataclass
class Clock:
    """CPU seconds of rebuilding, and of encoding in it, over so many answers."""

    answers: int = 0
    seconds: float = 0.0
    encoding: float = 0.0


def timed(profile: Profile) -> tuple[Profile, TimedEncoding]:
    """The same profile whose encoder is timed."""
    encoding = TimedEncoding(profile.encoding)
    return dataclasses.replace(profile, encoding=cast(Any, encoding)), encoding


def campaign(profile: Profile) -> Campaign:
    """The smallest campaign with this target."""
    target = {"model": "moonshotai/kimi-k2.5", "profile": profile.name, "weights": "none", "vocab_size": profile.n_vocab}
    source = {"source": {"kind": "jsonl", "path": "rows.jsonl"}, "mapping": {"kind": "prompt"}, "rows": 1}
    raw: dict[str, Any] = {
        "campaign": {"name": "exactness", "seed": 0},
        "target": {**target, "num_hidden_layers": 61, "hidden_size": 7168},
        "server": {"kind": "openrouter"},
        "routing": {"max_price_completion": 5.0, "max_price_prompt": 1.0},
        "budget": {"campaign_usd": 1.0, "pilot_usd": 0.1},
        "sampling": {"max_tokens": 16_384},
        "dataset": ({"name": "exactness", "backend": "openrouter", **source},),
        "vocab": {"draft_vocab_size": min(32_000, profile.n_vocab)},
    }
    return Campaign.model_validate(raw)


# ---------------------------------------------------------------------------------------------------- learning
def known_answers(purchase: Purchase, first: int | None = None, names: Iterable[str] | None = None) -> Iterator[WireAnswer]:
    """As the `wire_profiles` asset reads them: each journal's best attempts, by key. `first`: only so many of each provider, in the
    order bought."""
    for name in purchase.folders if names is None else names:
        best = journal.best(purchase.answers(name, first))
        yield from (best[key] for key in sorted(best))


def learn(profile: Profile, answers: Iterable[WireAnswer]) -> dict[str, Any]:
    """What the platform learns of them."""
    return learning.learn(profile, answers, thinking=True)


def changes(wire_profiles: Mapping[str, Any], provider: str) -> list[float]:
    """Moments (unix seconds) at which the learned profile says that this provider changed; empty where it says none."""
    entry = (wire_profiles.get("providers") or {}).get(provider) or {}
    windows = [window for window in entry.get("windows") or () if isinstance(window, Mapping)]
    same_form = [float(window["from"]) for window in windows if window.get("stream") == windows[0].get("stream")]
    return sorted(same_form)[1:]


# ---------------------------------------------------------------------------------------------------- rebuilding
def rows_of(
    profile: Profile, answers: Sequence[WireAnswer], wire_profiles: Mapping[str, Any] | None, clock: Clock | None = None
) -> list[SampleRow]:
    """The platform's rows of these answers."""
    made = campaign(profile)
    measured, encoding = timed(profile)
    begun = time.thread_time()
    rows = build_rows(measured if clock else profile, made, made.dataset[0], answers, wire_profiles)
    if clock is not None:
        clock.answers += len(rows)
        clock.seconds += time.thread_time() - begun
        clock.encoding += encoding.seconds
    return rows


@dataclass
class TextStage:
    """The text stage alone: one answer with another bill. Resegmentation is off where the platform has a switch for it."""

    profile: Profile
    wire_profiles: Mapping[str, Any]
    _off: dict[str, Any] = field(default_factory=dict)
    _knows_time: bool = False

    def __post_init__(self) -> None:
        known = inspect.signature(reconstruct).parameters
        self._off = {name: False for name in ("resegment", "resegmentation") if name in known}
        self._knows_time = "at" in known

    def rebuild(self, answer: WireAnswer, **bill: Any) -> Reconstruction:
        """With `billed_completion` or `billed_prompt` replaced; logprobs and ids are taken out: they are other evidence."""
        fields = parse_fields(answer.body, answer.content_type)
        fields = dataclasses.replace(fields, logprobs=None, deltas=(), output_ids=None, prompt_ids=None, **bill)
        entry = entry_of(self.wire_profiles, provider_of(answer.provider, fields.provider, answer.source))
        more = {**self._off, **({"at": answer.finished_at} if self._knows_time else {})}
        return reconstruct(self.profile, answer.request, fields, entry, source=answer.source, thinking=True, **more)
