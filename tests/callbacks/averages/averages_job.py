"""Averages weights on two ranks, under each strategy. python averages_job.py FOLDER STRATEGY..."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.averages import Net, fit, loader

from paceline.callbacks import EMA, SWA, Checkpoint, Lookahead

FOLDER = Path(sys.argv[1])
STRATEGIES = sys.argv[2:]


def exported(trainer, module):
    tensors = trainer.strategy.weights.full_tensors(module).items()
    return {name: t.float() for name, t in tensors if not t.is_meta}


def main() -> None:
    before = FOLDER / "runs" / f"{STRATEGIES[0]}-cut" / "1" / "checkpoints" / "step-00000007"
    for strategy in STRATEGIES:
        usual = {"devices": 2, "size": 2, "strategy": strategy, "run_dir": FOLDER / "runs"}

        def run(*callbacks, module=None, usual=usual, **more):
            module = module or Net()
            trainer = fit(module, *callbacks, **usual, **more)
            return trainer, exported(trainer, module)

        trainer, weights = run(EMA(0.9), Checkpoint(), val=loader(), name=strategy)
        found = {"exported": weights, "val/loss": trainer.metrics["val/loss"]}
        cut = f"{strategy}-cut"
        run(EMA(0.9), Checkpoint(keep=None), max_steps=7, name=cut)
        found["of another"] = run(EMA(0.9), resume=before, name="other")[1]
        found["resumed"] = run(EMA(0.9), Checkpoint(), resume="latest", name=cut)[1]
        found["lookahead"] = run(Lookahead(4), name="lookahead")[1]
        averaged = {
            name: run(SWA("1ep", every="3st"), name="swa", module=Net(norm))[1]
            for name, norm in {"plain": False, "norm": True}.items()
        }
        if trainer.is_global_zero:
            torch.save(found, FOLDER / f"{strategy}-ema.pt")
            torch.save(averaged, FOLDER / f"{strategy}-swa.pt")
        trainer.ranks.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
