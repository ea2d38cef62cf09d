"""Trains on two ranks with loaders that are made again. python reload_job.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from test_reload_dataloaders import Growing, Net, fit
from torch.utils.data import TensorDataset

from paceline import PacelineError


class Differs(Growing):
    def _data(self, epoch):
        return TensorDataset(torch.full((8, 1), float(self.trainer.rank if epoch else 0)))


def main() -> None:
    module = Net()
    trainer, data = fit(module, data=Growing(size=2), strategy="ddp", devices=2)
    asked = [epoch for kind, epoch in data.asked if kind == "train"]
    differs = ""
    try:
        fit(Net(), data=Differs(size=2), strategy="ddp", devices=2)
    except PacelineError as error:
        differs = str(error)
    found = {
        "asked": asked,
        "differs": differs,
        "steps": trainer.global_step,
        "weight": module.net.weight.item(),
    }
    (Path(sys.argv[1]) / f"{trainer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
