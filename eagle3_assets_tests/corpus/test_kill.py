"""`kill -9` at any step of a rebuild: the old corpus is whole and readable, and the next build succeeds."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_assets import corpus as corpora
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.verify_corpus import judge_corpus
from eagle3_assets.store import Store, digest_file
from eagle3_assets_tests.review.made_rows import make_row, tiny_campaign, write_tokens

# Runs in a process of its own and kills itself, without a chance to tidy up, when an operating system call is about to be made.
_VICTIM = """
import os, signal, sys
from pathlib import Path
from eagle3_assets.corpus.merge import TokenFile, build_corpus
from eagle3_assets.store import Store, digest_file
from eagle3_assets_tests.review.made_rows import tiny_campaign

root, event, nth = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = Store(root)
files = [TokenFile("b3_magicoder", "00", p, digest_file(p)) for p in [root / "next.parquet"]]
seen = 0

def hook(name, args):
    global seen
    if name == event and any(isinstance(a, (str, bytes, os.PathLike)) and str(root) in str(a) for a in args):
        seen += 1
        if seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
build_corpus(tiny_campaign(), store, files)
print(seen)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "nth"),
    [("open", 6), ("open", 14), ("os.remove", 1), *(("os.rename", n) for n in (1, 2, 3, 4))],
)
def test_the_old_corpus_or_the_new_one_is_there_after_a_kill(tmp_path: Path, event: str, nth: int) -> None:
    store = Store(tmp_path)
    build_corpus(tiny_campaign(), store, [write_tokens(store, "b3_magicoder", "00", [make_row(i) for i in range(40)])])
    second = write_tokens(Store(tmp_path / "aside"), "b3_magicoder", "00", [make_row(i) for i in range(30)])
    (tmp_path / "next.parquet").write_bytes(second.path.read_bytes())
    victim = subprocess.run(
        [sys.executable, "-c", _VICTIM, str(tmp_path), event, str(nth)], capture_output=True, text=True, check=False
    )
    assert victim.returncode == -signal.SIGKILL, victim.stdout + victim.stderr
    found = corpora.open(store.corpus)
    assert len(found) in (30, 40) and all(v.passed for v in judge_corpus(store))
    assert all(digest_file(found.path / name) == facts["xxh3"] for name, facts in found.manifest["files"].items())
    build_corpus(tiny_campaign(), store, [second])
    assert len(corpora.open(store.corpus)) == 30 and not [p for p in tmp_path.glob(".corpus.*") if p.is_dir()]
