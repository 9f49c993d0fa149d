"""`python -m eagle3_assets.kimi_mini COMMAND`: makes the room's committed files again, or says what they are.

Belongs here: the commands' names and what they print. Does not belong here: how anything is made. Users never need these.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3_assets.errors import Eagle3Error
from eagle3_assets.kimi_mini import bank, demo_data, model, tokenizer


def _make_all() -> dict[str, Any]:
    made = {"tokenizer": tokenizer.write_tokenizer()}
    tokenizer.load_encoding.cache_clear()
    return made | {"bank": bank.write_bank(), "demo_data": demo_data.write_demo_data()}


COMMANDS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "train-tokenizer": ("train the BPE and write tiktoken.model and tokenizer_config.json", tokenizer.write_tokenizer),
    "make-bank": ("make the bank of answers (after the tokenizer)", bank.write_bank),
    "make-demo-data": ("write the demo campaign's source files (after the tokenizer)", demo_data.write_demo_data),
    "make-all": ("the three above, in order", _make_all),
    "describe": ("build the model and print its facts and fingerprint", model.describe),
    "statistics": ("figures of the committed bank", lambda: bank.statistics(bank.load_bank())),
}


def main(arguments: list[str] | None = None) -> int:
    listing = "\n".join(f"  {name:<16} {text}" for name, (text, _) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=f"python -m {Path(__file__).parent.parent.name}.kimi_mini",
        description="Make Kimi-mini's committed files again (seeded: the same bytes each time).",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    command = parser.parse_args(arguments).command
    try:
        figures = COMMANDS[command][1]()
    except Eagle3Error as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
