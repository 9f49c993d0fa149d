"""`SampleRow`s → `Pack`s: merged, deduplicated, admitted by policy, shuffled, cut into partitions; the reader; the draft
vocabulary.

Belongs here: merge, shuffle, archive and training form, reader, vocab map. Does not belong here: trainers' formats
(`handoff`), models (`states`).

Public: `eagle3_assets.corpus.open(path) -> Corpus` (see `reader.py`).
"""

from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.reader import Corpus
from eagle3_assets.corpus.reader import open_corpus as open

__all__ = ["Corpus", "Pack", "open"]
