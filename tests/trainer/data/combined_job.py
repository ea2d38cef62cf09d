"""Trains on several loaders with two ranks. python combined_job.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from test_combined_loader import LONG, SHORT, Net, fit, loader

from paceline import PacelineError
from paceline.callbacks import Checkpoint

FOLDER = Path(sys.argv[1])


def main() -> None:
    for kind in ("shuffled", "stream"):
        data = {"a": loader(LONG, 2, kind), "b": loader(SHORT[:4], 1, kind)}
        for strategy in ("ddp", "fsdp", "deepspeed_stage_2"):
            module = Net()
            saves = Checkpoint(4, keep=None)
            kept = {"run_dir": FOLDER / "runs", "name": kind} if strategy == "ddp" else {}
            trainer = fit(module, data, saves, strategy=strategy, devices=2, **kept)
            weight = trainer.strategy.weights.full_tensors(module)["net.weight"].item()
            found = {"weight": weight, "samples": trainer.counters.samples}
            (FOLDER / f"{strategy}-{kind}-{trainer.rank}.json").write_text(json.dumps(found))
    try:
        fit(Net(), {"a": loader(LONG, 2), "b": loader(SHORT, 1)}, strategy="ddp", devices=2)
    except PacelineError as error:
        (FOLDER / f"uneven-{torch.distributed.get_rank()}.txt").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
