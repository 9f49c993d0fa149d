"""`WireAnswer` → `Fields` → hypotheses → `Reconstruction` → `SampleRow`: exact token ids, graded by evidence.

Belongs here: tokenizer profiles, prompt rendering, the answer grammar, hypotheses and wire profiles, grades, the tokenizer probe.
Does not belong here: anything of `standin` (the bender and the unbender share no code but tokenizer files), Dagster, torch.
"""
