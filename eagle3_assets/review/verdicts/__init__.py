"""Whether an artifact passes: the table of checks, shares with their limits, verdict files, waivers."""
