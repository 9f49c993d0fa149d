"""`SampleRow`s → `Verdict`: may this shard go on?

Belongs here: invariants, billing statistics, the report and its pictures, quarantine, waivers, the gate.
Does not belong here: Dagster checks (`checks/` wraps these functions), mending rows (`exact`).
"""
