"""What-ifs: a right one changes what it says, a wrong one is one line that says what would be right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.cli import main
from eagle3_assets.errors import UsageError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.estimate.page import as_markdown, sections, size_text
from eagle3_assets.estimate.picture import MAX_BYTES, draw_plan, states_by_cap
from eagle3_assets.estimate.scenario import SETTINGS, Scenario, change, scenario_of, scenario_of_json, usual_what_ifs


@pytest.fixture(scope="module")
def real() -> Campaign:
    return load_campaign("kimi-k2.5")


def changed(real: Campaign, *settings: str) -> Scenario:
    return change(scenario_of(real), settings, [d.name for d in real.dataset])


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max_length=8192", "max_length", 8192),
        ("max_length = 8K", "max_length", 8192),
        ("max_length=none", "max_length", None),
        ("layers=3", "layers", 3),
        ("lossless=yes", "lossless", True),
        ("budget=1_50.5", "budget", 150.5),
        ("tokens_a_dataset=10M", "tokens_a_dataset", 1e7),
        ("served=local", "served", "local"),
        ("price=0", "price", 0.0),
        ("handoff_files=both", "handoff_files", ("speculators", "specforge")),
        ("without=b3_magicoder", "without", ("b3_magicoder",)),
    ],
)
def test_a_setting_changes_itself_and_nothing_else(real: Campaign, text: str, name: str, value: object) -> None:
    before, after = scenario_of(real), changed(real, text)
    assert getattr(after, name) == value
    assert [n for n in SETTINGS if getattr(after, n) != getattr(before, n)] in ([name], [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_lenght=8192", "did you mean 'max_length'?"),
        ("bogus=1", "known names: max_length, too_long"),
        ("max_length", "expected max_length=VALUE, where VALUE is a whole number"),
        ("max_length=", "expected max_length=VALUE"),
        ("max_length=1.5", "a whole number of 2 or more, 8K, or none"),
        ("max_length=1e400", "a whole number of 2 or more"),
        ("tokens_a_dataset=1e307", "a number of tokens, e.g. 10M"),
        ("tokens_per_s=1e-320", "a number above 0"),
        ("price=1e308", "USD, 0 or more"),
        ("budget=nan", "USD above 0"),
        ("budget=-3", "USD above 0"),
        ("layers=5", "3 or 3+1"),
        ("served=cloud", "rented or local"),
        ("without=b9", "there is no dataset 'b9'; there are a1_deepswekimi"),
        ("=", "unknown name ''"),
    ],
)
def test_a_wrong_what_if_is_one_line_that_says_what_would_be_right(
    real: Campaign, text: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        changed(real, text)
    assert words in str(caught.value) and "\n" not in str(caught.value) and f"--what-if {text}" in str(caught.value)
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    assert main.run(["plan", "--what-if", text]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "Traceback" not in shown.err and not shown.out


def test_datasets_left_out_add_up_and_leave_the_others_alone(real: Campaign) -> None:
    plan = planning.outline_plan(real, 10**13)
    names = [d["dataset"] for d in plan["datasets"]]
    one_by_one = [planning.what_if(real, plan, [f"without={n}" for n in names if n != name]) for name in names]
    assert sum(c["usd"]["expected"] for c in one_by_one) == pytest.approx(plan["usd"]["expected"])
    assert sum(c["kept"]["tokens"] for c in one_by_one) == plan["kept"]["tokens"]
    nothing = planning.what_if(real, plan, [f"without={n}" for n in names])
    assert nothing["kept"]["tokens"] == 0 and nothing["states"]["bytes"] == 0 and nothing["usd"]["fits"]


def test_every_plan_shows_the_usual_what_ifs_and_none_that_changes_nothing(real: Campaign, campaign: Campaign) -> None:
    plan = planning.outline_plan(real, 10**13)
    asked = {", ".join(c["settings"]) for c in plan["what_if"]}
    assert asked >= {"max_length=4096", "max_length=8192", "max_length=16384", "without=a1_deepswekimi", "layers=3", "lossless=yes",
                     "budget=50", "budget=150", "tokens_a_dataset=10M", "served=local"}  # fmt: skip
    assert "max_length=none" not in asked and "budget=100" not in asked  # as the campaign stands
    demo = planning.outline_plan(campaign, 10**13)
    assert not any("tokens_a_dataset" in s for c in demo["what_if"] for s in c["settings"])  # its datasets are given by rows
    capped = real.model_copy(update={"corpus": real.corpus.model_copy(update={"max_length": 8192})})
    cases = usual_what_ifs(scenario_of(capped), plan["datasets"])
    assert ("max_length=none",) in cases and ("max_length=8192",) not in cases


def test_a_what_if_of_the_plan_on_disk_equals_a_plan_made_for_it(real: Campaign) -> None:
    """The basis in plan.json is enough: nothing is read again."""
    plan = json.loads(json.dumps(planning.outline_plan(real, 10**13)))
    update = {
        "corpus": real.corpus.model_copy(update={"max_length": 4096}),
        "budget": real.budget.model_copy(update={"campaign_usd": 50.0}),
    }
    made = planning.outline_plan(real.model_copy(update=update), 10**13)
    asked = planning.what_if(real, plan, ["max_length=4096", "budget=50"])
    for key in ("tokens", "kept", "usd", "states", "disk", "minutes"):
        assert asked[key] == made[key], key
    assert scenario_of_json(plan["scenario"]) == scenario_of(real)


def test_the_states_of_a_trainers_own_files_are_those_that_the_hand_off_counts(real: Campaign) -> None:
    from eagle3_assets.handoff.file_sizes import export_bytes

    plan = planning.outline_plan(real, 10**13)
    asked = planning.what_if(real, plan, ["handoff_files=speculators"])["disk"]["items"]["handoff_files"]
    counted = export_bytes(real, rows=plan["kept"]["rows"], tokens=plan["kept"]["tokens"], trainer="speculators")
    assert asked == pytest.approx(counted, rel=0.001)


# ---------------------------------------------------------------------------------------------------- for people
def test_terminal_and_markdown_show_the_same_tables(
    real: Campaign, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    monkeypatch.setenv("EAGLE3_CAMPAIGN", "kimi-k2.5")
    monkeypatch.setenv("COLUMNS", "400")
    assert main.run(["plan", "--what-if", "max_length=8K", "--what-if", "layers=3"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    plan = planning.outline_plan(real, planning.free_bytes(tmp_path))
    markdown = as_markdown(plan)
    for section in sections(plan):
        assert f"### {section.title}" in markdown
        for row in section.rows:
            if row[0] in ("free", "needed in all"):
                continue  # the disk's free space may change between two looks
            assert " ".join(" ".join(row).split()) in shown and "| " + " | ".join(row) + " |" in markdown
    assert "ASKED: max_length=8K, layers=3" in shown and "from the campaign file alone" in shown
    assert len(markdown.encode()) < 20_000


def test_json_holds_the_whole_plan_and_what_was_asked(
    real: Campaign, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    monkeypatch.setenv("EAGLE3_CAMPAIGN", "kimi-k2.5")
    assert main.run(["plan", "--json", "--what-if", "layers=3"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["estimate"] is True and plan["asked"]["states"]["layers"] == 3 and plan["states"]["layers"] == 4
    assert main.run(["plan", "--approve", "5"]) == 1  # an estimate is not what one approves
    assert "there is no plan yet" in capsys.readouterr().err


def test_sizes_are_shown_in_both_units_of_the_same_rank() -> None:
    shown = {
        7.9364e12: "7.94 TB (7.22 TiB)",
        5.01e7: "50.10 MB (47.78 MiB)",
        0: "0.00 kB (0.00 KiB)",
        999e9: "999.00 GB (930.39 GiB)",
    }
    assert {n: size_text(n) for n in shown} == shown


@pytest.mark.slow
def test_the_picture_fits_into_an_event_and_its_curves_end_at_the_whole_corpus(real: Campaign) -> None:
    plan = planning.outline_plan(real, 10**13)
    png = draw_plan(plan)
    assert png.startswith(b"\x89PNG") and len(png) <= MAX_BYTES and png == draw_plan(plan)
    points = states_by_cap(plan)
    assert all(cut >= drop for _, cut, drop in points) and [c for _, c, _ in points] == sorted(c for _, c, _ in points)
    assert points[-1][1] == pytest.approx(plan["states"]["bytes"], rel=0.01)
    unknown = planning.make_plan(real, [], {}, (0.6, 2.6), 0)  # nothing to answer: still a picture
    assert draw_plan(unknown).startswith(b"\x89PNG")
