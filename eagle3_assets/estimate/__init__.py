"""What a campaign will take before it takes it: tokens, dollars, hours, bytes, and what another setting would change.

Belongs here: the arithmetic of plan.json (`eagle3_assets.estimate.plan` is its face). Does not belong here: approvals and spending, Dagster.
"""
