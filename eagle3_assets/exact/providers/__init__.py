"""What the data say of each provider: its habits, its rule of billing, its prompt form, by window of time.

Belongs here: learning, its predictive checks, the wire profile file and its pictures.
Does not belong here: one answer's ids (`search/`).
"""
