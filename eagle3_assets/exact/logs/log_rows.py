"""One record of a log → one result line (docs/design.md#reconstruct): never raises for what stands in the record.

Belongs here: reading a record, choosing its profile and its provider's habits, rebuilding, the shape of the result. Does not belong here:
shapes of logs (`logs/`), learning from them (`log_learning.py`), files and processes (`cli/reconstruct.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from eagle3_assets.exact.logs import LoggedExchange, read_record
from eagle3_assets.exact.logs.batches import BatchRequests
from eagle3_assets.exact.logs.log_models import ModelChoice, choose_profile
from eagle3_assets.exact.providers.wire_profiles import entry_of, provider_of, wire_profile_fault
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.grades import GRADES
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields


@dataclass(frozen=True)
class LogReader:
    """How the records of a log are read. `provider`: who answered where neither log nor answer says; `aliases` as in `log_models`;
    `batch`: the requests of an OpenAI batch, by custom_id."""

    profile: str
    tokenizer: Path | None = None
    provider: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    batch: BatchRequests | None = None

    def read(self, line: bytes) -> ReadRecord:
        """Raises ValueError (one line) for what is no exchange."""
        exchange = read_record(load_json(line), self.batch.request_of if self.batch else None)
        fields = parse_fields(exchange.body, exchange.content_type)
        choice = choose_profile(self.profile, exchange.request.get("model"), fields.model, self.aliases)
        named = fields.provider or exchange.provider or self.provider
        return ReadRecord(exchange, fields, choice, provider_of(named, None, "openrouter"))

    def tokens(self, choice: ModelChoice) -> Profile:
        return load_profile(choice.profile or self.profile, self.tokenizer)


@dataclass(frozen=True)
class ReadRecord:
    """A record read: `provider` is the key under which its habits are learned."""

    exchange: LoggedExchange
    fields: Fields
    choice: ModelChoice
    provider: str


@dataclass
class LogRebuilder:
    """Rebuilds records with what is known of providers: `wire_profiles`, each for one tokenizer profile."""

    reader: LogReader
    wire_profiles: Sequence[Mapping[str, Any]] = ()
    _entries: dict[tuple[str, str], tuple[dict[str, Any] | None, str | None]] = field(default_factory=dict)

    def row(self, line: bytes, number: int) -> dict[str, Any]:
        """The result of one record."""
        name = f"line {number}"
        try:
            return self._rebuilt(self.reader.read(line), name)
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 text ({error.reason} at byte {error.start})"
        except (TypeError, AttributeError, KeyError, IndexError) as error:
            reason = f"request or answer has an unexpected shape ({type(error).__name__}: {error})"
        except Exception as error:  # one odd record must not cost the other 99,999
            reason = str(error)
        return quarantined(_id_of(line) or name, f"{name}: {' '.join(reason.split())}")

    def _rebuilt(self, read: ReadRecord, name: str) -> dict[str, Any]:
        exchange, choice = read.exchange, read.choice
        if choice.profile is None:
            return quarantined(exchange.id or name, choice.fault or "")
        profile = self.reader.tokens(choice)
        entry, refused = self.entry(profile, read.provider)
        found = reconstruct(profile, exchange.request, read.fields, entry, source="openrouter", at=exchange.at)
        grade, p_exact, reasons = found.grade, found.p_exact, list(found.reasons)
        if exchange.assumed:
            grade = "C1" if GRADES[grade].asserted else grade  # a row with an assumption in it asserts nothing
            reasons.append(exchange.assumed)
        faults = [choice.fault] if choice.fault else []
        if exchange.status is not None and exchange.status >= 400:
            faults.insert(0, f"HTTP status {exchange.status}")
        if faults:
            grade, p_exact = "Q", 0.0
        return {
            "id": exchange.id or name,
            "input_ids": list(found.input_ids),
            "prompt_len": found.prompt_len,
            "loss_spans": [list(span) for span in found.loss_spans],
            "grade": grade,
            "p_exact": p_exact,
            "residual": found.residual,
            "hypotheses": found.hypotheses,
            "reasons": [*faults, *reasons, *filter(None, (refused, choice.note))],
            "evidence": found.evidence,
        }

    def entry(self, profile: Profile, provider: str) -> tuple[dict[str, Any] | None, str | None]:
        """(what is known of the provider, why a wire profile is not used for this tokenizer)."""
        key = (profile.name, provider)
        if key not in self._entries:
            faults = [wire_profile_fault(known, profile) for known in self.wire_profiles]
            fitting = [known for known, fault in zip(self.wire_profiles, faults, strict=True) if fault is None]
            refused = None if fitting or not faults else f"provider: {faults[0]}: read as if there were none"
            self._entries[key] = next((e for known in fitting if (e := entry_of(known, provider))), None), refused
        return self._entries[key]


def load_json(line: bytes) -> Any:
    """A record's JSON. Raises ValueError. The standard library reads what orjson refuses: lone surrogates, NaN."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            return json.loads(line.decode("utf-8"))
        except RecursionError:
            raise ValueError("JSON nested too deeply") from None


def _id_of(line: bytes) -> str | None:
    try:
        name = load_json(line).get("id")
    except Exception:  # whatever was wrong with the record has its reason already
        return None
    return name if isinstance(name, str) else None


def quarantined(name: str, reason: str) -> dict[str, Any]:
    """The result of a record from which nothing was rebuilt."""
    return {
        "id": name,
        "input_ids": [],
        "prompt_len": 0,
        "loss_spans": [],
        "grade": "Q",
        "p_exact": 0.0,
        "residual": {"prompt": None, "completion": None, "reasoning": None},
        "hypotheses": {"tried": 0, "surviving": 0, "distinct": 0},
        "reasons": [reason],
        "evidence": {},
    }
