"""Asset checks: the verdicts of `gate`, shown in Dagster and re-runnable without paying again.

Belongs here: one separate `@multi_asset_check` per asset, right for a partition, a range and "all". Does not belong here: judging.
"""
