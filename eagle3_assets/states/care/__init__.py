"""Looking after stored states: verifying, recomputing a sample, pruning."""
