"""Which verdicts hold on an artifact, and the refusals that come before a stage's work (docs/design.md#rule-12: the gate of a
stage is re-applied by the stage behind it).

Belongs here: under which digest a verdict is filed, judging through that file, gates. Does not belong here: the judging itself (rooms,
called by `stages/`), verdict files (`review.verdicts`), Dagster (`checks/` shows the same verdicts).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eagle3_assets import store as st
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.installed import require_installed
from eagle3_assets.review.verdicts.verdict import Subject, Verdict
from eagle3_assets.review.verdicts.verdict_files import Filed
from eagle3_assets.review.verdicts.waivers import apply_waivers, read_waivers, used_waivers
from eagle3_assets.stage import Artifact
from eagle3_assets.store import Manifest, Store


def judge(artifact: Artifact, *, anew: bool = False) -> list[Verdict]:
    """Current verdicts of one artifact, waivers applied: from their file when it judged these bytes under today's rules, else judged
    now and filed. `anew`: judged now in any case.

    Raises StoreError when the artifact was never made.
    """
    filed = filed_of(artifact, committed(artifact))
    verdicts = filed.judged_again(lambda: artifact.stage.judge(artifact), anew=anew)
    return apply_waivers(verdicts, read_waivers(artifact.store), filed.subject)


def judge_anew(artifact: Artifact) -> list[Verdict]:
    """`judge`, whatever is filed."""
    return judge(artifact, anew=True)


def file_verdicts(artifact: Artifact, verdicts: list[Verdict]) -> None:
    """File verdicts that were given while the artifact was in memory: they are bound to the bytes that were then committed."""
    filed_of(artifact, committed(artifact)).write(verdicts)


def standing(artifact: Artifact) -> list[Verdict] | None:
    """The verdict that is filed on these very bytes (their sizes are compared) under today's rules, waivers applied; None where none is."""
    try:
        filed = filed_of(artifact, committed(artifact, verify=False))
        judged = filed.read()
    except StoreError:
        return None
    if judged is None or not filed.is_current(judged):
        return None
    return apply_waivers(list(judged.verdicts), read_waivers(artifact.store), filed.subject)


def was_judged_since(artifact: Artifact, begun: float) -> bool:
    """Whether a verdict on these very bytes and rules was filed after `begun` (unix seconds): by the run that made them."""
    try:
        filed = filed_of(artifact, committed(artifact, verify=False))
        judged = filed.read()
    except StoreError:
        return False
    return judged is not None and judged.time >= begun and filed.is_current(judged)


def rejudge_outdated(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Judge again what carries a verdict on other bytes or rules (a run that died between making and checking); returns which."""
    again = []
    for artifact in artifacts:
        try:
            filed_of(artifact, st.require(artifact.path, made_by=artifact.name)).refuse_outdated()
        except GateError:
            judge(artifact)
            again.append(artifact)
    return again


def waivers_in_use(store: Store, artifacts: Iterable[Artifact]) -> list[dict[str, Any]]:
    """The waivers that let these artifacts through, as plain JSON."""
    return used_waivers(store, [(filed_of(a, committed(a)).subject, judge(a)) for a in artifacts])


def require(artifact: Artifact, *, verify: bool = True) -> list[Verdict]:
    """Raises GateError when a blocking check of the artifact failed, StoreError when it was never made. `verify`: see `Gate`."""
    filed = filed_of(artifact, committed(artifact, verify=verify))
    return filed.require_passed(lambda: artifact.stage.judge(artifact))


def require_current(artifact: Artifact) -> None:
    """Raises GateError when an artifact is missing, damaged, or was made from something that has changed since."""
    state = artifact.state()
    if state != "current":
        name = artifact.name
        raise GateError(f"{name} is {state} ({artifact.path}); materialize {name} again, or run `eagle3 run`")


def pass_gates(artifacts: Iterable[Artifact]) -> None:
    """Pass every gate that these artifacts' stages name, each once, with what their work imports. Raises what `require`,
    `require_current` and `require_installed` raise."""
    passed = set()
    for artifact in artifacts:
        require_installed(artifact.stage.packages, artifact.name)
        for gate in artifact.stage.gates(artifact):
            if gate.artifact.place in passed:
                continue
            passed.add(gate.artifact.place)
            if gate.current:
                require_current(gate.artifact)
            if gate.passed:
                require(gate.artifact, verify=gate.verify)


def committed(artifact: Artifact, *, verify: bool = True) -> Manifest:
    """The manifest of an artifact, its checksums compared: what goes on from here must be the bytes that were made."""
    return st.require(artifact.path, made_by=artifact.name, verify=verify)


def filed_of(artifact: Artifact, manifest: Manifest) -> Filed:
    """The verdict file of an artifact. A verdict is bound to the bytes, to what they were made from, and to what the stage names besides."""
    bound = {"content": manifest.digest, "inputs": manifest.inputs, **artifact.stage.bound_to(artifact, manifest)}
    return Filed(artifact.store, Subject(*artifact.place, st.digest_json(bound)), artifact.stage.checks)


def numbers_of(verdict: Verdict) -> dict[str, Any]:
    """Figures of a verdict for display: plain scalars only."""
    return {k: v for k, v in verdict.numbers.items() if isinstance(v, bool | int | float | str)}
