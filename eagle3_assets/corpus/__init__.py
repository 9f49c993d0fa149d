"""`SampleRow`s → `Pack`s: merged, deduplicated, admitted by policy, shuffled, cut into partitions; the reader; the draft vocabulary.

Belongs here: merge, shuffle, archive and training form, reader, vocab map. Does not belong here: trainers' formats (`handoff`), models (`states`).
"""
