"""Freezes a backbone on two ranks, under each strategy. python freeze_job.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.freezing import Net, fit

from paceline import PacelineError
from paceline.callbacks import Checkpoint, Freeze

FOLDER = Path(sys.argv[1])


class OneGroup(Net):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05, weight_decay=0.1)


def main() -> None:
    for strategy in sys.argv[2:]:
        usual = {"size": 2, "devices": 2, "strategy": strategy, "run_dir": FOLDER / strategy}

        zero = strategy.startswith("deepspeed")

        def run(until, *callbacks, module=None, usual=usual, zero=zero, **more):
            module = module or (OneGroup() if zero else Net())
            trainer = fit(module, Freeze("backbone.*", until), *callbacks, **usual, **more)
            return trainer, trainer.strategy.weights.full_tensors(module)

        trainer, weights = run(None)
        found = {"whole run": weights}
        if zero:
            found["refused"] = []
            for until, module in (("1ep", OneGroup()), (None, Net())):
                try:
                    run(until, module=module)
                except PacelineError as error:
                    found["refused"].append(str(error))
        else:
            found["until"] = run("1ep", Checkpoint("10st", keep=None))[1]
            half = next((FOLDER / strategy / "n").glob("*/checkpoints/step-00000010"))
            found["resumed"] = run("1ep", resume=half)[1]
        if trainer.is_global_zero:
            torch.save(found, FOLDER / f"{strategy}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
