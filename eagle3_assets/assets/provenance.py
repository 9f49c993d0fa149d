"""What Dagster is told of each artifact, so that the UI calls outdated what `eagle3 status` calls outdated, and nothing else.

Dagster calls an asset outdated when its latest materialization names another code version than the definition has, or another data version
of a predecessor than that one has now. Both are tags of the event. The data version is the manifest's digest. Dagster writes the tags itself
for a result that a step returns, with one data version for all partitions; for single partitions, and for what was not made by a run of this
Dagster state (an older one, a copied data root), they are written here.

Belongs here: these tags, and events where the files say something else than the tags. Does not belong here: what is outdated (`stage.Artifact`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from eagle3_assets import stages
from eagle3_assets.stage import Artifact, Stage
from eagle3_assets.store import Manifest

# Tags in which Dagster keeps them, as the UI shows them beside every materialization.
CODE_VERSION, DATA_VERSION = "dagster/code_version", "dagster/data_version"
GIVEN = "dagster/data_version_is_user_provided"
INPUT_VERSION, INPUT_EVENT = "dagster/input_data_version/", "dagster/input_event_pointer/"
RECORDS = 1_000  # events of one asset that are newer than what was made from it: dozens after a night of runs
NOTHING = "NULL"  # how Dagster spells the version and the event of what was never made

Tags = dict[str, str]


def materialization(
    instance: dg.DagsterInstance, artifact: Artifact, manifest: Manifest, metadata: Mapping[str, Any]
) -> dg.AssetMaterialization:
    """The event of one artifact that is what its inputs say, with its provenance."""
    return _event(artifact, metadata, _History(instance).provenance(artifact, manifest))


def follow(instance: dg.DagsterInstance, artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Let Dagster's state say of each artifact what its files say; returns those for which it had to be told.

    What is current and was never recorded here, or is recorded as made from something older, is recorded as it is now. What is not current,
    for a reason that Dagster cannot see (a dataset was closed, a source changed, a file is gone), is recorded under that word as its code
    version.
    """
    history, told = _History(instance), []
    for artifact in artifacts:
        latest = history.latest(artifact.key, _partition(artifact))
        known = _tags_of(latest)
        state, manifest = artifact.state(), artifact.manifest()
        if state == "current" and manifest is not None:
            if known.get(DATA_VERSION) == manifest.digest and not history.shows_outdated(artifact, known):
                continue
            words = {"recorded": "found in the data root as it is; nothing was made", "digest": manifest.digest}
            event = _event(artifact, words, history.provenance(artifact, manifest))
        else:
            if (latest is None and manifest is None) or history.shows_outdated(artifact, known):
                continue
            event = _event(artifact, {"recorded": f"{state}; nothing was made"}, {**known, CODE_VERSION: state})
        instance.report_runless_asset_event(event)
        history.forget(artifact.key)
        told.append(artifact)
    return told


def successors(artifact: Artifact) -> list[Artifact]:
    """What is made from this artifact's asset directly, as far as it was ever made."""
    found = []
    for stage in stages.STAGES:
        for name in stage.datasets(artifact.campaign):
            if (artifact.stage, artifact.dataset) in stage.predecessors(artifact.campaign, name):
                all_of = (Artifact(stage, artifact.campaign, artifact.store, name, p) for p in stage.partitions(artifact.store))
                found += [a for a in all_of if a.manifest() is not None]
    return found


def _event(artifact: Artifact, metadata: Mapping[str, Any], tags: Tags) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(dg.AssetKey(artifact.key), metadata=dict(metadata), partition=_partition(artifact), tags=tags)


def _partition(artifact: Artifact) -> str | None:
    return artifact.partition if artifact.stage.per.partitioned else None


def _tags_of(record: dg.EventLogRecord | None) -> Tags:
    event = record.asset_materialization if record is not None else None
    return dict(event.tags or {}) if event is not None else {}


def _version(record: dg.EventLogRecord | None) -> str:
    return NOTHING if record is None else _tags_of(record).get(DATA_VERSION, "INITIAL")


class _History:
    """What a Dagster state has recorded. An asset's latest event is asked for once: sixteen shards have the same predecessors."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._latest: dict[tuple[str, ...], dg.EventLogRecord | None] = {}

    def latest(self, key: tuple[str, ...], partition: str | None = None, before: int | None = None) -> dg.EventLogRecord | None:
        """The latest materialization of an asset (of one partition, before an event)."""
        whole = partition is None and before is None
        if whole and key in self._latest:
            return self._latest[key]
        wanted = dg.AssetRecordsFilter(
            asset_key=dg.AssetKey(key), asset_partitions=None if partition is None else [partition], before_storage_id=before
        )
        found = next(iter(self._instance.fetch_materializations(wanted, limit=1).records), None)
        if whole:
            self._latest[key] = found
        return found

    def forget(self, key: tuple[str, ...]) -> None:
        """There is a newer event of this asset."""
        self._latest.pop(key, None)

    def provenance(self, artifact: Artifact, manifest: Manifest) -> Tags:
        """The tags of an artifact that is what its inputs say."""
        tags = {CODE_VERSION: _code_version(artifact), DATA_VERSION: manifest.digest, GIVEN: "true"}
        for stage, dataset in artifact.stage.predecessors(artifact.campaign, artifact.dataset):
            key = stage.asset_key(dataset)
            latest = self.latest(key)
            tags[INPUT_VERSION + "/".join(key)] = _version(latest)
            tags[INPUT_EVENT + "/".join(key)] = NOTHING if latest is None else str(latest.storage_id)
        return tags

    def shows_outdated(self, artifact: Artifact, known: Tags) -> bool:
        """Whether Dagster calls an artifact outdated whose latest event has these tags. One without provenance counts as such."""
        if known.get(CODE_VERSION) != _code_version(artifact):
            return True
        return any(
            self._moved(artifact, known, stage, stage.asset_key(dataset))
            for stage, dataset in artifact.stage.predecessors(artifact.campaign, artifact.dataset)
        )

    def _moved(self, artifact: Artifact, known: Tags, stage: Stage, key: tuple[str, ...]) -> bool:
        """Whether a predecessor has another data version than these tags name: of partitioned ones that of a partition it was made from."""
        name, latest = "/".join(key), self.latest(key)
        if INPUT_VERSION + name not in known:
            return True
        if not stage.per.partitioned:
            return known[INPUT_VERSION + name] != _version(latest)
        seen = known[INPUT_EVENT + name]
        if seen == NOTHING or latest is None or latest.storage_id <= int(seen):
            return False
        mine = [artifact.partition] if stage.per is artifact.stage.per else None
        newer = dg.AssetRecordsFilter(asset_key=dg.AssetKey(key), asset_partitions=mine, after_storage_id=int(seen))
        partitions = {r.partition_key for r in self._instance.fetch_materializations(newer, limit=RECORDS).records}
        return any(
            _version(self.latest(key, p)) != _version(self.latest(key, p, before=int(seen) + 1))
            for p in partitions
            if p is not None
        )


def _code_version(artifact: Artifact) -> str:
    return artifact.stage.code_version_of(artifact.campaign, artifact.dataset)
