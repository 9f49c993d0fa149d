"""Claims about the one verdict of a check over all partitions of its asset."""

from __future__ import annotations

from dataclasses import replace

from eagle3_assets.review.verdicts.over_all import over_all
from eagle3_assets.review.verdicts.shares import share_of_shard
from eagle3_assets.review.verdicts.table import CHECKS, verdict
from eagle3_assets.review.verdicts.verdict import Verdict

SHARE, PLAIN = "completion_equals_bill", "loss_mask"


def shard(bad: int, total: int) -> Verdict:
    return share_of_shard("tokens", SHARE, bad, total, "rows differ", examples=tuple(f"row {i}" for i in range(bad)))


def mask(passed: bool, sample: str = "a") -> Verdict:
    return verdict("tokens", PLAIN, passed, "fine" if passed else f"{sample} is wrong", examples=() if passed else (sample,))


def one(judged: dict[str, list[Verdict]], whole: bool = True) -> Verdict:
    (found,) = over_all("tokens", CHECKS["tokens"], judged, whole=whole)
    return found


def test_counts_add_up_and_the_share_is_made_anew() -> None:
    numbers = one({"00": [shard(1, 100)], "01": [shard(2, 200)]}).numbers
    assert (numbers["bad"], numbers["total"], numbers["share"], numbers["partitions"]) == (3, 300, 0.01, 2)


def test_shards_too_small_for_a_share_fail_together() -> None:
    judged = {f"{k:02}": [shard(1, 5)] for k in range(16)}
    assert all(v.passed for (v,) in judged.values())
    found = one(judged)
    assert found.stops and found.message.startswith("16 of 80 rows of the dataset (20.00%")
    assert found.message.endswith("each partition passes by itself") and found.numbers["failed_partitions"] == 0


def test_a_few_rows_of_an_asset_that_is_not_all_there_say_nothing_of_a_share() -> None:
    judged = {"00": [shard(1, 5)], "01": [shard(1, 5)]}
    assert one(judged, whole=False).passed and not one(judged, whole=True).passed


def test_the_first_partition_that_stops_is_named_with_its_words_and_examples() -> None:
    found = one({"00": [mask(True)], "03": [mask(False, "x")], "02": [mask(False, "y")]})
    assert found.message == "1 of 3 partitions pass; partition 02: y is wrong"
    assert set(found.examples) == {"x", "y"} and found.stops


def test_one_partition_speaks_for_itself() -> None:
    assert one({"07": [mask(False)]}) == mask(False)


def test_what_people_waived_stays_failed_and_stops_nothing() -> None:
    waived = replace(mask(False), severity="WARN", numbers={"waived": True})
    found = one({"00": [mask(True)], "01": [waived]})
    assert not found.passed and not found.stops
    assert one({"00": [mask(False)], "01": [waived]}).stops


def test_a_check_that_judged_nothing_has_no_verdict() -> None:
    assert over_all("tokens", CHECKS["tokens"], {}) == []
