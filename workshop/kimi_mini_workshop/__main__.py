"""`python -m kimi_mini_workshop COMMAND`: trains, measures and makes the room's committed files again, or says what they are.

Belongs here: the commands' names, their options and what they print. Does not belong here: how anything is made. Users never need
these.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kimi_mini import bank, model, tokenizer
from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import card, demo_data, evaluate, make_bank, train_tokenizer, world
from kimi_mini_workshop.train import Recipe

DEFAULT_RUN = Path("data/kimi-mini-training")


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    from kimi_mini_workshop import train

    recipe = replace(Recipe(), seed=arguments.seed, steps=arguments.steps)
    print(f"training in {arguments.folder}; interrupt and run again to go on from the last checkpoint", file=sys.stderr)
    trained = train.train(arguments.folder, recipe, report=lambda line: print(json.dumps(line), file=sys.stderr, flush=True))
    saved = model.save_model(trained, arguments.out)
    summary = train.summary(arguments.folder, recipe) | {"model_sha256": saved["sha256"]}
    (arguments.out / card.TRAINING_FILE).write_text(json.dumps(summary, indent=2) + "\n")
    return saved


def _evaluate(arguments: argparse.Namespace) -> dict[str, Any] | None:
    quiet()
    loaded = model.load_model(arguments.model)
    figures = evaluate.evaluate(
        loaded, arguments.conversations, seed=arguments.seed, progress=lambda line: print(line, file=sys.stderr, flush=True)
    )
    figures |= {"model_sha256": model.weights_sha256(arguments.model)}
    if arguments.write:
        (arguments.model / card.EVALUATION_FILE).write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.json:
        return figures
    print(evaluate.table(figures))
    return None


def _make_all(_: argparse.Namespace) -> dict[str, Any]:
    made = {"tokenizer": train_tokenizer.write_tokenizer()}
    tokenizer.load_encoding.cache_clear()
    quiet()
    return made | {"demo_data": demo_data.write_demo_data(), "bank": make_bank.write_bank()}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(text)


def quiet() -> None:
    """No progress bar of transformers for eight megabytes."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


Command = Callable[[argparse.Namespace], dict[str, Any] | None]
COMMANDS: dict[str, tuple[str, Command]] = {
    "evaluate": ("figures on held-out prompts (a few minutes)", _evaluate),
    "train": ("train the model from its world (an hour on two cores alone; goes on where it was interrupted)", _train),
    "train-tokenizer": (
        "train the BPE and write tiktoken.model and tokenizer_config.json",
        lambda _: train_tokenizer.write_tokenizer(),
    ),
    "make-bank": ("sample the bank of answers (after the model)", lambda _: make_bank.write_bank()),
    "make-demo-data": ("write the demo campaign's source files (after the model)", lambda _: demo_data.write_demo_data()),
    "make-all": ("tokenizer, demo data and bank, for the committed model", _make_all),
    "write-card": ("put the measured figures into README.md", lambda _: card.write_card()),
    "describe": ("facts of the committed model", lambda _: model.describe()),
    "world": ("figures of the world", lambda _: world.describe()),
    "statistics": ("figures of the committed bank", lambda _: make_bank.statistics(bank.load_bank())),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kimi_mini_workshop",
        description="Train and measure Kimi-mini, and make its committed files again.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, _) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == "train":
            command.add_argument("--folder", type=Path, default=DEFAULT_RUN, help="checkpoints and log (default: %(default)s)")
            command.add_argument(
                "--out", type=Path, default=model.MODEL_FOLDER, help="where the weights go (default: the package)"
            )
            command.add_argument("--steps", type=_positive, default=Recipe().steps)
            command.add_argument("--seed", type=int, default=Recipe().seed)
        if name == "evaluate":
            command.add_argument("--model", type=Path, default=model.MODEL_FOLDER, help="folder (default: the committed model)")
            command.add_argument("--conversations", type=_positive, default=evaluate.CONVERSATIONS, help="default: %(default)s")
            command.add_argument("--seed", type=int, default=evaluate.SEED, help="of the held-out draw (default: %(default)s)")
            command.add_argument("--json", action="store_true", help="print all figures as JSON")
            command.add_argument("--write", action="store_true", help="also write evaluation.json beside the weights")
    return parser


def main(arguments: list[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        figures = COMMANDS[parsed.command][1](parsed)
    except KimiMiniError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if figures is not None:
        print(json.dumps(figures, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
