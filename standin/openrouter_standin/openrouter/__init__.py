"""OpenRouter's face of the stand-in: gateway, routing, refusals, faults, wire shapes."""
