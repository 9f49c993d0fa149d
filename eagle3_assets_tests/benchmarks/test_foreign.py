"""`benchmarks/foreign`: an independent writing of model, template and providers, and the two benchmarks over it. How right the platform is
in these worlds is the benchmarks' own figure."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks import foreign_log, foreign_worlds  # noqa: E402
from benchmarks.foreign import cases, model, sent  # noqa: E402
from benchmarks.foreign.habits import HABITS  # noqa: E402
from eagle3_assets.exact.prompt_side.render import render_prompt  # noqa: E402
from eagle3_assets.targets.tokenizer import load_profile  # noqa: E402
from eagle3_assets_tests.conftest import (  # noqa: E402
    TOKENIZERS,
    needs,
    shared_data,
)

AT = sent.DAY


@pytest.fixture(scope="module")
def made() -> model.Model:
    return model.load(needs(TOKENIZERS) / "kimi-k2.5")


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_SHARED_DATA", str(shared_data().resolve()))


def test_the_foreign_model_imports_nothing_of_the_platform() -> None:
    for path in (ROOT / "benchmarks" / "foreign").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("eagle3_assets") for name in names), path


@pytest.mark.slow
def test_two_writings_of_template_and_encoder_agree(made: model.Model) -> None:
    k25 = load_profile("kimi-k2.5", TOKENIZERS)
    rng = Random(3)
    for _ in range(60):
        case = cases.make_case(made, cases.Manner(), rng)
        request = case.request
        rendered = render_prompt(k25, request["messages"], request.get("tools"), thinking=case.thinking)
        assert case.prompt_ids(made) == tuple(rendered)
        assert made.encode(case.reasoning) == k25.encode(case.reasoning) and made.encode(case.content) == k25.encode(case.content)


@pytest.mark.slow
def test_whatever_a_world_does_its_truth_spells_what_the_model_wrote(made: model.Model) -> None:
    for name, mechanism in foreign_worlds.KNOWN.items():
        rng = Random(name)
        for _ in range(6):
            case = cases.make_case(made, cases.Manner(), rng)
            told = mechanism(sent.Scene(case, made, rng, AT))
            ordinary = [token for token in told.completion_ids if token < 163584]
            if ordinary or name != "one in five by another model":
                calls = [made_id + arguments for made_id, (_, arguments) in zip(case.call_ids(), case.calls, strict=True)]
                assert made.encoding.decode(ordinary) == "".join((case.reasoning, case.content, *calls)), name


def test_tokens_off_the_path_are_the_same_bytes_in_other_ids(made: model.Model) -> None:
    ids = made.encode("A careful river market keeps 1,234 unusual signals — in São-Paulo." * 4)
    off = made.off_path(ids, 0.3, Random(0))
    assert off != ids and made.encoding.decode(off) == made.encoding.decode(ids) and made.off_path(ids, 0.0, Random(0)) == ids


@pytest.mark.slow
def test_a_verbatim_provider_is_decided_and_nothing_of_it_is_wrong(made: model.Model) -> None:
    args = foreign_worlds.parse(["--rows", "80", "--background", "60", "--id-rows", "120"])
    figures = foreign_worlds.measure("habit: verbatim", args)
    assert figures.decided and figures.sure >= 0.8 * figures.rows and figures.sure_wrong == 0 and not figures.fails
    assert figures.changed <= 0.1 * figures.rows and figures.grades.total() == figures.rows


@pytest.mark.slow
def test_a_bill_that_counts_something_else_is_never_trusted(made: model.Model) -> None:
    args = foreign_worlds.parse(["--rows", "80", "--background", "60", "--id-rows", "120"])
    figures = foreign_worlds.measure("bill words x 1.3", args)
    assert not figures.decided and figures.sure == 0 and figures.changed > 0.9 * figures.rows


@pytest.mark.slow
def test_what_no_count_shows_is_counted_as_silent(made: model.Model) -> None:
    args = foreign_worlds.parse(["--rows", "80", "--background", "20", "--id-rows", "40"])
    figures = foreign_worlds.measure("words by synonyms", args)
    assert 0 < 0.7 * figures.changed < figures.silent <= figures.changed < figures.rows
    assert foreign_worlds.Figures("x", changed=10, silent=9).cannot_be_seen
    assert not foreign_worlds.Figures("x", changed=10, silent=8).cannot_be_seen and not foreign_worlds.Figures("x").cannot_be_seen


def test_there_are_worlds_enough_and_a_wrong_name_is_an_error() -> None:
    assert len(foreign_worlds.OUTSIDE) >= 30 and not set(foreign_worlds.OUTSIDE) & set(HABITS)
    assert foreign_worlds.asked("bill up to 4,nfkc") == ["bill up to 4", "NFKC"]
    with pytest.raises(SystemExit, match="no world is called"):
        foreign_worlds.asked("flat earth")


@pytest.mark.slow
def test_a_small_foreign_log_is_written_learned_and_compared(
    made: model.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--lines", "90", "--id-lines", "40", "--keep", str(tmp_path), "--json", str(tmp_path / "figures.json")]
    figures = foreign_log.main(arguments)
    assert set(figures) == {*HABITS, "engine with ids"} and sum(f.rows for f in figures.values()) == 130
    assert figures["engine with ids"].sure == figures["engine with ids"].sure_exact > 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 130 and "lines in" in capsys.readouterr().out
    assert json.loads((tmp_path / "figures.json").read_text())["run"]["seconds"] > 0
