"""What the stand-in knows and never serves: generations, its own ledger, the score of a reconstruction."""
