"""Where the stand-in's answers come from: a live model, a bank, replayed text."""
