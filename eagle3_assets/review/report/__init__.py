"""The validation report of a dataset: figures, pictures, pages.

Belongs here: counting, drawing, laying out.
Does not belong here: what a row must hold (`rows/`), the gate (`verdicts/`).
"""
