"""The stand-in is a package of its own: it serves where neither the platform nor torch can be imported."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

ALONE = "import sys; sys.modules['eagle3_assets'] = sys.modules['torch'] = None; from openrouter_standin.cli import main; main()"


@pytest.mark.slow
def test_it_serves_the_official_client_without_the_platform_and_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALONE, "--port", "0", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        head = "".join(server.stdout.readline() for _ in range(5))
        url, key = re.search(r"base URL +(\S+)", head)[1], re.search(r"key +(\S+)", head)[1]  # type: ignore[index]
        client = openai.OpenAI(base_url=url, api_key=key)
        model = next(iter(client.models.list())).id
        said = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=40)
        server.send_signal(signal.SIGINT)
        rest, _ = server.communicate(timeout=30)
    assert said.choices[0].message.content and said.usage and said.usage.completion_tokens
    assert rest.endswith("stopped; the ledger is kept\n")
    assert (tmp_path / "truth.jsonl").read_text().count("\n") == 1


def test_a_mistake_of_its_user_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALONE, "--profiles", str(tmp_path / "none.toml"), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"openrouter-standin: {tmp_path / 'none.toml'}: cannot be read (No such file or directory); give a stand-in profiles TOML\n"
    )
