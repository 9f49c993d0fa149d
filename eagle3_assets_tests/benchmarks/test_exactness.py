"""`benchmarks/exactness`: its arithmetic against known values, its verdicts against ids made wrong on purpose, a tiny run end to end.
How exact the platform is, is the benchmark's own figure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks.exactness import __main__ as benchmark  # noqa: E402
from benchmarks.exactness import experiments, figures, judge, plain, purchase, rebuild, shows  # noqa: E402
from benchmarks.exactness.questions import make_questions  # noqa: E402
from eagle3_assets.targets.tokenizer import Profile, load_profile  # noqa: E402
from openrouter_standin.profiles import load_profiles  # noqa: E402
from openrouter_standin.vocabulary import Vocabulary  # noqa: E402

PROVIDERS = """
[[provider]]
name = "plain"
tag = "plain"
price_prompt = 0.5
price_completion = 2.0

[[provider]]
name = "stripper"
tag = "stripper"
price_prompt = 0.5
price_completion = 2.0
text = { strip_reasoning = "both", strip_content = "both" }

[[provider]]
name = "estimator"
tag = "estimator"
price_prompt = 0.5
price_completion = 2.0
text = { stream = { tokens_per_delta = [1, 4] } }
billing = { count_noise = 0.5 }
"""


# ---------------------------------------------------------------------------------------------------- arithmetic
# two-sided 95 % intervals as scipy.stats.beta.ppf gives them
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.308497), (10, 10, 0.691503, 1.0), (5, 10, 0.187086, 0.812914), (2995, 2995, 0.998769, 1.0), (0, 0, 0.0, 1.0)],
)
def test_clopper_pearson_is_the_exact_interval(successes: int, n: int, low: float, high: float) -> None:
    assert figures.clopper_pearson(successes, n) == pytest.approx((low, high), abs=2e-6)


def test_calibration_error_weighs_each_bar_by_its_rows() -> None:
    p, right = [0.97] * 100 + [0.5] * 100, [True] * 97 + [False] * 3 + [True] * 30 + [False] * 70
    bins = figures.reliability(p, right)
    assert [(b.n, round(b.mean_p, 2), round(b.share, 2)) for b in bins] == [(100, 0.5, 0.3), (100, 0.97, 0.97)]
    assert figures.calibration_error(bins) == pytest.approx(0.1)
    assert figures.brier([1.0, 0.0, 0.5], [True, True, False]) == pytest.approx((0 + 1 + 0.25) / 3)
    assert figures.calibration_error(figures.reliability([1.0, 0.0], [True, False])) == 0.0
    assert 0.0 < figures.chance_error(p) < 0.08


def test_risk_takes_the_surest_rows_first_and_the_worse_of_equals() -> None:
    p, right = [0.9, 0.99, 0.5, 0.9], [True, True, False, False]
    assert figures.risk_at(p, right, (0.25, 0.5, 1.0)) == [(0.25, 1, 0.0), (0.5, 2, 0.5), (1.0, 4, 0.5)]


def test_alignment_counts_what_stands_in_order() -> None:
    assert figures.matching_tokens([1, 2, 3], [1, 2, 3]) == 3
    assert figures.matching_tokens([1, 9, 3, 4], [1, 2, 3, 4]) == 3
    assert figures.matching_tokens([1, 2, 3, 4], [1, 7, 2, 3, 8, 4]) == 4
    assert figures.matching_tokens([], [1, 2]) == 0
    assert figures.matching_tokens([5, 5, 5], [5, 5]) == 2


# ---------------------------------------------------------------------------------------------------- verdicts
@pytest.fixture(scope="module")
def mini() -> Profile:
    return load_profile("kimi-mini")


def test_an_error_is_named_by_what_is_wrong_with_it(mini: Profile) -> None:
    v = Vocabulary.of(mini.encoding)
    ids = v.encode_text

    def answer(reasoning: str, content: str, call: tuple[str, str] = ("functions.f:0", "{}")) -> tuple[int, ...]:
        section = (v.section_begin, v.call_begin, *ids(call[0]), v.argument_begin, *ids(call[1]), v.call_end, v.section_end)
        return (*ids(reasoning), v.close_think, *ids(content), *section, v.im_end)

    truth = answer(" I think", "It is so.")

    def named(ours: tuple[int, ...]) -> str:
        return judge.name_error(ours, truth, True, v)

    assert named(answer("I think", "It is so.")) == "edge"
    assert named(answer(" I think", "It is no.")) == "text"
    assert named(answer(" I think", "It is so.", ("functions.f:1", "{}"))) == "ids of calls"
    assert named(answer(" I think", "It is so.", ("functions.f:0", "{ }"))) == "arguments"
    assert named(truth[:-1]) == "marker"
    letters = tuple(i for letter in " I think" for i in ids(letter))
    assert letters != ids(" I think") and named((*letters, *truth[len(ids(" I think")) :])) == "non-canonical"


def test_the_gateway_that_is_not_clean_leaves_only_ascii() -> None:
    assert purchase.without_letters('{"content": "für 你"}'.encode()) == b'{"content": "f?r ?"}'


def test_more_questions_begin_with_the_same_ones_and_no_seed_asks_another() -> None:
    assert make_questions(5, 1) == make_questions(50, 1)[:5] != make_questions(5, 2)
    kinds = make_questions(400, 0)
    assert {question.thinking for question in kinds} == {True, False} and any(question.turn == 2 for question in kinds)


# ---------------------------------------------------------------------------------------------------- a tiny run
@pytest.fixture(scope="module")
def bought(tmp_path_factory: pytest.TempPathFactory, mini: Profile) -> purchase.Purchase:
    root = tmp_path_factory.mktemp("exactness")
    own = benchmark.OWN_PROFILES.read_text()
    (root / "mine.toml").write_text(own[: own.index("[[provider]]")] + PROVIDERS)
    profiles, _, beside = benchmark.load(root / "mine.toml", "kimi-mini", 60)
    return purchase.buy(profiles, root, make_questions(60, 0), beside=beside, seed=0, per_engine=20)


@pytest.mark.slow
def test_what_is_bought_has_its_truth_and_the_rows_are_judged_by_it(bought: purchase.Purchase, mini: Profile) -> None:
    assert list(bought.folders) == ["plain", "stripper", "estimator", "(engine)", "(sglang)"]
    assert len(bought.truths) == 3 * 60 + 2 * 20
    learned = rebuild.learn(mini, rebuild.known_answers(bought))
    clock = rebuild.Clock()
    rows = rebuild.rows_of(mini, bought.answers("(engine)"), learned, clock)
    judged = judge.judge("(engine)", rows, bought.truths, bought.vocabulary)
    assert len(judged) == 20 == clock.answers and all(row.exact and row.tokens == row.matching for row in judged)
    assert 0 < clock.encoding < clock.seconds
    wrong = [rebuild.SampleRow(**{**_values(row), "input_ids": row.input_ids[1:]}) for row in rows]
    assert not any(row.exact for row in judge.judge("x", wrong, bought.truths, bought.vocabulary))
    assert experiments.placebo(rebuild.TextStage(mini, learned), bought.answers("plain"), 3).tried[1] == 3


def _values(row: rebuild.SampleRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__slots__}


def test_plain_encoding_of_a_verbatim_answer_is_exact_and_the_seeds_end_never(bought: purchase.Purchase, mini: Profile) -> None:
    right = plain.tally(mini, bought.answers("plain"), bought.truths, end=mini.end_id)
    seeds = plain.tally(mini, bought.answers("plain"), bought.truths, end=0)
    assert right.answers == 60 and right.completion_exact >= 40 and right.exact <= right.completion_exact
    assert seeds.completion_exact == 0 and seeds.billed == right.billed > 0
    assert right.absolute >= abs(right.signed)


@pytest.mark.slow
def test_the_command_runs_on_a_file_that_it_never_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = benchmark.OWN_PROFILES.read_text()
    (tmp_path / "mine.toml").write_text(own[: own.index("[[provider]]")] + PROVIDERS)
    told = tmp_path / "told.json"
    asked = ["--profiles", str(tmp_path / "mine.toml"), "--tokenizer", "kimi-mini", "--quick", "--json", str(told)]
    benchmark.main([*asked, "--answers", "20", "--engine-answers", "10", "--examples", "1"])
    said = capsys.readouterr().out
    assert "stripper" in said and "plain re-encoding" in said and "A rows are exact" in said
    report = json.loads(told.read_text())
    assert set(report["providers"]) == {"plain", "stripper", "estimator", "(engine)", "(sglang)"}
    assert report["providers"]["(engine)"]["exact"] == 10 == report["providers"]["(engine)"]["grades"]["A0"][1]


def test_the_benchmarks_own_profiles_are_the_habits_that_they_claim() -> None:
    profiles = purchase.scaled(load_profiles(benchmark.OWN_PROFILES), 40)
    kinds = {provider.name: shows.class_of(provider) for provider in profiles.provider}
    assert len(kinds) >= 30 and kinds["verbatim"] == kinds["EOS not billed"] == "verbatim"
    assert kinds["inject"] == "joined and cut" and kinds["inject all edges"] == kinds["inject inner"] == "injecting"
    assert {kinds[name] for name in ("strip both", "compact JSON", "wrong tokenizer", "lossy '?'", "stops stripping")} == {
        "other"
    }
    assert [p.change[0].after_answers for p in profiles.provider if p.change] == [20, 20, 20]
    assert [p.name for p in profiles.provider if purchase.is_streamed(p)] == [
        "drops chunks",
        "stream by token",
        "stream, inject, 1-4",
    ]
