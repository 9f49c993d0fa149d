"""States and a drafter → how many tokens the target gets out of one verification (acceptance length τ), without serving anything.

Belongs here: the drafter's forward pass and its checkpoints, drafts of a chain and of a tree at every stored position, the walk that counts
what is accepted, intervals, the page, and a small trainer that runs on a CPU. Does not belong here: writing states (`states`), what trainers
read (`handoff`), serving engines (none takes part).
"""
