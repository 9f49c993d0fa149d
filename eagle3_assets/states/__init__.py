"""`Pack`s → `StatePart`s: hidden states over the exact ids.

Belongs here: the layer convention, extraction engines, the part format, the verifier. Torch is imported inside functions only.
Does not belong here: trainers' numbering and norms (`handoff` translates), Dagster.
"""

from eagle3_assets.states.reader import open

__all__ = ["open"]
