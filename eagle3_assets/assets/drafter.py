"""`drafter` and `acceptance`: a trainer is started on the hand-off through Dagster Pipes, and its checkpoint is measured on stored states.

Belongs here: the command that is started, what of it is shown. Does not belong here: training, measuring (`accept`), the hand-off.
The process can run anywhere that sees the data root: `[drafter] launcher` puts words before it (srun, torchrun); on Kubernetes or Ray give the
resource `pipes` another Pipes client, the process is the same.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, Every, described, stage
from eagle3_assets.campaign import Campaign, DrafterTable
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.progress import Step, publish
from eagle3_assets.store import Store, commit

POLL_S, OBSERVE_S = 0.5, 10.0


def resources(campaign: Campaign) -> dict[str, Any]:
    """Who starts the trainer; nothing where none is asked for."""
    return {} if campaign.drafter is None else {"pipes": dg.PipesSubprocessClient()}


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    table = campaign.drafter
    if table is None:
        return []
    source = lineage.drafted_from(campaign)

    @dg.asset(
        key="drafter",
        group_name="drafter",
        kinds={"torch"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=[dg.AssetKey(["handoff", source])],
        description=f"An EAGLE-3 drafter, trained by {table.trainer} on handoff/{source} in a process of its own (Dagster Pipes). "
        "Stopped, it goes on from its last kept point.",
    )
    def drafter(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.accept.training_record import draw_losses, find_checkpoint, write_record
        from eagle3_assets.handoff.training_reports import read_metrics

        with stage(context, campaign) as store:
            gate.require_current(campaign, store, f"handoff_{source}")
            gate.require(campaign, store, f"handoff_{source}", verify=False)
            inputs, folder = lineage.drafter_inputs(campaign, store), store.drafter
            with store.lock("drafter", what="drafter"):
                begin(folder, inputs)
                begun = time.monotonic()
                with watching(context, folder):
                    pipes.run(
                        context=context, command=command(table, store), extras={"trained_on": inputs}, env=surroundings(),
                        cwd=str(store.handoff(source).resolve()),
                    )  # fmt: skip
                metrics = read_metrics(folder)
                record = write_record(
                    folder, trainer=table.trainer, trained_on=inputs, metrics=metrics, seconds=time.monotonic() - begun
                )
                checkpoint = find_checkpoint(folder)
                files = [p for p in checkpoint.rglob("*") if p.is_file()] + [folder / "training.json"]
                made = commit(folder, files=files, inputs=inputs, numbers={k: v for k, v in record.items() if k != "losses"})
            picture = dg.MetadataValue.md(_image(draw_losses(record["losses"]))) if record["losses"] else None
            shown = {k: made.numbers[k] for k in ("trainer", "steps", "first_loss", "last_loss", "seconds")}
            return dg.MaterializeResult(
                metadata=described(shown, checkpoint=checkpoint, trained_on=inputs, digest=made.digest, loss=picture)
            )

    @dg.asset(
        key="acceptance",
        group_name="drafter",
        kinds={"torch"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["drafter", "hidden_states"],
        description="Acceptance length τ of the drafter, from the stored states of the validation rows, without serving: chains and trees, greedy "
        "and sampled, by dataset, grade, position and context length, with intervals. Beside it that of an untrained drafter.",
    )
    def acceptance(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.accept.page import draw, render_markdown
        from eagle3_assets.accept.report import build_acceptance, decoding_of, write_acceptance
        from eagle3_assets.accept.training_record import find_checkpoint

        with stage(context, campaign) as store:
            gate.require_current(campaign, store, "drafter")
            gate.require(campaign, store, "drafter")
            inputs = lineage.acceptance_inputs(campaign, store)
            with store.lock("acceptance", what="acceptance"):
                store.acceptance.mkdir(parents=True, exist_ok=True)
                document = build_acceptance(
                    campaign, store, find_checkpoint(store.drafter), decoding_of(campaign),
                    on_rows=lambda n: publish(Step("acceptance", n, n, "rows")),
                )  # fmt: skip
                files = write_acceptance(store.acceptance, document)
                taus = {f"tau_{way}": found["all"]["tau"] for way, found in document["ways"].items()}
                numbers = {**taus, "tau_untrained": document["untrained"]["tau"], "rows": document["rows"]}
                made = commit(store.acceptance, files=files, inputs=inputs, numbers=numbers)
            return dg.MaterializeResult(
                metadata=described(
                    numbers, page=store.acceptance / "acceptance.html", digest=made.digest,
                    table=dg.MetadataValue.md(render_markdown(document)), picture=dg.MetadataValue.md(_image(draw(document))),
                )
            )  # fmt: skip

    return [drafter, acceptance]


def command(table: DrafterTable, store: Store) -> list[str]:
    """What is started, in the folder of the hand-off. Raises StateError where the trainer's environment is not named."""
    from eagle3_assets.handoff.speculators_export import read_train_command

    out = str(store.drafter.resolve())
    if table.trainer == "eagle3":
        words = [
            table.python or sys.executable,
            "-m",
            "eagle3_assets.accept.trainer",
            ".",
            out,
            "--settings",
            json.dumps(table.settings),
        ]
        return [*table.launcher, *words]
    if table.python is None:
        raise StateError(
            f"[drafter] trainer = {table.trainer!r} runs in an environment of its own: set [drafter] python to its interpreter (make trainers)"
        )
    if table.trainer == "speculators":
        words = [
            "-m",
            "eagle3_assets.handoff.train_speculators",
            *read_train_command(store.handoff("speculators")),
            "--save-path",
            out,
        ]
    else:
        words = ["-m", "specforge.cli", "train", "--config", "train.yaml", f"output_dir={out}"]
    return [*table.launcher, table.python, *words, *table.arguments]


def surroundings() -> dict[str, str]:
    """Environment of the trainer: this package is importable from wherever it starts."""
    here = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}


def begin(folder: Path, inputs: dict[str, Any]) -> None:
    """An unfinished run on the same things goes on; one on others is cleared away, so that no trainer resumes what it was not given."""
    from eagle3_assets.store import digest_json, write_bytes

    marker, digest = folder / ".trained_on", digest_json(inputs)
    if folder.exists() and (not marker.exists() or marker.read_text() != digest):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(marker, digest.encode())


@contextmanager
def watching(context: dg.AssetExecutionContext, folder: Path) -> Iterator[None]:
    """Tell of the trainer's steps while it runs: to the terminal's line, and to the asset as observations, which the UI plots."""
    from eagle3_assets.handoff.training_reports import read_metrics

    stop, due = threading.Event(), Every(OBSERVE_S)

    def watch() -> None:
        told = 0
        while not stop.wait(POLL_S):
            lines = read_metrics(folder)
            if not lines or (last := lines[-1])["step"] == told:
                continue
            told = last["step"]
            publish(Step("drafter", told, last.get("steps") or told, f"steps, loss {last['loss']:.3f}"))
            if due.due():
                context.log_event(dg.AssetObservation(context.asset_key, metadata={"loss": last["loss"], "step": told}))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise
    except Exception as error:
        if type(error).__name__ != "DagsterPipesExecutionError":
            raise
        raise Eagle3Error(
            f"{folder}: the trainer stopped with an error; its own words are in the run's log (stderr); mend it and materialize drafter "
            "again, which goes on from its last kept point"
        ) from None
    finally:
        stop.set()
        thread.join()


def _image(png: bytes) -> str:
    import base64

    return f"![picture](data:image/png;base64,{base64.b64encode(png).decode()})"
