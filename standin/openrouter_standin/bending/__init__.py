"""How a simulated provider bends and bills what the model sampled. Shares no code with `exact`."""
