"""`python -m openrouter_standin`: the detached server process that `launcher.ensure_running` starts.

Belongs here: detaching and telling the parent. People use `openrouter-standin`, or `eagle3 standin serve`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from openrouter_standin.errors import USER_ERRORS
from openrouter_standin.service.process import Settings, run_server

READY = b"ready\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="openrouter_standin")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--profiles", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--answers", choices=("bank", "live"))
    parser.add_argument("--nonce", required=True)
    parser.add_argument("--ready-fd", type=int, required=True, help="pipe to the parent: one line when requests are accepted")
    args = parser.parse_args()
    if os.fork():  # the parent waits for this process only, the server belongs to nobody: no zombie, no signal of the parent's
        os._exit(0)
    try:
        settings = Settings(args.folder, args.profiles, args.seed, answers=args.answers)
        run_server(settings, nonce=args.nonce, ready=lambda *_: _tell(args.ready_fd))
    except USER_ERRORS as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def _tell(fd: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent gave up waiting; the next caller finds the port file
        os.write(fd, READY)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
