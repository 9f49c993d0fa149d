"""Claims about beginning in an empty folder: what `eagle3 init` writes, and that a wheel alone is enough."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from eagle3_assets.campaign import load_campaign
from eagle3_assets.cli import main
from eagle3_assets.cli.init import FOLDER_FILES
from eagle3_assets_tests.conftest import REPOSITORY


def test_the_folders_dagster_files_are_the_repositorys() -> None:
    for name in ("dagster.yaml", "workspace.yaml"):
        assert (FOLDER_FILES / name).read_bytes() == (REPOSITORY / name).read_bytes(), name


@pytest.mark.parametrize(("args", "name"), [([], "kimi-k2.5"), (["--demo"], "demo")])
def test_a_new_folder_holds_a_campaign_that_is_found_without_a_word(
    args: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EAGLE3_CAMPAIGN", raising=False)
    assert main.run(["init", *args, str(tmp_path / "mine")]) == 0
    assert "next: cd" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "mine")
    campaign = load_campaign()
    assert campaign.name == name and campaign.path == Path("campaign.toml")
    assert {"dagster.yaml", "workspace.yaml", ".gitignore", "README.md"} <= {p.name for p in Path().iterdir()}


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert main.run(["init", str(tmp_path)]) == 1
    assert "README.md: is there already; nothing was written" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"] and (tmp_path / "README.md").read_text() == "mine"


def test_an_unknown_target_names_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["init", str(tmp_path / "x"), "--target", "llama"]) == 2
    assert "known are kimi-k2.5" in capsys.readouterr().err and not (tmp_path / "x").exists()


@pytest.mark.slow
def test_what_an_extra_brings_is_named_where_it_is_missing(tmp_path: Path) -> None:
    """A collector's machine has no torch; asked for states it says what to install."""
    code = (
        "import sys, importlib.util as u; sys.path.insert(0, sys.argv.pop(1)); found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest)\n"
        "from eagle3_assets.installed import require_installed, STATES\n"
        "require_installed(STATES, 'hidden_states partition 00000')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(REPOSITORY)], capture_output=True, text=True, cwd=tmp_path)
    assert (
        "hidden_states partition 00000 needs torch, which this machine does not have; install the extra: `pip install"
        in done.stderr
    )


@pytest.mark.e2e
def test_wheels_in_a_fresh_environment_make_the_demo_in_an_empty_folder(tmp_path: Path) -> None:
    """Both wheels are built from the tree; the environment takes their dependencies from this one, and nothing from the checkout."""
    wheels, environment = tmp_path / "wheels", tmp_path / "env"
    for project in (REPOSITORY, REPOSITORY / "standin"):
        copy = tmp_path / f"source-{project.name}"
        subprocess.run(
            ["git", "-C", str(REPOSITORY), "checkout-index", "-a", f"--prefix={copy}/"], check=True
        )  # the tree as it is committed or staged, without what a build left behind
        source = copy if project == REPOSITORY else copy / "standin"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                str(wheels),
                str(source),
            ],
            check=True,
        )
    built = sorted(wheels.glob("*.whl"))
    assert [w.name.split("-")[0] for w in built] == ["eagle3_assets", "openrouter_standin"]
    inside = zipfile.ZipFile(built[0]).namelist()
    assert {
        "eagle3_assets/campaigns/folder/dagster.yaml",
        "eagle3_assets/stages/columns.toml",
        "eagle3_assets/view/static/index.html",
    } <= set(inside)
    assert not [name for name in inside if name.startswith(("eagle3_assets_tests", "standin", "kimi_mini"))]

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next(environment.glob("lib/python3*/site-packages"))
    for wheel in built:
        zipfile.ZipFile(wheel).extractall(packages)
    (packages / "libraries.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # behind its own: the wheels win over the checkout
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EAGLE3_") and k not in ("PYTHONPATH", "DAGSTER_HOME")}
    folder = tmp_path / "mine"

    def eagle3(*arguments: str, cwd: Path) -> str:
        done = subprocess.run(
            [str(environment / "bin" / "python"), "-W", "ignore", "-m", "eagle3_assets", *arguments],
            cwd=cwd, env={**kept, "COLUMNS": "200"}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    eagle3("init", "--demo", str(folder), cwd=tmp_path)
    eagle3("run", "--until", "report", cwd=folder)
    from openrouter_standin.service.launcher import stop

    stop(folder / "data" / "demo" / "standin")
    assert "report" in eagle3("status", cwd=folder)
    assert "rows" in eagle3("view", "--export", "review", cwd=folder) and (folder / "review" / "index.html").exists()
    where = subprocess.run(
        [str(environment / "bin" / "python"), "-c", "import eagle3_assets; print(eagle3_assets.__file__)"],
        cwd=folder, env=kept, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(environment) in where.stdout
