"""`eagle3 new-profile`: a profile of any model from what its publisher ships, measured and not guessed.

Belongs here: where the files come from, the questions, what was written. Does not belong here: measurements (`exact/new_profile.py`).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from eagle3_assets.errors import ExactError
from eagle3_assets.store import data_root

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def command(
    source: Annotated[
        str, typer.Argument(help="A folder with the publisher's files, or the hub's OWNER/MODEL.", metavar="FOLDER|HUB_ID")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The profile's name (default: the model's, in small letters).")
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Regular expression over model slugs that it answers for; may be given again."),
    ] = None,
    answers: Annotated[
        list[str] | None, typer.Option("--answer", help="KEY=VALUE: the answer to a question, without being asked.")
    ] = None,
    revision: Annotated[str, typer.Option("--revision", help="Branch, tag or commit of the hub's repository.")] = "main",
) -> None:
    """Read what a publisher ships (tokenizer, its config, chat template, generation config) and write a profile with every fact measured.
    What the files leave open is asked in one line each; without a terminal it is written as a TODO line, and the command ends with 1.

    Examples: `eagle3 new-profile ./SmolLM2-135M-Instruct` · `eagle3 new-profile zai-org/GLM-4.6 --answer turn.end='<|user|>'`
    """
    from eagle3_assets.exact.new_profile import FILES, answer, measure, toml_of
    from eagle3_assets.targets.profile_facts import PROFILE_FILE, PROFILES_DIR

    path = Path(source)
    hub = None if path.is_dir() else source
    if hub is not None and not _HUB_ID.fullmatch(hub):
        raise ExactError(f"{source}: is no folder and no OWNER/MODEL of the hub; give one of them")
    called = name or re.sub(r"[^a-z0-9.]+", "-", (path.resolve().name if hub is None else hub.split("/")[1]).lower()).strip("-")
    if (PROFILES_DIR / called).is_dir():
        raise ExactError(f"{called}: is a profile of the package already; give another --name")
    folder = data_root() / "tokenizers" / called
    target = folder / PROFILE_FILE
    if target.is_file():
        raise ExactError(f"{target}: is there already; remove it, or give another --name")
    folder.mkdir(parents=True, exist_ok=True)
    if hub is not None:
        _fetch(hub, revision, folder, FILES)
    else:
        for file in FILES:
            if (path / file).is_file() and (path / file).resolve() != (folder / file).resolve():
                shutil.copyfile(path / file, folder / file)
    measured = measure(folder, called, list(models or [rf"(?i)(^|/){re.escape(called)}(:[\w.-]+)?$"]), hub)
    given = _given(answers or [])
    for question in list(measured.questions):
        text = given.pop(question.key, None)
        if text is None and sys.stdin.isatty():
            choices = f" ({', '.join(question.choices)})" if question.choices else ""
            text = typer.prompt(f"{question.line}{choices}")
        if text is not None:
            answer(measured, question, text)
    if given:
        raise ExactError(
            f"--answer {next(iter(given))}: nothing asks for it; open are {', '.join(q.key for q in measured.questions) or 'none'}"
        )
    target.write_text(toml_of(measured), encoding="utf-8")
    typer.echo(f"{target}: written")
    if measured.questions:
        for question in measured.questions:
            typer.echo(f"TODO {question.key}: {question.line}")
        typer.echo(f"{called}: answer the TODO lines in the file, or remove it and run again with --answer KEY=VALUE")
        raise typer.Exit(1)
    _prove(called, folder)


def _prove(name: str, folder: Path) -> None:
    from eagle3_assets.exact.new_profile import grammar_faults, write_golden
    from eagle3_assets.targets.tokenizer import load_profile

    profile = load_profile(name)
    faults = grammar_faults(profile)
    golden = write_golden(profile, folder)
    for line in _summary(profile):
        typer.echo(line)
    for fault in faults:
        typer.echo(f"note: {fault}")
    typer.echo(f"{golden}: recorded with the publisher's own library; `tokenizer_probe` holds the profile against it")


def _summary(profile: Any) -> list[str]:
    facts = profile.facts
    return [
        f"{profile.name}: {profile.n_vocab} ids, run by {facts.tokenizer.encoder}, end of turn {facts.turn.end} = {profile.end_id}",
        f"reasoning: {facts.reasoning.opened_by}{f', switch {facts.template.switch}' if profile.instant else ''}; tools: {facts.tools.form}; "
        f"prompts: {facts.template.kind}",
    ]


def _given(answers: list[str]) -> dict[str, str]:
    found = {}
    for text in answers:
        key, equals, value = text.partition("=")
        if not equals:
            raise ExactError(f"--answer {text}: expected KEY=VALUE, turn.end='<|im_end|>' say")
        found[key] = value
    return found


def _fetch(hub: str, revision: str, folder: Path, files: tuple[str, ...]) -> None:
    from eagle3_assets.cli.fetch_tokenizer import fetch_file, file_url
    from eagle3_assets.targets.facts import HubFile

    for file in files:
        done = fetch_file(
            file_url(hub, revision, file), folder / file, HubFile(name=file, optional=True), lambda got, total: None
        )
        typer.echo(f"{folder / file}: {done}")
