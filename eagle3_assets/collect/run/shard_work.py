"""One shard's work: what is asked of it, what its journal already answers, what is left, what came of it.

Belongs here: `ShardJob`, `ShardResult`, the bookkeeping per key. Does not belong here: sending, money, timing (`collector.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Dataset
from eagle3_assets.collect.servers.routing import Routing
from eagle3_assets.errors import StoreError
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.prompts.turns import SEVERAL, given_turn, next_turn
from eagle3_assets.store import read_json, write_json
from eagle3_assets.wire.completion import completion_tokens, history_message, parse_completion
from eagle3_assets.wire.declared import declared_tools
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer

Key = tuple[str, int]
REQUEUED = "requeued.json"  # beside the segments of a shard's journal


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to be completed. Reserve prompts in `prompts` are not asked. `closed`: nothing more is asked, what is there is
    all.

    `routing` and `scope` (of the ledger) default to the run's routing and the dataset's name; the pilot sets its own, and its
    jobs share one `folder` (one journal).
    """

    dataset: Dataset
    shard: str
    prompts: tuple[Prompt, ...]
    folder: Path
    closed: bool = False
    routing: Routing | None = None
    scope: str | None = None

    @property
    def name(self) -> str:
        return f"{self.dataset.name}/{self.shard}"


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Counts are turns: selected = finished + failed + missing (turns that a chain's answers made pointless are none). `failed`
    will not be asked again; `missing` will, by the next run.

    `ambiguous` counts journal records whose answer was lost; `cost_usd` is the settled money of the whole journal, earlier runs
    included; `reasons` says why turns failed or are missing (`not_asked`, `earlier_turn` for what a chain could not reach), and how many
    turns a chain's answers made pointless (`chain_ended`: other calls than the source has results for; `undeclared_tool`: the answer
    calls a tool that nobody declared, so a name was lost on the way or made up).
    """

    dataset: str
    shard: str
    selected: int
    finished: int
    failed: int
    missing: int
    ambiguous: int
    cost_usd: float
    completion_tokens: int
    complete: bool
    reasons: dict[str, int]


@dataclass(slots=True)
class _KeyState:
    attempts: int = 0
    finished: bool = False
    permanent: bool = False
    content_failures: int = 0
    reason: str | None = None
    tokens: int = 0


@dataclass(slots=True)
class ShardWork:
    """The live side of a job. `note` sees every record, from the journal at the start and from this run."""

    job: ShardJob
    attempts_allowed: int
    journal: Journal = field(init=False)
    reported: bool = False
    ambiguous: int = 0
    cost_usd: float = 0.0
    _keys: dict[Key, _KeyState] = field(default_factory=dict)
    _messages: dict[Key, dict[str, Any]] = field(default_factory=dict)  # chains only: what the next turn is built on
    _pending: dict[Key, Prompt] = field(default_factory=dict)
    _failed: dict[Key, Prompt] = field(default_factory=dict)
    _finished: set[Key] = field(default_factory=set)
    _ended: dict[Key, tuple[str, int]] = field(default_factory=dict)  # chains: last turn -> why nothing follows, turns not asked
    _idle: set[Key] = field(default_factory=set)  # pending, and nothing more happens to it in this run
    requeued: dict[Key, int] = field(default_factory=dict)  # key -> last attempt that does not count (`eagle3 requeue`)
    missing: int = 0  # turns of `_pending`, counted as they come and go: every answer asks for it

    def __post_init__(self) -> None:
        self.requeued = read_requeued(self.job.folder)

    def note(self, answer: WireAnswer, completion: dict[str, Any] | None = None) -> None:
        """Take one record into account. `completion` saves parsing the body a second time."""
        state = self._keys.setdefault(answer.key, _KeyState())
        state.attempts = max(state.attempts, answer.attempt)
        self.cost_usd += answer.cost_usd or 0.0
        self.ambiguous += answer.outcome == "ambiguous"
        if answer.attempt <= self.requeued.get(answer.key, 0):
            return  # paid for and kept, but a person asks for another
        if answer.outcome != "finished":
            state.reason = answer.reason
            state.permanent |= answer.retry_class == "permanent"
            state.content_failures += answer.retry_class == "content"
            return
        state.finished, tokens, is_chain = True, answer.completion_tokens, self.job.dataset.turns == "chain"
        if tokens is None or is_chain:
            whole = completion if completion is not None else parse_completion(answer.body, answer.content_type)
            tokens = completion_tokens(whole)
            if is_chain:
                self._messages[answer.key] = history_message(whole)
        state.tokens = tokens

    @property
    def scope(self) -> str:
        """Whose money is spent."""
        return self.job.scope or self.job.dataset.name

    def asks(self, key: Key) -> bool:
        """Whether the job names this key (turns of a chain beyond its first are not named)."""
        return any(prompt.key == key for prompt in self.job.prompts)

    # ------------------------------------------------------------------------------------------------ what is left
    def start(self) -> list[Prompt]:
        """Compare the selection with the journal; returns what has to be asked now."""
        for prompt in self.job.prompts:
            if not prompt.reserve:
                self._take_up(prompt)
        if self.job.closed:
            self._idle.update(self._pending)
        return [] if self.job.closed else list(self._pending.values())

    def _take_up(self, prompt: Prompt) -> Prompt | None:
        """Follow a chain to its first unanswered turn; that one becomes pending and is returned."""
        for turn in self._turns_from(prompt):
            state = self._keys.get(turn.key)
            if state is not None and state.finished:
                self._finished.add(turn.key)
            elif state is not None and (state.permanent or state.content_failures >= self.attempts_allowed):
                self._failed[turn.key] = turn
                return None
            else:
                if turn.key not in self._pending:
                    self.missing += _n_turns(self.job, turn)
                self._pending[turn.key] = turn
                return turn
        return None

    def _turns_from(self, prompt: Prompt) -> Iterator[Prompt]:
        yield prompt
        policy = self.job.dataset.turns
        while prompt.follow_ups and policy in SEVERAL:
            following = given_turn(prompt) if policy == "every" else _next_turn(prompt, self._messages[prompt.key])
            self._ended.pop(prompt.key, None)  # an answer that was asked for again may go on
            if following is None:  # the model's own answer leaves nothing to go on with
                if policy == "chain":
                    self._ended[prompt.key] = _why_ended(prompt, self._messages[prompt.key]), len(prompt.follow_ups)
                return
            prompt = following
            yield prompt

    def next_attempt(self, key: Key) -> int:
        state = self._keys.get(key)
        return state.attempts + 1 if state else 1

    # ------------------------------------------------------------------------------------------------ what happened
    def settle(self, prompt: Prompt) -> Prompt | None:
        """After `note` of a final record of `prompt`: file it as finished or failed; returns the chain's next turn, if there
        is one.
        """
        if (pending := self._pending.pop(prompt.key, None)) is not None:
            self.missing -= _n_turns(self.job, pending)
        self._idle.discard(prompt.key)
        return self._take_up(prompt)

    def is_settled(self, key: Key) -> bool:
        """Whether the key is finished, or failed for good."""
        state = self._keys.get(key)
        return state is not None and (state.finished or state.permanent or state.content_failures >= self.attempts_allowed)

    def remember(self, prompt: Prompt, reason: str) -> None:
        """Why the prompt has no answer yet, for failures that leave no record."""
        self._keys.setdefault(prompt.key, _KeyState()).reason = reason

    def put_aside(self, prompt: Prompt, reason: str) -> None:
        """Nothing more happens to this prompt in this run; the next run will ask it again."""
        self._idle.add(prompt.key)
        self.remember(prompt, reason)

    @property
    def is_done(self) -> bool:
        """Nothing is left to do in this run."""
        return len(self._idle) == len(self._pending)

    def result(self) -> ShardResult:
        reasons: Counter[str] = Counter()
        for prompt in (*self._failed.values(), *self._pending.values()):
            state = self._keys.get(prompt.key)
            reasons[(state.reason if state else None) or "not_asked"] += 1
            reasons["earlier_turn"] += _n_turns(self.job, prompt) - 1
        for why, turns in self._ended.values():
            reasons[why] += turns
        failed = sum(_n_turns(self.job, p) for p in self._failed.values())
        return ShardResult(
            dataset=self.job.dataset.name,
            shard=self.job.shard,
            selected=len(self._finished) + failed + self.missing,
            finished=len(self._finished),
            failed=failed,
            missing=self.missing,
            ambiguous=self.ambiguous,
            cost_usd=self.cost_usd,
            completion_tokens=sum(self._keys[key].tokens for key in self._finished),
            complete=self.job.closed or self.missing == 0,
            reasons=dict(+reasons),
        )


def read_requeued(folder: Path) -> dict[Key, int]:
    """`requeued.json` of a shard: for each key the last attempt that does not count any more. {} where there is none. Raises StoreError."""
    path = folder / REQUEUED
    if not path.exists():
        return {}
    keep = "it says which answers are to be asked again: restore it, or remove it to let every answer count"
    try:
        return {(str(k["sample_id"]), int(k["turn"])): int(k["attempt"]) for k in read_json(path, otherwise=keep)["keys"]}
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: is not a list of requeued answers ({error}); {keep}") from None


def requeue(folder: Path, attempts: Mapping[Key, int], reason: str) -> None:
    """From now on the answers of these keys up to the given attempts do not count: the next run asks again. No byte is lost."""
    known = {**read_requeued(folder), **attempts}
    keys = [{"sample_id": s, "turn": t, "attempt": a} for (s, t), a in sorted(known.items())]
    write_json(folder / REQUEUED, {"reason": reason, "keys": keys})


def _next_turn(prompt: Prompt, message: dict[str, Any]) -> Prompt | None:
    """The next turn on a message in which a server may have put anything. One of an impossible shape ends its chain: the answer
    is paid for and in the journal, so an error here would meet every later run, too.
    """
    try:
        return next_turn(prompt, message)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _why_ended(prompt: Prompt, message: dict[str, Any]) -> str:
    declared = declared_tools({"tools": prompt.tools})
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    return "undeclared_tool" if declared and any(name not in declared for name in names) else "chain_ended"


def _n_turns(job: ShardJob, prompt: Prompt) -> int:
    """This turn and those of its sample that follow."""
    return 1 + (len(prompt.follow_ups) if job.dataset.turns in SEVERAL else 0)
