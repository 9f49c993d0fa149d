"""An asset for each stage and dataset: gates, then the stage's work, every artifact recorded as soon as it is committed.

Belongs here: the translation of `stage.Stage` into Dagster's terms. Does not belong here: any one stage, and any decision.
No `from __future__ import annotations` in this file: Dagster inspects the annotation of `context` at run time.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from eagle3_assets import gate, stages
from eagle3_assets.assets.description import DEFAULT_OWNERS, metadata_of, tags_of
from eagle3_assets.assets.frame import frame, partition_keys
from eagle3_assets.assets.provenance import follow, materialization, successors
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.partitions import SHARD_PARTITIONS, SINGLE_RUN, corpus_partitions, register_partitions
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.stage import Artifact, Job, Made, Markdown, Per, Picture, Records, Stage, Url
from eagle3_assets.store import Store

if TYPE_CHECKING:
    from eagle3_assets.collect.run.collector import Servers
    from eagle3_assets.states.extractors.interface import Extractor
    from eagle3_assets.states.extractors.part_job import PartWriter


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    """Every asset of the campaign, in the order of the flow; a stage of one step is one of them for all datasets."""
    return [
        _asset(campaign, stage, names)
        for stage in stages.STAGES
        for names in ([stage.datasets(campaign)] if stage.one_step else [(n,) for n in stage.datasets(campaign)])
    ]


def _asset(campaign: Campaign, stage: Stage, names: Sequence[str]) -> dg.AssetsDefinition:
    specs = [_spec(campaign, stage, name) for name in names]

    @dg.multi_asset(
        specs=specs,
        name=stage.name if stage.one_step else "__".join(stage.asset_key(names[0])),
        can_subset=stage.one_step,
        backfill_policy=SINGLE_RUN,
        required_resource_keys=set(stage.resources),
        config_schema=_options(campaign, stage),
    )
    def make(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        with frame(context, campaign) as store:
            chosen = [n for n in names if dg.AssetKey(stage.asset_key(n)) in context.selected_asset_keys]
            keys = partition_keys(context) if stage.per.partitioned else [ALL]
            job = Job(
                tuple(Artifact(stage, campaign, store, n, k) for n in chosen for k in keys),
                DagsterFace(context),
                _chosen(context, stage),
            )
            gate.pass_gates(job.artifacts)  # refuse before any work
            publish(Step(stage.name, 0, len(job.artifacts), " ".join(n for n in chosen if n != ALL)))
            yield from _made(context, job)

    return make


def _options(campaign: Campaign, stage: Stage) -> dict[str, dg.Field]:
    """The stage's options as the launchpad shows them, filled with the campaign's own values."""
    return {
        o.name: dg.Field(o.kind, description=o.words, is_required=False)
        if o.given is None
        else dg.Field(o.kind, description=o.words, default_value=o.given(campaign))
        for o in stage.options
    }


def _chosen(context: dg.AssetExecutionContext, stage: Stage) -> dict[str, Any]:
    """What the launchpad gave of the stage's options."""
    return dict(context.op_execution_context.op_config or {}) if stage.options else {}


def group_of(stage: Stage) -> str:
    """`3_judge/tokens`: groups are nested, and stand in the flow's order."""
    order = [intent.name for intent, _ in stages.intents()]
    intent = stages.intent_of(stage).name
    return f"{order.index(intent) + 1}_{intent}/{stage.group or stage.name}"


def _automation(campaign: Campaign, stage: Stage, name: str) -> dg.AutomationCondition | None:  # type: ignore[type-arg]
    """What costs neither money nor a GPU is made by itself when what it is made from has changed. Off until a person switches the sensor
    `automation` on."""
    return None if stage.costs_money or stage.resources else dg.AutomationCondition.eager()


def _spec(campaign: Campaign, stage: Stage, name: str) -> dg.AssetSpec:
    card = stage.card(campaign, name)
    return dg.AssetSpec(
        dg.AssetKey(stage.asset_key(name)),
        group_name=group_of(stage),
        kinds=set(card.kinds),
        owners=list(campaign.campaign.owners or DEFAULT_OWNERS),
        description=card.description,
        tags=tags_of(campaign, stage, name),
        metadata=metadata_of(campaign, stage, name),
        automation_condition=_automation(campaign, stage, name),
        partitions_def=partitions_of(campaign, stage),
        skippable=stage.one_step,
        deps=[dg.AssetKey(before.asset_key(theirs)) for before, theirs in stage.predecessors(campaign, name)],
        code_version=stage.code_version_of(campaign, name),
    )


def partitions_of(campaign: Campaign, stage: Stage) -> dg.PartitionsDefinition | None:
    if stage.per is Per.PART:
        return corpus_partitions(campaign)
    return SHARD_PARTITIONS if stage.per is Per.SHARD else None


def _made(context: dg.AssetExecutionContext, job: Job) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
    """Do the work; a result for every asset that is whole, also when another one stopped the work."""
    face, stopped = job.face, None
    assert isinstance(face, DagsterFace)
    try:
        job.artifacts[0].stage.work(job)
    except Eagle3Error as error:
        stopped = error
    for name in dict.fromkeys(a.dataset for a in job.artifacts):
        mine = [a for a in job.artifacts if a.dataset == name]
        if all(a.place in face.made for a in mine):
            yield from _results(context, [face.made[a.place] for a in mine])
    if stopped is not None:
        raise stopped


def _results(context: dg.AssetExecutionContext, made: Sequence[Made]) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
    """The result of one asset, then what Dagster cannot say of a range by itself: the data version of each partition (it writes one event
    a partition for a result, all with one version; the last event of a partition counts), and the figures of the asset over all of them."""
    first = made[0].artifact
    key = dg.AssetKey(first.key)
    if not first.stage.per.partitioned:
        version = dg.DataVersion(made[0].manifest.digest)
        yield dg.MaterializeResult(asset_key=key, metadata=described(made[0]), data_version=version)
    else:
        for m in made:  # without them the result writes an empty event over each partition that is recorded already
            context.add_asset_metadata(described(m), asset_key=key, partition_key=m.artifact.partition)
        yield dg.MaterializeResult(asset_key=key)
        for m in made:
            # The asset's page shows its latest event: there, beside the figures of that partition, stand those of all of them.
            shown = described(m) | (whole_asset(m) if m is made[-1] else {})
            context.log_event(materialization(context.instance, m.artifact, m.manifest, shown))
    follow(context.instance, successors(first))


def whole_asset(made: Made) -> dict[str, Any]:
    """The asset's own figures: counts, tokens, dollars and grades over all partitions that are there, and its row count."""
    one = made.artifact
    everything = [Artifact(one.stage, one.campaign, one.store, one.dataset, k) for k in one.stage.partitions(one.store)]
    manifests = [m for m in (a.manifest() for a in everything) if m is not None]
    sums: dict[str, Any] = {}
    for manifest in manifests:
        for name, value in manifest.numbers.items():
            sums[name] = _added(sums.get(name), value)
    found: dict[str, Any] = {"whole_asset/partitions": f"{len(manifests)} of {len(everything)}"}
    rows = next((sums[name] for name in ("rows", "finished") if sums.get(name) is not None), None)
    found |= {} if rows is None else {"dagster/row_count": rows}
    return found | {f"whole_asset/{name}": _metadata(value) for name, value in sums.items() if value is not None}


def _added(so_far: Any, value: Any) -> Any:
    """Numbers are added, tables of numbers by name; what is neither has no sum."""
    if isinstance(value, dict):
        before = so_far or {}
        return {k: _added(before.get(k), value.get(k)) or before.get(k) for k in sorted({*before, *value})}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value + (so_far or 0)


class DagsterFace:
    """`stage.Face` over the context of a step."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self.context, self.made = context, dict[tuple[str, str, str], Made]()

    def log(self, line: str) -> None:
        self.context.log.info(line)

    def observe(self, artifacts: Sequence[Artifact], figures: Mapping[str, Any]) -> None:
        for key in dict.fromkeys(a.key for a in artifacts):
            self.context.log_event(dg.AssetObservation(asset_key=dg.AssetKey(key), metadata=dict(figures)))

    def done(self, made: Made) -> None:
        artifact = made.artifact
        if artifact.stage.per.partitioned and artifact.place not in self.made:
            self.context.log_event(materialization(self.context.instance, artifact, made.manifest, described(made)))
        self.made[artifact.place] = made
        if not artifact.stage.per.partitioned:  # those tell it themselves, in smaller steps
            publish(Step(artifact.stage.name, 1, 1, "" if artifact.dataset == ALL else artifact.dataset))
        if made.parts is not None:
            register_partitions(self.context.instance, artifact.campaign, made.parts)

    def servers(self, campaign: Campaign, store: Store, *, rented: bool) -> "Servers":
        found: Servers = self.context.resources.openrouter.servers(campaign, store, rented=rented)
        return found

    def extractor(self, campaign: Campaign) -> "Extractor | PartWriter":
        found: Extractor | PartWriter = self.context.resources.gpu.extractor(campaign)
        return found

    def run_process(
        self, command: Sequence[str], *, told: Mapping[str, Any], environment: Mapping[str, str], folder: Path
    ) -> None:
        try:
            self.context.resources.pipes.run(
                context=self.context, command=list(command), extras=dict(told), env=dict(environment), cwd=str(folder)
            )
        except dg.DagsterError:
            raise StateError(
                f"{command[0]} stopped with an error in {folder}; its own words are in the run's log (stderr); mend it and materialize "
                "the asset again, which goes on from its last kept point"
            ) from None


def _image(png: bytes) -> str:
    return f"![picture](data:image/png;base64,{base64.b64encode(png).decode()})"


def described(made: Made) -> dict[str, Any]:
    """Metadata for the UI: numbers as numbers (plotted over time), containers as JSON, None left out."""
    rows = {} if made.rows is None else {_row_count(made.artifact): made.rows}
    shown = {**made.shown, **rows, "digest": made.manifest.digest}
    return {name: _metadata(value) for name, value in shown.items() if value is not None}


def _row_count(artifact: Artifact) -> str:
    """A partition says how many rows it has; Dagster would take `dagster/row_count` of the latest one for the whole asset's."""
    return "dagster/partition_row_count" if artifact.stage.per.partitioned else "dagster/row_count"


def _metadata(value: Any) -> Any:
    match value:
        case Path():
            return dg.MetadataValue.path(str(value))
        case Markdown():
            return dg.MetadataValue.md(value)
        case Picture():
            return dg.MetadataValue.md(_image(value))
        case Url():
            return dg.MetadataValue.url(value)
        case Records():
            return dg.MetadataValue.table([dg.TableRecord({k: "" if v is None else v for k, v in row.items()}) for row in value])
        case dict() | list() | tuple():
            return dg.MetadataValue.json(value)
        case _:
            return value
