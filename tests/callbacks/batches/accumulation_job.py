"""Trains on two ranks with an accumulation that changes. python accumulation_job.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from test_gradient_accumulation import Net, fit, loader

from paceline.callbacks import Checkpoint

FOLDER = Path(sys.argv[1])


def main() -> None:
    usual = {"devices": 2, "data": loader(size=2)}
    for strategy in ("ddp", "fsdp", "deepspeed_stage_2"):
        module = Net()
        trainer = fit(module, strategy=strategy, **usual)
        weight = trainer.strategy.weights.full_tensors(module)["net.weight"].item()
        found = {"steps": trainer.global_step, "weight": weight}
        (FOLDER / f"{strategy}-{trainer.rank}.json").write_text(json.dumps(found))
    fit(Net(), Checkpoint(8, keep=None), strategy="ddp", run_dir=FOLDER / "runs", name="saved", **usual)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
