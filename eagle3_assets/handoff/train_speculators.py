"""`python -m eagle3_assets.handoff.train_speculators ARGS` = `speculators train ARGS`, with the backend `eagle3` registered first.

The package collects the backends' options when its configuration is imported, so ours must be there before. Loss and steps go to `metrics.jsonl` in
--save-path, and to Dagster where the asset `drafter` started this (`training_reports.py`).
Several GPUs: `torchrun --nproc_per_node=8 -m eagle3_assets.handoff.train_speculators ARGS`.
"""

import logging
import os
from pathlib import Path

from eagle3_assets.handoff import speculators_transfer  # noqa: F401  # registers
from eagle3_assets.handoff.training_reports import MetricsHandler, reporting

if __name__ == "__main__":
    from speculators.train.cli import main
    from speculators.train.config import TrainConfig

    config = TrainConfig.resolve()
    if os.environ.get("RANK", "0") == "0":
        with reporting(Path(config.flatten()["save_path"])) as reports:
            logging.getLogger("speculators.metrics").addHandler(MetricsHandler(reports))
            main(config)
    else:
        main(config)
