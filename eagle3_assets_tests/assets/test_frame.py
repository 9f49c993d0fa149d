"""Claims about the frame around every asset: one campaign a Dagster state, user errors as one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from eagle3_assets import definitions
from eagle3_assets.assets import frame
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import BudgetStop, CampaignError

pytestmark = pytest.mark.slow  # its worlds take seconds


def _renamed(campaign: Campaign, name: str) -> Campaign:
    return campaign.model_copy(update={"campaign": campaign.campaign.model_copy(update={"name": name})})


def test_one_dagster_state_belongs_to_one_campaign(tmp_path: Path, campaign: Campaign) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        frame.bind_dagster_state(instance, campaign)
        frame.bind_dagster_state(instance, campaign)
        with pytest.raises(
            CampaignError, match=r"belongs to campaign 'demo', not 'other' in .*; .* export DAGSTER_HOME=\$PWD/data/dagster-other"
        ):
            frame.bind_dagster_state(instance, _renamed(campaign, "other"))


def test_one_dagster_state_belongs_to_one_data_root(tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "one"))
        frame.bind_dagster_state(instance, campaign)
        monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "two"))
        with pytest.raises(CampaignError, match=r"belongs to campaign 'demo' in .*one/demo, not 'demo' in .*two/demo"):
            frame.bind_dagster_state(instance, campaign)


def test_a_user_error_becomes_a_failure_with_its_line_that_is_never_retried() -> None:
    with pytest.raises(dg.Failure) as caught, frame.readable_errors():
        raise BudgetStop("stopped on budget: 1.00 USD spent")
    assert caught.value.description == "stopped on budget: 1.00 USD spent" and caught.value.allow_retries is False
    assert frame.last_error[0].exit_code == 3


def test_a_fault_of_ours_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError), frame.readable_errors():
        _ = 1 / 0


@pytest.mark.parametrize(("program", "said"), [("dagster", True), ("pytest", False)])
def test_the_last_word_comes_after_dagsters_traceback_and_from_a_child_process_too(program: str, said: bool) -> None:
    child = (
        "import sys; sys.argv[0] = 'x'; from eagle3_assets.assets import frame; from eagle3_assets.errors import WireError\n"
        "frame.leave_last_word(WireError('no key'))"
    )
    code = (
        f"import subprocess, sys; sys.argv[0] = '/bin/{program}'\n"
        "from eagle3_assets.assets import frame\nframe.say_last_word_at_exit()\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
        "print('Error: Materialization failed.', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stderr.splitlines()[-1] == "eagle3: no key") is said


def _assets_of(*keys: str) -> list[dg.AssetsDefinition]:
    return [
        a
        for a in definitions.defs.assets or []
        if isinstance(a, dg.AssetsDefinition) and {k.to_user_string() for k in a.keys} & set(keys)
    ]


@pytest.mark.parametrize("key", ["tokens/b3_magicoder", "answers/b3_magicoder"])
def test_a_range_with_its_ends_in_the_wrong_order_is_a_failure_and_never_a_success_over_nothing(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = dg.materialize(
            _assets_of(key),
            selection=dg.AssetSelection.assets(key.split("/")),
            instance=instance,
            resources=dict(definitions.defs.resources or {}),
            tags={"dagster/asset_partition_range_start": "15", "dagster/asset_partition_range_end": "00"},
            raise_on_error=False,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
    assert not result.success and "range 15...00 holds no partition" in str(frame.last_error[0])
    assert "00...15" in str(frame.last_error[0])
