"""Claims about deploy/: every file there parses, names things that exist, and does what its head says as far as that needs no cluster.

Belongs here: what needs neither Docker, Kubernetes nor Slurm; their own programs judge too where they are installed.
Does not belong here: several hosts (`cluster/`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_assets.campaign import SHARDS
from eagle3_assets_tests.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
SLURM = sorted((DEPLOY / "slurm").glob("*.sbatch"))


def _compose() -> list[str] | None:
    """Compose as a plugin or as the older program, whichever is here."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            return command
    return None


COMPOSE = _compose()


def _yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def _env_of_home() -> set[str]:
    """The variables that dagster-postgres.yaml reads."""
    return set(re.findall(r"env: (\w+)", (DEPLOY / "dagster-postgres.yaml").read_text()))


# ------------------------------------------------------------------------------------------------ compose
@pytest.mark.skipif(COMPOSE is None, reason="docker compose is not installed")
def test_compose_itself_takes_the_file_and_asks_for_the_password() -> None:
    assert COMPOSE is not None
    command = [*COMPOSE, "-f", str(DEPLOY / "compose.yaml"), "config"]
    without = {k: v for k, v in os.environ.items() if k != "EAGLE3_PG_PASSWORD"}
    done = subprocess.run(command, capture_output=True, text=True, env={**without, "EAGLE3_PG_PASSWORD": "x"})
    assert done.returncode == 0, done.stderr
    refused = subprocess.run(command, capture_output=True, text=True, env=without)
    assert refused.returncode != 0 and "a password for Dagster's database" in refused.stderr


def test_compose_gives_every_dagster_process_the_same_state_data_and_database() -> None:
    services = _yaml("compose.yaml")["services"]
    for name in ("code", "daemon", "webserver"):
        assert set(services[name]["environment"]) >= _env_of_home() | {"DAGSTER_HOME", "EAGLE3_DATA", "EAGLE3_CAMPAIGN"}
        mounted = [v.split(":")[0] for v in services[name]["volumes"] if v.startswith("./")]
        assert len(mounted) == 2 and all((DEPLOY / path).is_file() for path in mounted)
    assert [n for n, s in services.items() if "OPENROUTER_API_KEY" in s["environment"]] == ["code"], (
        "the key goes where runs are, nowhere else"
    )
    assert all(port.startswith("127.0.0.1:") for s in services.values() for port in s.get("ports", ()))


def test_code_is_served_where_the_workspace_looks_for_it() -> None:
    command = _yaml("compose.yaml")["services"]["code"]["command"]
    [location] = _yaml("compose-workspace.yaml")["load_from"]
    assert location["grpc_server"]["port"] == int(command[command.index("-p") + 1])
    assert location["grpc_server"]["host"] == "code"
    assert importlib.util.find_spec(command[command.index("-m") + 1])


def test_the_dockerfile_copies_what_exists() -> None:
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (REPOSITORY / source).exists(), source


# ------------------------------------------------------------------------------------------------ kubernetes
def test_a_gpu_runs_tags_are_what_dagster_k8s_reads() -> None:
    tags = _yaml("k8s-gpu-tags.yaml")
    assert list(tags) == ["dagster-k8s/config"]
    config = tags["dagster-k8s/config"]
    assert config["container_config"]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    if importlib.util.find_spec("dagster_k8s") is None:
        pytest.skip("dagster-k8s is not installed: the shape alone was looked at")
    from dagster_k8s.job import UserDefinedDagsterK8sConfig

    assert UserDefinedDagsterK8sConfig.from_dict(config).pod_spec_config["node_selector"]


def test_helm_values_start_our_code_with_the_key_as_a_secret() -> None:
    values = _yaml("k8s-values.yaml")
    [deployment] = values["dagster-user-deployments"]["deployments"]
    assert importlib.util.find_spec(deployment["dagsterApiGrpcArgs"][1])
    launcher = values["runLauncher"]["config"]["k8sRunLauncher"]
    assert {"name": "openrouter"} in launcher["envSecrets"]
    assert "OPENROUTER_API_KEY" not in yaml.safe_dump(values), "a key stands in no values file"


# ------------------------------------------------------------------------------------------------ slurm
@pytest.mark.parametrize("script", SLURM, ids=lambda p: p.name)
def test_a_job_script_is_shell_and_its_options_are_sbatchs(script: Path, tmp_path: Path) -> None:
    assert subprocess.run(["bash", "-n", script], capture_output=True).returncode == 0
    options = re.findall(r"(?m)^#SBATCH --([a-z-]+)", script.read_text())
    assert options
    if shutil.which("sbatch"):
        conf = tmp_path / "slurm.conf"
        conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=localhost\n")  # sbatch says nothing without one
        known = subprocess.run(
            ["sbatch", "--help"], capture_output=True, text=True, env={**os.environ, "SLURM_CONF": str(conf)}
        ).stdout
        assert not [o for o in options if f"--{o}" not in known]


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 16])
def test_the_tasks_of_an_array_do_every_shard_once(tasks: int, tmp_path: Path) -> None:
    """Slurm's `srun` replaced by one that writes what it was asked to do."""
    asked = tmp_path / "asked"
    fake = tmp_path / "srun"
    fake.write_text(f'#!/bin/bash\necho "$@" >> {asked}\n')
    fake.chmod(0o755)
    for task in range(tasks):
        env = {
            **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "STAGE": "answers", "DATASETS": "b3_magicoder b8_sweagent",
            "DAGSTER_HOME": "/h", "EAGLE3_DATA": "/d", "EAGLE3_CAMPAIGN": "c", "SLURM_ARRAY_TASK_COUNT": str(tasks), "SLURM_ARRAY_TASK_ID": str(task),
        }  # fmt: skip
        done = subprocess.run(["bash", DEPLOY / "slurm/shards.sbatch"], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    lines = asked.read_text().splitlines() if asked.exists() else []
    done_shards: list[str] = []
    for line in lines:
        assert "--select answers/b3_magicoder,answers/b8_sweagent " in line
        first, last = re.search(r"--partition-range (\d\d)\.\.\.(\d\d)", line).groups()  # type: ignore[union-attr]
        done_shards += SHARDS[SHARDS.index(first) : SHARDS.index(last) + 1]
    assert done_shards == list(SHARDS)


def test_a_job_without_its_variables_names_the_first_that_is_missing() -> None:
    env = {"PATH": os.environ["PATH"], "STAGE": "answers"}
    done = subprocess.run(["bash", DEPLOY / "slurm/shards.sbatch"], env=env, capture_output=True, text=True)
    assert done.returncode != 0 and "DATASETS: names as in the campaign file" in done.stderr
