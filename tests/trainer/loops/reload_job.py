"""Trains on two ranks with loaders that are made again. python reload_job.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from test_reload_dataloaders import Growing, Net, fit


def main() -> None:
    module = Net()
    trainer, data = fit(module, data=Growing(size=2), strategy="ddp", devices=2)
    asked = [epoch for kind, epoch in data.asked if kind == "train"]
    found = {"asked": asked, "steps": trainer.global_step, "weight": module.net.weight.item()}
    (Path(sys.argv[1]) / f"{trainer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
