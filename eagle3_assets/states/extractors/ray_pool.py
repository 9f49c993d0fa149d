"""The `ray` engine: a pool of actors, each with the target loaded in one of the other engines; parts are what they are given.

Belongs here: the pool. Does not belong here: what a worker does with a part (`part_job.py`), the engines themselves.

Workers write parts and records straight into the store, which all machines must see (a shared POSIX file system); what comes back is
a record of a few hundred bytes. The driver holds no tensor. A worker proves itself by the self-test before it may write, loads its
model once for any number of partitions, and is started again by Ray when it dies: its part is begun anew, and since a part is one
rename, nothing of the first try is left but a temporary file. So a killed worker changes no byte.

Plain actors and not Ray Data: a job is minutes of work and its result is nothing, so there is no stream of blocks to plan, and a
pipeline a partition would load the model once a partition.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.states.extractors.checkpoint import read_final_norm
from eagle3_assets.states.extractors.part_job import PartJob, Report, job_tokens, write_job
from eagle3_assets.states.extractors.self_test import run_self_test
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.format.part import read_record, record_path
from eagle3_assets.states.format.state_part import StatePart
from eagle3_assets.states.target.weights import model_fingerprint

CPUS_PER_WORKER = 1


class Worker:
    """What runs inside an actor: an engine that has proved itself. Errors travel as text: their class may not exist over there."""

    def __init__(self, campaign_path: str) -> None:
        from eagle3_assets.states.extractors import open_extractor

        self._campaign: Campaign = load_campaign(campaign_path)
        self._error = ""
        try:
            self._extractor = open_extractor(self._campaign)
            self._self_test = run_self_test(self._extractor, self._campaign.layers, self._campaign.extraction.dtype)
        except Eagle3Error as error:
            self._error = str(error)

    def facts(self) -> dict[str, Any]:
        """What the driver needs of any one worker; `error` when this one may not write. `pid` tells workers apart."""
        if self._error:
            return {"error": self._error}
        norm = self._extractor.final_norm()
        return {
            "error": "", "describe": self._extractor.describe(), "self_test": self._self_test, "pid": os.getpid(),
            "norm": (norm.weight, norm.eps),
        }  # fmt: skip

    def write(self, job: PartJob) -> str:
        """Write one part and its record; returns why not, or nothing."""
        if self._error:
            return self._error
        try:
            write_job(self._extractor, job, lambda tokens: None)
        except Eagle3Error as error:
            return str(error)
        return ""


class RayPool:
    """A `PartWriter` over `extraction.workers` actors. Build with `of`; `close()` lets them go."""

    def __init__(self, campaign: Campaign, ray: Any) -> None:
        x = campaign.extraction
        self._ray, self._campaign = ray, campaign
        self._fingerprint = model_fingerprint(campaign)
        actor = ray.remote(Worker).options(
            num_cpus=CPUS_PER_WORKER, num_gpus=x.gpus_per_worker, max_restarts=-1, max_task_retries=-1
        )
        self._actors = [actor.remote(str(campaign.path.resolve())) for _ in range(x.workers)]
        self._facts: dict[str, Any] | None = None

    @classmethod
    def of(cls, campaign: Campaign) -> RayPool:
        """Join the cluster at `extraction.ray_address`, or start one in this process. Raises StateError."""
        try:
            import ray
        except ImportError:
            raise StateError(
                f"{campaign.path}: extraction.engine = 'ray' needs Ray: pip install -c constraints.txt -e '.[ray]'"
            ) from None
        x = campaign.extraction
        if not ray.is_initialized():
            # Ray's own words are for its own log; the environment of the driver is that of the workers
            settings: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
            if x.ray_address is None:
                settings["num_cpus"] = max(x.workers * CPUS_PER_WORKER, 1)
            try:
                ray.init(
                    x.ray_address, **{k: v for k, v in settings.items() if x.ray_address is None or k != "include_dashboard"}
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise StateError(f"{campaign.path}: extraction.ray_address = {x.ray_address!r}: {_first_line(error)}") from None
        return cls(campaign, ray)

    def describe(self) -> dict[str, Any]:
        """See `PartWriter.describe`. The model's identity and sizes are the driver's own; workers are held to them."""
        target = self._campaign.target
        return {
            "engine": f"ray of {self._campaign.extraction.worker_engine}",
            "model": target.model,
            "fingerprint": self._fingerprint,
            "dtype": target.dtype,
            "num_hidden_layers": target.num_hidden_layers,
            "hidden_size": target.hidden_size,
            "workers": self._campaign.extraction.workers,
            **({"worker": self._facts["describe"], "versions": {"ray": self._ray.__version__}} if self._facts else {}),
        }

    def prove(self, layers: Sequence[int], stored_dtype: str) -> dict[str, Any]:
        """See `PartWriter.prove`: of the worker that was ready first; every other is held to it before it writes."""
        if self._facts is None:
            ready, _ = self._ray.wait([actor.facts.remote() for actor in self._actors], num_returns=1)
            facts: dict[str, Any] = self._get(ready[0])
            if facts["error"]:
                raise StateError(f"a Ray worker may not write: {facts['error']}")
            if facts["describe"]["fingerprint"] != self._fingerprint:
                raise StateError(
                    f"a Ray worker holds model {facts['describe']['fingerprint']}, expected {self._fingerprint}: the weights on that machine "
                    "are other ones"
                )
            self._facts = facts
        found: dict[str, Any] = self._facts["self_test"]
        return found

    def final_norm(self) -> FinalNorm:
        """See `PartWriter.final_norm`: before `prove` from the checkpoint that this process sees, which has the workers' fingerprint."""
        if self._facts is None:
            return read_final_norm(self._campaign)
        weight, eps = self._facts["norm"]
        return FinalNorm(weight.copy(), eps)

    def pids(self) -> list[int]:
        """Process ids of the workers, on their machines."""
        return [int(facts["pid"]) for facts in self._get([actor.facts.remote() for actor in self._actors])]

    def write_parts(self, jobs: Sequence[PartJob], report: Report) -> Iterator[tuple[int, StatePart]]:
        """See `PartWriter.write_parts`: one part a worker at a time; a free worker takes the next."""
        waiting, running = deque(jobs), {}
        for actor in self._actors:
            if waiting:
                job = waiting.popleft()
                running[actor.write.remote(job)] = (actor, job)
        while running:
            done, _ = self._ray.wait(list(running), num_returns=1)
            actor, job = running.pop(done[0])
            error = self._get(done[0])
            if error:
                self._drain(running)
                raise StateError(error)
            if waiting:
                following = waiting.popleft()
                running[actor.write.remote(following)] = (actor, following)
            report(job_tokens(job))
            yield job.number, read_record(record_path(job.path))

    def close(self) -> None:
        """Let the workers go. A cluster that this process started ends with it."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise StateError(f"Ray: {_first_line(error)}; committed parts are kept, run again") from None

    def _drain(self, running: dict[Any, Any]) -> None:
        """Parts that others are at are finished: they are work done, and a writer must not outlive the lock of its partition."""
        with contextlib.suppress(StateError):
            self._get(list(running))


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
