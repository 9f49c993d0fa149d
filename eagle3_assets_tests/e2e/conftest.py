"""Whole runs from outside: the installed commands in a folder of their own.

Belongs here: the folder, running a command, small campaigns. Does not belong here: claims.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eagle3_assets.campaign import CAMPAIGNS_DIR
from eagle3_assets_tests.conftest import REPOSITORY
from openrouter_standin.service.launcher import stop

BIN = Path(sys.executable).parent
KEYLESS = {"OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "EAGLE3_CAMPAIGN", "EAGLE3_DATA", "DAGSTER_HOME"}


@dataclass
class Place:
    """A folder like a fresh checkout: Dagster's files, no state."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in KEYLESS}
        return {**kept, "OMP_NUM_THREADS": "2", "COLUMNS": "200", "PYTHONWARNINGS": "ignore", **self.env, **more}

    def run(self, *command: str, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `command` (its first word from this environment's bin) to its end."""
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder, env=self.environment(**env), capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip

    def start(self, *command: str, **env: str) -> subprocess.Popen[str]:
        """Start `command` in a session of its own, so that a signal reaches it alone."""
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder, env=self.environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a runner may have it ignored
        )  # fmt: skip

    def root(self, campaign: str) -> Path:
        return self.folder / "data" / campaign

    def close(self) -> None:
        for standin in self.folder.glob("data/*/standin"):
            stop(standin)


def new_place(folder: Path) -> Place:
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / "deploy").symlink_to(REPOSITORY / "deploy")
    return Place(folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    here = new_place(tmp_path)
    yield here
    here.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The demo campaign, run once for all tests that only look at it."""
    here = new_place(tmp_path_factory.mktemp("demo"))
    done = here.run("eagle3", "run", timeout=600)
    assert done.returncode == 0, done.stderr
    yield here
    here.close()


def small_campaign(
    folder: Path,
    name: str,
    *,
    datasets: tuple[str, ...] = ("b3_magicoder",),
    rows: int | None = 24,
    real: bool = False,
    **replaced: str,
) -> Path:
    """A campaign file made from the demo's text: fewer datasets and rows (None: the demo's); `real` = server.kind openrouter."""
    text = (CAMPAIGNS_DIR / "demo.toml").read_text()
    text = re.sub(r"(?m)^validation_share = .*\n", "", text[: text.index("[drafter]")])  # no drafter: half a minute a campaign
    head, *tables = re.split(r"(?m)^(?=\[\[dataset\]\])", text)
    last, tail = re.split(r"(?m)^(?=\[\[engine\]\])", tables.pop())
    kept = [t for t in [*tables, last] if re.search(r'name = "(\w+)"', t)[1] in datasets]  # type: ignore[index]
    body = "".join(re.sub(r"(?m)^rows = \d+", f"rows = {rows}", t) if rows else t for t in kept)
    text = head + body + ("" if real else tail)
    if real:
        text += tail[tail.index("[corpus]") :]
        text = text.replace('kind = "embedded"', 'kind = "openrouter"').replace("approved_usd", "# approved_usd")
    text = re.sub(r"(?m)^answers = .*\n", "" if real else 'answers = "bank"\n', text)  # no model: seconds, not half a minute
    text = text.replace('name = "demo"', f'name = "{name}"').replace('path = "demo_data/', f'path = "{CAMPAIGNS_DIR}/demo_data/')
    for old, new in replaced.items():
        text, count = re.subn(rf"(?m)^{old} = .*$", f"{old} = {new}", text)
        assert count, old
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return [line for line in done.stderr.splitlines() if line.strip()][-1]


def kill_nine(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
