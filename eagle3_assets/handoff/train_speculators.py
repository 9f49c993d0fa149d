"""`python -m eagle3_assets.handoff.train_speculators ARGS` = `speculators train ARGS`, with the backend `eagle3` registered first.

The package collects the backends' options when its configuration is imported, so ours must be there before.
Several GPUs: `torchrun --nproc_per_node=8 -m eagle3_assets.handoff.train_speculators ARGS`.
"""

from eagle3_assets.handoff import speculators_transfer  # noqa: F401  # registers

if __name__ == "__main__":
    from speculators.train.cli import main
    from speculators.train.config import TrainConfig

    main(TrainConfig.resolve())
