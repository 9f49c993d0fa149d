"""The same answer looked at again, another way.

Belongs here: the audit against log-probabilities, the blind encoder of it, the checker that the row invariants call.
Does not belong here: the first reading (`search/`).
"""
