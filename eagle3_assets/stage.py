"""`Stage`: everything that is true of one stage. `Artifact`: one thing that a stage makes.

Belongs here: the two types, what a stage's work is given (`Job`) and gives back (`Made`), and from what an artifact's state follows.
Does not belong here: any one stage (`stages/`), judging (`gate.py`), Dagster (`assets/`, `checks/`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from eagle3_assets import store as st
from eagle3_assets.campaign import SHARDS, Campaign, Dataset
from eagle3_assets.corpus.parts import corpus_shards
from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.review.verdicts.table import ALL, Check
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import Manifest, Store, digest_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from eagle3_assets.collect.run.collector import Servers
    from eagle3_assets.states.extractors.interface import Extractor
    from eagle3_assets.states.extractors.part_job import PartWriter

State = Literal["current", "outdated", "missing", "damaged"]


class Per(enum.Enum):
    """What a stage has one artifact for. `partitioned` ones are reviewed and resumed shard by shard."""

    CAMPAIGN = "campaign"
    DATASET = "dataset"
    SHARD = "shard of a dataset"
    PART = "part of the corpus"

    @property
    def has_dataset(self) -> bool:
        return self in (Per.DATASET, Per.SHARD)

    @property
    def partitioned(self) -> bool:
        return self in (Per.SHARD, Per.PART)


class Card(NamedTuple):
    """What the UI says of an asset: the marks of its kinds, and a description."""

    kinds: frozenset[str]
    description: str


class After(NamedTuple):
    """A stage that comes before; with `of`, only as far as it holds of the dataset (the predecessor's, or else the stage's own); with `when`,
    only in such a campaign."""

    stage: Stage
    of: Callable[[Dataset], bool] | None = None
    when: Callable[[Campaign], bool] = lambda _: True


class Option(NamedTuple):
    """What a person may choose for one run without changing the campaign: nothing that decides what is made. `given`: the campaign's own."""

    name: str
    kind: type[int] | type[float] | type[bool]
    words: str
    given: Callable[[Campaign], Any] | None = None


class Pinned(NamedTuple):
    """Inputs as they were when the artifact was made: taken over, because they can no longer be looked up."""

    inputs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One stage of the flow.

    `name` is what commands, verdict files and UI groups call it; `key` the asset's key without the dataset, where it is another.
    `inputs` names what an artifact is made from (a frozen dataclass; None is left out), `settings` what of the campaign file decides it:
    together with the code version they say whether it is current. `version` is raised when the code starts to write something else from the
    same inputs; `rules` are those whose change alone does the same. `gates` must be passed before `work` begins; `work` makes the artifacts
    of a job and commits each. `judge` gives a verdict for each of `checks`.
    `whole` asks for what belongs to the artifact under a commit of its own, `bound_to` names what a verdict is bound to besides bytes and
    inputs. `wanted`: whether a campaign has this stage at all. `one_step`: all datasets are one step (one event loop, one budget).
    `again_after`: made anew when that later stage has changed. `options`: what one run may choose (Dagster's launchpad shows them).
    `packages`: what its work imports that a machine need not have (an extra of pyproject.toml).
    """

    name: str
    per: Per
    version: int
    path: Callable[[Artifact], Path]
    inputs: Callable[[Artifact], DataclassInstance | Pinned]
    work: Callable[[Job], None]
    judge: Callable[[Artifact], list[Verdict]]
    card: Callable[[Campaign, str], Card]
    checks: tuple[Check, ...]
    after: tuple[Stage | After, ...] = ()
    gates: Callable[[Artifact], Iterable[Gate]] = lambda _: ()
    settings: Callable[[Campaign, str], Mapping[str, Any]] = lambda _campaign, _dataset: {}
    key: tuple[str, ...] = ()
    group: str = ""
    rules: str = ""
    version_key: str = "code"
    whole: Callable[[Artifact], bool] = lambda _: True
    bound_to: Callable[[Artifact, Manifest], Mapping[str, Any]] = lambda _artifact, _manifest: {}
    wanted: Callable[[Campaign], bool] = lambda _: True
    resources: frozenset[Literal["openrouter", "gpu", "pipes"]] = frozenset()
    one_step: bool = False
    costs_money: bool = False
    again_after: str = ""
    options: tuple[Option, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def code_version(self) -> int | str:
        """What a manifest says of the code: the stage's own version, and the digest of its rules where it has any."""
        return f"{self.version}-{self.rules[:8]}" if self.rules else self.version

    def code_version_of(self, campaign: Campaign, dataset: str) -> str:
        """What Dagster is told: the code version, and the digest of the settings, which a change of the campaign file changes."""
        settings = self.settings(campaign, dataset)
        return f"{self.code_version}-{digest_json(settings)[:8]}" if settings else str(self.code_version)

    def asset_key(self, dataset: str = ALL) -> tuple[str, ...]:
        return (*(self.key or (self.name,)), *((dataset,) if self.per.has_dataset else ()))

    def datasets(self, campaign: Campaign) -> tuple[str, ...]:
        if not self.wanted(campaign):
            return ()
        return tuple(d.name for d in campaign.dataset) if self.per.has_dataset else (ALL,)

    def partitions(self, store: Store) -> tuple[str, ...]:
        """Partition keys in order; those of a corpus are known once it was merged."""
        if self.per is Per.PART:
            return tuple(corpus_shards(store))
        return SHARDS if self.per is Per.SHARD else (ALL,)

    def artifacts(self, campaign: Campaign, store: Store) -> list[Artifact]:
        """All there are to make, in order."""
        return [Artifact(self, campaign, store, d, p) for d in self.datasets(campaign) for p in self.partitions(store)]

    def predecessors(self, campaign: Campaign, dataset: str) -> list[tuple[Stage, str]]:
        """(stage, dataset) of what comes before this stage's asset of `dataset`, in the order given."""
        found = []
        for before in (b if isinstance(b, After) else After(b) for b in self.after):
            if not before.when(campaign):
                continue
            names = (dataset,) if self.per.has_dataset else before.stage.datasets(campaign)
            for name in names:
                if before.of is None or name == ALL or before.of(campaign.dataset_named(name)):
                    found.append((before.stage, name))
        return found


@dataclass(frozen=True, slots=True)
class Artifact:
    """One thing that a stage makes: of a dataset and of a partition, where the stage has them (else `"all"`)."""

    stage: Stage
    campaign: Campaign
    store: Store
    dataset: str = ALL
    partition: str = ALL

    def of(self, stage: Stage, partition: str | None = None) -> Artifact:
        """The artifact of another stage for the same dataset and partition (another one, where given)."""
        shard = self.partition if partition is None else partition
        return Artifact(
            stage,
            self.campaign,
            self.store,
            self.dataset if stage.per.has_dataset else ALL,
            shard if stage.per.partitioned else ALL,
        )

    def all_of(self, stage: Stage) -> list[Artifact]:
        """All artifacts of another stage; those of the same dataset where both have one."""
        found = stage.artifacts(self.campaign, self.store)
        mine = self.stage.per.has_dataset and stage.per.has_dataset
        return [a for a in found if a.dataset == self.dataset] if mine else found

    @property
    def key(self) -> tuple[str, ...]:
        return self.stage.asset_key(self.dataset)

    @property
    def name(self) -> str:
        """`tokens/b3_magicoder partition 03`: what a person materializes."""
        return "/".join(self.key) + (f" partition {self.partition}" if self.partition != ALL else "")

    @property
    def place(self) -> tuple[str, str, str]:
        """(stage, dataset, partition): where its verdict is filed."""
        return self.stage.name, self.dataset, self.partition

    @property
    def path(self) -> Path:
        return self.stage.path(self)

    def inputs(self) -> dict[str, Any]:
        """What it should be made from now, as its manifest says it. Raises StoreError while a predecessor is missing."""
        record = self.stage.inputs(self)
        if isinstance(record, Pinned):
            return dict(record.inputs)
        facts = {f.name: getattr(record, f.name) for f in fields(record)}
        settings = self.stage.settings(self.campaign, self.dataset)
        return {
            self.stage.version_key: self.stage.code_version,
            **settings,
            **{name: fact for name, fact in facts.items() if fact is not None},
        }

    def manifest(self) -> Manifest | None:
        """The committed manifest, or None; damage counts as none."""
        try:
            return st.read_manifest(self.path)
        except StoreError:
            return None

    def size(self) -> int:
        """Bytes of its files; 0 where it was not made."""
        manifest = self.manifest()
        return sum(f["bytes"] for f in manifest.files.values()) if manifest else 0

    def digest(self) -> str:
        """Identity of its content. Raises StoreError that says what to materialize where there is none, or that it is damaged."""
        return st.require(self.path, made_by=self.name).digest

    def state(self) -> State:
        try:
            manifest = st.read_manifest(self.path)
        except StoreError:
            return "damaged"
        if manifest is None:
            return "missing"
        try:
            return "current" if st.is_current(self.path, self.inputs()) and self.stage.whole(self) else "outdated"
        except Eagle3Error:
            return "outdated"


@dataclass(frozen=True, slots=True)
class Gate:
    """What lets a stage begin: that an artifact before it is `current`, and that its checks have `passed`.

    `verify=False` compares sizes only: terabytes of states are not read again where their readers compare every row.
    """

    artifact: Artifact
    current: bool = True
    passed: bool = True
    verify: bool = True


# ------------------------------------------------------------------------------------------------ what a stage's work is given, and gives
class Markdown(str):
    """Shown as formatted text."""


class Url(str):
    """Shown as a link."""


class Picture(bytes):
    """A PNG, shown as a picture."""


class Records(list[dict[str, Any]]):
    """Shown as a table, a dict a row."""


@dataclass(frozen=True, slots=True)
class Made:
    """An artifact that was committed, and what a person is shown of it: figures, containers, paths, `Markdown`, `Records`, `Url`.

    `rows` is the row count; `parts` are the partitions that stages behind have from now on.
    """

    artifact: Artifact
    manifest: Manifest
    shown: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    parts: tuple[str, ...] | None = None


class Interrupted(Exception):
    """A signal ended the work. What was finished is committed; the next run resumes."""


class Face(Protocol):
    """What a job may ask of the program that runs it."""

    def log(self, line: str) -> None:
        """A line for the run's log."""

    def observe(self, artifacts: Sequence[Artifact], figures: Mapping[str, Any]) -> None:
        """Figures of work under way, for the history of these artifacts' assets."""

    def done(self, made: Made) -> None:
        """An artifact is committed: recorded at once, a later failure must not undo it."""

    def servers(self, campaign: Campaign, store: Store, *, rented: bool) -> Servers:
        """Who answers prompts. Without `rented` no key is needed or read. Raises WireError."""

    def extractor(self, campaign: Campaign) -> Extractor | PartWriter:
        """The extraction engine, its model loaded. Raises StateError."""

    def run_process(
        self, command: Sequence[str], *, told: Mapping[str, Any], environment: Mapping[str, str], folder: Path
    ) -> None:
        """Run another program in `folder` to its end; `told` is what it may read through Dagster Pipes. Raises StateError where it fails."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a stage: the artifacts to make, all of one campaign, in order, and what was chosen of the stage's options."""

    artifacts: tuple[Artifact, ...]
    face: Face
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def campaign(self) -> Campaign:
        return self.artifacts[0].campaign

    @property
    def store(self) -> Store:
        return self.artifacts[0].store

    @property
    def datasets(self) -> list[Dataset]:
        return [self.campaign.dataset_named(name) for name in dict.fromkeys(a.dataset for a in self.artifacts)]


def one_by_one(make: Callable[[Artifact, Face], Made]) -> Callable[[Job], None]:
    """The work of a stage that makes its artifacts one after another."""

    def work(job: Job) -> None:
        for artifact in job.artifacts:
            job.face.done(make(artifact, job.face))

    return work
