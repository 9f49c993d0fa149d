"""Shards over cores: equal results for any number of workers, and a lost worker costs its shard."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest

from eagle3_assets import stages
from eagle3_assets.errors import ExactError, StoreError
from eagle3_assets.stage import Stage
from eagle3_assets.workers import SEAT_BYTES, over_cores, seats


def square(n: int) -> tuple[int, int]:
    return n * n, os.getpid()


def dies_once(mark: str) -> str:
    path = Path(mark)
    with path.open("a") as handle:
        handle.write("x")
    if path.name == "bad" and path.read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def dies(n: int) -> int:
    if n == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def refuses(n: int) -> int:
    if n == 2:
        raise ExactError("shard 2 cannot be read")
    return n


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_order_from_any_number_of_workers(workers: int) -> None:
    results = list(over_cores(square, range(7), workers))
    assert [value for value, _ in results] == [n * n for n in range(7)]
    processes = {process for _, process in results}
    assert processes == {os.getpid()} if workers == 1 else os.getpid() not in processes


def test_a_lost_worker_costs_its_shard_and_nothing_else(tmp_path: Path) -> None:
    names = ["a", "bad", "c", "d", "e"]
    assert list(over_cores(dies_once, [str(tmp_path / name) for name in names], 2)) == names
    assert {name: len((tmp_path / name).read_text()) for name in names} == {"a": 1, "bad": 2, "c": 1, "d": 1, "e": 1}


def test_a_shard_that_kills_every_worker_ends_in_one_readable_line() -> None:
    with pytest.raises(StoreError, match="died twice at 2: out of memory"):
        list(over_cores(dies, range(4), 2))


def test_what_a_worker_raises_is_raised_at_its_place() -> None:
    results = over_cores(refuses, range(5), 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ExactError, match="shard 2 cannot be read"):
        next(results)


def test_a_worker_sees_the_environment_of_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("one", "two"):
        monkeypatch.setenv("WORKER_TEST", value)
        assert set(over_cores(os.getenv, ["WORKER_TEST"] * 2, 2)) == {value}


def test_little_work_starts_no_process() -> None:
    assert seats(None, 16, SEAT_BYTES) == 1 and seats(4, 16, 100 * SEAT_BYTES) == 4 and seats(4, 3, 100 * SEAT_BYTES) == 3


@pytest.mark.parametrize("stage", stages.STAGES, ids=lambda stage: stage.name)
def test_a_stage_goes_to_a_worker_by_its_name(stage: Stage) -> None:
    assert pickle.loads(pickle.dumps(stage)) is stage
