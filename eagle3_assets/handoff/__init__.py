"""Corpus and states → what trainers read as it is.

Belongs here: exporters and the dataset card. Does not belong here: deciding what a row is worth (`exact`, `review`) beyond the
final grade policy.
"""
