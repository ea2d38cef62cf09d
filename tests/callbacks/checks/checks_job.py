"""Trains a faulty module on two ranks, and writes what each has found. python checks_job.py FOLDER S..."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from helpers.two_softmaxes import TwoSoftmaxes, loader

from paceline import Trainer
from paceline.callbacks import Checks

FOLDER = Path(sys.argv[1])


def main() -> None:
    for strategy in sys.argv[2:]:
        checks = Checks()
        trainer = Trainer(
            max_epochs=2,
            devices=2,
            strategy=strategy,
            callbacks=checks,
            global_batch_size=10,
            progress=False,
            run_dir=FOLDER,
            name=strategy,
        )
        trainer.fit(TwoSoftmaxes(), loader(1, shuffle=True), loader(1))
        found = [(one.name, one.step) for one in checks.findings]
        path = FOLDER / f"{strategy}-{trainer.rank}.json"
        path.write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
